"""What the pods on each node hold of something that is counted by node, kept between sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task

Value = TypeVar("Value")


class PodsByNode(Generic[Value]):
    """One value per pod on a node. A subclass reads it from a pod and keeps its sums with every change."""

    def __init__(self) -> None:
        self._by_name: Mapping[str, Node] = {}
        #: Node name to the values of its pods by uid.
        self._held: dict[str, dict[str, Value]] = {}
        #: Nodes with placements in this session, some of which may be undone.
        self._touched: set[str] = set()

    def _value(self, task: Task, node: str) -> Value | None:
        """What a pod holds on a node; None for a pod that never holds any."""
        raise NotImplementedError

    def _change(self, node: str, uid: str, value: Value, sign: int) -> None:
        """Add the value of a pod to the sums (1), or subtract it (-1)."""
        raise NotImplementedError

    def refresh(self, session: Session, more: Collection[str] = ()) -> None:
        """Apply the changes since the last session, and read the nodes `more` again. O(pods on these nodes)."""
        self._by_name, changed = session.nodes.by_name, session.changed
        stale = {*self._by_name, *self._held} if changed.everything else {*changed.nodes, *self._touched, *more}
        for name in stale:
            self._read(name, self._by_name.get(name))
        self._touched.clear()

    def _read(self, name: str, node: Node | None) -> None:
        """Read the pods of a node again; None for a node that no longer exists."""
        for uid, value in self._held.pop(name, {}).items():
            self._change(name, uid, value, -1)
        for task in node.tasks.values() if node is not None else ():
            self.place(task, name)

    def place(self, task: Task, node: str) -> None:
        """Add a pod that was placed, or whose eviction was undone."""
        value = self._value(task, node)
        if value is not None:
            self._touched.add(node)
            self._held.setdefault(node, {})[task.uid] = value
            self._change(node, task.uid, value, +1)

    def displace(self, task: Task, node: str) -> None:
        """Remove a pod that was unplaced or is being evicted: what it holds is free for the next pod."""
        value = self._held.get(node, {}).pop(task.uid, None)
        if value is not None:
            self._touched.add(node)
            self._change(node, task.uid, value, -1)
