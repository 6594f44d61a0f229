"""Scores that depend on the placement of other pods: pod affinity and topology spread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import Mask, NodeView, Scores
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.topology_count import TopologyCount
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.nodeorder.preferences import Preferences, Spread

HOSTNAME = "kubernetes.io/hostname"


def pod_affinity(index: NodeIndex, preferences: Preferences, rows: NodeView) -> Scores | None:
    """Inter-pod affinity over the candidates, 0 to 100: float64 [k]; None when all are equal."""
    by_key: dict[str, list[tuple[TopologyCount, int]]] = {}
    for pod_count, topology_key, weight in preferences.affinity:
        if pod_count.sum:
            by_key.setdefault(topology_key, []).append((pod_count, weight))
    for topology_key, pod_counts in preferences.carried.by_key.items() if preferences.carried is not None else ():
        present = [(each, each.carried[1]) for each in pod_counts if each.sum and each.carried is not None]
        by_key.setdefault(topology_key, []).extend(present)
    raw = np.zeros(len(rows), dtype=np.int64)
    for topology_key, weighted in by_key.items():
        codes, values = index.column(topology_key)
        domains = np.zeros(len(values) + 1, dtype=np.int64)
        for pod_count, weight in weighted:
            domains += weight * pod_count.totals(index, topology_key)
        raw += domains[rows.take(codes)]
    if not len(raw):
        return None
    lowest, highest = int(raw.min()), int(raw.max())
    if lowest == highest:
        return None
    return np.trunc(100.0 * (raw - lowest) / (highest - lowest))


class SpreadScores:
    """Scores by `ScheduleAnyway` constraints; caches the nodes that each constraint counts."""

    def __init__(self) -> None:
        self._index: NodeIndex | None = None
        self._scopes: dict[tuple[TaskClass, int], Mask] = {}

    def _scope(self, index: NodeIndex, cls: TaskClass, spread: tuple[Spread, ...], position: int) -> Mask:
        """Mask, bool [nodes]: nodes that have all keys and pass the inclusion policies of this constraint."""
        if index is not self._index:
            self._index = index
            self._scopes.clear()
        nodes = self._scopes.get((cls, position))
        if nodes is None:
            keys, own = (each.topology_key for each in spread), spread[position]
            nodes = index.counted(cls, keys, by_affinity=own.honors_affinity, by_taints=own.honors_taints)
            self._scopes[cls, position] = nodes
        return nodes

    def scores(self, index: NodeIndex, cls: TaskClass, spread: tuple[Spread, ...], rows: NodeView) -> Scores | None:
        """Topology spread over the candidates, 0 to 100: float64 [k]; None when all are equal.

        Nodes without one of the keys score 0. For the hostname key the current pods of the node itself count.
        """
        considered = rows.take(index.with_keys(each.topology_key for each in spread))
        size = int(np.count_nonzero(considered))
        if not size:
            return None
        raw = np.zeros(len(rows))
        for position, each in enumerate(spread):
            codes = rows.take(index.column(each.topology_key).codes)
            domains = size if each.topology_key == HOSTNAME else len(set(codes[considered].tolist()))
            raw += each.max_skew - 1
            if each.pod_count is not None:
                if each.topology_key == HOSTNAME:
                    counts = each.pod_count.by_row(index)[rows.rows]
                else:
                    scope = self._scope(index, cls, spread, position)
                    counts = each.pod_count.totals(index, each.topology_key, (cls, position), scope)[codes]
                raw += counts * math.log(domains + 2)
        raw = np.floor(raw + 0.5)
        lowest, highest = float(raw[considered].min()), float(raw[considered].max())
        scores = np.floor(100.0 * (highest + lowest - raw) / highest) if highest else np.full(len(rows), 100.0)
        scores[~considered] = 0.0
        return None if scores.min() == scores.max() else scores
