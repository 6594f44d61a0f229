"""reclaim: evictions across queues, gang-consistently. Vectors have the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from capcard_sched.framework.api.plugin import VETO, Plugin, VictimDecision
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.model.deltas import EvictFailed
from capcard_sched.model.job import Task
from capcard_sched.model.refusal import Refusal
from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded
from tests.evictions import evicted
from tests.vectors.plugins import PLUGINS

_PREEMPTABLE = "volcano.sh/preemptable"
_CONF = """
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins: [{name: priority}, {name: gang, enableReclaimable: false}]
- plugins: [{name: predicates}, {name: tide}, {name: nodeorder}]
"""


def _taken(*names: str) -> Harness:
    """Pods of 4 cards of queue qt on n1 and n2, by turns, and r of queue qi for the cards of one."""
    h = Harness(_CONF, run=True, plugins=PLUGINS)
    h.queue("qi", reclaimable=False)
    h.queue("qt")
    for name in sorted(names):  # one age each, in any order of arrival
        h._meta(name, "default")
        h._meta(f"{name}-0", "default")
    for number in range(len(names) // 2):
        h.gpu_node(f"n{number + 1}")
    for name in names:
        h.group(name, queue="qt", phase="Running")
        h.pod(f"{name}-0", group=name, cards=4, node=f"n{1 + 'abcd'.index(name) % (len(names) // 2)}")
    h.group("r", queue="qi", min_member=len(names) // 2)
    for number in range(len(names) // 2):
        h.pod(f"r-{number}", group="r", cards=4, card="NVIDIA-H200")
    return h


def test_the_same_cluster_gives_the_same_victims_in_any_order() -> None:
    assert evicted(_taken(*"abcd").step()) == evicted(_taken(*"dcba").step()) == ["c-0", "d-0"]


def test_a_refused_eviction_is_not_tried_again_at_once() -> None:
    h = _taken("a", "b")
    for victim in ("b-0", "a-0"):
        assert evicted(h.step()) == [victim]
        h.apply(EvictFailed("default", victim, f"default-{victim}-uid", "disruption budget"))
    assert evicted(h.step()) == []
    assert h.event_messages("Pod", "r-0")[-1] == ("ReclaimFailed", "0/1 nodes can be reclaimed: 2 eviction-refused")


def test_an_evicted_pod_is_explained_by_its_reclaimer() -> None:
    h = _taken("a", "b")
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("b")).evicted
    assert [(pod.pod, pod.by, pod.action) for pod in found] == [("b-0", "default/r-0", "reclaim")]


@pytest.mark.parametrize("bound", [False, True])
def test_a_nomination_ends_with_its_pod_or_its_binding(bound: bool) -> None:
    h = _taken("a", "b")
    h.step()
    assert len(h.last_session.carry_over.nominations) == 1
    h.delete_pod("b-0" if bound else "r-0")
    h.step()
    assert h.binds == ({"r-0": "n1"} if bound else {})
    assert not h.last_session.carry_over.nominations


def test_nominations_survive_a_change_of_the_conf() -> None:
    h = _taken("a", "b")
    assert evicted(h.step()) == ["b-0"]
    h.reconfigure(_CONF)
    h.delete_pod("b-0")
    h.pod("b-1", group="b", cards=4, card="NVIDIA-H200", priority=9)
    h.step()
    assert h.binds == {"r-0": "n1"}


def test_w10_a_veto_in_a_lower_tier_is_final() -> None:
    class Permissive(Plugin):
        name = "permissive"

        def reclaimable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
            return list(candidates)

    class Budget(Plugin):
        name = "budget"
        answer: ClassVar[VictimDecision | None] = None

        def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision | None:
            return self.answer

    conf = """
