"""What preferred terms mean for one pod: the plugin's part of a profile.

The counterpart of required rules: preferred pod (anti-)affinity of the pod, of those it meets, and ScheduleAnyway
constraints. There are no cluster default constraints here: they would apply to pods that a Service selects, and
Services are not watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.framework.toolkit.pod_selectors import (
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
    from collections.abc import Iterable

    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.framework.toolkit.topology_count import TopologyCount
    from capcard_sched.model.job import Task
    from capcard_sched.model.objects import PodAffinityTerm, TopologySpreadConstraint
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.nodeorder.arguments import NodeOrderArguments

#: Kinds of carried terms: attraction and aversion.
_TOWARDS, _AWAY = 1, -1


class Spread(NamedTuple):
    """One ScheduleAnyway constraint."""

    topology_key: str
    max_skew: int
    #: None when no pod can be counted: no selector, or one that names no label.
    tally: TopologyCount | None
    honors_affinity: bool
    honors_taints: bool


class Preferences(NamedTuple):
    """Everything but the class that decides about these scores. Compared by content."""

    #: (tally, topology key, signed weight): own terms first, then those of pods that this one meets.
    affinity: tuple[tuple[TopologyCount, str, int], ...] = ()
    spread: tuple[Spread, ...] = ()


class _PreferredTerms(NamedTuple):
    """A pod's own terms with its labels filled in, not yet counted."""

    affinity: tuple[tuple[PodSelector, str, int], ...] = ()
    spread: tuple[tuple[PodSelector, TopologySpreadConstraint], ...] = ()


class PreferenceBook:
    """Makes the preferences of pods and tells the counters what to count (`TermReader`)."""

    def __init__(self, arguments: NodeOrderArguments) -> None:
        self._arguments = arguments
        self.counters = TopologyCounts(self)
        self._terms = TermCache(self._label_keys, self._resolve)

    def open(self, session: Session, index: NodeIndex) -> None:
        """Start a session: take in what changed."""
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
        return label_keys([term for term, _ in terms], constraints)

    def _resolve(self, task: Task) -> _PreferredTerms:
        """Malformed terms express no preference; it is the predicates' business to refuse the pod."""
        terms, constraints = self._of_class(task.cls)
        affinity: list[tuple[PodSelector, str, int]] = []
        spread: list[tuple[PodSelector, TopologySpreadConstraint]] = []
        for term, weight in terms:
            try:
                affinity.append((term_selector(term, task.namespace, task.labels), term.topology_key, weight))
            except SelectorError:
                continue
        for constraint in constraints:
            try:
                spread.append((spread_selector(constraint, task.namespace, task.labels), constraint))
            except SelectorError:
                continue
        return _PreferredTerms(tuple(affinity), tuple(spread))

    # --- for the counters -------------------------------------------------------------------------------------------

    def has_terms(self, cls: TaskClass) -> bool:
        """Whether the class has preferred pod terms or soft constraints."""
        return any(self._of_class(cls))

    def asked(self, task: Task) -> Iterable[TopologyCount]:
        """Tallies that the pod's own terms ask for."""
        own = self._own(task)
        yield from (tally for tally, _, _ in own.affinity)
        yield from (each.tally for each in own.spread if each.tally is not None)

    def carried(self, task: Task) -> Iterable[tuple[TopologyCount, int]]:
        """The pod's preferred terms with their weights."""
        for selector, topology_key, weight in self._terms.of(task).affinity:
            yield self.counters.carriers(selector, topology_key, _TOWARDS if weight > 0 else _AWAY), abs(weight)

    # --- for profiles -----------------------------------------------------------------------------------------------

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
        return Preferences(affinity, spread)

    def preferences(self, task: Task) -> Preferences | None:
        """The preferences of a pod; None when neither it nor anybody it meets has any. O(1) while nobody has."""
        counters = self.counters
        own = counters.has_terms(task.cls)
        if counters.idle and not own:
            return None
        meeting = counters.carriers_meeting(task.namespace, task.labels)
        if not own and not meeting:
            return None
        found = self._own(task) if own else Preferences()
        others = tuple((tally, *tally.carried) for tally in meeting if tally.carried is not None)
        return found._replace(affinity=found.affinity + others)
