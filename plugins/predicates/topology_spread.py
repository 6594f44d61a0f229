"""Filters nodes by `DoNotSchedule` topology spread constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.predicates.rule_book import SpreadRule

SKEWED = "node(s) didn't match pod topology spread constraints"
MISSING_LABEL = f"{SKEWED} (missing required label)"


class _Scope(NamedTuple):
    """The nodes and domains that one constraint of one class counts."""

    #: bool [nodes]
    nodes: Mask
    #: bool [domains]
    domains: Mask
    size: int


class SpreadFilter:
    """Checks constraints against the counts; caches the nodes and domains of each constraint."""

    def __init__(self) -> None:
        self._index: NodeIndex | None = None
        self._scopes: dict[tuple[TaskClass, int], _Scope] = {}

    def _scope(self, index: NodeIndex, cls: TaskClass, rules: tuple[SpreadRule, ...], position: int) -> _Scope:
        """Nodes that have the keys of all constraints and pass the inclusion policies of this one."""
        if index is not self._index:
            self._index = index
            self._scopes.clear()
        scope = self._scopes.get((cls, position))
        if scope is None:
            rule = rules[position]
            keys = (each.topology_key for each in rules)
            nodes = index.counted(cls, keys, by_affinity=rule.honors_affinity, by_taints=rule.honors_taints)
            codes, values = index.column(rule.topology_key)
            domains = np.zeros(len(values), dtype=bool)
            domains[codes[nodes]] = True
            scope = self._scopes[cls, position] = _Scope(nodes, domains, int(np.count_nonzero(domains)))
        return scope

    def reject(
        self, index: NodeIndex, cls: TaskClass, rules: tuple[SpreadRule, ...], rows: NodeView, result: FilterResult
    ) -> None:
        """Check the constraints in order; a node reports the first one that it violates."""
        failed = np.zeros(len(rows), dtype=bool)
        for position, rule in enumerate(rules):
            codes = rows.take(index.column(rule.topology_key).codes)
            missing = codes < 0
            result.reject(missing & ~failed, Code.UNRESOLVABLE, MISSING_LABEL)
            failed |= missing
            scope = self._scope(index, cls, rules, position)
            allowed = rule.max_skew - rule.itself
            if rule.pod_count is None:
                skewed = np.full(len(rows), allowed < 0)
            else:
                totals = rule.pod_count.totals(index, rule.topology_key, (cls, position), scope.nodes)
                # Below minDomains the global minimum is 0, as if the missing domains were empty.
                few = scope.size < max(1, rule.min_domains)
                lowest = 0 if few else int(totals[:-1][scope.domains].min())
                skewed = totals[codes] - lowest > allowed
            result.reject(skewed & ~failed, Code.UNSCHEDULABLE, SKEWED)
            failed |= skewed
