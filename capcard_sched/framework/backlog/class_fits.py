"""The number of pods of a signature that fit by resources, per node and in total, maintained by changed rows."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.model.job import Node
    from capcard_sched.model.resources import Matrix
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.state.columns import NodeTable

#: An upper bound of the pods on some rows, beside their amounts: int64 [rows].
MostPods: TypeAlias = "Callable[[Rows], npt.NDArray[np.int64]]"

#: Pods per node above which counting stops.
_MOST_PODS: Final = 1 << 20


class FitChange(Enum):
    """A change of the nodes that a class may use."""

    NONE = "no feasible node changed"
    OTHER = "some feasible node changed, and none fits more pods"
    MORE = "some node fits more pods"


class ClassFit:
    """An upper bound on the pods of one class that can be placed: free resources of the feasible nodes alone.

    Capacity that is being released counts as free, and the requests of `victims`. `most` bounds the pods of a node
    further.
    """

    __slots__ = (
        "_columns",
        "_feasible",
        "_fits",
        "_generation",
        "_nodes",
        "_request",
        "_victims",
        "cls",
        "contexts",
        "most",
        "serial",
        "total",
    )

    def __init__(
        self,
        cls: TaskClass,
        contexts: dict[str, Hashable],
        table: NodeTable,
        feasible: Mask,
        victims: Callable[[Rows, Rows], Matrix] | None = None,
        most: MostPods | None = None,
    ) -> None:
        """`feasible`: bool [nodes], the rows that pass the static filters.

        `victims` returns the requests on rows in columns that evictions free: int64 [rows, columns].
        """
        self.cls = cls
        self._victims = victims
        self.most = most
        #: The contexts of the signature, by plugin.
        self.contexts = contexts
        self._rebuild(table, feasible)

    def _rebuild(self, table: NodeTable, feasible: Mask) -> None:
        self._generation = table.generation
        #: The table's serial of the counts.
        self.serial = table.serial
        self._nodes: list[Node] = table.nodes[:]
        self._feasible = feasible
        self._columns = self.cls.fit_request.nonzero()[0]
        self._request = self.cls.fit_request[self._columns]
        self._fits: npt.NDArray[np.int64] = np.zeros(len(table), dtype=np.int64)
        rows = feasible.nonzero()[0]
        self._fits[rows] = self._count(table, rows)
        #: The sum over all feasible nodes.
        self.total = int(self._fits.sum())

    def _count(self, table: NodeTable, rows: Rows) -> npt.NDArray[np.int64]:
        found = self._by_amounts(table, rows)
        return found if self.most is None else np.minimum(found, self.most(rows))

    def _by_amounts(self, table: NodeTable, rows: Rows) -> npt.NDArray[np.int64]:
        columns = self._columns
        if not len(columns):
            return np.full(len(rows), _MOST_PODS, dtype=np.int64)
        cells = np.ix_(rows, columns)
        free = table.allocatable[cells] - table.used[cells] + table.releasing[cells] - table.pipelined[cells]
        if self._victims is not None:
            free += self._victims(rows, columns)
        pods: npt.NDArray[np.int64] = (free // self._request).min(axis=1)
        return pods.clip(0, _MOST_PODS)

    def fits(self, rows: Rows) -> npt.NDArray[np.int64]:
        """The counts of some rows (intp): int64 [rows]."""
        found: npt.NDArray[np.int64] = self._fits[rows]
        return found

    def is_current(self, table: NodeTable, feasible: Mask) -> bool:
        """Whether `update` suffices: the nodes are the same, with the same static result."""
        return table.generation == self._generation and (
            feasible is self._feasible or bool((feasible == self._feasible).all())
        )

    def rebuild(self, table: NodeTable, feasible: Mask) -> FitChange:
        """Counts all nodes anew."""
        fits, nodes = self._fits, self._nodes
        self._rebuild(table, feasible)
        more = nodes != self._nodes or bool((self._fits > fits).any())
        return FitChange.MORE if more else FitChange.OTHER

    def update(self, table: NodeTable, changed: Rows) -> FitChange:
        """Counts changed rows (intp, ascending) anew."""
        self.serial = table.serial
        rows = changed[self._feasible.take(changed)]
        if not len(rows):
            return FitChange.NONE
        fits = self._count(table, rows)
        gains = fits - self._fits[rows]
        self._fits[rows] = fits
        self.total += int(gains.sum())
        return FitChange.MORE if (gains > 0).any() else FitChange.OTHER
