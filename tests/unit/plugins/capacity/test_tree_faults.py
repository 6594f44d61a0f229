"""Faults in the tree of queues, and the queues they stop."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.api.plugin import VETO
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import Vote
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity.clusters import GPU, capacity, cluster, figures, reclaim, work


def _flaws(h: Harness) -> list[tuple[str, str]]:
    return [(e.object.name, e.message) for e in h.events if e.reason == "InvalidQueueHierarchy"]


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


def test_faults_emit_events_on_their_queues() -> None:
    h = cluster(tree=True)
    _broken(h)
    h.step()
    assert sorted(_flaws(h)) == [("lost", _LOST), ("x", _CYCLE)]
    h.queue("nobody")
    h.queue("x")
    h.step()
    assert _flaws(h) == []
    work(h, "below", waits=1)
    work(h, "child", waits=1)
    h.step()
    assert sorted(h.binds) == ["below-waits0", "child-waits0"]


@pytest.mark.parametrize(
    "eng, a, b, message",
    [
        pytest.param(
            {"capability": {"cpu": "6"}}, {"capability": {"cpu": "8"}}, {},
            "queue <eng> capability <cpu 6> is less than its child queue <a> capability <cpu 8>",
            id="capability",
        ),
        pytest.param(
            {"deserved": {"cpu": "3", "memory": "1Gi"}}, {"deserved": {"cpu": "2"}},
            {"deserved": {"cpu": "2", "memory": "2Gi"}},
            "queue <eng> deserved resources <cpu 3, memory 1Gi> are less than the sum of its child queues' "
            "deserved resources <cpu 4, memory 2Gi>",
            id="deserved",
        ),
        pytest.param(
            {"guarantee": {"cpu": "1"}}, {"guarantee": {"cpu": "1"}}, {"guarantee": {"cpu": "1500m"}},
            "queue <eng> guarantee resources <cpu 1> are less than the sum of its child queues' "
            "guarantee resources <cpu 2500m>",
            id="guarantee",
        ),
        pytest.param({"deserved": {"cpu": "3"}}, {"deserved": {GPU: "3"}}, {}, None, id="deserved of something else"),
        pytest.param({}, {"capability": {"cpu": "800"}}, {"deserved": {"cpu": "9"}}, None, id="a small cluster"),
    ],
)  # fmt: skip
def test_inconsistent_amounts_are_reported_and_stop_no_queue(
    eng: dict[str, Any], a: dict[str, Any], b: dict[str, Any], message: str | None
) -> None:
    h = cluster(tree=True)
    h.queue("eng", **eng)
    h.queue("a", parent="eng", **a)
    h.queue("b", parent="eng", **b)
    work(h, "a", waits=1)
    h.step()
    assert _flaws(h) == ([] if message is None else [("eng", message)])
    assert h.binds == {"a-waits0": "n1"}


def test_queues_may_be_nested_deeper_than_calls() -> None:
    h = cluster(tree=True)
    for i in range(1200):
        h.queue(f"q{i}", parent=f"q{i - 1}" if i else "")
    work(h, "q1199", waits=1)
    h.step()
    assert h.binds == {"q1199-waits0": "n1"}
    assert figures(h, "allocated_milli_cpu")["q0"] == 1000
