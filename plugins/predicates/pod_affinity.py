"""Required pod affinity and anti-affinity, own and of others (plugins reference §5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.topology_count import TopologyCount
    from capcard_sched.plugins.predicates.rules import PodRules

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
REPELLED = "node(s) didn't satisfy existing pods anti-affinity rules"


def _holding(index: NodeIndex, rows: NodeView, pairs: tuple[tuple[TopologyCount, str], ...]) -> Mask:
    """Mask, bool [k]: entries whose domain holds a pod of any of the pairs. A node without the key is in no domain."""
    held = np.zeros(len(rows), dtype=bool)
    for tally, topology_key in pairs:
        if tally.sum:
            held |= tally.totals(index, topology_key)[rows.take(index.column(topology_key).codes)] > 0
    return held


def _unwelcome(index: NodeIndex, rules: PodRules, rows: NodeView) -> Mask:
    """Mask, bool [k]: entries that miss a key, or whose domain holds no pod that matches all terms.

    As in Kubernetes a pod counts when it matches all the terms, not each term another one. The first pod of a series
    that wants to be with its own kind may go anywhere the keys exist.
    """
    tally = rules.affinity
    assert tally is not None
    codes = [rows.take(index.column(key).codes) for key in rules.affinity_keys]
    totals = [tally.totals(index, key) for key in rules.affinity_keys]
    unwelcome = np.zeros(len(rows), dtype=bool)
    first_of_series = rules.matches_itself and not any(each.any() for each in totals)
    for code, total in zip(codes, totals, strict=True):
        unwelcome |= code < 0 if first_of_series else total[code] <= 0
    return unwelcome


def reject(index: NodeIndex, rules: PodRules, rows: NodeView, verdict: FilterResult) -> None:
    """The three checks in order; a node gives the reason of the first it fails."""
    failed = np.zeros(len(rows), dtype=bool)
    if rules.affinity is not None:
        failed = _unwelcome(index, rules, rows)
        verdict.reject(failed, Code.UNRESOLVABLE, AFFINITY)
    if rules.anti_affinity:
        held = _holding(index, rows, rules.anti_affinity)
        verdict.reject(held & ~failed, Code.UNSCHEDULABLE, ANTI_AFFINITY)
        failed |= held
    if rules.repelled_by:
        held = _holding(index, rows, rules.repelled_by)
        verdict.reject(held & ~failed, Code.UNSCHEDULABLE, REPELLED)
