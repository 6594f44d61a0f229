"""Weaknesses of the reference around evictions that have no test elsewhere: W-12, W-14, W-33 (core reference §7)."""

from __future__ import annotations

import pytest

from capcard_sched.model.deltas import EvictFailed, Takeover
from capcard_sched.model.intents import UpdatePodCondition
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness
from tests.accounting import raw
from tests.evictions import evicted, leave, terminate

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
    before = raw(h.state)
    task = h.task("low0-w-0")
    assert task.status is status
    statement = session.statement()
    statement.evict(task, "preempt")
    assert h.task("low0-w-0").status is TaskStatus.RELEASING
    statement.discard()
    assert task.status is status
    assert raw(h.state) == before


@_PHASES
def test_w12_after_a_refused_eviction_the_pod_is_what_it_was_and_may_be_evicted_later(
    phase: str, status: TaskStatus
) -> None:
    h = _full(phase=phase)
    _want(h)
    assert evicted(h.step()) == ["low0-w-0"]
    h.apply(EvictFailed("default", "low0-w-0", "default-low0-w-0-uid", "not now"))
    assert evicted(h.step()) == []
    assert h.task("low0-w-0").status is status
    assert evicted(h.step(h.now + 200)) == ["low0-w-0"], "asking again is a new eviction, not one that was done already"


def test_w14_a_plan_that_is_undone_nominates_nobody() -> None:
    """Room for one of the two could be made, and is tried: nothing of it is told."""
    h = _full()
    _want(h, pods=2)
    result = h.step()
    assert evicted(result) == []
    assert {intent.nominated_node for intent in result.intents if isinstance(intent, UpdatePodCondition)} == {""}
    assert not h.core.last_session.memory.reservations  # type: ignore[union-attr]


def test_w14_room_that_becomes_free_elsewhere_is_used_when_the_promise_has_run_out() -> None:
    h = _full()
    _want(h)
    result = h.step()
    terminate(h, result)
    h.step()
    h.node("idle", cpu="4")
    h.step(h.now + 200)
    h.step()
    assert h.binds == {"hi-w-0": "idle"}


def test_w33_an_eviction_of_an_earlier_term_that_was_not_carried_out_is_decided_anew() -> None:
    """A replica that lost the Lease goes on learning; what it had decided and nobody has seen is void."""
    h = _full(nodes=2)
    _want(h)
    gone = evicted(h.step())
    assert len(gone) == 1
    h.apply(Takeover())
    assert evicted(h.step()) == gone, "nobody was evicted in the meantime: the same pod is, once"


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
