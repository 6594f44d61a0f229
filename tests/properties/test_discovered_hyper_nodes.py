"""HyperNodes from random labels of nodes: trees without contradictions, and the same ones when they exist already."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.controllers.hyper_nodes import DiscoveredTopology, discover
from capcard_sched.model.topology_discovery import TopologyType
from capcard_sched.testing import Harness

_TYPES = (TopologyType("t", ("rack", "row", "zone")), TopologyType("u", ("leaf", "spine")))
_VALUES = st.sampled_from(["", "1", "2", "A", "a"])
_LABELS = st.fixed_dictionaries({}, optional={label: _VALUES for kind in _TYPES for label in kind.labels})
_NODES = st.lists(_LABELS, min_size=1, max_size=8).map(
    lambda rows: {f"n{index}": row for index, row in enumerate(rows)}
)
#: Nodes of a HyperNode by hand, and its tier.
_BY_HAND = st.tuples(st.sets(st.sampled_from([f"n{index}" for index in range(8)]), max_size=3), st.integers(0, 3))


def _objects(found: DiscoveredTopology) -> list[dict[str, Any]]:
    return [
        {"metadata": {"name": each.name, "labels": each.labels()}, "spec": each.spec()}
        for each in found.domains.values()
    ]


def _by_hand(nodes: set[str], tier: int) -> dict[str, Any]:
    members = [{"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in sorted(nodes)]
    return {"metadata": {"name": "mine"}, "spec": {"tier": tier, "members": members}}


@given(nodes=_NODES)
def test_the_tree_has_no_contradiction(nodes: dict[str, dict[str, str]]) -> None:
    found, h = discover(_TYPES, nodes, ()), Harness()
    for name, labels in nodes.items():
        h.node(name, labels=labels)
    for each in found.domains.values():
        members: dict[str, Any] = {("nodes" if each.tier == 1 else "hyper_nodes"): each.members}
        h.hyper_node(each.name, each.tier, tier_name=each.label, **members)
    h.step()
    assert not h.state.problems
    tree = h.state.tree
    for name, labels in nodes.items():
        kind = next((one for one in _TYPES if labels.get(one.labels[0])), None)
        at, number = [], tree.leaf_of.get(name, -1)
        while number >= 0:
            at.append(tree.names[number])
            number = int(tree.parents[number])
        values = [labels.get(label, "") for label in kind.labels] if kind is not None else []
        own = values[: values.index("")] if "" in values else values
        # The node is in a domain of each of its values, and those above are of others in its lowest domain.
        assert [found.domains[each].value for each in at][: len(own)] == own


@given(nodes=_NODES, by_hand=_BY_HAND)
def test_what_exists_already_stays(nodes: dict[str, dict[str, str]], by_hand: tuple[set[str], int]) -> None:
    mine = _by_hand(*by_hand)
    found = discover(_TYPES, nodes, [mine])
    assert discover(_TYPES, nodes, [mine, *_objects(found)]) == found
    inside = {name for each in found.domains.values() if each.tier == 1 for name in each.members}
    assert not (by_hand[1] <= 1 and inside & by_hand[0])
