"""One count of pods: per node row, and from it per topology domain, both changed in O(1) by a placement."""

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
    """A tally by domain of one topology key."""

    codes: Rows
    mask: Mask | None
    #: int64 [domains + 1]; the last entry stays 0 and is what nodes without the label (code -1) find.
    totals: Vector


class TopologyCount:
    """One thing that is counted. Compared by identity; use it in profile contexts as it is."""

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
        #: All of them must select the pod: the counted one, or, for carried terms, the pod that meets the carriers.
        self.selectors = selectors
        #: Leave out pods that are being deleted.
        self.live_only = live_only
        #: For carried terms their topology key and kind; None counts the pods that `selectors` mean.
        self.carried = carried
        #: int64 [nodes]: pods, or the weights carried.
        self.rows: Vector = np.zeros(size, dtype=np.int64)
        self.sum = 0
        #: Jobs with a pending pod that asks for this.
        self.uses = 0
        #: Sessions since the last such job.
        self.unused = 0
        self._domains: dict[tuple[str, Hashable], _Domains] = {}

    def __repr__(self) -> str:
        return f"Tally({self.id}, {self.selectors}, sum={self.sum})"

    def lay_out(self, size: int) -> None:
        """Start over with zeros for another set of node rows."""
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
        """Counts per domain: int64 [domains + 1], to be indexed with `index.column(topology_key).codes`.

        With a mask (bool [nodes]) only pods on those nodes count; `scope` names the mask and must tell different masks
        apart. O(nodes) the first time, then O(1). Not to be written to.
        """
        found = self._domains.get((topology_key, scope))
        if found is None:
            codes, values = index.column(topology_key)
            counted = codes >= 0 if mask is None else (codes >= 0) & mask
            totals = np.zeros(len(values) + 1, dtype=np.int64)
            np.add.at(totals, codes[counted], self.rows[counted])
            found = self._domains[topology_key, scope] = _Domains(codes, mask, totals)
        return found.totals
