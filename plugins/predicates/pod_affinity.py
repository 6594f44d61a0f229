"""Filters nodes by required pod affinity and anti-affinity of the pod and of existing pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.topology_count import TopologyCount
    from capcard_sched.plugins.predicates.rule_book import PodRules

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
REPELLED = "node(s) didn't satisfy existing pods anti-affinity rules"


def _occupied(index: NodeIndex, rows: NodeView, by_key: Iterable[tuple[str, Iterable[TopologyCount]]]) -> Mask:
    """Mask, bool [k]: nodes whose domain of a key has a pod of its counts. A node without the key is in no domain."""
    occupied = np.zeros(len(rows), dtype=bool)
    for topology_key, pod_counts in by_key:
        codes, values = index.column(topology_key)
        domains: Mask | None = None
        for pod_count in pod_counts:
            if pod_count.sum:
                if domains is None:
                    domains = np.zeros(len(values) + 1, dtype=bool)
                domains |= pod_count.totals(index, topology_key) > 0
        if domains is not None:
            occupied |= domains[rows.take(codes)]
    return occupied


def _unmatched(index: NodeIndex, rules: PodRules, rows: NodeView) -> Mask:
    """Mask, bool [k]: nodes that lack a key, or whose domain has no pod that matches all terms.

    As in kube-scheduler one pod must match all terms. The first pod of a series with affinity to itself fits every
    node that has the keys.
    """
    pod_count = rules.affinity
    assert pod_count is not None
    codes = [rows.take(index.column(key).codes) for key in rules.affinity_keys]
    totals = [pod_count.totals(index, key) for key in rules.affinity_keys]
    unmatched = np.zeros(len(rows), dtype=bool)
    first_of_series = rules.matches_itself and not any(each.any() for each in totals)
    for code, total in zip(codes, totals, strict=True):
        unmatched |= code < 0 if first_of_series else total[code] <= 0
    return unmatched


def reject(index: NodeIndex, rules: PodRules, rows: NodeView, result: FilterResult) -> None:
    """Run the three checks in order; a node reports the first one that it fails."""
    failed = np.zeros(len(rows), dtype=bool)
    if rules.affinity is not None:
        failed = _unmatched(index, rules, rows)
        result.reject(failed, Code.UNRESOLVABLE, AFFINITY)
    if rules.anti_affinity:
        own = ((topology_key, (pod_count,)) for pod_count, topology_key in rules.anti_affinity)
        occupied = _occupied(index, rows, own)
        result.reject(occupied & ~failed, Code.UNSCHEDULABLE, ANTI_AFFINITY)
        failed |= occupied
    if rules.repelled_by is not None:
        occupied = _occupied(index, rows, rules.repelled_by.by_key.items())
        result.reject(occupied & ~failed, Code.UNSCHEDULABLE, REPELLED)
