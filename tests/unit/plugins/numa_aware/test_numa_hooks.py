"""The hooks of numa-aware over a cluster."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.model.refusal import Code
from capcard_sched.plugins.numa_aware.plugin import normalised
from capcard_sched.testing import Harness, hooks_of
from tests.unit.plugins.numa_aware.machines import (
    BEST_EFFORT,
    DECISION,
    POLICY,
    RESTRICTED,
    SINGLE,
    cluster,
    conf,
    container,
    numatopology,
    whole,
)

REFUSED = "container main cannot be assigned by numa"


def judged(h: Harness, name: str = "p") -> dict[str, tuple[str, Code]]:
    """Reason and code per node that is refused."""
    session = h.session()
    signature = session.engine.signature(session.queues["q"], h.task(name))
    plugin, found = h.plugin("numa-aware"), {}
    for row, node in enumerate(session.nodes.nodes):
        diagnosis = Diagnosis(1)
        hooks_of(plugin, signature).diagnose(session.rows(np.array([row], dtype=np.intp)), diagnosis)
        if diagnosis.reasons:
            (reason,) = diagnosis.reasons
            found[node.name] = (reason, Code(int(diagnosis.codes[0])))
    h.state.changes.everything = True  # no action has run: a step must still do its work
    return found


# --- vectors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "weight", "scores"),
    [
        pytest.param([1, 2, 2], 1, [50, 0, 0], id="20.1"),
        pytest.param([1, 1], 1, [0, 0], id="20.2"),
        pytest.param([0, 0], 1, [100, 100], id="none-in-use"),
        pytest.param([1, 2, 3], 1, [67, 34, 0], id="rounded-down"),
        pytest.param([1, 2, 2], 10, [500, 0, 0], id="weighted"),
        pytest.param([], 1, [], id="no-candidates"),
    ],
)
def test_vector_scores(spans: list[int], weight: int, scores: list[int]) -> None:
    assert normalised(np.array(spans, dtype=np.float64), weight).tolist() == scores


@pytest.mark.parametrize(
    ("free", "policy", "given"),
    [
        pytest.param("0-2,8-13", SINGLE, {"1": 6}, id="20.3"),
        pytest.param("0-2,8-11", RESTRICTED, None, id="20.4"),
        pytest.param("0-2,8-11", BEST_EFFORT, {"0": 3, "1": 3}, id="20.5"),
    ],
)
def test_vector_free_cpus(free: str, policy: str, given: dict[str, int] | None) -> None:
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", free, policy))
    whole(h, "p", 6, policy)
    if given is None:
        assert judged(h) == {"n": (REFUSED, Code.UNRESOLVABLE)}
        return
    h.step()
    assert h.binds == {"p": "n"}
    numa = json.loads(h.bind_annotations["p"][DECISION])["numa"]
    assert set(numa) == set(given)
    assert sum(int(amounts["cpu"]) for amounts in numa.values()) == 6


def test_vector_20_1_in_a_session() -> None:
    h = cluster()
    for name, free in (("a", "0-2,8-10"), ("b", "0-5,8-10"), ("c", "0-2,8-11")):
        h.node(name)
        h.apply(numatopology(name, free, BEST_EFFORT))
    whole(h, "p", 6, BEST_EFFORT)
    session = h.session()
    signature = session.engine.signature(session.queues["q"], h.task("p"))
    assert h.plugin("numa-aware").score_numa_nodes(signature, session.all_rows()).tolist() == [0, 50, 0]


# --- pods that the checks apply to ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        (None, "numa info is empty"),
        (numatopology("n", "0-15", RESTRICTED, manager="none"), "cpu manager policy isn't static"),
        (numatopology("n", "0-15", RESTRICTED, manager=""), "cpu manager policy isn't static"),
        (
            numatopology("n", "0-15", RESTRICTED),
            "task topology policy[single-numa-node] is different with node[restricted]",
        ),
        (numatopology("n", "0-15", "none"), "task topology policy[single-numa-node] is different with node[none]"),
        (numatopology("n", "0-15", ""), "task topology policy[single-numa-node] is different with node[]"),
        (numatopology("n", None), "no topo information"),
        (numatopology("n", ""), "cpu allocatable map is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pod_with_a_policy_gets_the_reason_of_each_node(obj: Any, reason: str) -> None:
    h = cluster()
    h.node("n")
    if obj is not None:
        h.apply(obj)
    whole(h, "p", 1, SINGLE)
    assert judged(h) == {"n": (reason, Code.ERROR)}
    h.step()
    assert h.pod_message("p") == f"0/1 nodes are unavailable: 1 {reason}."


@pytest.mark.parametrize("named_policy", ["", "none"])
@pytest.mark.parametrize(
    "obj",
    [
        None,
        numatopology("n", "", manager="none"),
        numatopology("n", "", "none"),
        numatopology("n", "", ""),
        numatopology("n", None),
    ],
)
def test_a_pod_without_a_policy_fits_nodes_without_cpu_alignment(obj: Any, named_policy: str) -> None:
    h = cluster()
    h.node("n")
    if obj is not None:
        h.apply(obj)
    whole(h, "p", 4, named_policy)
    assert judged(h) == {}
    h.step()
    assert (h.binds, h.bind_annotations["p"]) == ({"p": "n"}, {})


def test_a_pod_without_a_policy_is_checked_by_the_policy_of_the_node_and_not_scored() -> None:
    h = cluster()
    for name, free, policy in (("a", "0-2,8-10", SINGLE), ("b", "0-2,8-10", BEST_EFFORT), ("c", "0-5,8-10", SINGLE)):
        h.node(name)
        h.apply(numatopology(name, free, policy))
    whole(h, "p", 6)
    assert judged(h) == {"a": (REFUSED, Code.UNRESOLVABLE)}
    session = h.session()
    signature = session.engine.signature(session.queues["q"], h.task("p"))
    assert hooks_of(h.plugin("numa-aware"), signature).comparing_scores(session.all_rows()) is None


@pytest.mark.parametrize(
    "amounts",
    [
        {"requests": {"cpu": "6", "memory": "1Gi"}},
        {"requests": {"cpu": "6"}, "limits": {"cpu": "6"}},
        {"requests": {"cpu": "6", "memory": "1Gi"}, "limits": {"cpu": "7", "memory": "1Gi"}},
    ],
)
def test_a_pod_that_is_not_guaranteed_is_not_judged(amounts: dict[str, Any]) -> None:
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", ""))
    h.pod("p", annotations={POLICY: SINGLE}, **amounts)
    assert judged(h) == {}
    h.step()
    assert (h.binds, h.bind_annotations["p"]) == ({"p": "n"}, {})


def test_fractions_of_cpus_take_none_but_their_policy_counts() -> None:
    h = cluster()
    for name, policy in (("a", SINGLE), ("b", RESTRICTED)):
        h.node(name)
        h.apply(numatopology(name, "0", policy))
    whole(h, "p", "1500m", RESTRICTED)
    assert [*judged(h)] == ["a"]
    h.step()
    assert (h.binds, h.bind_annotations["p"]) == ({"p": "b"}, {})


def test_only_tasks_that_need_cpu_alignment_have_a_private_signature() -> None:
    h = cluster()
    h.node("n")
    whole(h, "whole", 2)
    whole(h, "named", "1500m", SINGLE)
    h.pod("plain")

    def private() -> list[str]:
        session, plugin = h.session(), h.plugin("numa-aware")
        queue, names = session.queues["q"], ("whole", "named", "plain")
        return [name for name in names if hooks_of(plugin, session.engine.signature(queue, h.task(name))).reads_pods]

    assert private() == ["named"], "without CPU alignment whole CPUs are like others"
    h.apply(numatopology("n", "0-15"))
    assert private() == ["whole", "named"]


def test_better_best_effort_is_refused_where_too_few_cpus_are_free() -> None:
    """Better: Volcano lets the pod go there without CPUs, and the kubelet then rejects it."""
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", "0-2,8-9", BEST_EFFORT))
    whole(h, "p", 6, BEST_EFFORT)
    assert judged(h) == {"n": (REFUSED, Code.UNRESOLVABLE)}


# --- several containers -----------------------------------------------------------------------------------------------


def test_containers_are_assigned_one_after_the_other_and_the_one_that_fails_is_named() -> None:
    h = cluster()
    h.node("n")
    h.node("m")
    h.apply(numatopology("n", "0-15"), numatopology("m", "0-4,8-11"))
    containers = [container("first", 5), container("half", "500m"), container("second", 5)]
    h.pod("p", annotations={POLICY: SINGLE}, containers=containers)
    assert judged(h) == {"m": ("container second cannot be assigned by numa", Code.UNRESOLVABLE)}
    h.step()
    assert json.loads(h.bind_annotations["p"][DECISION]) == {"numa": {"0": {"cpu": "5"}, "1": {"cpu": "5"}}}


def test_sidecars_get_cpus_before_containers_and_init_containers_that_end_do_not_count() -> None:
    """Better: Volcano plans ordinary containers only, and the kubelet then assigns more CPUs than planned."""
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", "0-15"))
    init = [container("setup", 8), container("proxy", 3, restartPolicy="Always")]
    h.pod("p", annotations={POLICY: SINGLE}, initContainers=init, containers=[container("main", 6)])
    h.step()
    assert json.loads(h.bind_annotations["p"][DECISION]) == {"numa": {"0": {"cpu": "3"}, "1": {"cpu": "6"}}}


def test_a_node_that_needs_fewer_numa_nodes_for_several_containers_is_better() -> None:
    h = cluster()
    for name, free in (("a", "0-3,8-11"), ("b", "0-7")):
        h.node(name)
        h.apply(numatopology(name, free, RESTRICTED))
    h.pod("p", annotations={POLICY: RESTRICTED}, containers=[container("x", 4), container("y", 4)])
    h.step()
    assert h.binds == {"p": "b"}


# --- reserved CPUs ----------------------------------------------------------------------------------------------------


def test_reserved_cpus_are_rounded_up_and_never_assigned() -> None:
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", "0-15", reserved="1500m"))
    for name, cpus in (("p", 8), ("r", 7), ("s", 6)):
        whole(h, name, cpus, SINGLE)
    h.step()
    assert h.binds == {"p": "n", "s": "n"}, "of the first NUMA node 6 CPUs are left"


# --- in a session -----------------------------------------------------------------------------------------------------


def test_a_gang_takes_cpus_pod_by_pod() -> None:
    h = cluster()
    for name in ("a", "b"):
        h.node(name)
        h.apply(numatopology(name, "0-15"))
    h.group("gang", min_member=4)
    for index in range(4):
        whole(h, f"p{index}", 5, SINGLE, group="gang")
    h.step()
    assert sorted(h.binds.values()) == ["a", "a", "b", "b"]
    whole(h, "late", 5, SINGLE)
    h.step()
    assert "late" not in h.binds
    assert h.pod_message("late") == f"0/2 nodes are unavailable: 2 {REFUSED}."


def test_a_gang_that_is_not_placed_whole_gives_every_cpu_back() -> None:
    h = cluster(conf(others=", {name: gang}"))
    h.node("n")
    h.apply(numatopology("n", "0-15"))
    h.group("gang", min_member=3)
    for index in range(3):
        whole(h, f"p{index}", 6, SINGLE, group="gang")
    h.step()
    assert h.binds == {}
    whole(h, "small", 8, SINGLE)
    h.step()
    assert h.binds == {"small": "n"}


def test_one_class_is_planned_by_machine() -> None:
    """The amounts of both nodes are alike; only one of them has the CPUs side by side."""
    h = cluster()
    for name, free in (("a", "0-2,8-10"), ("b", "0-5")):
        h.node(name, cpu="6")
        h.apply(numatopology(name, free))
    whole(h, "p", 6, SINGLE)
    h.step()
    assert h.binds == {"p": "b"}


def test_w28_cpu_sets_are_handed_over_per_pod() -> None:
    """Two pods on one node have disjoint sets; the end of one keeps the other's."""
    h = cluster()
    h.node("n")
    h.apply(numatopology("n", "0-15"))
    for name in ("p", "r"):
        whole(h, name, 6, SINGLE)
    h.step()
    assert {h.bind_annotations[name][DECISION] for name in ("p", "r")} == {
        '{"numa":{"0":{"cpu":"6"}}}',
        '{"numa":{"1":{"cpu":"6"}}}',
    }
    h.delete_pod("p")
    for name in ("s", "t"):
        whole(h, name, 6, SINGLE)
    h.step()
    assert len({"s", "t"} & h.binds.keys()) == 1


# --- configuration ----------------------------------------------------------------------------------------------------


def test_with_its_switches_off_it_rejects_nothing_and_still_counts() -> None:
    h = cluster(conf(switches=", enablePredicate: false, enableNodeOrder: false"))
    h.node("n")
    h.apply(numatopology("n", "0-2"))
    for name in ("p", "r"):
        whole(h, name, 3, SINGLE)
    h.step()
    assert set(h.binds) == {"p", "r"}
    assert [bool(h.bind_annotations[name]) for name in ("p", "r")] == [True, False], "there was nothing left for one"
