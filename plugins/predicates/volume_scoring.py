"""Scores nodes by the storage utilization of the volumes they offer (`volumebinding.shape`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.plugins.predicates.volume_market import TO_BE_MADE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import Scores
    from capcard_sched.model.resources import Vector
    from capcard_sched.plugins.predicates.arguments import ShapePoint
    from capcard_sched.plugins.predicates.volume_market import Offer, VolumeMarket

#: A full score of the shape, and of a node.
_SHAPE_FULL, _NODE_FULL = 10, 100


def score(market: VolumeMarket, offer: Offer, shape: Sequence[ShapePoint]) -> Scores:
    """Score of every node for the volumes it offers to the claims, 0 to 100: float64 [nodes].

    The shape maps the utilization of the volumes of each class to points; the score is the mean over the classes. A
    node with existing volumes for some of the claims is scored by these; a node where all are to be provisioned, by
    the capacity that its drivers report.
    """
    nodes = len(offer.unavailable)
    present = np.zeros(nodes, dtype=bool)
    for choice in offer.choices:
        present |= choice > TO_BE_MADE
    requested: dict[str, Vector] = {}
    offered: dict[str, Vector] = {}
    for claim, choice in zip(offer.claims, offer.choices, strict=True):
        name = claim.class_name
        wanted = requested.setdefault(name, np.zeros(nodes, dtype=np.int64))
        given = offered.setdefault(name, np.zeros(nodes, dtype=np.int64))
        free = market.free_capacity(name)
        made = (choice == TO_BE_MADE) & ~present & (free > 0)
        wanted[made] += claim.size
        given[made] = free[made]
        chosen = choice > TO_BE_MADE
        versions, place = np.unique(choice[chosen], return_inverse=True)
        sizes = np.array([market.volumes[version].size for version in versions.tolist()], dtype=np.int64)
        wanted[chosen] += claim.size
        given[chosen] += sizes[place]
    total, classes = np.zeros(nodes), np.zeros(nodes, dtype=np.int64)
    for name, given in offered.items():
        counted = given > 0
        share = np.minimum(requested[name][counted] / given[counted], 1.0) * 100
        total[counted] += _through(shape, share)
        classes[counted] += 1
    return np.round(total / np.maximum(classes, 1))


def _through(shape: Sequence[ShapePoint], share: Scores) -> Scores:
    points = [point.utilization for point in shape]
    scores = [point.score * _NODE_FULL / _SHAPE_FULL for point in shape]
    return np.interp(share, points, scores)
