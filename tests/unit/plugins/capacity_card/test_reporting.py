"""Metrics and annotations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from capcard_sched.testing import Harness
from tests.unit.plugins.capacity_card.admission import running

GPU = "nvidia.com/gpu"


def test_usage_is_published_on_queues_when_enabled(harness: Callable[..., Harness]) -> None:
    h = harness({"publishCardUsage": True})
    h.gpu_node("n1", card="H200", count=16)
    h.queue("q", cards={"H200": 16, "A": 1})
    h.queue("idle", cards={"H200": 16})
    running(h, 3)
    session = h.session()
    plugin = h.plugin("capacity-card")
    plugin.close(session)
    assert session.queue_annotations == {"q": {"volcano.sh/card.allocated": '{"H200":3}'}}
    h.queue("q", cards={"H200": 16}, annotations={"volcano.sh/card.allocated": '{"H200":3}'})
    session = h.session()
    plugin.close(session)
    assert session.queue_annotations == {}
    for i in range(3):
        h.delete_pod(f"run-p-{i}")
    session = h.session()
    plugin.close(session)
    assert session.queue_annotations == {"q": {"volcano.sh/card.allocated": None}}


def test_usage_is_not_published_otherwise(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200", count=16)
    h.queue("q", cards={"H200": 16})
    running(h, 3)
    session = h.session()
    h.plugin("capacity-card").close(session)
    assert session.queue_annotations == {}


def test_series_follow_the_ledger_and_end_with_their_queue(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="A", count=16, cpu="64", memory="64Gi")
    h.queue("q", cards={"A": 8}, capability={"cpu": "10"})
    h.queue("empty")
    running(h, 2, card="A")
    h.group("g", annotations={"volcano.sh/card.request": '{"A|B":3}'})
    h.group("refused", phase="Pending", annotations={"volcano.sh/card.request": '{"A":20}'})
    h.pod("p", group="run", card="A|B", requests={"cpu": 1, GPU: 9})
    h.step()

    def series(queue: str) -> dict[tuple[str, str], float]:
        return {
            (s.name, s.labels.get("card", s.labels.get("resource", ""))): s.value
            for s in h.plugin("capacity-card").metrics()
            if s.labels.get("queue_name") == queue and "hook" not in s.labels
        }

    found = series("q")
    assert found["queue_card_capacity", "A"] == found["queue_card_deserved", "A"] == 8
    assert found["queue_card_allocated", "A"] == 2
    assert found["queue_card_elastic", "A"] == 1
    assert found["queue_card_inqueue", "A|B"] == 3
    assert found["queue_allocated_scalar_resources", "A"] == 2000
    assert found["queue_capacity_scalar_resources", "A"] == found["queue_deserved_scalar_resources", "A"] == 8000
    assert found["queue_share", ""] == 0.25
    assert found["queue_capacity_milli_cpu", ""] == 10000
    assert ("queue_capacity_memory_bytes", "") not in found
    assert found["queue_real_capacity_memory_bytes", ""] == 64 * 2**30
    empty = series("empty")
    assert empty["queue_allocated_milli_cpu", ""] == 0
    assert not any(name.startswith("queue_card") for name, _ in empty)
    refusals = {
        (s.labels["queue_name"], s.labels["hook"], s.labels["reason"]): s.value
        for s in h.plugin("capacity-card").metrics()
        if s.name == "capacity_card_refusals_total"
    }
    assert refusals["q", "job_enqueueable", "InsufficientScalarQuota"] == 1
    h.queue("q", cards={})
    for i in range(2):
        h.delete_pod(f"run-p-{i}")
    h.step()
    assert series("q")["queue_card_capacity", "A"] == series("q")["queue_card_allocated", "A"] == 0
    h.delete_queue("q")
    h.step()
    assert series("q") == {}
    samples = list(h.plugin("capacity-card").metrics())
    assert not [s for s in samples if "q" in s.labels.values()], "refusals as well"
    assert [s.value for s in samples if s.name == "card_allocated"] == [0]


@pytest.mark.parametrize("gone", ["lender", "taker"])
def test_eviction_series_are_dropped_when_a_queue_of_the_pair_is_gone(
    harness: Callable[..., Harness], gone: str
) -> None:
    """Series of a deleted queue are removed."""
    h = harness()
    h.queue("lender")
    h.queue("taker")
    h.step()
    plugin = h.plugin("capacity-card")
    plugin.evictions["lender", "taker", "A"] = 2
    assert [s.value for s in plugin.metrics() if s.name == "capacity_card_evictions_total"] == [2]
    h.delete_queue(gone)
    h.step()
    assert [s for s in plugin.metrics() if s.name == "capacity_card_evictions_total"] == []


def test_a_limited_or_held_card_without_a_node_totals_zero(harness: Callable[..., Harness]) -> None:
    """A series that is absent compares with nothing, and `quota > total` would not show."""
    h = harness()
    h.gpu_node("n1", card="A", count=4)
    h.queue("q", cards={"A": 4, "never-there": 1})
    h.queue("other", cards={"B": 0})
    running(h, 2, card="A")
    h.step()

    def totals() -> dict[str, float]:
        return {s.labels["card"]: s.value for s in h.plugin("capacity-card").metrics() if s.name == "card_total"}

    assert totals() == {"A": 4, "never-there": 0}
    h.delete_node("n1")
    h.step()
    assert totals() == {"A": 0, "never-there": 0}
    h.queue("q")
    h.step()
    assert totals() == {"A": 0}, "two are held"
