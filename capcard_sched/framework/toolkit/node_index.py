"""Labels and taints of all nodes as columns of codes, so that selectors are array operations.

An index belongs to one generation of the node table and is discarded with it, or when its caches are full (`renewed`).
Columns are built when a selector first names their key; results are cached per task class and per tuple of tolerations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from capcard_sched.model.objects import NodeSelectorTerm
from capcard_sched.model.selectors import NAME_FIELD, matches_term, untolerated_preferences, untolerated_taint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node
    from capcard_sched.model.objects import Requirement, Taint, Toleration
    from capcard_sched.model.task_class import TaskClass


#: Cache entries; an index with more is rebuilt, because task classes come and go while the nodes stay.
_MAX_ENTRIES = 4096


class LabelColumn(NamedTuple):
    """One label key over all nodes."""

    #: Position of each node's value in `values`, -1 without the label: intp [nodes].
    codes: Rows
    values: dict[str, int]


class NodeIndex:
    """Label, taint and name lookups over the nodes of one generation; arrays are indexed by row."""

    def __init__(self, nodes: Sequence[Node], generation: int = -1) -> None:
        """`generation`: of the node table."""
        self.nodes = nodes
        self._generation = generation
        self._columns: dict[str, LabelColumn] = {}
        self._rows_by_name: dict[str, int] | None = None
        self._requirements: dict[Requirement, Mask] = {}
        self._matching: dict[TaskClass, Mask | None] = {}
        self._offending: dict[tuple[Toleration, ...], list[Taint | None]] = {}
        self._tolerated: dict[tuple[Toleration, ...], Mask | None] = {}
        self._declaring: dict[tuple[str, ...], Mask] = {}
        self._preferences: dict[tuple[Toleration, ...], npt.NDArray[np.int64] | None] = {}
        codes: dict[tuple[Taint, ...], int] = {}
        #: Index into `taint_sets` of each node: intp [nodes].
        self.taint_codes: Rows = np.array([codes.setdefault(node.taints, len(codes)) for node in nodes], dtype=np.intp)
        #: The distinct taint lists, in the nodes' own order.
        self.taint_sets: list[tuple[Taint, ...]] = list(codes)
        #: bool [nodes]: cordoned nodes; None when there is none.
        self.cordoned: Mask | None = None
        if any(node.unschedulable for node in nodes):
            self.cordoned = np.array([node.unschedulable for node in nodes], dtype=bool)

    def __len__(self) -> int:
        return len(self.nodes)

    def renewed(self, session: Session) -> NodeIndex:
        """The index of the nodes of a session: this one, or a new one once nodes changed or caches exceed their limit.

        Results derived from an index end with it.
        """
        table = session.nodes
        kept = len(self._columns) + len(self._requirements) + len(self._matching)
        kept += len(self._tolerated) + len(self._preferences)
        outdated = table.generation != self._generation or len(table) != len(self) or kept > _MAX_ENTRIES
        return NodeIndex(table.nodes, table.generation) if outdated or session.changed.everything else self

    # --- labels -----------------------------------------------------------------------------------------------------

    def column(self, key: str) -> LabelColumn:
        """The column of a label key. O(nodes) the first time."""
        column = self._columns.get(key)
        if column is None:
            values: dict[str, int] = {}
            codes = np.full(len(self.nodes), -1, dtype=np.intp)
            for row, node in enumerate(self.nodes):
                value = node.labels.get(key)
                if value is not None:
                    codes[row] = values.setdefault(value, len(values))
            column = self._columns[key] = LabelColumn(codes, values)
        return column

    def with_labels(self, labels: Iterable[tuple[str, str]]) -> Mask | None:
        """Mask, bool [nodes]: nodes that have all these labels; None for all nodes."""
        mask: Mask | None = None
        for key, value in labels:
            column = self.column(key)
            # A value that no node has gets code -2, which matches no node.
            found = column.codes == column.values.get(value, -2)
            mask = found if mask is None else mask & found
        return mask

    def _by_label(self, requirement: Requirement) -> Mask:
        """Mask, bool [nodes]: nodes whose label matches one expression. A malformed expression matches none."""
        mask = self._requirements.get(requirement)
        if mask is not None:
            return mask
        values = self.column(requirement.key).values
        # One entry per distinct value, and a last one for nodes without the label, whose code is -1.
        if requirement.operator in {"In", "NotIn"} and requirement.values:
            matches = np.zeros(len(values) + 1, dtype=bool)
            matches[[values[value] for value in requirement.values if value in values]] = True
            if requirement.operator == "NotIn":
                matches = ~matches
        else:
            term, key = NodeSelectorTerm(match_expressions=(requirement,)), requirement.key
            single: list[dict[str, str]] = [{key: value} for value in values]
            matches = np.array([matches_term(term, labels, "") for labels in (*single, {})], dtype=bool)
        mask = self._requirements[requirement] = matches[self.column(requirement.key).codes]
        return mask

    def _by_name(self, requirement: Requirement) -> Mask:
        """Mask, bool [nodes]: nodes whose name matches one field expression. A malformed expression matches none."""
        mask = np.zeros(len(self.nodes), dtype=bool)
        wanted = requirement.values or ()
        if requirement.key != NAME_FIELD or len(wanted) != 1 or requirement.operator not in {"In", "NotIn"}:
            return mask
        if self._rows_by_name is None:
            self._rows_by_name = {node.name: row for row, node in enumerate(self.nodes)}
        row = self._rows_by_name.get(wanted[0])
        if row is not None:
            mask[row] = True
        return mask if requirement.operator == "In" else ~mask

    def term(self, term: NodeSelectorTerm) -> Mask:
        """Mask, bool [nodes]: nodes that match every requirement. An empty term matches nothing."""
        masks = [self._by_label(requirement) for requirement in term.match_expressions or ()]
        masks += [self._by_name(requirement) for requirement in term.match_fields or ()]
        if not masks:
            return np.zeros(len(self.nodes), dtype=bool)
        mask = masks[0].copy()
        for each in masks[1:]:
            mask &= each
        return mask

    def matching(self, cls: TaskClass) -> Mask | None:
        """Mask, bool [nodes]: nodes that pass nodeSelector and required node affinity; None without either."""
        if cls in self._matching:
            return self._matching[cls]
        mask = self.with_labels(cls.node_selector.items())
        affinity = cls.affinity.node_affinity if cls.affinity is not None else None
        if affinity is not None and affinity.required is not None:
            selected = np.zeros(len(self.nodes), dtype=bool)
            for term in affinity.required.node_selector_terms:
                selected |= self.term(term)
            mask = selected if mask is None else mask & selected
        self._matching[cls] = mask
        return mask

    def with_keys(self, keys: Iterable[str]) -> Mask:
        """Mask, bool [nodes]: nodes that have all label keys."""
        mask = np.ones(len(self), dtype=bool)
        for key in keys:
            mask &= self.column(key).codes >= 0
        return mask

    def counted(self, cls: TaskClass, keys: Iterable[str], *, by_affinity: bool, by_taints: bool) -> Mask:
        """`with_keys` that pass the inclusion policies of a topology spread constraint of the class."""
        mask = self.with_keys(keys)
        if by_affinity and (matching := self.matching(cls)) is not None:
            mask &= matching
        if by_taints and (tolerated := self.tolerated(cls.tolerations)) is not None:
            mask &= tolerated
        return mask

    # --- taints -----------------------------------------------------------------------------------------------------

    def offending(self, tolerations: tuple[Toleration, ...]) -> list[Taint | None]:
        """For each of `taint_sets` the first NoSchedule or NoExecute taint that is not tolerated, None without one."""
        found = self._offending.get(tolerations)
        if found is None:
            found = [untolerated_taint(taints, tolerations) for taints in self.taint_sets]
            self._offending[tolerations] = found
        return found

    def tolerated(self, tolerations: tuple[Toleration, ...]) -> Mask | None:
        """Mask, bool [nodes]: nodes without an untolerated taint; None when every node is."""
        if tolerations in self._tolerated:
            return self._tolerated[tolerations]
        clean = np.array([taint is None for taint in self.offending(tolerations)], dtype=bool)
        mask: Mask | None = None if clean.all() else clean[self.taint_codes]
        self._tolerated[tolerations] = mask
        return mask

    def declaring(self, features: tuple[str, ...]) -> Mask:
        """Mask, bool [nodes]: nodes that declare all these features."""
        mask = self._declaring.get(features)
        if mask is None:
            wanted = frozenset(features)
            mask = self._declaring[features] = np.array([wanted <= node.features for node in self.nodes], dtype=bool)
        return mask

    def preferences(self, tolerations: tuple[Toleration, ...]) -> npt.NDArray[np.int64] | None:
        """Number of untolerated PreferNoSchedule taints of each node: int64 [nodes]; None when there is none."""
        if tolerations in self._preferences:
            return self._preferences[tolerations]
        counts = [untolerated_preferences(taints, tolerations) for taints in self.taint_sets]
        found = np.array(counts, dtype=np.int64)[self.taint_codes] if any(counts) else None
        self._preferences[tolerations] = found
        return found
