"""The terms of pods by which a plugin compares them with other pods, and the counts that these terms need.

Filters and scores by other pods differ in the terms that they read: required ones with DoNotSchedule constraints, or
preferred ones with ScheduleAnyway constraints. A subclass of `PodTerms` reads them and derives from them the plugin's
part of a pod signature; counts, caches and the terms of other pods are common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from capcard_sched.framework.toolkit.pod_selectors import (
    PodCache,
    SelectorError,
    TermCache,
    label_keys,
    spread_selector,
    term_selector,
)
from capcard_sched.framework.toolkit.topology_counts import TopologyCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.framework.api.node_view import Mask
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.pod_selectors import PodSelector
    from capcard_sched.framework.toolkit.topology_counts import CarriedTerms, CarrierCount, PodCount, TopologyCount
    from capcard_sched.model.job import Task
    from capcard_sched.model.objects import PodAffinityTerm, TopologySpreadConstraint
    from capcard_sched.model.task_class import TaskClass

    #: Terms, each with a weight, and constraints.
    TermsOfClass = tuple[Sequence[tuple[PodAffinityTerm, int]], Sequence[TopologySpreadConstraint]]


class Spread(NamedTuple):
    """One topology spread constraint with the count of its pods."""

    topology_key: str
    max_skew: int
    min_domains: int
    #: None when no pod can be counted: no selector, or one that names no label.
    pod_count: PodCount | None
    #: 1 when the pod itself is of those counted; 0 in scores, which do not read it.
    itself: int
    honors_affinity: bool
    honors_taints: bool


class Scope(NamedTuple):
    """The nodes and domains that one constraint of one class counts."""

    #: bool [nodes]
    nodes: Mask
    #: bool [domains]
    domains: Mask
    #: Number of these domains.
    size: int


class ResolvedTerms(NamedTuple):
    """The terms of a pod with its labels filled in, without those that cannot be parsed."""

    #: Selector, topology key and weight, as `PodTerms.of_class` gives it.
    affinity: tuple[tuple[PodSelector, str, int], ...]
    spread: tuple[tuple[PodSelector, TopologySpreadConstraint], ...]
    #: The errors of the first affinity term and of the first constraint that cannot be parsed, "" without one.
    affinity_error: str
    spread_error: str


Context = TypeVar("Context", bound="tuple[Any, ...]")


class PodTerms(Generic[Context]):
    """Implements `TermReader` for the counts of one plugin.

    `Context`: the plugin's part of the signature, compared by content. Subclasses implement `of_class`, `needed`,
    `carried`, `_derive` and `_with_carried`.
    """

    def __init__(self) -> None:
        self.counters = TopologyCounts(self)
        self._terms = TermCache(self._label_keys, self._resolve)
        self._own = PodCache(self._derive)
        self._index: NodeIndex | None = None
        self._scopes: dict[tuple[TaskClass, int], Scope] = {}

    def open(self, session: Session, index: NodeIndex) -> None:
        """Start a session. The scopes of constraints are kept as long as the index of the nodes."""
        if index is not self._index:
            self._index = index
            self._scopes.clear()
        self._terms.open(everything=session.changed.everything)
        self.counters.open(session, index)

    def of(self, task: Task) -> Context | None:
        """The context of a pod; None when no term concerns it. O(1) while no pod in the cluster has a term."""
        counters = self.counters
        has_own = counters.has_terms(task.cls)
        if counters.idle and not has_own:
            return None
        own = self._of_own(task) if has_own else None
        carried = counters.carriers_selecting(task.namespace, task.labels)
        if carried is not None:
            return self._with_carried(own, carried)
        return own if own is not None and any(own) else None

    def scope(self, cls: TaskClass, spread: Sequence[Spread], position: int) -> Scope:
        """Nodes that have the keys of all constraints and pass the inclusion policies of one, and their domains."""
        found = self._scopes.get((cls, position))
        if found is None:
            index, own, keys = self.counters.index, spread[position], (each.topology_key for each in spread)
            nodes = index.counted(cls, keys, by_affinity=own.honors_affinity, by_taints=own.honors_taints)
            codes, values = index.column(own.topology_key)
            domains = np.zeros(len(values), dtype=bool)
            domains[codes[nodes]] = True
            found = self._scopes[cls, position] = Scope(nodes, domains, int(np.count_nonzero(domains)))
        return found

    def of_class(self, cls: TaskClass) -> TermsOfClass:
        """The terms that the plugin reads, each with a weight, and the constraints."""
        raise NotImplementedError

    def has_terms(self, cls: TaskClass) -> bool:
        """As for `TermReader`."""
        return any(self.of_class(cls))

    def needed(self, task: Task) -> Iterable[TopologyCount]:
        """As for `TermReader`: the counts in the context of the pod's own terms."""
        raise NotImplementedError

    def carried(self, task: Task) -> Iterable[tuple[CarrierCount, int]]:
        """As for `TermReader`."""
        raise NotImplementedError

    def _derive(self, task: Task) -> Context:
        """The context that follows from the pod's own terms."""
        raise NotImplementedError

    def _with_carried(self, own: Context | None, carried: CarriedTerms) -> Context:
        """The context with the terms of existing pods that select the pod."""
        raise NotImplementedError

    def _label_keys(self, cls: TaskClass) -> tuple[str, ...]:
        terms, constraints = self.of_class(cls)
        return label_keys((term for term, _ in terms), constraints)

    def _resolve(self, task: Task) -> ResolvedTerms:
        terms, constraints = self.of_class(task.cls)
        affinity, spread, affinity_error, spread_error = [], [], "", ""
        for term, weight in terms:
            try:
                affinity.append((term_selector(term, task.namespace, task.labels), term.topology_key, weight))
            except SelectorError as error:
                affinity_error = affinity_error or str(error)
        for constraint in constraints:
            try:
                spread.append((spread_selector(constraint, task.namespace, task.labels), constraint))
            except SelectorError as error:
                spread_error = spread_error or str(error)
        return ResolvedTerms(tuple(affinity), tuple(spread), affinity_error, spread_error)

    def _of_own(self, task: Task) -> Context:
        return self._own.of(task, (self.counters.session, self.counters.dropped))

    def _spread(self, selector: PodSelector, constraint: TopologySpreadConstraint, itself: int = 0) -> Spread:
        countable = selector.selector is not None and not selector.is_empty
        return Spread(
            constraint.topology_key,
            constraint.max_skew,
            constraint.min_domains or 1,
            self.counters.pods((selector,), live_only=True) if countable else None,
            itself,
            constraint.node_affinity_policy != "Ignore",
            constraint.node_taints_policy == "Honor",
        )
