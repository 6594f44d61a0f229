"""Scores per node for a signature that cannot be ranked by node class, kept from pod to pod.

Rankings require nodes of equal amounts to score the same, and scores not to depend on other nodes. A score cache
requires neither: it holds a score per node, and before each pod re-evaluates the row hooks for the nodes that changed.
Hooks that compare nodes, or read other nodes, run over all candidates besides (`PlacementEngine.best`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_view import NodeView

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import Mask, PodSignature, Rows, Scores
    from capcard_sched.framework.placement.node_hooks import SignatureHooks
    from capcard_sched.state.columns import NodeTable

_NEVER = float("-inf")


class ScoreCache:
    """Feasible rows for a pod of one signature, nominations kept, and their scores by the row hooks."""

    __slots__ = ("_feasible", "_hooks", "_scores", "_signature", "_static", "_synced", "_table")

    def __init__(
        self, hooks: SignatureHooks, table: NodeTable, signature: PodSignature, feasible: Mask, static: Scores | None
    ) -> None:
        """`feasible` (bool [nodes]) and `static` (float64 [nodes]): the results that placements cannot change."""
        self._hooks = hooks
        self._table = table
        self._signature = signature
        self._feasible = feasible
        self._static = static
        #: -inf where the pod does not fit: float64 [nodes].
        self._scores: Scores = np.full(len(feasible), _NEVER)
        self._synced = table.serial
        self._evaluate(np.flatnonzero(feasible))

    def candidates(self) -> tuple[Rows, Scores]:
        """Feasible rows, ascending, and their scores without comparing hooks: intp and float64 [k]."""
        table = self._table
        if self._synced != table.serial:
            changed = np.flatnonzero(table.stamps > self._synced)
            self._evaluate(changed[self._feasible.take(changed)])
            self._synced = table.serial  # only now: a failed hook is called again
        rows = np.flatnonzero(self._scores > _NEVER)
        return rows, self._scores.take(rows)

    def _evaluate(self, rows: Rows) -> None:
        hooks, table, signature = self._hooks, self._table, self._signature
        self._scores[rows] = _NEVER
        rows = rows[NodeView(table, rows).has_capacity(signature.cls.fit_request)]
        if len(rows):
            scores = hooks.scores(NodeView(table, rows))
            self._scores[rows] = scores if self._static is None else scores + self._static.take(rows)
