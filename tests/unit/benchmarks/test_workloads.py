"""Workloads are data: sizes hold, shares hold, and the same name gives the same objects."""

from collections import Counter

import msgspec
import pytest

from benchmarks.workloads import MIG_CARD, MPS_CARD, WORKLOADS, make


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_every_time(name: str) -> None:
    assert msgspec.json.encode(make(name, 40, 300).deltas()) == msgspec.json.encode(make(name, 40, 300).deltas())
    assert make(name, 40, 300, seed=1).pods != make(name, 40, 300, seed=2).pods


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_the_requested_size(name: str) -> None:
    workload = make(name, 40, 300)
    members: Counter[str] = Counter()
    for pod in workload.pods:
        members[(pod.metadata.annotations or {})["scheduling.k8s.io/group-name"]] += 1
    assert (len(workload.nodes), len(workload.pods)) == (40, 300)
    assert members == {group.metadata.name: group.spec.min_member for group in workload.groups}
    assert len({pod.metadata.uid for pod in workload.pods}) == 300


def test_the_mixed_workload_has_the_shares_it_claims() -> None:
    workload = make("W3", 2000, 20_000)
    cards = Counter((pod.metadata.annotations or {}).get("volcano.sh/card.name", "") for pod in workload.pods)
    part = {
        "several": sum(count for card, count in cards.items() if "|" in card) / 20_000,
        "slices": (cards[MPS_CARD] + cards[MIG_CARD]) / 20_000,
        "none": cards[""] / 20_000,
    }
    assert part == pytest.approx({"several": 0.3, "slices": 0.1, "none": 0.3}, abs=0.05)
    assert len(workload.queues) == 40
    assert len(workload.short_queues) == 4
