"""What every node is worth to a profile that cannot be ranked, kept from pod to pod.

Rankings need nodes of equal amounts to be worth the same, and a node's worth not to depend on others. A scan needs
neither: it has a figure per node, and before each pod asks the row hooks for the nodes that changed since the last one.
What compares nodes, or looks elsewhere, is asked of all candidates besides (`PlacementEngine.best`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_view import NodeView

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import Mask, PodSignature, Rows, Scores
    from capcard_sched.framework.placement.engine import PlacementEngine

_NEVER = float("-inf")


class ScoreCache:
    """Rows that may take a pod of one profile now, promises kept, and what the row hooks give them."""

    __slots__ = ("_engine", "_feasible", "_scores", "_signature", "_static", "_synced")

    def __init__(self, engine: PlacementEngine, signature: PodSignature, feasible: Mask, static: Scores | None) -> None:
        """`feasible` (bool [nodes]) and `static` (float64 [nodes]): what placements cannot change."""
        self._engine = engine
        self._signature = signature
        self._feasible = feasible
        self._static = static
        #: -inf where the pod cannot go: float64 [nodes].
        self._scores: Scores = np.full(len(feasible), _NEVER)
        self._synced = engine.table.serial
        self._ask(np.flatnonzero(feasible))

    def candidates(self) -> tuple[Rows, Scores]:
        """Rows that may take one pod, ascending, and their scores without those that compare: intp and float64 [k]."""
        table = self._engine.table
        if self._synced != table.serial:
            changed = np.flatnonzero(table.stamps > self._synced)
            self._ask(changed[self._feasible.take(changed)])
            self._synced = table.serial  # not before: a hook that failed is asked again
        rows = np.flatnonzero(self._scores > _NEVER)
        return rows, self._scores.take(rows)

    def _ask(self, rows: Rows) -> None:
        engine, signature = self._engine, self._signature
        self._scores[rows] = _NEVER
        rows = rows[engine.has_capacity(signature, NodeView(engine.table, rows))]
        if len(rows):
            scores = engine.scores(signature, NodeView(engine.table, rows))
            self._scores[rows] = scores if self._static is None else scores + self._static.take(rows)
