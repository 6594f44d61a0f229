"""Admission with pods, reservations and elastic amounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.testing import Harness
from tests.unit.plugins.capacity_card.admission import cluster_of_everything, hold, scalar, verdict


def test_permitted_jobs_reserve_for_later_ones_of_the_same_session(harness: Callable[..., Harness]) -> None:
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"A": 5})
    for name in ("first", "second"):
        h.group(name, phase="Pending", annotations={"volcano.sh/card.request": '{"A":3}'})
    h.step()
    assert h.phases.get("first") == "Inqueue"
    assert h.event_messages("PodGroup", "second") == [scalar("A", 3000, 6000, 5000)]
    assert h.phases.get("second", "Pending") == "Pending"


def test_a_vote_alone_reserves_nothing(harness: Callable[..., Harness]) -> None:
    """Another plugin may still reject."""
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"A": 5})
    h.group("g", phase="Pending", annotations={"volcano.sh/card.request": '{"A":3}'})
    h.session()
    assert verdict(h) is None
    assert verdict(h) is None
    h.plugin("capacity-card").job_enqueued(h.job("g"))
    account = h.plugin("capacity-card").ledger.queues["q"]
    h.plugin("capacity-card").ledger.recompute()
    assert account.own.inqueue.cards == {"A": 3000}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, None), ({"cardMinimum": "allPods"}, scalar("A", 4000, 12000, 8000))],
    ids=["elastic pods give way", "allPods: nothing is elastic"],
)
def test_pods_beyond_the_minimum_do_not_block_admission(
    harness: Callable[..., Harness], arguments: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    h = harness(arguments)
    cluster_of_everything(h)
    h.queue("q", cards={"A": 8})
    hold(h, "A", 8, min_member=2)
    h.group("g", phase="Pending", annotations={"volcano.sh/card.request": '{"A":4}'})
    h.session()
    assert verdict(h) == expected


@pytest.mark.parametrize("key", ["nosuch|A", "A|nosuch", "A"])
def test_pods_that_came_count_also_when_an_alternative_is_unknown(harness: Callable[..., Harness], key: str) -> None:
    """The pod requests the cards of the annotation, though no node offers one of its cards."""
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"A": 2})
    h.group("g", phase="Pending", min_member=2, annotations={"volcano.sh/card.request": f'{{"{key}":2}}'})
    h.pod("p0", card="nosuch|A", cards=1)
    h.session()
    assert verdict(h) is None


@pytest.mark.parametrize(
    ("arguments", "bound"), [({}, 8), ({"cardMinimum": "allPods"}, 0)], ids=["minMember", "allPods"]
)
def test_a_deployment_larger_than_its_quota_fills_it(
    harness: Callable[..., Harness], arguments: dict[str, Any], bound: int
) -> None:
    h = harness(arguments)
    h.gpu_node("n1", card="H200", count=16)
    h.queue("q", cards={"H200": 8})
    h.group("g", phase="Pending", min_member=1)
    for i in range(10):
        h.pod(f"d-p-{i}", card="H200", cards=1)
    h.step()
    assert len(h.binds) == bound
    expected = scalar("H200", 1000, 9000, 8000) if bound else scalar("H200", 10000, 10000, 8000)
    waiting = sorted({f"d-p-{i}" for i in range(10)} - h.binds.keys())
    assert len(waiting) == 10 - bound
    for name in waiting:
        assert expected in h.event_messages("Pod", name)
        assert h.pod_message(name) == expected[1]


def test_pods_of_a_refused_job_have_the_same_reason(harness: Callable[..., Harness]) -> None:
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"NVIDIA-H200": 3})
    h.group("g", phase="Pending")
    h.pod("p0", card="NVIDIA-H200", cards=5)
    h.step()
    expected = scalar("NVIDIA-H200", 5000, 5000, 3000)
    assert expected in h.event_messages("PodGroup", "g")
    assert expected in h.event_messages("Pod", "p0")
    components = {event.component for event in h.events if event.object.kind == "Pod" and event.reason == expected[0]}
    assert components == {"volcano.capacity-card"}


def test_overcommit_admits_pods_that_the_plain_limit_then_holds(harness: Callable[..., Harness]) -> None:
    """Vector 47, the pods' side."""
    h = harness({"overCommitFactor": 2})
    cluster_of_everything(h)
    h.queue("q", cards={"H200": 4})
    hold(h, "H200", 4)
    h.group("g", phase="Pending", min_member=4, annotations={"volcano.sh/card.request": '{"H200":4}'})
    h.step()
    assert h.phases["g"] == "Inqueue"
    for i in range(4):
        h.pod(f"p{i}", card="H200", cards=1)
    h.step()
    assert h.binds == {}
    assert scalar("H200", 1000, 5000, 4000) in h.event_messages("Pod", "p0")


@pytest.mark.parametrize(
    ("running", "min_member", "phase", "expected"),
    [(5, 1, "Inqueue", None), (8, 8, "Running", scalar("A", 1000, 9000, 8000))],
    ids=["70f reserved and elastic", "70g all needed"],
)
def test_reservation_and_elastic_of_a_partly_placed_job(
    harness: Callable[..., Harness], running: int, min_member: int, phase: str, expected: tuple[str, str] | None
) -> None:
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"A": 8})
    h.group("first", phase=phase, min_member=min_member, annotations={"volcano.sh/card.request": '{"A":8}'})
    for i in range(8):
        h.pod(f"f-p-{i}", group="first", card="A", cards=1, node="node-a" if i < running else None)
    h.group("g", phase="Pending", annotations={"volcano.sh/card.request": '{"A":1}'})
    h.session()
    h.plugin("capacity-card").ledger.recompute()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert account.own.inqueue.cards == ({"A": 3000} if running == 5 else {})
    assert account.own.elastic.cards == ({"A": 4000} if running == 5 else {})
    assert verdict(h) == expected


def test_gated_pods_reserve_nothing(harness: Callable[..., Harness]) -> None:
    """The cards of gated pods are left out of what an admitted job has coming to it."""
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"A": 8})
    h.group("first", phase="Inqueue", min_member=4)
    for i in range(4):
        gates = [{"name": "wait"}] if i < 3 else []
        h.pod(f"f-p-{i}", group="first", card="A", cards=2, schedulingGates=gates)
    h.session()
    ledger = h.plugin("capacity-card").ledger
    ledger.recompute()
    assert ledger.queues["q"].own.inqueue.cards == {"A": 2000}


@pytest.mark.parametrize("request_text", ['{"A":4}', ""])
def test_pods_of_a_gang_that_have_ended_are_not_reserved_again(
    harness: Callable[..., Harness], request_text: str
) -> None:
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"A": 4})
    h.group("held", phase="Running", min_member=4, annotations={"volcano.sh/card.request": request_text})
    for i in range(4):
        phase = "Succeeded" if i < 2 else "Running"
        h.pod(f"held-{i}", group="held", requests={}, card="A", cards=1, node="node-a", phase=phase)
    h.group("g", phase="Pending", annotations={"volcano.sh/card.request": '{"A":2}'})
    h.session()
    assert verdict(h) is None
    h.group("g", phase="Pending", annotations={"volcano.sh/card.request": '{"A":3}'})
    h.session()
    assert verdict(h) == scalar("A", 3000, 5000, 4000)
