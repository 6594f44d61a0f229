"""Finds the nodes where a volume can be used, by node affinity, zones and allowed topologies, as arrays of rows.

There may be thousands of local volumes that reach one node each. So `In` requirements are evaluated by the rows of
their values, and only the other requirements node by node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.model.objects import NodeSelector, NodeSelectorTerm, Requirement
from capcard_sched.model.selectors import matches_term

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.model.objects import LabelSelector
    from capcard_sched.model.storage import PersistentVolume
    from capcard_sched.model.volumes import TopologySelectorTerm

#: Labels of zones and regions, each with its older or newer name.
ZONE_LABELS: Final = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
#: Separator of the zones of a volume that is in several.
_ZONES = "__"


class VolumeReach:
    """Results for the nodes of one index, cached until the index is rebuilt."""

    def __init__(self, index: NodeIndex) -> None:
        self.index = index
        self.everywhere: Rows = np.arange(len(index), dtype=np.intp)
        self._rows: dict[NodeSelector | None, Rows] = {None: self.everywhere}
        #: Label key to all rows ordered by value code, and where each code begins; nodes without the label come first.
        self._sorted: dict[str, tuple[Rows, Rows]] = {}

    def rows(self, selector: NodeSelector | None) -> Rows:
        """Rows that a selector matches, ascending: intp [k]. None matches every node, no terms match none."""
        found = self._rows.get(selector)
        if found is None:
            assert selector is not None
            found = self._rows[selector] = _union([self._term(term) for term in selector.node_selector_terms])
        return found

    def mask(self, rows: Rows) -> Mask:
        """The same as bool [nodes]."""
        mask = np.zeros(len(self.index), dtype=bool)
        mask[rows] = True
        return mask

    def _labelled(self, key: str, values: Iterable[str]) -> Rows:
        """Rows whose label has one of the values."""
        codes, known = self.index.column(key)
        if key not in self._sorted:
            order = np.argsort(codes, kind="stable")
            self._sorted[key] = order, np.searchsorted(codes[order], np.arange(len(known) + 1))
        order, starts = self._sorted[key]
        wanted = sorted({known[value] for value in values if value in known})
        return _union([order[starts[code] : starts[code + 1]] for code in wanted])

    def _term(self, term: NodeSelectorTerm) -> Rows:
        found: Rows | None = None
        rest: list[Requirement] = []
        for requirement in term.match_expressions or ():
            if requirement.operator == "In":
                rows = self._labelled(requirement.key, requirement.values or ())
                found = rows if found is None else np.intersect1d(found, rows, assume_unique=True)
            else:
                rest.append(requirement)
        if not rest and not term.match_fields:
            return found if found is not None else self.everywhere[:0]
        other = NodeSelectorTerm(tuple(rest), term.match_fields)
        nodes = self.index.nodes
        candidates = (self.everywhere if found is None else found).tolist()
        passed = [row for row in candidates if matches_term(other, nodes[row].labels, nodes[row].name)]
        return np.array(passed, dtype=np.intp)

    # --- other selectors --------------------------------------------------------------------------------------------

    def topologies(self, terms: tuple[TopologySelectorTerm, ...]) -> Rows:
        """Rows where a class provisions volumes; without terms all rows."""
        if not terms:
            return self.everywhere
        selector = NodeSelector(
            tuple(
                NodeSelectorTerm(
                    tuple(Requirement(each.key, "In", each.values or ()) for each in term.match_label_expressions or ())
                )
                for term in terms
            )
        )
        return self.rows(selector)

    def selected(self, selector: LabelSelector | None) -> Rows:
        """Rows whose labels a selector matches: None matches none, an empty selector all."""
        if selector is None:
            return self.everywhere[:0]
        wanted: Mapping[str, str] = selector.match_labels or {}
        parts = [Requirement(key, "In", (value,)) for key, value in wanted.items()]
        parts += selector.match_expressions or ()
        return self.rows(NodeSelector((NodeSelectorTerm(tuple(parts)),))) if parts else self.everywhere

    def zones(self, volume: PersistentVolume) -> Mask | None:
        """Mask, bool [nodes]: nodes in the zones and regions of a volume, or in no zone; None when it has no zone."""
        outside: Mask | None = None
        for key, twin in ZONE_LABELS.items():
            value = volume.labels.get(key)
            if value is None:
                continue
            values = value.split(_ZONES)
            inside = self.mask(self._labelled(key, values))
            inside |= self.mask(self._labelled(twin, values)) & (self.index.column(key).codes < 0)
            outside = ~inside if outside is None else outside | ~inside
        if outside is None:
            return None
        zoned = np.zeros(len(self.index), dtype=bool)
        for key in ZONE_LABELS:
            zoned |= self.index.column(key).codes >= 0
        return ~(outside & zoned)


def _union(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return np.sort(parts[0])
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.intp)
