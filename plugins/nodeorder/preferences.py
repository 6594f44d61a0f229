"""Preferred pod affinity and topology spread: counts by topology key, and their scores.

Covers preferred pod (anti-)affinity of the pod, that of existing pods which select it, and ScheduleAnyway constraints.
Cluster-level default constraints are not supported: they apply to pods that a Service selects, and the scheduler does
not watch Services.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from capcard_sched.framework.toolkit.pod_selectors import (
    PodCache,
    PodSelector,
    SelectorError,
    TermCache,
    label_keys,
    spread_selector,
    term_selector,
)
from capcard_sched.framework.toolkit.topology_counts import TopologyCounts
from capcard_sched.model.selectors import term_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from capcard_sched.framework.api.node_view import Mask, NodeView, Scores
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.topology_count import CarriedTerms, CarrierCount, PodCount, TopologyCount
    from capcard_sched.model.job import Task
    from capcard_sched.model.objects import PodAffinityTerm, TopologySpreadConstraint
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.nodeorder.arguments import NodeOrderArguments

#: Kinds of carried terms: affinity and anti-affinity.
_TOWARDS, _AWAY = 1, -1
#: Weight of a required pod affinity term of an existing pod, the default of kube-scheduler.
_HARD_POD_AFFINITY_WEIGHT = 1


class Spread(NamedTuple):
    """One ScheduleAnyway constraint."""

    topology_key: str
    max_skew: int
    #: None when no pod can be counted: no selector, or one that names no label.
    pod_count: PodCount | None
    honors_affinity: bool
    honors_taints: bool


class Preferences(NamedTuple):
    """The input of the pod affinity and spread scores besides the class. Compared by content."""

    #: The pod's own terms: count, topology key, signed weight.
    affinity: tuple[tuple[TopologyCount, str, int], ...] = ()
    #: The terms of existing pods that select it; the kind of a count is its sign.
    carried: CarriedTerms | None = None
    spread: tuple[Spread, ...] = ()


class _PreferredTerms(NamedTuple):
    """A pod's own terms with its labels filled in."""

    affinity: tuple[tuple[PodSelector, str, int], ...] = ()
    spread: tuple[tuple[PodSelector, TopologySpreadConstraint], ...] = ()
    #: Required pod affinity terms, which score for the pods that they select.
    required: tuple[tuple[PodSelector, str], ...] = ()


_Term = TypeVar("_Term")


def _readable(
    read: Callable[[_Term, str, Mapping[str, str]], PodSelector], terms: Iterable[_Term], task: Task
) -> Iterator[tuple[PodSelector, _Term]]:
    """The terms with their selectors. Malformed ones are skipped: predicates rejects those that are required."""
    for term in terms:
        try:
            yield read(term, task.namespace, task.labels), term
        except SelectorError:
            continue


class PreferenceBook:
    """Makes the preferences of pods; implements `TermReader` for the counts."""

    def __init__(self, arguments: NodeOrderArguments) -> None:
        self._arguments = arguments
        self.counters = TopologyCounts(self)
        self._terms = TermCache(self._label_keys, self._resolve)
        self._preferences = PodCache(self._own)

    def open(self, session: Session, index: NodeIndex) -> None:
        self._terms.open(everything=session.changed.everything)
        self.counters.open(session, index)

    def _of_class(
        self, cls: TaskClass
    ) -> tuple[tuple[tuple[PodAffinityTerm, int], ...], tuple[TopologySpreadConstraint, ...]]:
        """Preferred terms with signed weights, and soft constraints."""
        terms: list[tuple[PodAffinityTerm, int]] = []
        affinity = cls.affinity if self._arguments.pod_affinity else None
        if affinity is not None:
            for sign, side in ((_TOWARDS, affinity.pod_affinity), (_AWAY, affinity.pod_anti_affinity)):
                weighted = (side.preferred or ()) if side is not None else ()
                terms += [
                    (each.pod_affinity_term, sign * term_weight(each.weight)) for each in weighted if each.weight > 0
                ]
        spread = cls.spread if self._arguments.topology_spread else ()
        return tuple(terms), tuple(each for each in spread if each.when_unsatisfiable == "ScheduleAnyway")

    def _label_keys(self, cls: TaskClass) -> tuple[str, ...]:
        terms, constraints = self._of_class(cls)
        return label_keys([*(term for term, _ in terms), *self._required(cls)], constraints)

    def _required(self, cls: TaskClass) -> tuple[PodAffinityTerm, ...]:
        """Required pod affinity terms, if they score."""
        affinity = cls.affinity.pod_affinity if cls.affinity is not None else None
        if affinity is None or not self._arguments.pod_affinity or self._arguments.scoring != "kube-scheduler":
            return ()
        return affinity.required or ()

    def _resolve(self, task: Task) -> _PreferredTerms:
        terms, constraints = self._of_class(task.cls)
        required = _readable(term_selector, self._required(task.cls), task)
        return _PreferredTerms(
            tuple(
                (selector, term.topology_key, weight)
                for each, weight in terms
                for selector, term in _readable(term_selector, (each,), task)
            ),
            tuple(_readable(spread_selector, constraints, task)),
            tuple((selector, term.topology_key) for selector, term in required),
        )

    def has_terms(self, cls: TaskClass) -> bool:
        return any(self._of_class(cls)) or bool(self._required(cls))

    def needed(self, task: Task) -> Iterable[TopologyCount]:
        own = self._preferences.of(task, (self.counters.session, self.counters.dropped))
        yield from (pod_count for pod_count, _, _ in own.affinity)
        yield from (each.pod_count for each in own.spread if each.pod_count is not None)

    def carried(self, task: Task) -> Iterable[tuple[CarrierCount, int]]:
        """The pod's preferred terms with their weights, and its required ones if they score."""
        for selector, topology_key, weight in self._terms.of(task).affinity:
            yield self.counters.carriers(selector, topology_key, _TOWARDS if weight > 0 else _AWAY), abs(weight)
        for selector, topology_key in dict.fromkeys(self._terms.of(task).required):
            yield self.counters.carriers(selector, topology_key, _TOWARDS), _HARD_POD_AFFINITY_WEIGHT

    def _own(self, task: Task) -> Preferences:
        terms, counters = self._terms.of(task), self.counters
        affinity = tuple((counters.pods((selector,)), key, weight) for selector, key, weight in terms.affinity)
        spread = tuple(
            Spread(
                constraint.topology_key,
                constraint.max_skew,
                counters.pods((selector,), live_only=True)
                if selector.selector is not None and not selector.is_empty
                else None,
                constraint.node_affinity_policy != "Ignore",
                constraint.node_taints_policy == "Honor",
            )
            for selector, constraint in terms.spread
        )
        return Preferences(affinity, spread=spread)

    def preferences(self, task: Task) -> Preferences | None:
        """The preferences of a pod; None when no term concerns it. O(1) while no pod in the cluster has a term."""
        counters = self.counters
        own = counters.has_terms(task.cls)
        if counters.idle and not own:
            return None
        applying = counters.carriers_selecting(task.namespace, task.labels)
        if not own:
            return Preferences(carried=applying) if applying is not None else None
        found = self._preferences.of(task, (counters.session, counters.dropped))
        if applying is not None:
            return found._replace(carried=applying)
        return found if found.affinity or found.spread else None


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
