"""Filters by other pods: host ports, required pod affinity and anti-affinity, topology spread."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.toolkit.pods_by_node import PodsByNode
from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.pod_terms import Spread
    from capcard_sched.framework.toolkit.topology_counts import TopologyCount
    from capcard_sched.model.job import Task
    from capcard_sched.model.objects import HostPort
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.predicates.rule_book import PodRules, RuleBook

PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"

_EVERY_ADDRESS = frozenset({"", "0.0.0.0"})  # noqa: S104 - the address that pods request; nothing is bound here


class WantedPorts:
    """The ports that a pod requests, by number: the ports of another pod are compared in one pass over them."""

    def __init__(self, ports: Iterable[HostPort]) -> None:
        #: Port and protocol to the number of requests by address; an empty one conflicts with every address.
        self._requests: dict[tuple[int, str], Counter[str]] = {}
        for each in ports:
            self._requests.setdefault(_service(each), Counter())[_address(each)] += 1

    def conflicts(self, ports: Iterable[HostPort]) -> int:
        """The pairs of a requested port and one of these that exclude each other on a node."""
        found = 0
        for each in ports:
            requests = self._requests.get(_service(each))
            if requests is not None:
                address = _address(each)
                found += requests[address] + requests[""] if address else requests.total()
        return found


def _service(port: HostPort) -> tuple[int, str]:
    return port.port, port.protocol or "TCP"


def _address(port: HostPort) -> str:
    return "" if port.address in _EVERY_ADDRESS else port.address


class HostPorts(PodsByNode["tuple[HostPort, ...]"]):
    """Ports in use by node; one array of conflicts per requested set of ports and session."""

    def __init__(self) -> None:
        super().__init__()
        self._conflicts: dict[tuple[HostPort, ...], tuple[WantedPorts, Vector]] = {}

    def open(self, session: Session) -> None:
        """Apply the changes since the last session."""
        self._conflicts.clear()
        self.refresh(session)

    def _value(self, task: Task, node: str) -> tuple[HostPort, ...] | None:
        return task.cls.host_ports or None

    def _change(self, node: str, uid: str, value: tuple[HostPort, ...], sign: int) -> None:
        if node in self._by_name:
            for wanted, conflicts in self._conflicts.values():
                conflicts[self._by_name[node].row] += sign * wanted.conflicts(value)

    def conflicts(self, wanted: tuple[HostPort, ...]) -> Vector:
        """Number of ports on each node that conflict with these: int64 [nodes]. O(ports in use) once per session."""
        known = self._conflicts.get(wanted)
        if known is not None:
            return known[1]
        requests, found = WantedPorts(wanted), np.zeros(len(self._by_name), dtype=np.int64)
        for name, held in self._held.items():
            row = self._by_name[name].row
            for ports in held.values():
                found[row] += requests.conflicts(ports)
        self._conflicts[wanted] = requests, found
        return found

    def reject(self, wanted: tuple[HostPort, ...], rows: NodeView, result: FilterResult) -> None:
        """Reject nodes where a port is in use.

        A hypothetical row shows more pods of the class than the node has: the first of them uses the ports.
        """
        taken = rows.take(self.conflicts(wanted)) > 0
        taken |= rows.used[:, 2] > rows.take(rows.table.used[:, 2])
        result.reject(taken, Code.UNSCHEDULABLE, PORTS_TAKEN)


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


def reject_skewed(
    book: RuleBook, index: NodeIndex, cls: TaskClass, spread: tuple[Spread, ...], rows: NodeView, result: FilterResult
) -> None:
    """Check the constraints in order; a node reports the first one that it violates."""
    failed = np.zeros(len(rows), dtype=bool)
    for position, rule in enumerate(spread):
        codes = rows.take(index.column(rule.topology_key).codes)
        missing = codes < 0
        result.reject(missing & ~failed, Code.UNRESOLVABLE, MISSING_LABEL)
        failed |= missing
        scope = book.scope(cls, spread, position)
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
