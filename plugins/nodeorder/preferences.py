"""Preferred pod affinity and topology spread: counts by topology key, and their scores.

Covers preferred pod (anti-)affinity of the pod, that of existing pods which select it, and ScheduleAnyway constraints.
Cluster-level default constraints are not supported: they apply to pods that a Service selects, and the scheduler does
not watch Services.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.toolkit.pod_terms import PodTerms
from capcard_sched.model.objects import PodAffinityTerm
from capcard_sched.model.selectors import term_weight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.api.node_view import NodeView, Scores
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.pod_terms import Spread, TermsOfClass
    from capcard_sched.framework.toolkit.topology_counts import CarriedTerms, CarrierCount, TopologyCount
    from capcard_sched.model.job import Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.nodeorder.arguments import NodeOrderArguments

#: Kinds of carried terms: affinity and anti-affinity.
_TOWARDS, _AWAY = 1, -1
#: In place of the weight of a required term.
_REQUIRED = 0
#: Weight of a required pod affinity term of an existing pod, the default of kube-scheduler.
_HARD_POD_AFFINITY_WEIGHT = 1


class Preferences(NamedTuple):
    """The input of the pod affinity and spread scores besides the class. Compared by content."""

    #: The pod's own terms: count, topology key, signed weight.
    affinity: tuple[tuple[TopologyCount, str, int], ...] = ()
    #: The terms of existing pods that select it; the kind of a count is its sign.
    carried: CarriedTerms | None = None
    #: The ScheduleAnyway constraints.
    spread: tuple[Spread, ...] = ()


class PreferenceBook(PodTerms[Preferences]):
    """Makes the preferences of pods."""

    def __init__(self, arguments: NodeOrderArguments) -> None:
        super().__init__()
        self._arguments = arguments

    def of_class(self, cls: TaskClass) -> TermsOfClass:
        """Preferred terms with signed weights, the required ones that score, and ScheduleAnyway constraints.

        A term that cannot be parsed is skipped: predicates rejects those that are required.
        """
        arguments, terms = self._arguments, list[tuple[PodAffinityTerm, int]]()
        affinity = cls.affinity if arguments.pod_affinity else None
        if affinity is not None:
            for sign, side in ((_TOWARDS, affinity.pod_affinity), (_AWAY, affinity.pod_anti_affinity)):
                weighted = (side.preferred or ()) if side is not None else ()
                terms += [(one.pod_affinity_term, sign * term_weight(one.weight)) for one in weighted if one.weight > 0]
            if affinity.pod_affinity is not None and arguments.scoring == "kube-scheduler":
                terms += [(term, _REQUIRED) for term in affinity.pod_affinity.required or ()]
        spread = cls.spread if arguments.topology_spread else ()
        return terms, [each for each in spread if each.when_unsatisfiable == "ScheduleAnyway"]

    def needed(self, task: Task) -> Iterable[TopologyCount]:
        own = self._of_own(task)
        yield from (pod_count for pod_count, _, _ in own.affinity)
        yield from (each.pod_count for each in own.spread if each.pod_count is not None)

    def carried(self, task: Task) -> Iterable[tuple[CarrierCount, int]]:
        """The pod's preferred terms with their weights, and its distinct required ones if they score."""
        terms = self._terms.of(task).affinity
        for selector, topology_key, weight in terms:
            if weight != _REQUIRED:
                yield self.counters.carriers(selector, topology_key, _TOWARDS if weight > 0 else _AWAY), abs(weight)
        for selector, topology_key, _ in dict.fromkeys(term for term in terms if term[2] == _REQUIRED):
            yield self.counters.carriers(selector, topology_key, _TOWARDS), _HARD_POD_AFFINITY_WEIGHT

    def _derive(self, task: Task) -> Preferences:
        terms = self._terms.of(task)
        preferred = [term for term in terms.affinity if term[2] != _REQUIRED]
        affinity = tuple((self.counters.pods((selector,)), key, weight) for selector, key, weight in preferred)
        return Preferences(affinity, spread=tuple(self._spread(*each) for each in terms.spread))

    def _with_carried(self, own: Preferences | None, carried: CarriedTerms) -> Preferences:
        return (own or Preferences())._replace(carried=carried)


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


def spread_scores(
    book: PreferenceBook, index: NodeIndex, cls: TaskClass, spread: tuple[Spread, ...], rows: NodeView
) -> Scores | None:
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
                nodes = book.scope(cls, spread, position).nodes
                counts = each.pod_count.totals(index, each.topology_key, (cls, position), nodes)[codes]
            raw += counts * math.log(domains + 2)
    raw = np.floor(raw + 0.5)
    lowest, highest = float(raw[considered].min()), float(raw[considered].max())
    scores = np.floor(100.0 * (highest + lowest - raw) / highest) if highest else np.full(len(rows), 100.0)
    scores[~considered] = 0.0
    return None if scores.min() == scores.max() else scores
