"""Warnings about queues: limits without effect, malformed namespaces, and deleted queues with bound pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model import reasons
from capcard_sched.model.annotations import QUEUE_NAMESPACES
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.queue_access import namespace_rule
from capcard_sched.model.report_once import ReportOnce
from capcard_sched.validation.unenforced_limits import unenforced_limits

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.queue import Queue


class QueueWarnings:
    """Emits an event per warning of a queue, and reports each warning once for the log."""

    def __init__(self, plugins: AbstractSet[str]) -> None:
        """`plugins`: names of the plugins in the scheduler-conf."""
        self._plugins = plugins
        #: Warnings by queue.
        self._reported: ReportOnce[str, str] = ReportOnce()

    def report(self, session: Session) -> None:
        """Checks the changed queues. O(changed and deleted queues)."""
        changed = session.changed
        names = {*session.queues, *self._reported} if changed.everything else changed.queues
        for name in sorted(names | session.state.deleted_queues.keys()):
            queue = session.queues.get(name)
            warnings: list[str] = []
            if queue is not None:
                for row, message in self._warnings(queue, session.state.shares):
                    session.notice(queue, row, message)
                    warnings.append(message)
            elif name in session.state.deleted_queues:
                warnings.append("the queue is deleted and has bound pods, which stay charged to it")
            ref = ObjectRef("Queue", "", name)
            session.report.add_warnings(ref, self._reported.update(name, warnings))

    def _warnings(self, queue: Queue, shares: AbstractSet[str]) -> list[tuple[reasons.Reason, str]]:
        found: list[tuple[reasons.Reason, str]] = []
        limits = {
            "capability": queue.capability or {},
            "deserved": queue.deserved or {},
            "guarantee": queue.guarantee or {},
        }
        unenforced = unenforced_limits(limits, queue.annotations, self._plugins, shares)
        if unenforced:
            detail = "; ".join(f"{finding.field}: {finding.message}" for finding in unenforced)
            row = reasons.LIMIT_NOT_ENFORCED
            found.append((row, row.render(detail=detail)))
        text = queue.annotations.get(QUEUE_NAMESPACES)
        if text is not None and namespace_rule(text).problem:
            row = reasons.INVALID_QUEUE_NAMESPACES
            detail = namespace_rule(text).problem
            found.append((row, row.render(annotation=QUEUE_NAMESPACES, detail=detail, queue=queue.name)))
        return found
