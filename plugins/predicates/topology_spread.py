"""Filters by other pods: host ports, required pod affinity and anti-affinity, topology spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.topology_count import TopologyCount
    from capcard_sched.model.job import Node
    from capcard_sched.model.objects import HostPort
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.predicates.rule_book import PodRules, SpreadRule

PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"

_EVERY_ADDRESS = frozenset({"", "0.0.0.0"})  # noqa: S104 - the address that pods request; nothing is bound here


def conflict(one: HostPort, other: HostPort) -> bool:
    """Whether two pods with these ports cannot share a node: an empty address conflicts with every address."""
    return (
        one.port == other.port
        and (one.protocol or "TCP") == (other.protocol or "TCP")
        and (one.address == other.address or one.address in _EVERY_ADDRESS or other.address in _EVERY_ADDRESS)
    )


class HostPorts:
    """Ports in use by node, kept between sessions; one array of conflicts per requested set of ports and session."""

    def __init__(self) -> None:
        #: Node name to uid to ports.
        self._held: dict[str, dict[str, tuple[HostPort, ...]]] = {}
        self._touched: set[str] = set()
        self._conflicts: dict[tuple[HostPort, ...], Vector] = {}
        self._size = 0

    def open(self, session: Session) -> None:
        """Apply the changes since the last session. O(pods on changed nodes)."""
        table, changed = session.nodes, session.changed
        self._conflicts.clear()
        self._size = len(table)
        stale: Iterable[str]
        if changed.everything:
            self._held.clear()
            stale = table.by_name
        else:
            stale = changed.nodes | self._touched
        for name in stale:
            self._held.pop(name, None)
            node = table.by_name.get(name)
            if node is not None:
                held = {task.uid: task.cls.host_ports for task in node.tasks.values() if task.cls.host_ports}
                if held:
                    self._held[name] = held
        self._by_name = table.by_name
        self._touched.clear()

    def place(self, placement: Placement) -> None:
        """Add pods that were placed, or whose eviction was undone."""
        ports = placement.cls.host_ports
        if not ports:
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._touched.add(node.name)
            self._held.setdefault(node.name, {})[task.uid] = ports
            self._change(node, ports, +1)

    def displace(self, placement: Placement) -> None:
        """Remove pods that were unplaced or are being evicted: their ports are free for the next pod."""
        ports = placement.cls.host_ports
        if not ports:
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            self._touched.add(node.name)
            if self._held.get(node.name, {}).pop(task.uid, None) is not None:
                self._change(node, ports, -1)

    def _change(self, node: Node, ports: tuple[HostPort, ...], sign: int) -> None:
        if node.row >= 0:
            for wanted, conflicts in self._conflicts.items():
                conflicts[node.row] += sign * _count(wanted, ports)

    def conflicts(self, wanted: tuple[HostPort, ...]) -> Vector:
        """Number of ports on each node that conflict with these: int64 [nodes]. O(ports in use) once per session."""
        found = self._conflicts.get(wanted)
        if found is None:
            found = self._conflicts[wanted] = np.zeros(self._size, dtype=np.int64)
            for name, held in self._held.items():
                row = self._by_name[name].row
                for ports in held.values():
                    found[row] += _count(wanted, ports)
        return found

    def reject(self, wanted: tuple[HostPort, ...], rows: NodeView, result: FilterResult) -> None:
        """Reject nodes where a port is in use.

        A hypothetical row shows more pods of the class than the node has: the first of them uses the ports.
        """
        taken = rows.take(self.conflicts(wanted)) > 0
        taken |= rows.used[:, 2] > rows.take(rows.table.used[:, 2])
        result.reject(taken, Code.UNSCHEDULABLE, PORTS_TAKEN)


def _count(wanted: tuple[HostPort, ...], ports: tuple[HostPort, ...]) -> int:
    return sum(conflict(one, other) for one in wanted for other in ports)


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


def reject_by_pods(index: NodeIndex, rules: PodRules, rows: NodeView, result: FilterResult) -> None:
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
