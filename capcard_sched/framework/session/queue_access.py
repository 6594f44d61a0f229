"""The jobs a queue accepts: by its namespaces annotation; none for `root` and for parents with a card quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model import reasons
from capcard_sched.model.annotations import CARD_QUOTA, QUEUE_NAMESPACES
from capcard_sched.model.queue_access import namespace_rule
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.framework.session.snapshot import Snapshot
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue

_ROOT = "root"


class QueueAccess:
    """The refusals of one session, by queue and namespace."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._found: dict[tuple[str, str], tuple[reasons.Reason, str] | None] = {}
        self._parents = {queue.parent for queue in snapshot.queues.values() if queue.parent}

    def refusal(self, job: Job, hook: str) -> Refusal | None:
        """The refusal of a job by its queue, whatever the usage; None for an accepted one."""
        key = job.queue, job.namespace
        if key not in self._found:
            self._found[key] = self._judge(job)
        found = self._found[key]
        if found is None:
            return None
        row, message = found
        return Refusal(hook, "", row.code, message, queue=job.queue, event=True, type=row.type, pods_too=True)

    def _judge(self, job: Job) -> tuple[reasons.Reason, str] | None:
        queue = self._snapshot.queues.get(job.queue)
        if queue is None:
            return None  # refused for that
        row = reasons.QUEUE_ACCEPTS_NO_JOBS
        if queue.name == _ROOT:
            return row, row.render(queue=queue.name, cause="it is the root of all queues")
        if queue.name in self._parents and CARD_QUOTA in queue.annotations and self._has_child(queue):
            return row, row.render(queue=queue.name, cause="it has child queues and a card quota of its own")
        for one in self._chain(queue):
            text = one.annotations.get(QUEUE_NAMESPACES)
            if text is not None and not namespace_rule(text).accepts(
                job.namespace, self._snapshot.namespaces.get(job.namespace)
            ):
                row = reasons.QUEUE_NAMESPACE_DENIED
                message = row.render(
                    queue=queue.name, namespace=job.namespace, annotation=QUEUE_NAMESPACES, owner=one.name
                )
                return row, message
        return None

    def _has_child(self, queue: Queue) -> bool:
        """Whether a queue below it is not above it, too: a circle of parents makes no tree."""
        ancestors = {one.name for one in self._chain(queue)}
        return any(each.parent == queue.name and each.name not in ancestors for each in self._snapshot.queues.values())

    def _chain(self, queue: Queue) -> Iterator[Queue]:
        """The queue and its ancestors; a missing or cyclic parent ends the chain."""
        seen: set[str] = set()
        one: Queue | None = queue
        while one is not None and one.name not in seen:
            yield one
            seen.add(one.name)
            one = self._snapshot.queues.get(one.parent or _ROOT)
