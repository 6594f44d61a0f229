"""Faults in the tree of queues, and the queues they stop."""

from __future__ import annotations

import pytest

from capcard_sched.framework.api.plugin import VETO
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import Vote
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity.clusters import capacity, cluster, figures, reclaim, work


def _broken(h: Harness) -> None:
    h.queue("root")
    h.queue("x", parent="z", guarantee={"cpu": "5"})
    h.queue("y", parent="x")
    h.queue("z", parent="y")
    h.queue("below", parent="z")
    h.queue("lost", parent="nobody")
    h.queue("child", parent="lost")
    h.queue("well", deserved={"cpu": "4"})


_CYCLE = "cycle detected in queue hierarchy for queue x"
_LOST = "the queue lost has invalid parent queue nobody"


@pytest.mark.parametrize(
    "queue, message",
    [("x", _CYCLE), ("y", _CYCLE), ("z", _CYCLE), ("below", _CYCLE), ("lost", _LOST), ("child", _LOST), ("well", None)],
)
def test_a_fault_stops_only_the_queues_concerned(queue: str, message: str | None) -> None:
    h = cluster(tree=True)
    _broken(h)
    work(h, queue, runs=1, waits=1)
    work(h, "well", waits=1)
    session = h.session()
    plugin, task = capacity(h), h.task(f"{queue}-waits0")
    answers = [plugin.allocatable(session.queues[queue], task), plugin.preemptive(session.queues[queue], task)]
    vote = plugin.job_enqueueable(h.job(queue))
    if message is None:
        assert answers == [None, None]
        assert vote is Vote.PERMIT
        return
    assert [answer and (answer.reason, answer.message) for answer in answers] == [
        ("InvalidQueueHierarchy", message)
    ] * 2
    assert isinstance(vote, Refusal)
    assert (vote.message, vote.event) == (message, True)
    assert plugin.reclaimable(task, [h.task(f"{queue}-runs0")]) == VETO
    assert reclaim(h, "well-waits0", [f"{queue}-runs0"]) == ([], {f"{queue}-runs0": "hierarchy"})
    assert figures(h, "real_capacity_milli_cpu")["well"] == 10_000  # guarantees of invalid queues block no other queue


def test_queues_may_be_nested_deeper_than_calls() -> None:
    h = cluster(tree=True)
    for i in range(1200):
        h.queue(f"q{i}", parent=f"q{i - 1}" if i else "")
    work(h, "q1199", waits=1)
    h.step()
    assert h.binds == {"q1199-waits0": "n1"}
    assert figures(h, "allocated_milli_cpu")["q0"] == 1000