actions: "allocate, reclaim"
tiers: [{plugins: [{name: gang, enableReclaimable: false}, {name: permissive}]}, {plugins: [{name: budget}]}]
"""
    for answer, victims in [
        (None, ["b-w-0"]),
        (VictimDecision({"default-b-w-0-uid": ""}), ["a-w-0"]),
        (VictimDecision({}, ()), ["b-w-0"]),
        (VETO, []),
    ]:
        Budget.answer = answer
        h = Harness(conf, run=True, plugins=[Permissive, Budget])
        h.node("n1", cpu="4")
        h.queue("q")
        h.queue("p", reclaimable=False)
        for name in ("a", "b"):
            h.group(name, queue="q", min_member=1, phase="Running")
            h.pod(f"{name}-w-0", group=name, node="n1", requests={"cpu": "2"})
        h.group("r", queue="p")
        h.pod("r-w-0", group="r", requests={"cpu": "2"})
        assert evicted(h.step()) == victims


class _Everyone(Plugin):
    """Every job may evict every other, except as the class attributes restrict."""

    name = "everyone"

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
        return list(candidates)

    preemptable = reclaimable


def _queue_q(hook: str, answer: object) -> dict[str, object]:
    """A hook with an answer for the victim's queue `q` alone, by job or queue."""
    return {hook: lambda _, subject, *more: answer if "q" in (subject.name, getattr(subject, "queue", "")) else None}


_OVER = Refusal("preemptive", "everyone", "Unschedulable", "over")
_TAKEN_BACK = [
    pytest.param("reclaim", {}, {}, [], id="across queues"),
    pytest.param("reclaim", {"back": False}, {}, ["a-w-0"], id="the queue of the preemptor is not reclaimable"),
    pytest.param("reclaim", {_PREEMPTABLE: "false"}, {}, ["a-w-0"], id="the preemptor is not preemptable"),
    pytest.param("reclaim", {}, _queue_q("overused", True), ["a-w-0"], id="the victim's queue is overused"),
    pytest.param("reclaim", {}, _queue_q("may_reclaim", False), ["a-w-0"], id="the victim's job may not reclaim"),
    pytest.param("reclaim", {}, _queue_q("preemptive", _OVER), ["a-w-0"], id="the victim's queue is over its quota"),
    pytest.param("preempt", {}, {}, [], id="within a queue"),
    pytest.param(
        "preempt", {_PREEMPTABLE: "false"}, {}, ["a-w-0"], id="within a queue the preemptor is not preemptable"
    ),
    pytest.param("preempt", {"least": 0}, {}, ["a-w-0"], id="within a queue the victim's job keeps its minimum"),
]


@pytest.mark.parametrize("action, settings, hooks, victims", _TAKEN_BACK)
def test_w34_a_pod_that_could_reclaim_the_capacity_back_is_not_evicted(
    action: str, settings: dict[str, Any], hooks: dict[str, object], victims: list[str]
) -> None:
    conf = f"""
actions: "allocate, {action}"
tiers:
- plugins: [{{name: gang, enableReclaimable: false, enablePreemptable: false}}]
- plugins: [{{name: everyone}}]
"""
    h = Harness(conf, run=True, plugins=[type("Everyone", (_Everyone,), hooks)])
    h.node("n1", cpu="2")
    h.queue("q")
    h.queue("p", reclaimable=settings.get("back", True))
    h.group("a", queue="q", phase="Running", min_member=settings.get("least", 1))
    h.pod("a-w-0", group="a", node="n1", requests={"cpu": "2"})
    h.group("r", queue="q" if action == "preempt" else "p")
    annotations = {_PREEMPTABLE: settings[_PREEMPTABLE]} if _PREEMPTABLE in settings else {}
    h.pod("r-w-0", group="r", requests={"cpu": "2"}, annotations=annotations)
    assert evicted(h.step()) == victims
    if action == "reclaim":
        emitted = [text for reason, text in h.event_messages("Pod", "r-w-0") if reason == "ReclaimFailed"]
        assert emitted == ([] if victims else ["0/1 nodes can be reclaimed: 1 would-take-back"])
    assert recorded(h.state) == rebuilt(h.state)
