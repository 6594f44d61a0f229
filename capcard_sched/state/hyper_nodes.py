"""HyperNodes and the tree they form with the nodes of the cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from capcard_sched.model.hyper_nodes import DEFAULT_TIER, HyperNode, HyperNodeObject, HyperNodeTree, hyper_node_facts
from capcard_sched.model.intents import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from capcard_sched.model.hyper_nodes import Member
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.columns import NodeTable
    from capcard_sched.state.invalid_objects import InvalidObjects

#: A pattern, or a label selector as JSON.
_Rule: TypeAlias = str | bytes


class HyperNodeTable:
    """Applies HyperNode deltas; `refresh` rebuilds the tree after a change of its inputs.

    An invalid member is omitted and adds a problem to its HyperNode; the rest of the tree is valid.
    """

    def __init__(self, changes: Changes, invalid: InvalidObjects) -> None:
        self._changes = changes
        self._invalid = invalid
        #: HyperNodes by name; those without a valid tier are absent.
        self.known: dict[str, HyperNode] = {}
        self._labels = _LabelTrees()
        self._none = HyperNodeTree((), (), {}, by_label=self._labels.tree)
        self.tree = self._none
        self._versions = 0
        #: Name to the reference of its object and the problems of its fields.
        self._read: dict[str, tuple[ObjectRef, str]] = {}
        #: Labels of the nodes in the tree, by node name.
        self._nodes: dict[str, Mapping[str, str]] = {}
        #: Names of the nodes that a rule selects.
        self._chosen: dict[_Rule, set[str]] = {}
        self._stale = False
        self._generation = -1
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            HyperNodeObject: self._put,
            "HyperNode": lambda gone: self._drop(gone.name),
        }

    def _put(self, obj: HyperNodeObject) -> None:
        meta = obj.metadata
        ref = ObjectRef("HyperNode", "", meta.name, meta.uid)
        facts, problem = hyper_node_facts(obj)
        if self._read.get(meta.name) == (ref, problem) and self.known.get(meta.name) == facts:
            return
        self._read[meta.name] = ref, problem
        self._invalid.note(ref, problem)
        if facts is not None:
            self.known[meta.name] = facts
        else:
            self.known.pop(meta.name, None)
        self._stale = True
        self._changes.hyper_nodes.add(meta.name)

    def set_problem(self, ref: ObjectRef, problem: str) -> None:
        """Set the problem of a HyperNode that keeps its last known facts."""
        if ref.name in self._read:
            self._read[ref.name] = ref, problem

    def _drop(self, name: str) -> None:
        self._invalid.forget("HyperNode", "", name)
        if self._read.pop(name, None) is None:
            return
        self.known.pop(name, None)
        self._stale = True
        self._changes.hyper_nodes.add(name)

    def refresh(self, table: NodeTable, changed: Changes | None = None) -> HyperNodeTree:
        """The tree over the nodes of a sorted table; `changed` limits the nodes to check (None: all).

        O(1) without HyperNodes; else O(changed nodes), and O(members) when the tree changed.
        """
        self._labels.table = table
        if not self._read:
            if self.tree.ready:
                self.tree, self._nodes, self._chosen = self._none, {}, {}
            self._stale = False
            return self.tree
        everything = changed is None or changed.everything or not self._nodes
        names = {*table.by_name, *self._nodes} if everything or changed is None else changed.nodes
        fresh = self._update_nodes(table, names)
        if fresh or self._stale:
            self._rebuild(fresh)
            self._generation = -1
        if self._generation != table.generation:
            self._generation = table.generation
            self.tree = self.tree.over(node.name for node in table.nodes)
        return self.tree

    def _update_nodes(self, table: NodeTable, names: Iterable[str]) -> set[str]:
        """Record node labels. Returns the nodes that were added, were removed or have other labels than before."""
        known, changed = self._nodes, set()
        for name in names:
            node = table.by_name.get(name)
            if node is None:
                if known.pop(name, None) is not None:
                    changed.add(name)
            elif known.get(name) != node.labels or name not in known:
                known[name] = node.labels
                changed.add(name)
        return changed

    def _rebuild(self, changed: Collection[str]) -> None:
        used: dict[_Rule, set[str]] = {}
        for one in self.known.values():
            for member in one.members:
                if member.of == "Node" and not member.name:
                    rule = _rule(member)
                    if rule not in used:
                        used[rule] = self._nodes_of(member, rule, changed)
        self._chosen = used
        builder = _TreeBuilder(self.known, self._nodes, used)
        for name, (ref, problem) in self._read.items():
            wrong = [problem, *builder.problems.get(name, ())]
            self._invalid.note(ref, "; ".join(filter(None, wrong)))
        self._stale = False
        fresh = HyperNodeTree(
            builder.order, builder.parents, builder.leaf_of, version=self._versions + 1, by_label=self._labels.tree
        )
        if not fresh.is_like(self.tree):
            self._versions += 1
            self.tree = fresh

    def _nodes_of(self, member: Member, rule: _Rule, changed: Collection[str]) -> set[str]:
        """Names of the nodes a rule selects; only changed nodes are matched again."""
        found = self._chosen.get(rule)
        if found is None:
            found, changed = set(), self._nodes.keys()
        matches = member.matcher()
        for name in changed:
            labels = self._nodes.get(name)
            if labels is not None and matches(name, labels):
                found.add(name)
            else:
                found.discard(name)
        return found


class _LabelTrees:
    """Trees of one tier, whose domains are the values of a node label; made on first use, for the nodes of a table."""

    def __init__(self) -> None:
        self.table: NodeTable | None = None
        #: Label to the generation of the table and the tree.
        self._known: dict[str, tuple[int, HyperNodeTree]] = {}

    def tree(self, label: str) -> HyperNodeTree:
        """The tree of a label; its version changes with the values of the nodes. O(nodes) once they changed."""
        table, known = self.table, self._known.get(label)
        assert table is not None
        if known is not None and known[0] == table.generation:
            return known[1]
        values = {node.name: value for node in table.nodes if (value := node.labels.get(label))}
        names = sorted(set(values.values()))
        numbers = {name: number for number, name in enumerate(names)}
        fresh = HyperNodeTree(
            [HyperNode(name, DEFAULT_TIER, "", ()) for name in names],
            [-1] * len(names),
            {node: numbers[value] for node, value in values.items()},
            version=known[1].version + 1 if known is not None else 1,
            label=label,
            by_label=self.tree,
        )
        if known is not None and fresh.is_like(known[1]):
            fresh = known[1]
        fresh = fresh.over(node.name for node in table.nodes)
        self._known[label] = table.generation, fresh
        return fresh


def _rule(member: Member) -> _Rule:
    return member.pattern or msgspec.json.encode(member.labels)


class _TreeBuilder:
    """Assigns members to HyperNodes in order of tier and name: the first HyperNode that names a member owns it."""

    def __init__(
        self, known: Mapping[str, HyperNode], nodes: Mapping[str, object], chosen: Mapping[_Rule, set[str]]
    ) -> None:
        self._nodes = nodes
        self._chosen = chosen
        self.order = sorted(known.values(), key=lambda one: (one.tier, one.name))
        self._numbers = {one.name: number for number, one in enumerate(self.order)}
        self.parents = [-1] * len(self.order)
        self.leaf_of: dict[str, int] = {}
        self.problems: dict[str, list[str]] = {}
        for number, one in enumerate(self.order):
            self._claim_hyper_nodes(number, one)
        for number, one in enumerate(self.order):
            self._claim_nodes(number, one)

    def _add_problem(self, one: HyperNode, text: str) -> None:
        self.problems.setdefault(one.name, []).append(text)

    def _is_under(self, number: int, above: int) -> bool:
        while number >= 0:
            if number == above:
                return True
            number = self.parents[number]
        return False

    def _claim_hyper_nodes(self, number: int, one: HyperNode) -> None:
        taken: list[tuple[Member, int]] = []
        for member in one.members:
            if member.of != "HyperNode":
                continue
            for child in self._members_of(one, member):
                if self.parents[child] < 0:
                    self.parents[child] = number
                else:
                    taken.append((member, child))
        for member, child in taken:  # a descendant through another member is valid
            if not self._is_under(self.parents[child], number):
                owner, name = self.order[self.parents[child]].name, self.order[child].name
                self._add_problem(
                    one,
                    f"{member.field}: HyperNode {name} is a member of HyperNode {owner} already; "
                    "a HyperNode may be a member of one other only",
                )

    def _members_of(self, one: HyperNode, member: Member) -> list[int]:
        """Numbers of the HyperNodes of lower tiers that a member names."""
        if not member.name:
            search = re.compile(member.pattern).search
            found = [n for n, other in enumerate(self.order) if other.tier < one.tier and search(other.name)]
            if not found:
                self._add_problem(
                    one,
                    f"{member.field}: {member.pattern!r} matches no HyperNode of a tier below {one.tier}; "
                    "give a regular expression that the name of one matches",
                )
            return found
        child = self._numbers.get(member.name)
        if child is None:
            self._add_problem(one, f"{member.field}: HyperNode {member.name} does not exist")
            return []
        if self.order[child].tier >= one.tier:
            self._add_problem(
                one,
                f"{member.field}: HyperNode {member.name} is of tier {self.order[child].tier}; members must be of a "
                f"tier below {one.tier}, the tier of the HyperNode itself",
            )
            return []
        return [child]

    def _claim_nodes(self, number: int, one: HyperNode) -> None:
        for member in one.members:
            if member.of != "Node":
                continue
            for name in self._nodes_named(one, member):
                owner = self.leaf_of.setdefault(name, number)
                if not self._is_under(owner, number):
                    self._add_problem(
                        one,
                        f"{member.field}: node {name} is a member of HyperNode {self.order[owner].name} already; "
                        "a node may be a member of one HyperNode and of those above it only",
                    )

    def _nodes_named(self, one: HyperNode, member: Member) -> list[str]:
        if member.name:
            if member.name in self._nodes:
                return [member.name]
            self._add_problem(one, f"{member.field}: node {member.name} does not exist")
            return []
        found = sorted(self._chosen[_rule(member)])
        if not found:
            shown = repr(member.pattern) if member.pattern else "the selector"
            self._add_problem(one, f"{member.field}: {shown} matches no node; give what at least one node matches")
        return found
