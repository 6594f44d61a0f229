"""ClusterState: undecodable objects keep their last known facts, and unknown usage closes its node."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model import deltas
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.status import PodGroupPhase, TaskStatus
from capcard_sched.testing import Harness
from tests.accounting import CheckedState, gone
from tests.objects import group, node, pod, queue

PROBLEM = "spec: bad"
CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{plugins: [{name: gang}, {name: predicates}, {name: nodeorder}]}]
"""


def _undecodable(kind: Any, name: str, uid: str = "", node: str = "") -> deltas.ObjectUnreadable:
    namespace = "default" if kind in ("Pod", "PodGroup") else ""
    return deltas.ObjectUnreadable(ObjectRef(kind, namespace, name, uid), PROBLEM, node)


def _capacity(state: CheckedState) -> dict[str, dict[str, int]]:
    table = state.nodes
    return {name: state.columns.amounts(table.allocatable[one.row]) for name, one in table.by_name.items()}


OFFERED = {"cpu": 8000, "memory": 16 * 1024**3, "pods": 110}


def test_an_undecodable_bound_pod_keeps_its_usage() -> None:
    state = CheckedState(node("n"), queue("q"), group("g"), pod("p", group="g", node="n"))
    state.apply(_undecodable("Pod", "p", "p-uid", "n"))
    task = state.tasks["p-uid"]
    assert (task.status, task.node, state.jobs["default/g"].bound) == (TaskStatus.RUNNING, state.nodes.by_name["n"], 1)
    assert state.columns.amounts(state.queues["q"].allocated) == {"cpu": 1000, "pods": 1}
    assert list(state.problems.values()) == [PROBLEM]


def test_an_undecodable_podgroup_queue_and_node_keep_their_facts() -> None:
    state = CheckedState(node("n"), queue("q", capability={"cpu": "4"}), group("g", phase="Inqueue", minMember=2))
    state.apply(*(_undecodable(kind, name) for kind, name in (("PodGroup", "g"), ("Queue", "q"), ("Node", "n"))))
    job = state.jobs["default/g"]
    assert (job.queue, job.phase, job.min_available) == ("q", PodGroupPhase.INQUEUE, 2)
    assert (state.queues["q"].capability, list(state.schedulable)) == ({"cpu": 4000}, ["default/g"])
    assert _capacity(state) == {"n": OFFERED}
    assert len(state.problems) == 3


def test_an_undecodable_pending_pod_is_not_scheduled_and_stays_a_member_of_its_job() -> None:
    state = CheckedState(queue("q"), group("g"), pod("p", group="g"))
    job = state.jobs["default/g"]
    state.apply(_undecodable("Pod", "p", "p-uid"))
    assert (list(job.pending), job.valid_tasks) == ([], 1)
    state.apply(pod("p", group="g"))
    assert (list(job.pending), state.problems) == (["p-uid"], {})


def test_a_pending_pod_that_is_bound_when_it_gets_undecodable_counts_with_its_known_requests() -> None:
    state = CheckedState(node("n"), queue("q"), group("g"), pod("p", group="g"))
    state.apply(_undecodable("Pod", "p", "p-uid", "n"))
    assert state.tasks["p-uid"].status is TaskStatus.BOUND
    assert state.columns.amounts(state.queues["q"].allocated) == {"cpu": 1000, "pods": 1}


@pytest.mark.parametrize("listed_first", [False, True], ids=["pod first", "node first"])
@pytest.mark.parametrize("end", ["deleted", "finished", "decodable", "replaced", "on another node"])
def test_a_bound_undecodable_pod_closes_its_node_until_it_is_gone(end: str, listed_first: bool) -> None:
    facts: list[deltas.Delta] = [node("n"), _undecodable("Pod", "p", "p-uid", "n")]
    state = CheckedState(*(facts if listed_first else facts[::-1]))
    assert _capacity(state) == {"n": {}}
    state.apply(node("n", cpu="16"))
    assert _capacity(state) == {"n": {}}
    ends: dict[str, deltas.Delta] = {
        "deleted": gone("Pod", "p", "p-uid"),
        "finished": _undecodable("Pod", "p", "p-uid"),
        "decodable": pod("p", node="n"),
        "replaced": pod("p", uid="other"),
        "on another node": _undecodable("Pod", "p", "other", "m"),
    }
    state.apply(ends[end])
    assert _capacity(state) == {"n": {**OFFERED, "cpu": 16000}}
    state.apply(gone("Pod", "p"), gone("Node", "n"))
    assert not state._node_cache._nodes
    assert not state._node_cache._closed_by


def test_a_bound_pod_with_an_invalid_quantity_keeps_its_last_known_requests() -> None:
    state = CheckedState(node("n"), queue("q"), group("g"), pod("p", group="g", node="n"))
    state.apply(pod("p", group="g", node="n", requests={"cpu": "x"}, deleting=True))
    assert state.columns.amounts(state.queues["q"].releasing) == {"cpu": 1000, "pods": 1}
    state.apply(pod("p", group="g", node="n", requests={"cpu": "x"}, phase="Succeeded"))
    assert state.queues["q"].releasing.any() == False  # noqa: E712 - a numpy bool


def test_a_bound_pod_first_seen_with_an_invalid_quantity_closes_its_node() -> None:
    state = CheckedState(node("n"), pod("p", node="n", requests={"cpu": "x"}))
    assert (_capacity(state), state.tasks) == ({"n": {}}, {})
    state.apply(pod("p", node="n", requests={"cpu": "x"}, phase="Succeeded"))
    assert _capacity(state) == {"n": OFFERED}


def test_the_late_end_of_an_earlier_pod_keeps_the_problem_of_the_new_one() -> None:
    state = CheckedState(pod("p", uid="new", requests={"cpu": "x"}))
    state.apply(gone("Pod", "p", "old"))
    assert [ref.uid for ref in state.problems] == ["new"]
    state.apply(gone("Pod", "p", "new"))
    assert not state.problems


@pytest.mark.parametrize("requests", [{"cpu": "1"}, {}], ids=["with requests", "best effort"])
def test_no_pod_is_scheduled_on_a_closed_node(requests: dict[str, str]) -> None:
    h = Harness(CONF)
    h.node("n")
    h.queue("q")
    h.apply(_undecodable("Pod", "odd", "odd-uid", "n"))
    h.group("g", queue="q")
    h.pod("p", group="g", requests=requests)
    h.settle()
    assert h.binds == {}
    assert ("InvalidObject", PROBLEM) in h.event_messages("Pod", "odd")
    h.apply(gone("Pod", "odd", "odd-uid"))
    h.settle()
    assert h.binds == {"p": "n"}
