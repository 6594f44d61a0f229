"""Nodes by name: those that the API server lists, and placeholders that only pods name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.job import Node, offered_amounts
from capcard_sched.model.node_conditions import lost_word
from capcard_sched.state.decode import assign, differs, node_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.job import BackedResource
    from capcard_sched.model.objects import NodeObject
    from capcard_sched.model.resources import ResourceColumns
    from capcard_sched.state.accounting import Accounting
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.columns import NodeTable
    from capcard_sched.state.invalid_objects import InvalidObjects


class NodeCache:
    """Applies Node deltas. A node with a bound pod of unknown requests is closed: it offers nothing to new pods."""

    def __init__(
        self,
        table: NodeTable,
        columns: ResourceColumns,
        accounting: Accounting,
        changes: Changes,
        invalid: InvalidObjects,
        offer: Callable[[Iterable[str]], None],
    ) -> None:
        self._table = table
        self._columns = columns
        self._accounting = accounting
        self._changes = changes
        self._invalid = invalid
        self._offer_names = offer
        self._nodes: dict[str, Node] = {}
        #: Closed nodes by key of the pod.
        self._closed_by: dict[str, Node] = {}

    def get(self, name: str) -> Node:
        """The node of this name, a placeholder when the API server does not list it."""
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = Node(name)
        return node

    def drop_placeholder(self, node: Node | None) -> None:
        """Remove a node without object and without tasks."""
        if node is not None and not node.known and not node.tasks and not node.undecodable_pods:
            self._nodes.pop(node.name, None)

    def apply(self, obj: NodeObject) -> None:
        """Apply an added or updated Node."""
        name = obj.metadata.name
        node = self.get(name)
        facts, problem = node_facts(obj)
        ref = ObjectRef("Node", "", name)
        self._invalid.note(ref, problem)
        if node.known and not differs(node, facts):
            return
        before = lost_word(node)
        assign(node, facts)
        self._offer_names(node.allocatable)
        fresh = not node.known
        if fresh:
            node.known = True
            self._table.add(node)
        self._offer(node)
        if fresh:
            for task in node.tasks.values():
                self._accounting.charge_row(node.row, task, +1)
        if lost_word(node) != before:
            self._touch_jobs(node)

    def _touch_jobs(self, node: Node) -> None:
        """Mark the jobs of the pods on a node that became ready, or ceased to be: reports name its state."""
        self._changes.jobs.update(task.job.key for task in node.tasks.values() if task.job is not None)

    def _offer(self, node: Node) -> None:
        """Apply a change of a node: its allocatable amounts, zeros while a pod with unknown requests is bound to it."""
        if not node.known:
            return
        amounts = self._columns.vector({} if node.undecodable_pods else offered_amounts(node))
        self._table.set_allocatable(node.row, amounts)
        node.generation += 1
        self._table.generation += 1
        self._table.touch(node.row)
        self._changes.nodes.add(node.name)

    def back(self, node: Node, resources: Mapping[str, BackedResource]) -> None:
        """Sets the extended resources that a node offers by devices."""
        if node.backed != resources:
            node.backed = resources
            self._offer_names(resources)
            self._offer(node)

    def drop(self, name: str) -> None:
        """Apply the deletion of a Node. It stays a placeholder while it has tasks."""
        node = self._nodes.get(name)
        self._invalid.forget("Node", "", name)
        if node is None or not node.known:
            return
        self._table.remove(node)
        node.known = False
        node.labels, node.annotations, node.allocatable, node.backed, node.taints = {}, {}, {}, {}, ()
        node.generation += 1
        self._table.generation += 1
        self._changes.nodes.add(name)
        self._touch_jobs(node)
        self.drop_placeholder(node)

    def close(self, ref: ObjectRef, node_name: str) -> None:
        """Close the node of a bound pod without usable requests to new pods; "" opens the node of an earlier call."""
        key = f"{ref.namespace}/{ref.name}"
        former = self._closed_by.pop(key, None)
        if former is not None:
            former.undecodable_pods.discard(key)
            self._offer(former)
            if former.name != node_name:
                self.drop_placeholder(former)
        if node_name:
            node = self._closed_by[key] = self.get(node_name)
            node.undecodable_pods.add(key)
            self._offer(node)

    def is_closed_by(self, namespace: str, name: str) -> bool:
        """Whether a pod closes a node."""
        return bool(self._closed_by) and f"{namespace}/{name}" in self._closed_by
