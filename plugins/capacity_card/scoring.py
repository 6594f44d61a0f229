"""Node scores of multi-card pods, by preference of the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.plugins.capacity_card.demand import CardDemands
    from capcard_sched.plugins.capacity_card.selection import Selection


class Scoring:
    """100, 50, 25, ... times `nodeOrderWeight` for the 1st, 2nd, 3rd alternative of the pod; 0 without any.

    A preference, not a guarantee: other plugins' scores are added.
    """

    def __init__(self, weight: float, selection: Selection, demands: CardDemands) -> None:
        self._weight = weight
        self._selection = selection
        self._demands = demands

    def scores(self, profile: PodSignature, rows: NodeView) -> Scores | None:
        """float64 [k], or None for pods that have no alternatives."""
        choice = self._selection.of_signature(profile)
        if choice is None:
            return None
        positions = self._demands.of(profile.cls).positions
        # index -1 (no usable alternative) picks the last entry
        by_alternative = np.array([100 * 0.5**position * self._weight for position in positions] + [0.0])
        found: Scores = by_alternative[rows.take(self._selection.alternative_index(choice))]
        return found
