"""Node amounts as columns: int64 arrays with one row per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from capcard_sched.model.job import Node
    from capcard_sched.model.resources import Matrix, Vector

_GROWTH = 64
#: Position of `charged` among the buffers.
_CHARGED = 3


class NodeTable:
    """Amounts of all nodes that the API server lists.

    Public arrays are views of the first `len(self)` rows of larger buffers and are replaced when rows are added: read
    them from the table each time, or within one session, where the set of rows does not change. `sort_rows` orders rows
    by node name, so that ties between equal nodes do not depend on the order of arrival.
    """

    #: int64 [nodes, width + 2]: `used` and `nonzero_used` side by side: one addition charges a pod.
    charged: Matrix
    #: int64 [nodes, width] each; `used` includes `releasing`.
    allocatable: Matrix
    used: Matrix
    releasing: Matrix
    pipelined: Matrix
    #: int64 [nodes, 2]: cpu milli, memory bytes with non-zero defaults.
    nonzero_used: Matrix

    def __init__(self, width: int) -> None:
        self.nodes: list[Node] = []
        self.by_name: dict[str, Node] = {}
        #: Increases with every change that is not a placement: labels, taints, allocatable, the set of nodes.
        self.generation = 0
        #: Increases with every change of a row's amounts; `stamps` (int64 [nodes]): its value at the row's last change.
        self.serial = 0
        self._sorted = True
        self._buffers = [
            np.zeros((_GROWTH, columns), dtype=np.int64) for columns in (width, width, width, width + 2, 1)
        ]
        #: Sums over all rows: int64 [width].
        self.total_allocatable = np.zeros(width, dtype=np.int64)
        self.total_used = np.zeros(width, dtype=np.int64)
        self._expose()

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def names(self) -> list[str]:
        """Node names by row."""
        return [node.name for node in self.nodes]

    def future_idle(self, rows: int | npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """Idle amounts of some rows, an int or intp [k], once releasing pods are gone, without those of pipelined pods.

        int64 [resources] or [k, resources]; may be negative.
        """
        return self.allocatable[rows] - self.used[rows] + self.releasing[rows] - self.pipelined[rows]

    def _expose(self) -> None:
        n = len(self.nodes)
        self.allocatable, self.releasing, self.pipelined, self.charged, stamps = (
            buffer[:n] for buffer in self._buffers
        )
        self.used, self.nonzero_used, self.stamps = self.charged[:, :-2], self.charged[:, -2:], stamps[:, 0]

    def widen(self, width: int) -> None:
        """Extend the arrays to `width` resource columns."""
        for i in range(4):
            old = self._buffers[i]
            tail = 2 if i == _CHARGED else 0
            new = np.zeros((old.shape[0], width + tail), dtype=np.int64)
            new[:, : old.shape[1] - tail] = old[:, : old.shape[1] - tail]
            if tail:
                new[:, -tail:] = old[:, -tail:]
            self._buffers[i] = new
        for name in ("total_allocatable", "total_used"):
            total = np.zeros(width, dtype=np.int64)
            old_total = getattr(self, name)
            total[: len(old_total)] = old_total
            setattr(self, name, total)
        self._expose()

    def add(self, node: Node) -> None:
        """Append a row for a node: the rows of the buffers beyond the last one are zeros."""
        row = len(self.nodes)
        if row == self._buffers[0].shape[0]:
            self._buffers = [
                np.concatenate([buffer, np.zeros((max(_GROWTH, row), buffer.shape[1]), dtype=np.int64)])
                for buffer in self._buffers
            ]
        node.row = row
        if self.nodes and self.nodes[-1].name > node.name:
            self._sorted = False
        self.nodes.append(node)
        self.by_name[node.name] = node
        self._expose()

    def remove(self, node: Node) -> None:
        """Remove a node's row; the last row moves into its place."""
        row, last = node.row, len(self.nodes) - 1
        self.total_allocatable -= self.allocatable[row]
        self.total_used -= self.used[row]
        if row != last:
            moved = self.nodes[last]
            self.nodes[row] = moved
            moved.row = row
            for buffer in self._buffers:
                buffer[row] = buffer[last]
            self._sorted = False
        for buffer in self._buffers:
            buffer[last] = 0
        self.nodes.pop()
        del self.by_name[node.name]
        node.row = -1
        self._expose()

    def sort_rows(self) -> None:
        """Order rows by node name. O(nodes) after a change of the order, else O(1)."""
        if self._sorted:
            return
        order = sorted(range(len(self.nodes)), key=lambda row: self.nodes[row].name)
        self.nodes = [self.nodes[row] for row in order]
        for row, node in enumerate(self.nodes):
            node.row = row
        for buffer in self._buffers:
            buffer[: len(order)] = buffer[order]
        self._sorted = True
        self.generation += 1
        self._expose()

    def touch(self, row: int) -> None:
        self.serial += 1
        self.stamps[row] = self.serial

    def set_allocatable(self, row: int, amounts: Vector) -> None:
        self.total_allocatable += amounts - self.allocatable[row]
        self.allocatable[row] = amounts
