"""Groups with terms of `podGroupAntiAffinity` over small random clusters, compared with a count of what racks hold.

The oracle shares no code with the product: it knows the free cpus, the racks and blocks of nodes, and where pods are.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.toolkit.selected_groups import PlacedGroups, SelectedGroups
from capcard_sched.model.intents import Bind
from capcard_sched.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.group_affinity import GroupTerm
    from capcard_sched.model.intents import Intent

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}, {name: nodeorder}, {name: group-topology-affinity}, {name: network-topology-aware}]
"""
LABELS = "abc"


class RandomGroup(NamedTuple):
    """One PodGroup with pods of one cpu."""

    namespace: str
    label: str
    #: Selected label, whether in all namespaces, and tier of each required term.
    terms: tuple[tuple[str, bool, int], ...]
    #: The highest tier of a hard network topology; 0 for none.
    tier: int
    minimum: int
    #: Nodes of its running pods.
    running: tuple[int, ...]
    pending: int


class AffinityScene(NamedTuple):
    """Racks of two nodes in blocks of two racks; the last node is in no rack."""

    cpus: tuple[int, ...]
    groups: tuple[RandomGroup, ...]

    def domain(self, node: int, tier: int) -> str:
        """The rack or block of a node; "" for none."""
        return "" if node == len(self.cpus) - 1 else f"{'rack' if tier == 1 else 'block'}{node // (2 * tier)}"


@st.composite
def scenes(draw: st.DrawFn, waiting: int) -> AffinityScene:
    """Some groups with running pods, then `waiting` ones."""
    cpus = tuple(draw(st.lists(st.integers(0, 3), min_size=5, max_size=9).filter(lambda found: len(found) % 2)))
    namespaces, labels, nodes = st.sampled_from(["default", "other"]), st.sampled_from(LABELS), range(len(cpus))
    terms = st.tuples(labels, st.booleans(), st.integers(1, 2))
    holders = st.builds(
        RandomGroup, namespaces, labels, st.just(()), st.just(0), st.just(1),
        st.lists(st.sampled_from(nodes), min_size=1, max_size=2).map(tuple), st.just(0),
    )  # fmt: skip
    sized = st.integers(1, 4).flatmap(lambda pods: st.tuples(st.integers(1, pods), st.just(pods)))
    waiters = st.builds(
        lambda namespace, label, terms, tier, size: RandomGroup(namespace, label, terms, tier, size[0], (), size[1]),
        namespaces, labels, st.lists(terms, min_size=1, max_size=2).map(tuple), st.integers(0, 2), sized,
    )  # fmt: skip
    found = [*draw(st.lists(holders, max_size=3)), *draw(st.lists(waiters, min_size=waiting, max_size=waiting))]
    return AffinityScene(cpus, tuple(found))


def build(scene: AffinityScene) -> Harness:
    h = Harness(CONF, run=True)
    h.queue("q")
    held = defaultdict[int, int](int)
    for group in scene.groups:
        for node in group.running:
            held[node] += 1
    for node, cpu in enumerate(scene.cpus):
        h.node(f"n{node}", cpu=str(cpu + held[node]))
    for tier in (1, 2):
        members = defaultdict[str, set[str]](set)
        for node in range(len(scene.cpus) - 1):
            members[scene.domain(node, tier)].add(f"n{node}" if tier == 1 else scene.domain(node, 1))
        for name, inside in members.items():
            below = sorted(inside)
            h.hyper_node(name, tier, nodes=below if tier == 1 else (), hyper_nodes=below if tier == 2 else ())
    for number, group in enumerate(scene.groups):
        required = [
            {
                "podGroupSelector": {"matchLabels": {"l": label}},
                "topologyTier": tier,
                **({"namespaceSelector": {}} if everywhere else {}),
            }
            for label, everywhere, tier in group.terms
        ]
        h.group(
            f"g{number}", namespace=group.namespace, labels={"l": group.label}, min_member=group.minimum,
            topology={"mode": "hard", "highestTierAllowed": group.tier} if group.tier else None,
            apart={"required": required} if required else None,
        )  # fmt: skip
        for index, node in enumerate(group.running):
            h.pod(f"g{number}-r{index}", group=f"g{number}", namespace=group.namespace, node=f"n{node}")
        for index in range(group.pending):
            h.pod(f"g{number}-p{index}", group=f"g{number}", namespace=group.namespace)
    return h


def occupied(scene: AffinityScene, number: int, places: list[tuple[int, int]]) -> set[str]:
    """Racks and blocks that the terms of a group exclude; `places`: group and node of the other pods."""
    own, found = scene.groups[number], set[str]()
    for label, everywhere, tier in own.terms:
        for other, node in places:
            peer = scene.groups[other]
            if other != number and peer.label == label and (everywhere or peer.namespace == own.namespace):
                found.add(scene.domain(node, tier))
    return found - {""}


def admits(scene: AffinityScene, number: int, node: int, closed: set[str]) -> bool:
    domains = {scene.domain(node, tier) for _, _, tier in scene.groups[number].terms}
    return "" not in domains and not domains & closed


def binds(intents: Iterable[Intent]) -> list[Bind]:
    return [intent for intent in intents if isinstance(intent, Bind)]


@given(scenes(waiting=3))
def test_no_pod_is_placed_in_an_occupied_domain(scene: AffinityScene) -> None:
    h = build(scene)
    places = [(number, node) for number, group in enumerate(scene.groups) for node in group.running]
    for _ in range(3):
        result = h.step()
        assert not result.report.errors
        for bind in binds(result.intents):
            number, node = int(bind.name[1 : bind.name.index("-")]), int(bind.node[1:])
            assert admits(scene, number, node, occupied(scene, number, places)), bind
            places.append((number, node))


@given(scenes(waiting=1))
def test_a_group_starts_if_domains_that_are_not_occupied_hold_it(scene: AffinityScene) -> None:
    number = len(scene.groups) - 1
    group = scene.groups[number]
    places = [(other, node) for other, one in enumerate(scene.groups) for node in one.running]
    closed = occupied(scene, number, places)
    free = defaultdict[str, int](int)
    for node, cpu in enumerate(scene.cpus):
        if admits(scene, number, node, closed):
            free[scene.domain(node, group.tier) if group.tier else "cluster"] += cpu
    h = build(scene)
    bound = sum(len(binds(h.step().intents)) for _ in range(4))
    fits = max(free.values(), default=0)
    if group.tier and fits >= group.minimum:
        assert bound >= group.minimum  # further pods stay in the domain of the first ones, which may be a smaller one
    else:
        assert bound == (min(group.pending, fits) if fits >= group.minimum else 0)


@given(scenes(waiting=3))
def test_kept_holders_follow_the_placements_of_a_session(scene: AffinityScene) -> None:
    """What a selector keeps, after placements and gangs that were undone, is what a fresh count finds."""
    checked = set[tuple[str, bytes, int]]()

    def compared(groups: PlacedGroups, namespace: str, term: GroupTerm) -> SelectedGroups:
        kept, at = selected(groups, namespace, term), (namespace, term.selection, len(groups.moves))
        if at not in checked:
            checked.add(at)
            fresh = SelectedGroups(groups, namespace, term)
            for tier in (1, 2):
                for job in h.core.snapshot().state.jobs.values():
                    assert dict(kept.holders(tier, job)) == dict(fresh.holders(tier, job))
        return kept

    selected = PlacedGroups.selected
    h = build(scene)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlacedGroups, "selected", compared)
        assert not h.step().report.errors
    assert checked
