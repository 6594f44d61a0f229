"""Differences from Volcano that no other file tests."""

from __future__ import annotations

import pytest

from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import EvictFailed, Takeover
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.document import to_document
from capcard_sched.testing import Harness
from tests.evictions import Tide, evicted, leave, terminate

_CONF = """
actions: "allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false, enableJobStarving: false}]
- plugins: [{name: predicates}]
"""


def _full(*, nodes: int = 1, phase: str = "Running") -> Harness:
    """Nodes of 4 cpu, each full with one pod of low priority, which is Running or only bound."""
    h = Harness(_CONF, run=True)
    h.priority_class("low", 10)
    h.priority_class("high", 100)
    h.queue("q")
    for i in range(nodes):
        h.node(f"n{i}", cpu="4")
        h.group(f"low{i}", phase="Running", priority_class="low")
        h.pod(f"low{i}-w-0", group=f"low{i}", requests={"cpu": "4"}, node=f"n{i}", phase=phase)
    return h


def _want(h: Harness, *, pods: int = 1) -> None:
    h.group("hi", min_member=pods, priority_class="high")
    for i in range(pods):
        h.pod(f"hi-w-{i}", group="hi", requests={"cpu": "4"})


_PHASES = pytest.mark.parametrize(
    "phase, status", [("Running", TaskStatus.RUNNING), ("Pending", TaskStatus.BOUND)], ids=["running", "bound"]
)


@_PHASES
def test_w12_an_eviction_that_is_undone_leaves_no_trace(phase: str, status: TaskStatus) -> None:
    h = _full(phase=phase)
    session = h.session()
    before = to_document(h.state)
    task = h.task("low0-w-0")
    assert task.status is status
    statement = Statement(session)
    statement.evict(task, "preempt")
    assert h.task("low0-w-0").status is TaskStatus.RELEASING
    statement.discard()
    assert task.status is status
    assert to_document(h.state) == before


@_PHASES
def test_w12_a_refused_eviction_restores_the_pod_and_allows_a_later_eviction(phase: str, status: TaskStatus) -> None:
    h = _full(phase=phase)
    _want(h)
    assert evicted(h.step()) == ["low0-w-0"]
    h.apply(EvictFailed("default", "low0-w-0", "default-low0-w-0-uid", "not now"))
    assert evicted(h.step()) == []
    assert h.task("low0-w-0").status is status
    assert evicted(h.step(h.now + 200)) == ["low0-w-0"], "a retry is a new eviction, not one that was done already"


def test_w33_an_eviction_of_an_earlier_term_that_was_not_carried_out_is_decided_anew() -> None:
    """A replica that lost the Lease keeps its cache current; its unwritten decisions are void."""
    h = _full(nodes=2)
    _want(h)
    gone = evicted(h.step())
    assert len(gone) == 1
    h.apply(Takeover())
    assert evicted(h.step()) == gone, "no pod was evicted in the meantime: the same pod is, once"


def test_w33_an_eviction_of_an_earlier_term_that_was_carried_out_is_not_repeated() -> None:
    h = _full(nodes=2)
    _want(h)
    result = h.step()
    gone = evicted(result)
    terminate(h, result)
    h.apply(Takeover())
    assert evicted(h.step()) == []
    leave(h, *gone)
    h.step()
    assert list(h.binds) == ["hi-w-0"]


_IN_TURN_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}]
"""


def test_w36_the_jobs_behind_the_head_are_refused_in_their_order() -> None:
    h = Harness(_IN_TURN_CONF, run=True)
    h.queue("q", dequeue="fifo")
    h.node("n0", cpu="4")
    for name in "0xhgadfkbelmc":
        h.priority_class(f"p{name}", 1000 - ord(name))
        h.group(name, queue="q", phase="Pending", priority_class=f"p{name}")
        h.pod(f"{name}-w-0", group=name, requests={"cpu": "5"})
    refusals = h.step().report.refusals
    behind = [ref.name for ref, refusal in refusals if "Waiting behind <default/0>" in refusal.message]
    assert behind == [*"abcdefghklmx"]


@pytest.mark.parametrize("actions", ["allocate, {}", "{}, allocate"], ids=["after allocate", "before allocate"])
@pytest.mark.parametrize("action, owner", [("preempt", "qi"), ("reclaim", "qt")])
@pytest.mark.parametrize("dequeue, gone", [("traverse", ["low-w-0"]), ("fifo", [])])
def test_w36_no_pod_is_evicted_for_a_job_blocked_by_strict_fifo(
    dequeue: str, gone: list[str], action: str, owner: str, actions: str
) -> None:
    tide = "" if action == "preempt" else "{name: tide}, "
    conf = _CONF.replace("allocate, preempt", actions.format(action)).replace(
        "{name: priority}", tide + "{name: priority}"
    )
    h = Harness(conf.replace("enableJobStarving", "enableReclaimable"), run=True, plugins=[Tide])
    for name, value in (("low", 10), ("middle", 50), ("high", 100)):
        h.priority_class(name, value)
    h.queue("qi", dequeue=dequeue)
    h.queue("qt")
    h.node("n0", cpu="4")
    h.group("low", queue=owner, phase="Running", priority_class="low")
    h.pod("low-w-0", group="low", requests={"cpu": "4"}, node="n0", phase="Running")
    h.group("big", queue="qi", min_member=2, priority_class="high")
    for i in range(2):
        h.pod(f"big-w-{i}", group="big", requests={"cpu": "4"})
    h.group("small", queue="qi", priority_class="middle")
    h.pod("small-w-0", group="small", requests={"cpu": "4"})
    assert evicted(h.step()) == gone
