"""Resolves the required terms of a pod to counts and topology keys, the plugin's part of a pod signature.

A pod's own required (anti-)affinity, its DoNotSchedule constraints and the required anti-affinity terms of existing
pods that select it become `PodRules`. Pods with equal rules share a signature, even if their labels differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.topology_count import CarriedTerms, CarrierCount, PodCount, TopologyCount
    from capcard_sched.model.job import Task
    from capcard_sched.model.objects import Affinity, PodAffinityTerm, TopologySpreadConstraint
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.predicates.arguments import PredicatesArguments


class SpreadRule(NamedTuple):
    """One DoNotSchedule constraint."""

    topology_key: str
    max_skew: int
    min_domains: int
    #: None when no pod can be counted: no selector, or one that names no label.
    pod_count: PodCount | None
    #: 1 when the pod itself is of those counted.
    itself: int
    honors_affinity: bool
    honors_taints: bool


class PodRules(NamedTuple):
    """The input of the pod affinity and spread checks besides the class. Compared by content."""

    #: Pods that match all required affinity terms; None without such terms.
    affinity: TopologyCount | None = None
    affinity_keys: tuple[str, ...] = ()
    #: The pod matches its own required affinity terms.
    matches_itself: bool = False
    #: Pods that the pod's anti-affinity selects, with the topology key.
    anti_affinity: tuple[tuple[TopologyCount, str], ...] = ()
    spread: tuple[SpreadRule, ...] = ()
    #: Anti-affinity terms of existing pods that select this pod.
    repelled_by: CarriedTerms | None = None
    #: The error of a term that cannot be parsed, "" without one.
    error: str = ""


class _RequiredTerms(NamedTuple):
    """A pod's own terms with its labels filled in."""

    affinity: tuple[PodSelector, ...] = ()
    affinity_keys: tuple[str, ...] = ()
    anti_affinity: tuple[tuple[PodSelector, str], ...] = ()
    spread: tuple[tuple[PodSelector, TopologySpreadConstraint], ...] = ()
    error: str = ""


def _required(affinity: Affinity | None) -> tuple[tuple[PodAffinityTerm, ...], tuple[PodAffinityTerm, ...]]:
    if affinity is None:
        return (), ()
    towards, away = affinity.pod_affinity, affinity.pod_anti_affinity
    return (towards.required or () if towards else ()), (away.required or () if away else ())


class RuleBook:
    """Makes the rules of pods; implements `TermReader` for the counts."""

    def __init__(self, arguments: PredicatesArguments) -> None:
        self._arguments = arguments
        self.counters = TopologyCounts(self)
        self._terms = TermCache(self._label_keys, self._resolve)
        self._rules = PodCache(self._own)

    def open(self, session: Session, index: NodeIndex) -> None:
        self._terms.open(everything=session.changed.everything)
        self.counters.open(session, index)

    def _of_class(
        self, cls: TaskClass
    ) -> tuple[tuple[PodAffinityTerm, ...], tuple[PodAffinityTerm, ...], tuple[TopologySpreadConstraint, ...]]:
        towards, away = _required(cls.affinity) if self._arguments.pod_affinity else ((), ())
        spread = cls.spread if self._arguments.topology_spread else ()
        return towards, away, tuple(each for each in spread if each.when_unsatisfiable == "DoNotSchedule")

    def _label_keys(self, cls: TaskClass) -> tuple[str, ...]:
        towards, away, spread = self._of_class(cls)
        return label_keys((*towards, *away), spread)

    def _resolve(self, task: Task) -> _RequiredTerms:
        towards, away, spread = self._of_class(task.cls)
        namespace, labels = task.namespace, task.labels
        try:
            affinity = tuple(term_selector(term, namespace, labels) for term in towards)
            anti_affinity = tuple((term_selector(term, namespace, labels), term.topology_key) for term in away)
        except SelectorError as error:
            return _RequiredTerms(error=f"plugin InterPodAffinity pre-predicates failed parsing pod: {error}")
        try:
            constraints = tuple((spread_selector(each, namespace, labels), each) for each in spread)
        except SelectorError as error:
            return _RequiredTerms(error=f"plugin PodTopologySpread pre-predicates failed {error}")
        return _RequiredTerms(affinity, tuple(term.topology_key for term in towards), anti_affinity, constraints)

    def has_terms(self, cls: TaskClass) -> bool:
        return any(self._of_class(cls))

    def needed(self, task: Task) -> Iterable[TopologyCount]:
        rules = self._rules.of(task, (self.counters.session, self.counters.dropped))
        if rules.affinity is not None:
            yield rules.affinity
        for pod_count, _ in rules.anti_affinity:
            yield pod_count
        for rule in rules.spread:
            if rule.pod_count is not None:
                yield rule.pod_count

    def carried(self, task: Task) -> Iterable[tuple[CarrierCount, int]]:
        """The pod's distinct required anti-affinity terms."""
        for selector, topology_key in dict.fromkeys(self._terms.of(task).anti_affinity):
            yield self.counters.carriers(selector, topology_key), 1

    def _own(self, task: Task) -> PodRules:
        terms, counters = self._terms.of(task), self.counters
        namespace, labels, known = task.namespace, task.labels, counters.namespaces
        if terms.error:
            return PodRules(error=terms.error)
        spread = []
        for selector, constraint in terms.spread:
            countable = selector.selector is not None and not selector.is_empty
            spread.append(
                SpreadRule(
                    constraint.topology_key,
                    constraint.max_skew,
                    constraint.min_domains or 1,
                    counters.pods((selector,), live_only=True) if countable else None,
                    int(selector.selects(namespace, labels, known)),
                    constraint.node_affinity_policy != "Ignore",
                    constraint.node_taints_policy == "Honor",
                )
            )
        return PodRules(
            affinity=counters.pods(terms.affinity) if terms.affinity else None,
            affinity_keys=terms.affinity_keys,
            matches_itself=bool(terms.affinity)
            and all(each.selects(namespace, labels, known) for each in terms.affinity),
            anti_affinity=tuple((counters.pods((selector,)), key) for selector, key in terms.anti_affinity),
            spread=tuple(spread),
        )

    def rules(self, task: Task) -> PodRules | None:
        """The rules of a pod; None when no term concerns it. O(1) while no pod in the cluster has a term."""
        counters = self.counters
        own = counters.has_terms(task.cls)
        if counters.idle and not own:
            return None
        applying = counters.carriers_selecting(task.namespace, task.labels)
        if not own:
            return PodRules(repelled_by=applying) if applying is not None else None
        rules = self._rules.of(task, (counters.session, counters.dropped))
        return rules if applying is None else rules._replace(repelled_by=applying)
