"""Limits of equal pods of one job beside each other: what plugins know of the pods that empty nodes hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.model.resources import Vector


class PlaceLimit(NamedTuple):
    """One limit, whatever other pods, cordons and taints there are."""

    #: What limits, for messages: `the nodes that match their node selector have space for {limit}`. Equal texts for
    #: pods of a class are equal limits.
    text: str
    #: bool [nodes]: the nodes that hold any of the pods; None for all.
    nodes: Mask | None = None
    #: intp [nodes]: the domain of each node, of which each holds one of the pods; -1 for none.
    domains: Rows | None = None


def most_places(fitting: Vector, limits: Sequence[PlaceLimit], groups: Sequence[Rows]) -> int:
    """An upper bound on the pods that nodes hold together: of the nodes of one of `groups`, or of all without groups.

    `fitting`: pods by node, int64 [nodes].
    """
    places = fitting
    for limit in limits:
        if limit.nodes is not None:
            places = np.where(limit.nodes, places, 0)
    domains = [limit.domains for limit in limits if limit.domains is not None]
    parts = groups or [np.arange(len(places), dtype=np.intp)]
    return max(_most_apart(places[rows], [found[rows] for found in domains]) for rows in parts)


def _most_apart(places: Vector, domains: Sequence[Rows]) -> int:
    """The pods of some nodes where each domain holds one; the scarcest of several kinds of domains decides."""
    found = [int(places.sum())]
    for codes in domains:
        outside = int(places[codes < 0].sum())
        found.append(outside + len(np.unique(codes[(codes >= 0) & (places > 0)])))
    return min(found)
