"""HyperNodes and nodes form a tree; an invalid member is a problem, and the rest is valid."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from capcard_sched.daemon.diagnosis.cache_comparer import compare
from capcard_sched.framework.placement.hypernode_bounds import HyperNodeBound, reachable
from capcard_sched.model import deltas
from capcard_sched.model.hyper_nodes import HyperNodeObject, HyperNodeTree
from capcard_sched.model.intents import ObjectRef
from capcard_sched.testing import Harness


def cluster(*nodes: str) -> Harness:
    h = Harness()
    for name in nodes:
        h.node(name, labels={"rack": name[0]})
    return h


def member(of: str, **selector: Any) -> dict[str, Any]:
    return {"type": of, "selector": selector}


def exact(of: str, name: str) -> dict[str, Any]:
    return member(of, exactMatch={"name": name})


def pattern(of: str, text: str) -> dict[str, Any]:
    return member(of, regexMatch={"pattern": text})


def labels(of: str, **wanted: str) -> dict[str, Any]:
    return member(of, labelMatch={"matchLabels": wanted})


def tree(h: Harness) -> HyperNodeTree:
    h.step()
    return h.state.tree


def below(found: HyperNodeTree) -> dict[str, str]:
    """Name of each HyperNode to that of the one above it, "" for none."""
    return {
        name: found.names[above] if above >= 0 else ""
        for name, above in zip(found.names, found.parents.tolist(), strict=True)
    }


def leaves(h: Harness) -> dict[str, str]:
    """Node to the lowest HyperNode it is in, "" for none: by row."""
    found = tree(h)
    names = [found.names[number] if number >= 0 else "" for number in found.leaf.tolist()]
    return dict(zip(h.state.nodes.names, names, strict=True))


def problems(h: Harness) -> dict[str, str]:
    h.step()
    return {ref.name: text for ref, text in h.state.problems.items() if ref.kind == "HyperNode"}


def two_tiers() -> Harness:
    h = cluster("a1", "a2", "b1", "b2", "c1")
    h.hyper_node("leaf-a", 1, nodes=["a1", "a2"])
    h.hyper_node("leaf-b", 1, nodes=["b1", "b2"])
    h.hyper_node("spine", 2, hyper_nodes=["leaf-a", "leaf-b"])
    return h


def test_members_by_name_form_the_tree() -> None:
    h = two_tiers()
    found = tree(h)
    assert below(found) == {"leaf-a": "spine", "leaf-b": "spine", "spine": ""}
    assert list(found.by_tier) == [1, 2]
    assert leaves(h) == {"a1": "leaf-a", "a2": "leaf-a", "b1": "leaf-b", "b2": "leaf-b", "c1": ""}
    assert [h.state.nodes.names[row] for row in found.rows_of(found.numbers["spine"])] == ["a1", "a2", "b1", "b2"]
    assert problems(h) == {}


def test_members_by_pattern_and_by_labels() -> None:
    h = cluster("a1", "a2", "b1", "c1", "node-d-1")
    h.hyper_node("leaf-a", 1, members=[pattern("Node", "^a[0-9]$")])
    h.hyper_node("leaf-d", 1, members=[pattern("Node", "d-")])  # searched for, as the reference does
    h.hyper_node("leaf-b", 1, members=[labels("Node", rack="b")])
    h.hyper_node("leaf-c", 1, members=[labels("Node", rack="c")])
    h.hyper_node("top", 2, members=[pattern("HyperNode", "^leaf-")])
    assert below(tree(h)) == {"leaf-a": "top", "leaf-b": "top", "leaf-c": "top", "leaf-d": "top", "top": ""}
    assert leaves(h) == {"a1": "leaf-a", "a2": "leaf-a", "b1": "leaf-b", "c1": "leaf-c", "node-d-1": "leaf-d"}


@pytest.mark.parametrize(("highest", "anchor"), [(None, 0), (None, None), (2, -1)])
def test_no_hyper_node_is_allowed_without_its_tier_or_a_common_one(highest: int | None, anchor: int | None) -> None:
    found = tree(two_tiers())
    assert not reachable(found, HyperNodeBound(highest, anchor, found.version)).any()


def test_nodes_that_come_go_and_are_labelled_anew_move() -> None:
    h = cluster("a1", "b1")
    h.hyper_node("by-label", 1, members=[labels("Node", rack="a")])
    h.hyper_node("by-name", 1, members=[pattern("Node", "^b")])
    assert leaves(h) == {"a1": "by-label", "b1": "by-name"}
    h.node("b1", labels={"rack": "a"})
    h.node("b2", labels={"rack": "b"})
    h.node("a1", labels={"rack": "z"})
    assert leaves(h) == {"a1": "", "b1": "by-label", "b2": "by-name"}
    h.delete_node("b1")
    assert leaves(h) == {"a1": "", "b2": "by-name"}
    h.node("b1", labels={"rack": "x"})
    assert leaves(h) == {"a1": "", "b1": "by-name", "b2": "by-name"}


def test_hyper_nodes_that_change_and_go_are_followed() -> None:
    h = two_tiers()
    h.step()
    h.hyper_node("leaf-a", 1, nodes=["a1", "c1"])
    assert leaves(h) == {"a1": "leaf-a", "a2": "", "b1": "leaf-b", "b2": "leaf-b", "c1": "leaf-a"}
    h.delete_hyper_node("leaf-b")
    assert below(tree(h)) == {"leaf-a": "spine", "spine": ""}
    for name in ("leaf-a", "spine"):
        h.delete_hyper_node(name)
    found = tree(h)
    assert not found.ready
    assert problems(h) == {}


def test_a_change_without_effect_on_the_tree_keeps_its_version() -> None:
    h = two_tiers()
    version = tree(h).version
    h.node("a1", labels={"rack": "a", "new": "x"})
    h.hyper_node("leaf-a", 1, nodes=["a2", "a1"])
    assert tree(h).version == version
    h.node("c0")
    found = tree(h)
    assert (found.version, len(found.leaf)) == (version, 6)
    h.hyper_node("leaf-a", 1, nodes=["a1"])
    assert tree(h).version != version


def test_a_change_of_a_hyper_node_is_a_reason_for_a_session_and_an_echo_is_not() -> None:
    h = two_tiers()
    h.settle()
    h.hyper_node("leaf-a", 1, nodes=["a1", "a2"])
    assert h.step().idle
    h.hyper_node("leaf-a", 1, nodes=["a1"])
    assert not h.step().idle


NOT_A_NODE = "node x does not exist"
IN = "spec.members[0].selector"
ONE_OF = f"{IN}: give exactly one of exactMatch, regexMatch and labelMatch, not"
#: Tier and member of a HyperNode, and its problem.
BROKEN: list[tuple[int, dict[str, Any], str]] = [
    (1, exact("Node", "x"), f"{IN}.exactMatch.name: {NOT_A_NODE}"),
    (1, exact("Node", ""), f"{IN}.exactMatch.name: empty; give the name of a Node"),
    (3, exact("HyperNode", "x"), f"{IN}.exactMatch.name: HyperNode x does not exist"),
    (1, pattern("Node", "(a"), (f"{IN}.regexMatch.pattern: '(a' is not a regular expression: missing ), unterminated "
     "subpattern at position 0")),
    (1, pattern("Node", ""), f"{IN}.regexMatch.pattern: empty; give a regular expression"),
    (1, pattern("Node", "x" * 513), (f"{IN}.regexMatch.pattern: 513 characters; a regular expression of at most 512 is "
     "accepted")),
    (1, pattern("Node", "^x"), f"{IN}.regexMatch.pattern: '^x' matches no node; give what at least one node matches"),
    (3, pattern("HyperNode", "^x"), (f"{IN}.regexMatch.pattern: '^x' matches no HyperNode of a tier below 3; "
     "give a regular expression that the name of one matches")),
    (1, labels("Node", rack="x"), (f"{IN}.labelMatch: the selector matches no node; give what at least one node "
     "matches")),
    (3, labels("HyperNode", a="b"), f"{IN}.labelMatch: labels select members of type Node only; use exactMatch"),
    (1, exact("Rack", "c1"), "spec.members[0].type: 'Rack' is neither Node nor HyperNode"),
    (1, {"type": "Node"}, f"{ONE_OF} 0"),
    (1, member("Node", exactMatch={"name": "c1"}, regexMatch={"pattern": "a"}), f"{ONE_OF} 2"),
    *((2, exact("HyperNode", name), (f"{IN}.exactMatch.name: HyperNode {name} is of tier 2; members must be of a tier "
       "below 2, the tier of the HyperNode itself")) for name in ("spine", "wrong")),
    (3, exact("HyperNode", "leaf-a"), (f"{IN}.exactMatch.name: HyperNode leaf-a is a member of HyperNode spine "
     "already; a HyperNode may be a member of one other only")),
    (1, exact("Node", "a1"), (f"{IN}.exactMatch.name: node a1 is a member of HyperNode leaf-a already; "
     "a node may be a member of one HyperNode and of those above it only")),
    (-1, exact("Node", "c1"), "spec.tier: -1; expected a whole number from 0 on"),
]  # fmt: skip


@pytest.mark.parametrize(("tier", "one", "text"), BROKEN, ids=[text.partition(";")[0][-60:] for *_, text in BROKEN])
def test_a_problem_names_the_field_and_the_accepted_form_and_the_rest_holds(
    tier: int, one: dict[str, Any], text: str
) -> None:
    h = two_tiers()
    before = leaves(h), below(tree(h))
    h.hyper_node("wrong", tier, members=[one])
    assert problems(h) == {"wrong": text}
    assert [event.message for event in h.all_events if event.reason == "InvalidObject"] == [text]
    found = tree(h)
    assert leaves(h) == before[0]
    assert {name: above for name, above in below(found).items() if name != "wrong"} == before[1]
    h.delete_hyper_node("wrong")
    assert problems(h) == {}


def test_a_hyper_node_without_a_tier_has_a_problem() -> None:
    h = two_tiers()
    body = {"metadata": {"name": "wrong"}, "spec": {"members": [exact("Node", "c1")]}}
    h.apply(deltas.ObjectChanged(msgspec.convert(body, HyperNodeObject)))
    assert problems(h) == {"wrong": "spec.tier: missing; expected a whole number from 0 on"}


def test_a_member_that_could_be_read_stays_beside_one_that_could_not() -> None:
    h = cluster("a1")
    h.hyper_node("leaf", 1, nodes=["a1"], members=[{"type": "Rack"}, exact("Node", "gone")])
    assert leaves(h) == {"a1": "leaf"}
    assert problems(h)["leaf"].startswith("spec.members[1].type: 'Rack' is neither Node nor HyperNode; spec.members[2]")


def test_a_problem_ends_with_its_cause() -> None:
    h = cluster("a1")
    h.hyper_node("leaf", 1, nodes=["a1", "x"])
    assert NOT_A_NODE in problems(h)["leaf"]
    h.node("x")
    assert problems(h) == {}
    h.delete_node("x")
    assert NOT_A_NODE in problems(h)["leaf"]


def test_a_node_named_in_a_hyper_node_and_in_one_above_it_is_in_both() -> None:
    h = cluster("a1", "a2")
    h.hyper_node("leaf", 1, nodes=["a1"])
    h.hyper_node("spine", 2, hyper_nodes=["leaf"], nodes=["a1", "a2"])
    h.hyper_node("core", 3, hyper_nodes=["leaf", "spine"])
    assert leaves(h) == {"a1": "leaf", "a2": "spine"}
    assert below(tree(h)) == {"leaf": "spine", "spine": "core", "core": ""}
    assert problems(h) == {}


def test_an_object_that_cannot_be_decoded_keeps_its_last_known_facts_and_has_a_problem() -> None:
    h = two_tiers()
    h.step()
    before = below(tree(h))
    h.apply(deltas.ObjectUnreadable(ObjectRef("HyperNode", "", "leaf-a", "u"), "spec.tier: expected a whole number"))
    h.hyper_node("leaf-c", 1)
    assert below(tree(h)) == {**before, "leaf-c": ""}
    assert problems(h)["leaf-a"] == "spec.tier: expected a whole number"


def test_the_order_of_arrival_makes_no_difference() -> None:
    found = []
    for reverse in (False, True):
        h = two_tiers()
        h.hyper_node("twin", 1, nodes=["a1", "c1"])
        if reverse:
            h._deltas.reverse()
        found.append((leaves(h), below(h.state.tree), problems(h)))
    assert found[0] == found[1]


def test_a_comparison_finds_hyper_nodes_that_differ_and_nothing_else() -> None:
    h = two_tiers()
    h.hyper_node("wrong", 1, nodes=["gone"])
    everything = list(h._deltas)
    h.step()
    assert compare(h.state, everything) == []
    changed = {"metadata": {"name": "spine", "uid": "cluster-spine-uid"}, "spec": {"tier": 5}}
    everything.append(deltas.ObjectChanged(msgspec.convert(changed, HyperNodeObject)))
    assert {(one.kind, one.name) for one in compare(h.state, everything)} == {("HyperNode", "spine")}


def test_common_ancestors_are_those_of_the_definition() -> None:
    h = two_tiers()
    h.hyper_node("island", 1, nodes=["c1"])
    found = tree(h)

    def chain(number: int) -> list[int]:
        return [] if number < 0 else [number, *chain(int(found.parents[number]))]

    for one in range(len(found)):
        for other in range(len(found)):
            shared = [number for number in chain(one) if number in chain(other)]
            assert found.meets(one)[other] == (shared[0] if shared else -1)
            assert found.common([one, other]) == (shared[0] if shared else -1)
    assert found.common([0, -1]) == -1
    assert np.array_equal(found.meets(0), found.meets(0))
