"""One count of pods by node row and, derived from it, by topology domain; a placement updates both in O(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.pod_selectors import PodSelector
    from capcard_sched.model.resources import Vector


class _Domains(NamedTuple):
    """A count by the domains of one topology key."""

    codes: Rows
    mask: Mask | None
    #: int64 [domains + 1]; the last entry stays 0 and serves nodes without the label (code -1).
    totals: Vector


class TopologyCount:
    """Counts the pods, or carried terms, of one selector. Compared by identity, so that pod signatures can hold it."""

    __slots__ = ("_domains", "carried", "id", "live_only", "rows", "selectors", "sum", "unused", "uses")

    def __init__(
        self,
        id: int,
        selectors: tuple[PodSelector, ...],
        size: int,
        *,
        live_only: bool,
        carried: tuple[str, int] | None,
    ) -> None:
        self.id = id
        #: All of them must select the pod: the counted pod or, for carried terms, the pod that the terms apply to.
        self.selectors = selectors
        #: Whether pods that are being deleted are excluded.
        self.live_only = live_only
        #: Topology key and kind of carried terms; None counts the pods that `selectors` select.
        self.carried = carried
        #: int64 [nodes]: number of pods, or sum of the carried weights.
        self.rows: Vector = np.zeros(size, dtype=np.int64)
        self.sum = 0
        #: Number of jobs with a pending pod that needs this count.
        self.uses = 0
        #: Number of sessions since the last such job.
        self.unused = 0
        self._domains: dict[tuple[str, Hashable], _Domains] = {}

    def __repr__(self) -> str:
        return f"TopologyCount({self.id}, {self.selectors}, sum={self.sum})"

    def reset(self, size: int) -> None:
        """Set all counts to 0 for a new set of node rows."""
        self.rows = np.zeros(size, dtype=np.int64)
        self.sum = 0
        self._domains.clear()

    def change(self, row: int, amount: int) -> None:
        """Add to one node row."""
        self.rows[row] += amount
        self.sum += amount
        for domains in self._domains.values():
            code = domains.codes[row]
            if code >= 0 and (domains.mask is None or domains.mask[row]):
                domains.totals[code] += amount

    def totals(self, index: NodeIndex, topology_key: str, scope: Hashable = None, mask: Mask | None = None) -> Vector:
        """Counts per domain: int64 [domains + 1], indexed by `index.column(topology_key).codes`. Read-only.

        With a mask (bool [nodes]) only pods on those nodes count; `scope` identifies the mask. O(nodes) the first
        time, then O(1).
        """
        found = self._domains.get((topology_key, scope))
        if found is None:
            codes, values = index.column(topology_key)
            counted = codes >= 0 if mask is None else (codes >= 0) & mask
            totals = np.zeros(len(values) + 1, dtype=np.int64)
            np.add.at(totals, codes[counted], self.rows[counted])
            found = self._domains[topology_key, scope] = _Domains(codes, mask, totals)
        return found.totals
