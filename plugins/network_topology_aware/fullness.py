"""Utilization of HyperNodes, updated incrementally."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.hyper_nodes import HyperNodeTree

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]


class Fullness:
    """Allocatable and used amounts below each HyperNode, int64 [HyperNodes, resources]; valid for one session."""

    def __init__(self, session: Session, weights: Mapping[str, int]) -> None:
        """`weights`: resource to its relative weight; other resources do not count."""
        self._table = session.nodes
        self._tree = session.tree
        columns = session.resources
        found = [(columns.find(name), weight) for name, weight in weights.items() if weight > 0]
        #: Column and weight of the resources that count and exist in the cluster.
        self._weights = [(column, weight) for column, weight in found if column is not None]
        self._capacity = self._under(self._table.allocatable)
        self._seen = self._table.used.copy()
        self._used = self._under(self._seen)
        self._serial = self._table.serial

    def _under(self, amounts: Ints) -> Ints:
        """Sums over the nodes below each HyperNode."""
        tree = self._tree
        totals = np.zeros((len(tree), amounts.shape[1]), dtype=np.int64)
        inside = np.flatnonzero(tree.leaf >= 0)
        np.add.at(totals, tree.leaf[inside], amounts[inside])
        for number, above in enumerate(tree.parents.tolist()):  # members precede their parents
            if above >= 0:
                totals[above] += totals[number]
        return totals

    def _catch_up(self) -> None:
        table, tree = self._table, self._tree
        if self._serial == table.serial:
            return
        changed = np.flatnonzero(table.stamps > self._serial)
        self._serial = table.serial
        for row in changed.tolist():
            more = table.used[row] - self._seen[row]
            self._seen[row] = table.used[row]
            number = int(tree.leaf[row])
            while number >= 0:
                self._used[number] += more
                number = int(tree.parents[number])

    def with_request(self, request: npt.NDArray[np.int64] | Floats) -> Floats | None:
        """Utilization of each HyperNode with a request (base units, [resources]): float64 [HyperNodes], 0 to 1.

        The weighted mean over the requested resources that count; 0 where one of them does not fit. None without such
        a resource.
        """
        self._catch_up()
        total = np.zeros(len(self._tree))
        fits = np.ones(len(self._tree), dtype=bool)
        weights = 0
        for column, weight in self._weights:
            if column >= len(request) or request[column] <= 0:
                continue
            after, capacity = self._used[:, column] + request[column], self._capacity[:, column]
            fits &= after <= capacity
            total += weight * after / np.maximum(capacity, 1)
            weights += weight
        if not weights:
            return None
        return np.where(fits, total / weights, 0.0)


def faded(tree: HyperNodeTree, fullness: Floats, fading: float) -> Floats:
    """The value of a node by its lowest HyperNode: float64 [HyperNodes], 0 to 1.

    The mean fullness of all HyperNodes that contain the node; tier `t` has the weight `fading` to the power of t - 1.
    """
    weights = float(fading) ** np.maximum(tree.tiers - 1, 0).astype(np.float64)
    sums, total = weights * fullness, weights.copy()
    for number in range(len(tree) - 1, -1, -1):  # parents precede their members here
        above = int(tree.parents[number])
        if above >= 0:
            sums[number] += sums[above]
            total[number] += total[above]
    return sums / np.where(total > 0, total, 1.0)
