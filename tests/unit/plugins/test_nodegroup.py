"""The nodegroup plugin."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.refusal import Code
from capcard_sched.testing import Harness, hooks_of

GROUP = "volcano.sh/nodegroup-name"
LIMITS = "volcano.sh/nodegroup-resource-limits"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NO_LABEL = "node group label not found"
NO_AFFINITY = "node group affinity not specified"
NOT_SATISFIED = "node does not satisfy the node group affinity"
OVER = "node group resource limit exceeded"


def _conf(arguments: str = "", switches: str = "") -> str:
    entry = f"{{name: nodegroup, arguments: {{{arguments}}}{switches}}}"
    return f'actions: "allocate"\ntiers: [{{plugins: [{entry}]}}]\n'


HIERARCHY = _conf(switches=", enableHierarchy: true")


def affinity(
    required: str = "", preferred: str = "", anti_required: str = "", anti_preferred: str = ""
) -> dict[str, Any]:
    """Groups as space-separated names."""
    return {
        "nodeGroupAffinity": {REQUIRED: required.split(), PREFERRED: preferred.split()},
        "nodeGroupAntiAffinity": {REQUIRED: anti_required.split(), PREFERRED: anti_preferred.split()},
    }


def cluster(conf: str = _conf(), **queue: Any) -> Harness:
    """Nodes of groups g and h, and one of none."""
    h = Harness(conf)
    for name in ("g", "h"):
        h.node(name, labels={GROUP: name})
    h.node("none")
    h.queue("q", **queue)
    h.group("job")
    h.pod("p", group="job")
    return h


def judged(h: Harness, name: str = "p", queue: str = "q") -> dict[str, str]:
    """The reason per node, "" where the pod may go; refusals are such that eviction cannot help."""
    session = h.session()
    signature = session.engine.signature(session.queues[queue], h.task(name))
    plugin = h.plugin("nodegroup")
    found = {}
    for row, node in enumerate(session.nodes.nodes):
        diagnosis = Diagnosis(1)
        hooks_of(plugin, signature).diagnose(session.rows(np.array([row])), diagnosis)
        found[node.name] = ", ".join(diagnosis.reasons)
        assert diagnosis.codes[0] == (Code.UNRESOLVABLE if diagnosis.reasons else 0)
    return found


def scored(h: Harness, queue: str = "q") -> dict[str, float]:
    session = h.session()
    signature = session.engine.signature(session.queues[queue], h.task("p"))
    answer = h.plugin("nodegroup").score_groups(signature, session.all_rows())
    scores = [0.0] * len(session.nodes) if answer is None else answer.tolist()
    return dict(zip([node.name for node in session.nodes.nodes], scores, strict=True))


@pytest.mark.parametrize(
    ("groups", "reason", "score"),
    [
        pytest.param({"required": "g"}, "", 100, id="14.1"),
        pytest.param({"required": "g", "preferred": "g"}, "", 150, id="14.2"),
        pytest.param({"preferred": "g"}, "", 50, id="14.3"),
        pytest.param({"anti_preferred": "g", "required": "h"}, "", -1, id="14.4"),
        pytest.param({"required": "g", "anti_required": "g"}, NOT_SATISFIED, 100, id="14.5"),
        pytest.param({"anti_required": "h"}, NOT_SATISFIED, 0, id="14.6 only anti-affinity: no group at all (quirk)"),
        pytest.param({"required": "h"}, NOT_SATISFIED, 0, id="another group"),
        pytest.param({"anti_required": "g", "anti_preferred": "g"}, "", -1, id="avoided beats forbidden"),
        pytest.param({"required": "g", "anti_preferred": "g"}, "", -1, id="avoided beats required in the score"),
    ],
)
def test_groups(groups: dict[str, str], reason: str, score: float) -> None:
    h = cluster(affinity=affinity(**groups))
    found = judged(h)
    assert (found["g"], scored(h)["g"]) == (reason, score)
    assert (found["none"], scored(h)["none"]) == (NO_LABEL, 0)


@pytest.mark.parametrize(
    ("strict", "given", "expected"),
    [
        ("true", None, {"g": NO_AFFINITY, "h": NO_AFFINITY, "none": NO_LABEL}),
        ("false", None, {"g": NO_AFFINITY, "h": NO_AFFINITY, "none": ""}),
        ("false", affinity(), {"g": NO_AFFINITY, "h": NO_AFFINITY, "none": ""}),
        ("false", {}, {"g": NO_AFFINITY, "h": NO_AFFINITY, "none": ""}),
        ("true", affinity("g"), {"g": "", "h": NOT_SATISFIED, "none": NO_LABEL}),
        ("false", affinity("g"), {"g": "", "h": NOT_SATISFIED, "none": NO_LABEL}),
    ],
)
def test_strictness(strict: str, given: dict[str, Any] | None, expected: dict[str, str]) -> None:
    assert judged(cluster(_conf(f"strict: {strict}"), affinity=given)) == expected


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"anti_required": "h"}, {"g": "", "h": NOT_SATISFIED, "none": NO_LABEL}),
        ({"anti_preferred": "h"}, {"g": "", "h": "", "none": NO_LABEL}),
        ({"required": "g", "anti_required": "x"}, {"g": "", "h": NOT_SATISFIED, "none": NO_LABEL}),
    ],
)
def test_anti_affinity_alone_may_admit_the_others(groups: dict[str, str], expected: dict[str, str]) -> None:
    assert judged(cluster(_conf("antiAffinityAdmitsOthers: true"), affinity=affinity(**groups))) == expected


def test_preferred_groups_are_scored_in_order_if_enabled() -> None:
    groups = affinity(preferred="g x h y")
    assert scored(cluster(affinity=groups)) == {"g": 50, "h": 50, "none": 0}
    assert scored(cluster(_conf("enablePreferredOrder: true"), affinity=groups)) == {"g": 50, "h": 25, "none": 0}


# --- hierarchy ------------------------------------------------------------------------------------------------------


def test_a_queue_inherits_from_the_nearest_ancestor_that_names_groups() -> None:
    h = cluster(HIERARCHY, parent="mid")
    h.queue("mid", parent="top")
    h.queue("top", affinity=affinity("h"))
    h.queue("root", affinity=affinity("g"))
    assert judged(h) == {"g": NOT_SATISFIED, "h": "", "none": NO_LABEL}
    h.queue("mid", parent="")
    assert judged(h) == {"g": "", "h": NOT_SATISFIED, "none": NO_LABEL}, "without a parent it is under root"
    h.queue("q", affinity=affinity("h"))
    assert judged(h)["h"] == "", "its own groups come first"


def test_without_the_switch_nothing_is_inherited() -> None:
    h = cluster(parent="top")
    h.queue("top", affinity=affinity("g"))
    assert judged(h)["g"] == NO_AFFINITY


@pytest.mark.parametrize(
    ("parents", "detail"),
    [
        ({"q": "gone"}, "parent <gone> of Queue <q> does not exist"),
        ({"q": "a", "a": "b", "b": "a"}, "Queue <a> is its own ancestor"),
        ({"q": "q"}, "Queue <q> is its own ancestor"),
    ],
)
def test_a_broken_chain_is_reported_and_inherits_nothing(parents: dict[str, str], detail: str) -> None:
    h = cluster(HIERARCHY)
    for name, parent in parents.items():
        h.queue(name, parent=parent)
    h.step()
    assert judged(h)["g"] == NO_AFFINITY
    assert ("InvalidQueueParent", f"Queue <q> inherits no node groups: {detail}") in h.event_messages("Queue", "q")


# --- changes --------------------------------------------------------------------------------------------------------


def test_a_change_of_the_queue_or_of_a_label_counts_at_once() -> None:
    h = cluster(affinity=affinity("x"))
    h.settle()
    assert h.binds == {}
    h.queue("q", affinity=affinity("h"))
    h.step()
    assert h.binds == {"p": "h"}
    h.pod("p2", group="job")
    h.queue("q", affinity=affinity("late"))
    h.settle()
    assert "p2" not in h.binds
    h.node("none", labels={GROUP: "late"})
    h.step()
    assert h.binds["p2"] == "none"


def test_queues_with_equal_affinity_share_a_signature() -> None:
    h = cluster(affinity=affinity("g"))
    h.queue("q2", affinity=affinity("g"))
    h.queue("q3", affinity=affinity("h"))
    session = h.session()
    ids = [session.engine.signature(session.queues[name], h.task("p")).id for name in ("q", "q2", "q3")]
    assert ids == [0, 0, 1]


# --- limits ---------------------------------------------------------------------------------------------------------


def limited(limits: Any, **pods: str) -> Harness:
    """A queue with groups g and h and limits, with running pods of one cpu on nodes by name."""
    text = limits if isinstance(limits, str) else json.dumps(limits)
    h = cluster(affinity=affinity("g h"), annotations={LIMITS: text})
    for name, node in pods.items():
        h.pod(name, group="job", node=node)
    return h


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({"g": {"cpu": "2"}}, {"g": OVER, "h": ""}, id="full"),
        pytest.param({"g": {"cpu": "3"}}, {"g": "", "h": ""}, id="exactly enough"),
        pytest.param({"g": {"cpu": "2999m"}}, {"g": OVER, "h": ""}, id="a thousandth too little"),
        pytest.param({"g": {"memory": "0"}}, {"g": "", "h": ""}, id="only requested resources count"),
        pytest.param({"h": {"cpu": 0}, "g": {"cpu": 3}}, {"g": "", "h": OVER}, id="numbers, and a closed group"),
        pytest.param({"x": {"cpu": "0"}}, {"g": "", "h": ""}, id="a group without nodes"),
    ],
)
def test_limits_per_group(limits: Any, expected: dict[str, str]) -> None:
    found = judged(limited(limits, a="g", b="g"))
    assert {name: found[name] for name in expected} == expected


def test_placements_of_the_session_count_and_those_taken_back_do_not() -> None:
    h = limited({"g": {"cpu": "2"}}, a="g")
    h.pod("p2", group="job")
    session = h.session()
    plugin = h.plugin("nodegroup")
    signature = session.engine.signature(session.queues["q"], h.task("p"))
    assert hooks_of(plugin, signature).reads_other_nodes

    def full() -> bool:
        diagnosis = Diagnosis(len(session.nodes))
        plugin.filter_by_limits(signature, session.all_rows(), diagnosis)
        return OVER in diagnosis.reasons

    assert not full()
    statement = Statement(session)
    statement.allocate(h.job("job"), [h.task("p2")], [session.nodes.by_name["g"]])
    assert full()
    statement.evict(h.task("a"), "test")
    assert not full()
    statement.discard()
    assert not full()


def test_a_gang_never_takes_more_than_the_limit() -> None:
    h = limited({"g": {"cpu": "2"}, "h": {"cpu": "1"}})
    for index in range(5):
        h.pod(f"p{index}", group="job")
    h.settle()
    assert sorted(h.binds.values()) == ["g", "g", "h"]


def test_another_queue_has_limits_of_its_own() -> None:
    h = limited({"g": {"cpu": "2"}}, a="g", b="g")
    h.queue("q2", affinity=affinity("g"))
    assert judged(h, queue="q2")["g"] == ""


@pytest.mark.parametrize("text", ["{", "[]", '{"g": 1}', '{"g": {"cpu": "much"}}', '{"g": {"cpu": [1]}}', "[" * 9999])
def test_invalid_limits_close_the_groups_and_are_reported(text: str) -> None:
    h = limited(text)
    h.step()
    found = judged(h)
    assert (found["g"], found["h"]) == ("node group resource limit annotation invalid",) * 2
    ((reason, message),) = h.event_messages("Queue", "q")
    assert reason == "InvalidNodeGroupLimits"
    assert message.startswith("Invalid annotation volcano.sh/nodegroup-resource-limits: ")
    assert len(message) > len("Invalid annotation volcano.sh/nodegroup-resource-limits: ")
