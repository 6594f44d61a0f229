"""Candidates for fixes: the changes that the figures of a diagnosis suggest. A trial decides on each."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.framework.explain.sentences import nearest
from capcard_sched.insight.changes import ProposedChange, cards_named
from capcard_sched.insight.fix_victims import cheapest_on_nodes, quota_holders
from capcard_sched.model.annotations import CARD_REQUEST, NODE_UNSCHEDULABLE
from capcard_sched.model.node_conditions import conditions_of
from capcard_sched.model.quantity import is_in_bytes
from capcard_sched.model.queue import ancestors
from capcard_sched.model.selectors import untolerated_taint
from capcard_sched.model.status import PodGroupPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.diagnosis import JobDiagnosis, LimitUse
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.task_class import TaskClass

#: Other cards, queues and taints that are proposed, and combinations of accepted cards.
_MOST_CARDS: Final = 3
_MOST_QUEUES: Final = 2
_MOST_CHOICES: Final = 4
_MOST_CLASSES: Final = 2
#: The target of changes of the scheduler-conf.
_CONF: Final = ("", "", "scheduler-conf")
_MEBI: Final = 2**20
_CARD: Final = 1000
_EVICTING: Final = ("preempt", "reclaim")
#: Outcomes of pods that have a node already.
_FITTING: Final = frozenset({"schedulable", "pipelined"})
_PLACING: Final = ("allocate", "backfill")

Candidate = tuple[ProposedChange, ...]


def candidates(core: Core, job: Job, found: JobDiagnosis, *, may_evict: Sequence[str] = ()) -> tuple[Candidate, ...]:
    """Sets of changes, each of which may remove what keeps a job from starting. Empty without a suggestion.

    `may_evict`: actions that a trial found to help. `found` is the diagnosis of the same state.
    Cost: O(pods of the queue), and O(nodes) array operations per template of pending pods.
    """
    session = core.snapshot().session
    if session is None:
        return ()
    one = _FixCandidates(core, session, job, found)
    rows = [
        *one.queues(),
        *one.limits(),
        *one.excluded_nodes(),
        *one.cards(),
        *one.smaller_gang(),
        *one.declared_cards(),
        *one.actions(may_evict),
        *one.priorities(),
        *one.ends(),
    ]
    return tuple(dict.fromkeys(row for row in rows if row))


class _FixCandidates:
    """The candidates of one job in one state."""

    def __init__(self, core: Core, session: Session, job: Job, found: JobDiagnosis) -> None:
        self._core, self._session, self._job, self._found = core, session, job, found
        self._state = core.snapshot().state
        self._waiting = session.pending_tasks(job)
        #: Pods that are still needed: up to the minimum, or all pending pods of a job that has it.
        missing = job.min_available - job.ready_tasks
        self._needed = self._waiting if job.is_ready() else self._waiting[: max(1, missing)]
        self._group = ("PodGroup", job.namespace, job.name)

    # --- queues and limits ------------------------------------------------------------------------------------------

    def queues(self) -> Iterator[Candidate]:
        """A closed queue is opened; a job of a missing queue moves to one with a similar name, or with quota."""
        position = self._found.queue
        if position is None:
            return
        if position.state == "missing":
            known = sorted(name for name, queue in self._state.queues.items() if not self._has_children(name))
            close = nearest(position.name, known)
            for name in [close] if close else known[:_MOST_QUEUES]:
                yield (ProposedChange("MoveQueue", self._group, name),)
        elif position.state not in {"Open", ""} and self._job.phase is PodGroupPhase.PENDING:
            yield (ProposedChange("OpenQueue", ("Queue", "", position.name)),)

    def _has_children(self, name: str) -> bool:
        return name == "root" or any(queue.parent == name for queue in self._state.queues.values())

    def limits(self) -> Iterator[Candidate]:
        """Every limit that is too small is raised to what the job needs: one candidate per choice of cards."""
        rows = self._found.queue.limits if self._found.queue is not None else ()
        common = [change for row in rows if row.cluster_total is None for change in self._raise(row)]
        common += self._other_limits(rows)
        for cards in self._choices():
            changes = [change for row in rows if row.resource in cards for change in self._raise(row)]
            yield (*common, *changes)
        if not self._choices():
            yield (*common, *(change for row in rows if row.cluster_total is not None for change in self._raise(row)))

    def _choices(self) -> list[set[str]]:
        """One accepted card of every template of pending pods."""
        groups = dict.fromkeys(
            cards.alternatives
            for task in self._needed
            if (cards := self._core.snapshot().dispatch.first("pod_cards", task.cls)) is not None and cards.alternatives
        )
        if not groups:
            return []
        return [set(cards) for cards in itertools.islice(itertools.product(*groups), _MOST_CHOICES)]

    def _raise(self, row: LimitUse) -> Iterator[ProposedChange]:
        need = self._need(row)
        if row.quota is None or not need:
            return
        wanted = max(row.used + need, *self._refused_totals(row.quota, row.resource))
        if wanted <= row.quota:
            return
        target = ("Queue", "", row.queue)
        if row.cluster_total is not None:
            yield ProposedChange("Quota", target, row.resource, math.ceil(wanted), int(row.quota))
        else:
            yield _capability(target, row.resource, wanted, row.quota)

    def _need(self, row: LimitUse) -> float:
        """The amount of a limit that the needed pods, or a job without pods, request."""
        if not self._waiting:
            return row.requested
        return min(row.requested, len(self._needed) * row.requested_per_pod)

    def _refused_totals(self, limit: float, resource: str) -> list[float]:
        """Totals of refusals by this limit; they include reservations."""
        refusals = [*self._found.refusals, *(pods.refusal for pods in self._found.pending if pods.refusal is not None)]
        checks = [check for refusal in refusals for check in refusal.checks]
        return [0.0, *(check.total for check in checks if (check.limit, check.resource) == (limit, resource))]

    def _other_limits(self, rows: Iterable[LimitUse]) -> list[ProposedChange]:
        """Limits in refusals that are not among the rows: capabilities of devices, and of ancestors."""
        shown = {(row.queue, row.resource) for row in rows}
        queue = self._state.queues.get(self._job.queue)
        if queue is None:
            return []
        chain = [queue, *ancestors(queue, self._state.queues)]
        found = []
        for refusal in [*self._found.refusals, *(pods.refusal for pods in self._found.pending)]:
            for check in refusal.checks if refusal is not None else ():
                for one in chain:
                    limit = (one.capability or {}).get(check.resource)
                    if limit is None or (one.name, check.resource) in shown or check.total <= check.limit:
                        continue
                    target = ("Queue", "", one.name)
                    change = _capability(target, check.resource, check.total, check.limit)
                    if change.present == limit:
                        found.append(change)
        return list(dict.fromkeys(found))

    # --- nodes ------------------------------------------------------------------------------------------------------

    def excluded_nodes(self) -> Iterator[Candidate]:
        """Cordoned nodes are uncordoned, taints removed or tolerated, as many as the needed pods take.

        Not of nodes with a taint that is a condition.
        """
        if not self._needed:
            return
        cls = self._needed[0].cls
        excluded: list[tuple[int, bool, str, Node]] = []
        for node in self._state.nodes.by_name.values():
            if conditions_of(node.taints):  # it needs repair
                continue
            taint = untolerated_taint([one for one in node.taints if one.key != NODE_UNSCHEDULABLE], cls.tolerations)
            if (node.unschedulable or taint is not None) and (fits := self._fits(node, self._needed[0])):
                excluded.append((fits, node.unschedulable, taint.text if taint else "", node))
        excluded.sort(key=lambda row: (bool(row[2]), -row[0], row[3].name))
        short = max(1, len(self._needed) - self._fitting())
        groups = [
            [row for row in excluded if not row[2]],
            [row for row in excluded if row[2] and not row[1]],
            excluded,
        ]
        for rows in groups:
            taken = _until(rows, short)
            yield tuple(
                change
                for _, cordoned, taint_text, node in taken
                for change in (
                    *([ProposedChange("Uncordon", ("Node", "", node.name))] if cordoned else []),
                    *([ProposedChange("Untaint", ("Node", "", node.name), taint_text)] if taint_text else []),
                )
            )
        for taint_text in list(dict.fromkeys(row[2] for row in excluded if row[2]))[:_MOST_QUEUES]:
            yield (ProposedChange("Tolerate", self._group, taint_text),)

    def _fitting(self) -> int:
        """Needed pods that have a node already."""
        return sum(len(pods.names) for pods in self._found.pending if pods.outcome in _FITTING)

    def _fits(self, node: Node, task: Task) -> int:
        """Pods like a task for which a node has free resources, and the card."""
        if node.row < 0:
            return 0
        cards = self._core.snapshot().dispatch.first("pod_cards", task.cls)
        if cards is not None and cards.alternatives:
            provided = self._state.cards_of(node)
            if not any(card in provided for card in cards.alternatives):
                return 0
        request = task.cls.fit_request
        wanted = np.flatnonzero(request)
        table = self._state.nodes
        free = (table.allocatable[node.row] - table.used[node.row])[wanted]
        return max(0, int((free // request[wanted]).min())) if len(wanted) else 1

    # --- the job itself ---------------------------------------------------------------------------------------------

    def cards(self) -> Iterator[Candidate]:
        """Another card is accepted by the pods that lack theirs; pods of the same cards change together."""
        placed = {name for pods in self._found.pending if pods.outcome in _FITTING for name in pods.names}
        short = {cards_named(task.cls.annotations): task.cls for task in self._needed if task.name not in placed}
        for named, cls in list(short.items())[:_MOST_CHOICES]:
            yield from self._other_cards(named, cls)

    def _other_cards(self, named: str, cls: TaskClass) -> Iterator[Candidate]:
        """Cards with the most free quota first; an unknown card is replaced."""
        own = self._core.snapshot().dispatch.first("pod_cards", cls)
        if own is None or not own.names:
            return
        free: dict[str, int] = {}
        empty: dict[str, int] = {}
        for node in self._state.nodes.by_name.values():
            for card, (_, resource) in self._state.cards_of(node).items():
                amount = cls.requests.get(resource, 0)
                if amount and card not in own.alternatives and not node.unschedulable:
                    free[card] = free.get(card, 0) + (self._free(node, resource) // amount)
                    empty[card] = empty.get(card, 0) + (node.allocatable.get(resource, 0) // amount)
        close = [name for wrong in own.names if wrong not in own.alternatives and (name := nearest(wrong, free))]
        usable = {row.resource: row.usable or 0.0 for row in self._limit_rows()}
        if own.alternatives:  # an unknown card is replaced even where the others are not free
            places = free if any(free.values()) else empty
            free = {card: free[card] for card, pods in places.items() if pods}
        ordered = sorted(free, key=lambda card: (card not in close, not usable.get(card), -free[card], card))
        kept = [name for name in own.names if name in own.alternatives]
        for card in ordered[:_MOST_CARDS]:
            yield (ProposedChange("AcceptCard", self._group, "|".join([*kept, card]), replaces=named),)

    def _limit_rows(self) -> Sequence[LimitUse]:
        return self._found.queue.limits if self._found.queue is not None else ()

    def _free(self, node: Node, resource: str) -> int:
        columns, table = self._state.columns, self._state.nodes
        if node.row < 0 or resource not in columns.names:
            return node.allocatable.get(resource, 0)
        column = columns.column(resource)
        return max(0, int(table.allocatable[node.row, column] - table.used[node.row, column]))

    def smaller_gang(self) -> Iterator[Candidate]:
        """The gang gets the size that fits now, on empty nodes, or, where pods have to end for it, of one pod."""
        job = self._job
        if job.is_ready() or job.implicit or job.min_available <= 1:
            return
        fitting = self._fitting()
        if not fitting and self._found.stage in {"CannotStart", "NotAdmitted"}:
            fitting = self._fitting_by_figures()
        empty = self._places(when_empty=True)
        sizes = [fitting] if fitting else [empty, 1 if empty or not self._found.capacity else 0]
        for size in dict.fromkeys(job.ready_tasks + pods for pods in sizes):
            if 0 < size < job.min_available:
                yield (ProposedChange("MinAvailable", self._group, value=size, present=job.min_available),)

    def declared_cards(self) -> Iterator[Candidate]:
        """The declaration of cards is dropped while it stands for pods that are not created yet."""
        if not self._job.tasks and CARD_REQUEST in self._job.annotations:
            yield (ProposedChange("CardRequest", self._group, self._job.annotations[CARD_REQUEST]),)

    def _fitting_by_figures(self) -> int:
        """Pods for which quota and nodes suffice, by the sums of a diagnosis without an attempt."""
        bounds = [
            int((row.usable if row.usable is not None else 0.0) // (row.requested_per_pod or self._share(row)))
            for row in self._limit_rows()
            if row.quota is not None and (row.requested_per_pod or self._share(row))
        ]
        if self._found.capacity:
            bounds.append(self._places())
        return min(bounds, default=0)

    def _places(self, *, when_empty: bool = False) -> int:
        """Pods that the nodes with an accepted card, or else those with the scarcest resource, fit."""
        fits = [
            (row.card != row.resource, row.fits_when_empty if when_empty else row.fits_now)
            for row in self._found.capacity
        ]
        cards = [pods for is_card, pods in fits if is_card]
        return sum(cards) if cards else min((pods for _, pods in fits), default=0)

    def _share(self, row: LimitUse) -> float:
        """The share of one pod in the request of a job without pods."""
        return 0.0 if self._waiting else row.requested / max(1, self._job.min_available)

    # --- scheduler-conf and priority ----------------------------------------------------------------------------

    def actions(self, may_evict: Sequence[str]) -> Iterator[Candidate]:
        """Actions that are switched off."""
        conf = self._core.snapshot().conf
        placing = [name for name in _PLACING if name not in conf.actions]
        best_effort = self._waiting and all(task.cls.best_effort for task in self._waiting)
        if "allocate" in placing:
            yield (ProposedChange("Action", _CONF, "allocate"),)
        if "backfill" in placing and best_effort:
            yield (ProposedChange("Action", _CONF, "backfill"),)
        yield tuple(ProposedChange("Action", _CONF, name) for name in may_evict if name not in conf.actions)

    def priorities(self) -> Iterator[Candidate]:
        """A higher PriorityClass: ahead of others in the queue, or able to preempt."""
        job, conf = self._job, self._core.snapshot().conf
        position = self._found.queue
        may = any(task.cls.may_preempt for task in self._needed)
        evicts = may and any(name in conf.actions for name in _EVICTING)
        if job.implicit or self._found.stage in {"CannotStart", "NotAdmitted"}:
            return
        plugin = () if conf.option("priority") is not None else (ProposedChange("Plugin", _CONF, "priority"),)
        if plugin and evicts:
            yield plugin
        classes = sorted((value, name) for name, (value, _) in self._state.priority_classes.items())
        higher = [(value, name) for value, name in classes if value > job.priority and not name.startswith("system-")]
        for value, name in higher[:_MOST_CLASSES]:
            raised = (*plugin, ProposedChange("Priority", self._group, name, value, value))
            if evicts or (position is not None and position.ahead):
                yield raised
            if may and not evicts:
                yield (ProposedChange("Action", _CONF, "preempt"), *raised)

    # --- other jobs -------------------------------------------------------------------------------------------------

    def ends(self) -> Iterator[Candidate]:
        """Pods of other jobs end: the fewest that return the missing quota, or free nodes for the needed pods."""
        for row in self._limit_rows():
            need = self._need(row)
            if row.quota is None or not need or need > row.quota:
                continue
            wanted = max(row.used + need, *self._refused_totals(row.quota, row.resource))
            if wanted > row.quota:
                queue = self._state.queues.get(row.queue)
                if queue is not None:
                    yield quota_holders(self._core, queue, self._job, row.resource, wanted - row.quota)
        if self._needed and not any(pods.outcome == "refused" for pods in self._found.pending):
            yield cheapest_on_nodes(self._core, self._session, self._job, self._needed)


def _until(rows: list[tuple[int, bool, str, Node]], short: int) -> list[tuple[int, bool, str, Node]]:
    """The first rows that fit a number of pods together; all rows when they do not."""
    for count in range(1, len(rows)):
        if sum(row[0] for row in rows[:count]) >= short:
            return rows[:count]
    return rows


def _capability(target: tuple[str, str, str], resource: str, wanted: float, limit: float) -> ProposedChange:
    """Base units: milli-cores, bytes in whole Mi, thousandths of devices."""
    if is_in_bytes(resource):
        return ProposedChange("Capability", target, resource, math.ceil(wanted / _MEBI) * _MEBI, int(limit), _MEBI)
    return ProposedChange("Capability", target, resource, round(wanted * _CARD), round(limit * _CARD))
