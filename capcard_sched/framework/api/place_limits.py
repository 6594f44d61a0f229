"""Limits of equal pods of one job beside each other: what plugins know of the pods that empty nodes hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.model.resources import Matrix, Vector

#: The text of the limit of a node selector and a required node affinity.
SELECTED_NODES: Final = "the nodes that match their node selector and affinity have space for {limit}"
#: The text of the limit of shared devices.
SHARED_DEVICES: Final = "the nodes whose shared devices take one of them have space for {limit}"


class PlaceLimit(NamedTuple):
    """One limit, whatever other pods, cordons and taints there are. Arrays have an entry per node."""

    #: What limits, for messages: `the nodes that match their node selector have space for {limit}`.
    text: str
    #: bool [nodes]: the nodes that hold any of the pods; None for all.
    nodes: Mask | None = None
    #: int64 [nodes]: the pods that each node holds at most; None for any number.
    most: Vector | None = None
    #: intp [nodes]: the domain of each node, of which each holds `each` of the pods; -1 for none.
    domains: Rows | None = None
    each: int = 1
    #: bool [nodes]: no domain holds more than `each` pods above the emptiest domain of these nodes; None for no such
    #: domain.
    beside: Mask | None = None
    #: intp [nodes]: the domain of each node, one of which holds all of the pods; -1 for none.
    within: Rows | None = None
    #: What the limit depends on besides the pods, the text and the labels of the nodes: limits with equal texts and
    #: keys for pods of a class are equal.
    key: Hashable = ()

    def check(self, nodes: int) -> None:
        """Raises ValueError for arrays of another length than the number of nodes, and for other fields in the text."""
        for name in ("nodes", "most", "domains", "beside", "within"):
            found = getattr(self, name)
            if found is not None and found.shape != (nodes,):
                raise ValueError(f"PlaceLimit.{name} has the shape {found.shape}, accepted: ({nodes},)")
        if set("{}") & set(self.text.replace("{limit}", "")):
            raise ValueError(f"PlaceLimit.text has other fields than {{limit}}: {self.text}")
        hash(self.key)


def most_places(fitting: Vector, limits: Sequence[PlaceLimit], groups: Sequence[Rows]) -> int:
    """An upper bound on the pods that nodes hold together: of the nodes of one of `groups`, or of all without groups.

    `fitting`: pods by node, int64 [nodes].
    """
    places = fitting
    for limit in limits:
        if limit.nodes is not None:
            places = np.where(limit.nodes, places, 0)
        if limit.most is not None:
            places = np.minimum(limit.most, places)
    return max(_most_of(places, limits, rows) for rows in groups or (None,))


def most_together(requests: Matrix, counts: Vector, totals: Vector) -> tuple[int, int]:
    """An upper bound on the pods of several classes whose amounts nodes have in all, and the column that limits them.

    `requests`: int64 [classes, resources]; `counts`: int64 [classes], their pods; `totals`: int64 [resources].
    """
    found = int(counts.sum()), -1
    for column in np.flatnonzero(requests.any(axis=0)).tolist():
        pods, left = 0, int(totals[column])
        for row in np.argsort(requests[:, column], kind="stable").tolist():
            amount, count = int(requests[row, column]), int(counts[row])
            taken = min(count, left // amount) if amount else count
            pods, left = pods + taken, left - taken * amount
            if taken < count:
                break
        found = min(found, (pods, column))
    return found


def _most_of(places: Vector, limits: Sequence[PlaceLimit], rows: Rows | None) -> int:
    """The pods of some nodes, None for all; the scarcest of several kinds of domains decides."""
    here = places if rows is None else places[rows]
    found = [int(here.sum())]
    for limit in limits:
        if limit.domains is not None:
            codes = limit.domains if rows is None else limit.domains[rows]
            sums = _by_domain(here, codes)
            most = limit.each
            if limit.beside is not None:
                most += _least(sums if rows is None else _by_domain(places, limit.domains), limit.domains, limit.beside)
            found.append(int(np.minimum(sums[:-1], most).sum() + sums[-1]))
        if limit.within is not None:
            codes = limit.within if rows is None else limit.within[rows]
            found.append(int(_by_domain(here, codes)[:-1].max(initial=0)))
    return min(found)


def _by_domain(places: Vector, codes: Rows) -> Vector:
    """The pods of each domain, then those of nodes in none: int64 [domains + 1]."""
    sums = np.zeros(int(codes.max(initial=-1)) + 2, dtype=np.int64)
    np.add.at(sums, codes, places)
    return sums


def _least(sums: Vector, codes: Rows, nodes: Mask) -> int:
    """The pods of the domain of some nodes that holds fewest; 0 without a domain. `sums`: as of `_by_domain`."""
    own = codes[nodes & (codes >= 0)]
    return int(sums[own].min()) if len(own) else 0
