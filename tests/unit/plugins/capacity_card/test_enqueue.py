"""Admission of jobs against limit x overCommitFactor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from capcard_sched.model.refusal import Figures
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity_card.admission import cluster_of_everything, cpu, hold, memory, scalar, verdict


class Case(NamedTuple):
    id: str
    expected: tuple[str, str] | None
    #: `card.request` of the job.
    request: Any = None
    min_resources: dict[str, Any] | None = None
    cards: Any = None
    capability: dict[str, Any] | None = None
    #: Held by running gangs without spare pods.
    held: dict[str, int] = {}
    #: Requests of jobs that are in phase Inqueue.
    inqueue: tuple[dict[str, int], ...] = ()
    arguments: dict[str, Any] = {}


CASES = [
    Case("17 more than the quota", scalar("NVIDIA-H200", 5000, 5000, 3000), {"NVIDIA-H200": 5},
         cards={"NVIDIA-H200": 3}),
    Case(
        "18 within quota and capability",
        None,
        {"A": 4},
        {"cpu": 8, "memory": "64Gi"},
        {"A": 5},
        {"cpu": "100", "memory": "500Gi"},
    ),
    Case("19 equality passes", None, {"A": 2}, cards={"A": 5}, held={"A": 3}),
    Case("minResources without cards count although cards are exempt", cpu(8000, 8000, 4000), None, {"cpu": 8},
         capability={"cpu": "4"}, arguments={"cardUnlimitedCpuMemory": True}),
    Case("20 reservations count", scalar("A", 2000, 6000, 5000), {"A": 2}, cards={"A": 5}, held={"A": 3},
         inqueue=({"A": 1},)),
    Case("23 a card without quota", scalar("H100", 1000, 1000, 0), {"H100": 1}, cards={"A": 5}),
    Case("33 alternatives are summed", None, {"A|B": 4}, cards={"A": 5, "B": 3}, held={"A": 2, "B": 1}),
    Case(
        "34 the sum has a limit",
        scalar("A|B", 6000, 9000, 8000),
        {"A|B": 6},
        cards={"A": 5, "B": 3},
        held={"A": 2, "B": 1},
    ),
    Case(
        "35 single mode: no alternative carries all",
        scalar("A|B", 4000, 5000, 3000),
        {"A|B": 4},
        cards={"A": 5, "B": 3},
        held={"A": 2, "B": 1},
        arguments={"multiCardJobMode": "single"},
    ),
    Case(
        "35 single mode: one alternative carries all",
        None,
        {"A|B": 3},
        cards={"A": 5, "B": 3},
        held={"A": 2, "B": 1},
        arguments={"multiCardJobMode": "single"},
    ),
    Case(
        "36 two claims are not promised the same cards",
        scalar("A|B", 5000, 10000, 8000),
        {"A|B": 5},
        cards={"A": 5, "B": 3},
        inqueue=({"A|B": 5},),
    ),
    Case(
        "37 a single card respects claims on it",
        scalar("A", 3000, 10000, 8000),
        {"A": 3},
        cards={"A": 5, "B": 3},
        held={"A": 2, "B": 1},
        inqueue=({"A|B": 4},),
    ),
    Case("38 an overdrawn card does not eat other quota", None, {"A|B": 6}, cards={"A": 5, "B": 8}, held={"A": 9}),
    Case("39 a claim on two small quotas", None, {"A|B": 2}, cards={"A": 2, "B": 2}),
    Case("40 a request of zero, queue overdrawn", None, {"H200": 0}, cards={"H200": 1}, held={"H200": 3}),
    Case("40 an empty request, queue overdrawn", None, {}, cards={"H200": 1}, held={"H200": 3}),
    Case(
        "41 malformed request without pods",
        ("InvalidCardRequest", 'Invalid annotation volcano.sh/card.request: <H200>: "2" is not a non-negative integer'),
        '{"H200":"2"}',
        cards={"H200": 8},
    ),
    Case("48 a slice quota is no card quota", scalar("NVIDIA-H200", 1000, 1000, 0), {"NVIDIA-H200": 1},
         cards={"NVIDIA-H200/mig-1g.18gb-mixed": 3}),
    Case("the order of alternatives is preference only", scalar("B|A", 5000, 10000, 8000), {"B|A": 5},
         cards={"A": 5, "B": 3}, inqueue=({"A|B": 5},)),
    Case("overlapping claims share what they overlap in", scalar("B|C", 2000, 7000, 6000), {"B|C": 2},
         cards={"A": 2, "B": 2, "C": 2}, inqueue=({"A|B": 4}, {"C": 1})),
    Case("claims elsewhere do not matter", None, {"A": 1}, cards={"A": 1, "B": 1, "C": 1}, inqueue=({"B|C": 2},)),
    Case("24 nothing configured at all", scalar("H100", 1000, 1000, 0), {"H100": 1}),
    Case("47 the factor widens the limit", None, {"H200": 4}, cards={"H200": 4}, held={"H200": 4},
         arguments={"overCommitFactor": 2}),
    Case("47 the factor's limit holds", scalar("H200", 1000, 9000, 8000), {"H200": 1}, cards={"H200": 4},
         held={"H200": 4}, inqueue=({"H200": 4},), arguments={"overCommitFactor": 2}),
    Case("a fractional factor rounds down", scalar("H200", 4000, 4000, 3450), {"H200": 4}, cards={"H200": 3},
         arguments={"overCommitFactor": 1.15}),
    Case("25 cpu", cpu(3000, 5000, 4000), None, {"cpu": 3}, capability={"cpu": "4"}, held={"cpu": 2}),
    Case("26 memory", memory(1024, 4608, 4096), None, {"memory": "1Gi"}, capability={"memory": "4Gi"},
         held={"memory": 3584}),
    Case("29 a capability of zero is a limit", cpu(1000, 1000, 0), None, {"cpu": 1}, capability={"cpu": 0}),
    Case("30 cards exempt from cpu quota", None, {"H200": 2}, {"cpu": 16}, {"H200": 8}, {"cpu": "4"},
         arguments={"cardUnlimitedCpuMemory": True}),
    Case("30 a card resource in minResources exempts too", None, None, {"cpu": 16, "nvidia.com/gpu": 2}, {"H200": 8},
         {"cpu": "4"}, arguments={"cardUnlimitedCpuMemory": True}),
    Case("31 cpu comes before cards", cpu(16000, 16000, 4000), {"H200": 20}, {"cpu": 16}, {"H200": 8}, {"cpu": "4"}),
    Case("a device in minResources is no card", None, None, {"nvidia.com/gpu": 5}, {}, {"nvidia.com/gpu": 1}),
]  # fmt: skip


def refusals(h: Harness) -> list[tuple[str, str]]:
    """Events of the group without CanNeverStart, which accompanies requests above the quota."""
    return [event for event in h.event_messages("PodGroup", "g") if event[0] != "CanNeverStart"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_job_without_pods_is_checked_by_its_declared_request(harness: Callable[..., Harness], case: Case) -> None:
    h = harness(case.arguments)
    cluster_of_everything(h)
    h.queue("q", cards=case.cards, capability=case.capability)
    for card, count in case.held.items():
        if card in ("cpu", "memory"):
            amount = {"cpu": str(count)} if card == "cpu" else {"memory": f"{count}Mi"}
            h.group("held", phase="Running", min_member=1)
            h.pod("held-0", group="held", requests=amount, node="node-a")
        else:
            hold(h, card, count)
    for i, reserved in enumerate(case.inqueue):
        h.group(f"inqueue-{i}", phase="Inqueue", annotations={"volcano.sh/card.request": json.dumps(reserved)})
    request = case.request if isinstance(case.request, str) else json.dumps(case.request)
    notes = {"volcano.sh/card.request": request} if case.request is not None else {}
    h.group("g", phase="Pending", annotations=notes, min_resources=case.min_resources)
    h.session()
    assert verdict(h) == case.expected


@pytest.mark.parametrize(
    "configured", [{"cards": {"A": 1}}, {"capability": {"cpu": "1"}}, {"cards": {"A": 0}}], ids=str
)
def test_a_queue_with_any_capability_is_not_called_empty(
    harness: Callable[..., Harness], configured: dict[str, Any]
) -> None:
    h = harness()
    cluster_of_everything(h)
    h.queue("q", **configured)
    h.group("g", phase="Pending", annotations={"volcano.sh/card.request": '{"H100":1}'})
    h.step()
    assert refusals(h) == [scalar("H100", 1000, 1000, 0)]


def test_a_refusal_carries_its_numbers(harness: Callable[..., Harness]) -> None:
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"A": 5, "B": 3})
    h.group("g", phase="Pending", annotations={"volcano.sh/card.request": '{"A|B":9}'})
    h.session()
    refusal = h.plugin("capacity-card").job_enqueueable(h.job("g"))
    assert refusal.figures == Figures("A|B", 9000, 9000, 8000)
    assert refusal.alternatives == (Figures("A", 9000, 0, 5000), Figures("B", 9000, 0, 3000))
    assert (refusal.queue, refusal.component, refusal.pods_too) == ("q", "", False)


def test_an_unchanged_refusal_is_written_once(harness: Callable[..., Harness]) -> None:
    """Retrying with unchanged input writes no second event."""
    h = harness()
    cluster_of_everything(h)
    h.queue("q", cards={"A": 1})
    h.group("g", phase="Pending", annotations={"volcano.sh/card.request": '{"A":3}'})
    for i in range(4):
        h.node(f"extra-{i}")
        h.step()
    assert refusals(h) == [scalar("A", 3000, 3000, 1000)]
