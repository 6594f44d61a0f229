"""Resolves the required terms of a pod to counts and topology keys, the plugin's part of a pod signature.

A pod's own required (anti-)affinity, its DoNotSchedule constraints and the required anti-affinity terms of existing
pods that select it become `PodRules`. Pods with equal rules share a signature, even if their labels differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.framework.api.place_limits import PlaceLimit
from capcard_sched.framework.toolkit.pod_terms import PodTerms
from capcard_sched.model.status import COMPLETED_STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from capcard_sched.framework.toolkit.pod_selectors import PodSelector
    from capcard_sched.framework.toolkit.pod_terms import Spread, TermsOfClass
    from capcard_sched.framework.toolkit.topology_counts import CarriedTerms, CarrierCount, TopologyCount
    from capcard_sched.model.job import Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.predicates.arguments import PredicatesArguments

#: Skews above do not differ: there are fewer pods.
_MOST_SKEW: Final = 1 << 40


class PodRules(NamedTuple):
    """The input of the pod affinity and spread checks besides the class. Compared by content."""

    #: Pods that match all required affinity terms; None without such terms.
    affinity: TopologyCount | None = None
    affinity_keys: tuple[str, ...] = ()
    #: The pod matches its own required affinity terms.
    matches_itself: bool = False
    #: Pods that the pod's anti-affinity selects, with the topology key.
    anti_affinity: tuple[tuple[TopologyCount, str], ...] = ()
    #: The DoNotSchedule constraints.
    spread: tuple[Spread, ...] = ()
    #: Anti-affinity terms of existing pods that select this pod.
    repelled_by: CarriedTerms | None = None
    #: The error of a term that cannot be parsed, "" without one.
    error: str = ""


#: Weights of affinity and of anti-affinity.
_TOWARDS, _AWAY = 1, -1


class RuleBook(PodTerms[PodRules]):
    """Makes the rules of pods."""

    def __init__(self, arguments: PredicatesArguments) -> None:
        super().__init__()
        self._arguments = arguments

    def of_class(self, cls: TaskClass) -> TermsOfClass:
        """Required affinity and anti-affinity, and DoNotSchedule constraints."""
        affinity = cls.affinity if self._arguments.pod_affinity else None
        sides = ((_TOWARDS, affinity.pod_affinity), (_AWAY, affinity.pod_anti_affinity)) if affinity is not None else ()
        spread = cls.spread if self._arguments.topology_spread else ()
        return (
            [(term, sign) for sign, side in sides if side is not None for term in side.required or ()],
            [each for each in spread if each.when_unsatisfiable == "DoNotSchedule"],
        )

    def needed(self, task: Task) -> Iterable[TopologyCount]:
        rules = self._of_own(task)
        if rules.affinity is not None:
            yield rules.affinity
        yield from (pod_count for pod_count, _ in rules.anti_affinity)
        yield from (each.pod_count for each in rules.spread if each.pod_count is not None)

    def carried(self, task: Task) -> Iterable[tuple[CarrierCount, int]]:
        """The pod's distinct required anti-affinity terms."""
        terms = self._terms.of(task)
        if terms.affinity_error or terms.spread_error:
            return []
        away = {(selector, key): None for selector, key, sign in terms.affinity if sign == _AWAY}
        return [(self.counters.carriers(selector, key), 1) for selector, key in away]

    def place_limits(self, tasks: Sequence[Task]) -> Iterator[PlaceLimit]:
        """Of required terms that each of some equal pods of a job has, and that select all of them."""
        if not self.counters.has_terms(tasks[0].cls):
            return
        kinds = list({id(task.labels): task for task in tasks}.values())  # pods of one template share their labels
        own = [self._of_own(task) for task in kinds]
        first, index = own[0], self.counters.index
        if any(one.error for one in own):
            return
        for key in self._apart(kinds):
            text = f"their pod anti-affinity ({key}) leaves space for {{limit}}"
            yield PlaceLimit(text, domains=index.column(key).codes)
        if first.matches_itself and all(one.affinity is first.affinity for one in own):
            towards = tuple(selector for selector, _, sign in self._terms.of(tasks[0]).affinity if sign == _TOWARDS)
            if self._is_first(tasks, first.affinity, towards):
                for key in dict.fromkeys(first.affinity_keys):
                    text = f"their pod affinity ({key}) leaves space for {{limit}}"
                    yield PlaceLimit(text, nodes=index.column(key).codes >= 0, within=index.column(key).codes)
        if all(one.spread == first.spread for one in own):
            yield from self._spread_limits(tasks, first.spread)

    def _spread_limits(self, tasks: Sequence[Task], spread: tuple[Spread, ...]) -> Iterator[PlaceLimit]:
        for position, rule in enumerate(spread):
            if not rule.topology_key:
                continue  # the API server accepts none without
            most = min(rule.max_skew, _MOST_SKEW)
            codes, values = self.counters.index.column(rule.topology_key)
            text = f"their topology spread ({rule.topology_key}) leaves space for {{limit}}"
            limit = PlaceLimit(text, nodes=codes >= 0)
            if rule.pod_count is None or not rule.itself:
                yield limit
            elif len(values) < rule.min_domains:
                yield limit._replace(domains=codes, each=most)
            elif not rule.honors_taints and self._is_first(
                tasks, rule.pod_count, (self._terms.of(tasks[0]).spread[position][0],)
            ):
                nodes = self.scope(tasks[0].cls, spread, position).nodes
                yield limit._replace(domains=codes, each=most, beside=nodes)
            else:
                yield limit

    def _is_first(
        self, tasks: Sequence[Task], pod_count: TopologyCount | None, selectors: Sequence[PodSelector]
    ) -> bool:
        """Whether selectors select no placed pod, and no pods of the job but these: no other pod opens a domain."""
        job = tasks[0].job
        if pod_count is None or pod_count.sum or job is None:
            return False
        if len(tasks) == len(job.tasks):
            return True
        own, known = {task.uid for task in tasks}, self.counters.namespaces
        return not any(
            all(selector.selects(task.namespace, task.labels, known) for selector in selectors)
            for task in job.tasks.values()
            if task.uid not in own and task.status not in COMPLETED_STATUSES
        )

    def _apart(self, tasks: Sequence[Task]) -> list[str]:
        """The topology keys of required anti-affinity terms that each of some pods has and that select all of them."""
        terms, known = [self._terms.of(task) for task in tasks], self.counters.namespaces
        away = {(selector, key) for selector, key, sign in terms[0].affinity if sign == _AWAY}
        return sorted(
            key
            for selector, key in away
            if all((selector, key, _AWAY) in one.affinity for one in terms)
            and all(selector.selects(task.namespace, task.labels, known) for task in tasks)
        )

    def _derive(self, task: Task) -> PodRules:
        terms, counters = self._terms.of(task), self.counters
        namespace, labels, known = task.namespace, task.labels, counters.namespaces
        if terms.affinity_error:
            return PodRules(error=f"plugin InterPodAffinity pre-predicates failed parsing pod: {terms.affinity_error}")
        if terms.spread_error:
            return PodRules(error=f"plugin PodTopologySpread pre-predicates failed {terms.spread_error}")
        towards = tuple(selector for selector, _, sign in terms.affinity if sign == _TOWARDS)
        return PodRules(
            affinity=counters.pods(towards) if towards else None,
            affinity_keys=tuple(key for _, key, sign in terms.affinity if sign == _TOWARDS),
            matches_itself=bool(towards) and all(each.selects(namespace, labels, known) for each in towards),
            anti_affinity=tuple(
                (counters.pods((selector,)), key) for selector, key, sign in terms.affinity if sign == _AWAY
            ),
            spread=tuple(
                self._spread(selector, constraint, int(selector.selects(namespace, labels, known)))
                for selector, constraint in terms.spread
            ),
        )

    def _with_carried(self, own: PodRules | None, carried: CarriedTerms) -> PodRules:
        return (own or PodRules())._replace(repelled_by=carried)
