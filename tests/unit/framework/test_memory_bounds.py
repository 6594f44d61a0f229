"""Caches of task classes stay bounded while classes come and go and the nodes stay (a daemon's life)."""

from __future__ import annotations

import pytest

from capcard_sched.framework.placement import signature_cache
from capcard_sched.framework.toolkit import node_index, pod_selectors, topology_counts
from capcard_sched.plugins.capacity_card import cards
from capcard_sched.testing import Harness

_CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{plugins: [{name: gang}]}, {plugins: [{name: predicates}, {name: nodeorder}, {name: capacity-card}]}]
"""
_LIMIT = 8
_ROUNDS = 3 * _LIMIT


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_index, "_MAX_ENTRIES", _LIMIT)
    monkeypatch.setattr(signature_cache, "_MOST_STATIC", _LIMIT)
    monkeypatch.setattr(cards, "_SPARE", _LIMIT)
    for module in (topology_counts, pod_selectors):
        monkeypatch.setattr(module, "MAX_CLASSES", _LIMIT)


def test_caches_of_classes_are_bounded_and_placements_stay_correct() -> None:
    h = Harness(_CONF)
    h.node("n1", labels={"zone": "a", "kubernetes.io/hostname": "n1"})
    h.node(
        "n2", labels={"zone": "b", "kubernetes.io/hostname": "n2"}, taints=[{"key": "k", "effect": "PreferNoSchedule"}]
    )
    h.queue("q", capability={"cpu": "64", "memory": "64Gi"})
    most: dict[str, int] = {}
    for i in range(_ROUNDS):
        wanted, name = ("a", "n1") if i % 2 else ("b", "n2")
        term = {"labelSelector": {"matchLabels": {"app": f"a-{i}"}}, "topologyKey": "kubernetes.io/hostname"}
        weighted = {"weight": 1, "podAffinityTerm": term}
        affinity = {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [term],
                "preferredDuringSchedulingIgnoredDuringExecution": [weighted],
            }
        }
        h.group("g", phase="Pending")
        h.pod(
            f"p-{i}", group="g", requests={"cpu": f"{i + 1}m"}, labels={"app": f"a-{i}"}, affinity=affinity,
            nodeSelector={"zone": wanted}, tolerations=[{"key": f"k-{i}", "operator": "Exists"}],
        )  # fmt: skip
        h.step()
        assert h.binds[f"p-{i}"] == name
        h.delete_pod(f"p-{i}")
        h.delete_group("g")
        predicates, nodeorder = h.plugin("predicates"), h.plugin("nodeorder")
        kept = {
            "static answers": h.core._signatures._static,
            "classes with rules": predicates._rules._terms,
            "classes with preferences": nodeorder._book._terms,
            "whether classes have terms": predicates._rules.counters._with_terms,
            "matching nodes": predicates._index._matching,
            "tolerated taints": predicates._index._tolerated,
            "preferred nodes": nodeorder._index._preferences,
            "demands": h.plugin("capacity-card").accounts.demands._demands,
            "quantities of alike jobs": h.plugin("capacity-card").accounts.demands._derived,
        }
        for what, cache in kept.items():
            most[what] = max(most.get(what, 0), len(cache))
    assert {what for what, count in most.items() if count > _LIMIT + 2} == set()
    assert min(most.values()) > 0, "each of them is used"


def test_the_sums_of_a_queue_end_with_it() -> None:
    h = Harness("actions: allocate\ntiers: [{plugins: [{name: proportion}]}]")
    h.node("n")
    for name in ("kept", "gone"):
        h.queue(name)
        h.group(name, queue=name)
        h.pod(name, group=name, requests={"cpu": "1"})
    h.step()
    sums = h.plugin("proportion")._requested._tree._own
    assert set(sums) == {"kept", "gone"}
    h.delete_pod("gone")
    h.delete_group("gone")
    h.step()
    h.delete_queue("gone")
    h.step()
    assert set(sums) == {"kept"}


def test_of_the_arrays_of_counts_the_least_recently_used_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_counts, "_MAX_ARRAY_BYTES", 100)
    h = Harness(_CONF)
    h.node("n1")
    h.node("n2")
    h.node("n3")
    h.session()
    counters = h.plugin("predicates")._rules.counters
    arrays = topology_counts.DomainArrays(lambda _: None, lambda _: None)
    counts = [topology_counts.CarrierCount(i, (), arrays, ("zone", 0)) for i in range(4)]
    for count in counts:
        count.change(0, 1)
    first, *others = [count.by_row(counters.index) for count in counts[:3] for _ in range(20)][::20]  # 32 bytes each
    assert counts[0].by_row(counters.index) is first
    counts[3].by_row(counters.index)
    kept = [count.by_row(counters.index) for count in (counts[0], counts[2])]
    assert kept[0] is first
    assert kept[1] is others[1]
    assert counts[1].by_row(counters.index) is not others[0]
