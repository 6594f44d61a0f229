"""Tracks the host ports in use on each node and filters nodes by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.api.node_view import FilterResult, NodeView
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node
    from capcard_sched.model.objects import HostPort
    from capcard_sched.model.resources import Vector

PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"

_EVERY_ADDRESS = frozenset({"", "0.0.0.0"})  # noqa: S104 - the address that pods request; nothing is bound here


def conflict(one: HostPort, other: HostPort) -> bool:
    """Whether two pods with these ports cannot share a node: an empty address conflicts with every address."""
    return (
        one.port == other.port
        and (one.protocol or "TCP") == (other.protocol or "TCP")
        and (one.address == other.address or one.address in _EVERY_ADDRESS or other.address in _EVERY_ADDRESS)
    )


class HostPorts:
    """Ports in use by node, kept between sessions; one array of conflicts per requested set of ports and session."""

    def __init__(self) -> None:
        #: Node name to uid to ports.
        self._held: dict[str, dict[str, tuple[HostPort, ...]]] = {}
        self._touched: set[str] = set()
        self._conflicts: dict[tuple[HostPort, ...], Vector] = {}
        self._size = 0

    def open(self, session: Session) -> None:
        """Apply the changes since the last session. O(pods on changed nodes)."""
        table, changed = session.nodes, session.changed
        self._conflicts.clear()
        self._size = len(table)
        stale: Iterable[str]
        if changed.everything:
            self._held.clear()
            stale = table.by_name
        else:
            stale = changed.nodes | self._touched
        for name in stale:
            self._held.pop(name, None)
            node = table.by_name.get(name)
            if node is not None:
                held = {task.uid: task.cls.host_ports for task in node.tasks.values() if task.cls.host_ports}
                if held:
                    self._held[name] = held
        self._by_name = table.by_name
        self._touched.clear()

    def place(self, placement: Placement) -> None:
        """Add pods that were placed, or whose eviction was undone."""
        ports = placement.cls.host_ports
        if not ports:
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._touched.add(node.name)
            self._held.setdefault(node.name, {})[task.uid] = ports
            self._change(node, ports, +1)

    def displace(self, placement: Placement) -> None:
        """Remove pods that were unplaced or are being evicted: their ports are free for the next pod."""
        ports = placement.cls.host_ports
        if not ports:
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._touched.add(node.name)
            if self._held.get(node.name, {}).pop(task.uid, None) is not None:
                self._change(node, ports, -1)

    def _change(self, node: Node, ports: tuple[HostPort, ...], sign: int) -> None:
        if node.row >= 0:
            for wanted, conflicts in self._conflicts.items():
                conflicts[node.row] += sign * _count(wanted, ports)

    def conflicts(self, wanted: tuple[HostPort, ...]) -> Vector:
        """Number of ports on each node that conflict with these: int64 [nodes]. O(ports in use) once per session."""
        found = self._conflicts.get(wanted)
        if found is None:
            found = self._conflicts[wanted] = np.zeros(self._size, dtype=np.int64)
            for name, held in self._held.items():
                row = self._by_name[name].row
                for ports in held.values():
                    found[row] += _count(wanted, ports)
        return found

    def reject(self, wanted: tuple[HostPort, ...], rows: NodeView, result: FilterResult) -> None:
        """Reject nodes where a port is in use.

        A hypothetical row shows more pods of the class than the node has: the first of them uses the ports.
        """
        taken = rows.take(self.conflicts(wanted)) > 0
        taken |= rows.used[:, 2] > rows.take(rows.table.used[:, 2])
        result.reject(taken, Code.UNSCHEDULABLE, PORTS_TAKEN)


def _count(wanted: tuple[HostPort, ...], ports: tuple[HostPort, ...]) -> int:
    return sum(conflict(one, other) for one in wanted for other in ports)
