"""Queues in a session: the writes at its end, and warnings about limits without effect and malformed namespaces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from capcard_sched.framework.close.write_conflict_backoff import WriteConflictBackoff
from capcard_sched.framework.quota.limits import unenforced
from capcard_sched.model import reasons
from capcard_sched.model.annotations import QUEUE_NAMESPACES
from capcard_sched.model.intents import AnnotateQueue, Intent, UpdateQueueStatus
from capcard_sched.model.namespace_queues import queue_ref
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.queue import ROOT, ancestors, namespace_rule
from capcard_sched.model.report_once import ReportOnce

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.validation.hint_checks import QuotaPlugins


class QueueStatuses:
    """The last writes per queue, and the changes to write. One per core."""

    def __init__(self) -> None:
        #: Queue name to its ancestors at the last update of its status.
        self._chains: dict[str, list[str]] = {}
        self._statuses, self._annotations = WriteConflictBackoff(), WriteConflictBackoff()

    @property
    def next_wakeup(self) -> float | None:
        """Unix seconds of the next write without a change of the cluster; None for none."""
        return min(
            (word.next_wakeup for word in (self._statuses, self._annotations) if word.next_wakeup is not None),
            default=None,
        )

    def prune(self, now: float) -> None:
        """Drops outdated records; `now` in Unix seconds."""
        self._statuses.prune(now)
        self._annotations.prune(now)

    def close(self, session: Session, intents: list[Intent]) -> None:
        """`status.allocated` in Kubernetes names, parents and `root` included, where it changed; then annotations."""
        columns = session.resources
        totals: dict[str, Vector] = {}
        unoffered: Mapping[str, Counter[str]] = {}
        names = self._to_check(session)
        if names:
            totals = _subtree_totals(session.queues)
            unoffered = _unoffered_totals(session)
        for name in sorted(names):
            queue = session.queues.get(name)
            if queue is None:
                continue
            allocated = columns.amounts(totals[name])
            more = {**unoffered.get(name, {}), **(session.dispatch.first("claimed_amounts", queue) or {})}
            if more:
                both = {**allocated, **more}
                allocated = {resource: both[resource] for resource in columns.sorted_names(both)}
            shown = queue.status_allocated
            if shown is not None and allocated == {key: value for key, value in shown.items() if value}:
                self._statuses.confirm(name)
                continue
            if self._statuses.may_write(name, frozenset(allocated.items()), session.now):
                queue.status_allocated = allocated
                amounts = {"cpu": 0, "memory": 0, **allocated}
                intents.append(
                    UpdateQueueStatus(name, {key: format_amount(key, value) for key, value in amounts.items()})
                )
        self._annotations.pop_expired(session.now)
        for name in sorted(session.results.queue_annotations):
            queue = session.queues.get(name)
            if queue is None:
                continue
            changes = {
                key: value
                for key, value in session.results.queue_annotations[name].items()
                if queue.annotations.get(key) != value
            }
            wanted = frozenset(session.results.queue_annotations[name].items())
            if changes and self._annotations.may_write(name, wanted, session.now):
                intents.append(AnnotateQueue(name, changes))

    def _to_check(self, session: Session) -> set[str]:
        """Queues whose allocated amount may have changed, with their current and former ancestors."""
        queues, chains = session.queues, self._chains
        names = {*session.changed.queues, *session.state.changes.queues, *self._statuses.pop_expired(session.now)}
        if session.changed.everything:
            names.update(queues)
        for name in sorted(names):
            names.update(chains.pop(name, ()))
            if name in queues:
                chains[name] = [one.name for one in ancestors(queues[name], queues)]
                names.update(chains[name])
        return names


def _subtree_totals(queues: Mapping[str, Queue]) -> dict[str, Vector]:
    """Requests of all bound pods by queue, those of its descendants included: a releasing pod holds its quota."""
    totals = {name: queue.allocated + queue.releasing for name, queue in queues.items()}
    for queue in queues.values():
        for ancestor in ancestors(queue, queues):
            totals[ancestor.name] += queue.allocated + queue.releasing
    return totals


def _unoffered_totals(session: Session) -> dict[str, Counter[str]]:
    """The same for resources without a column, which nodes offered that are gone; queues without any are absent."""
    totals: dict[str, Counter[str]] = {}
    for key, amounts in session.state.unoffered.items():
        queue = session.queues.get(session.state.jobs[key].queue)
        if queue is not None:
            for one in (queue, *ancestors(queue, session.queues)):
                totals.setdefault(one.name, Counter()).update(amounts)
    return totals


class QueueWarnings:
    """Emits an event per warning of a queue, and reports each warning once for the log."""

    def __init__(self, plugins: QuotaPlugins) -> None:
        """`plugins`: those of the scheduler-conf."""
        self._plugins = plugins
        #: Queue to its parent, and parent to the queues right below it.
        self._parents: dict[str, str] = {}
        self._children: dict[str, set[str]] = {}
        #: Warnings by queue.
        self._reported: ReportOnce[str, str] = ReportOnce()
        #: Codes of the event reasons of these warnings, by existing queue.
        self.reasons: dict[str, tuple[str, ...]] = {}

    def report(self, session: Session) -> None:
        """Checks the changed queues. O(changed and deleted queues)."""
        changed = session.changed
        names = {*session.queues, *self._reported, *self._parents} if changed.everything else changed.queues
        for name in sorted(names | session.state.deleted_queues.keys() | self._affected(session, names)):
            queue = session.queues.get(name)
            warnings: list[str] = []
            self.reasons.pop(name, None)
            if queue is not None:
                for row, message in self._warnings(queue, session.state.shares):
                    session.results.notice(queue, row, message)
                    warnings.append(message)
                    self.reasons[name] = (*self.reasons.get(name, ()), row.code)
            elif name in session.state.deleted_queues:
                warnings.append("queue deleted while pods run, which stay charged to it")
            session.results.report.add_warnings(queue_ref(name), self._reported.update(name, warnings))

    def _affected(self, session: Session, names: AbstractSet[str]) -> set[str]:
        """Notes the parents of changed queues.

        Returns their parents, before and now, and the children of queues that came or went.
        """
        found: set[str] = set()
        for name in names:
            queue, known = session.queues.get(name), self._parents.pop(name, None)
            if known is not None:
                self._children[known].discard(name)
                if not self._children[known]:
                    del self._children[known]
                found.add(known)
            if queue is not None and name != ROOT:
                parent = self._parents[name] = queue.parent or ROOT
                self._children.setdefault(parent, set()).add(name)
                found.add(parent)
            if (queue is None) != (known is None):
                found |= self._children.get(name, set())
        return found

    def _warnings(self, queue: Queue, shares: AbstractSet[str]) -> list[tuple[reasons.Reason, str]]:
        found: list[tuple[reasons.Reason, str]] = []
        is_parent = queue.name in self._children
        findings = unenforced(queue, self._parents, self._plugins, is_parent=is_parent, shares=shares)
        if findings:
            detail = "; ".join(f"{finding.field}: {finding.message}" for finding in findings)
            row = reasons.LIMIT_NOT_ENFORCED
            found.append((row, row.render(detail=detail)))
        text = queue.annotations.get(QUEUE_NAMESPACES)
        if text is not None and namespace_rule(text).problem:
            row = reasons.INVALID_QUEUE_NAMESPACES
            detail = namespace_rule(text).problem
            found.append((row, row.render(annotation=QUEUE_NAMESPACES, detail=detail, queue=queue.name)))
        return found
