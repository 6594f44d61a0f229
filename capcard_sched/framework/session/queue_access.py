"""The jobs a queue accepts: by its namespaces annotation; none for `root` and for parents with a card quota.

No queue admits a job whose minimum includes pods with unsupported features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model import reasons
from capcard_sched.model.annotations import CARD_QUOTA, QUEUE_NAMESPACES
from capcard_sched.model.cards import is_card_quota
from capcard_sched.model.obstacles import obstacle_refusal
from capcard_sched.model.queue import ROOT, ancestors, namespace_rule
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.api.plugin import Plugin
    from capcard_sched.framework.session.snapshot import Snapshot
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue


def _is_flat_capacity(plugin: Plugin) -> bool:
    return plugin.name == "capacity" and not plugin.hierarchy


class QueueAccess:
    """The refusals of one session, by queue and namespace."""

    def __init__(self, snapshot: Snapshot, plugins: Iterable[Plugin]) -> None:
        self._snapshot = snapshot
        #: Plugins that apply the limits of a queue to its own jobs only.
        self._flat = [one.name for one in plugins if one.name == "proportion" or _is_flat_capacity(one)]
        self._found: dict[tuple[str, str], tuple[reasons.Reason, str] | None] = {}
        self._children: dict[str, list[str]] = {}
        for queue in snapshot.queues.values():
            if queue.parent:
                self._children.setdefault(queue.parent, []).append(queue.name)

    def refusal(self, job: Job, hook: str) -> Refusal | None:
        """The refusal of a job, whatever the usage: by its queue, or at admission for unsupported features of its pods.

        None for an accepted job.
        """
        key = job.queue, job.namespace
        if key not in self._found:
            self._found[key] = self._judge(job)
        found = self._found[key]
        if found is None:
            is_admission = hook == "job_enqueueable"
            return obstacle_refusal(job, hook) if is_admission and job.needs_unsupported() else None
        row, message = found
        return Refusal(hook, "", row.code, message, queue=job.queue, event=True, type=row.type, pods_too=True)

    def version(self, queue: Queue) -> tuple[object, ...]:
        """The content of the queues that decides on unchanged jobs, while labels of namespaces are unchanged."""
        chain = (queue, *ancestors(queue, self._snapshot.queues))
        return (
            self._is_parent_with_quota(queue),
            self._blocked(queue),
            *(one.annotations.get(QUEUE_NAMESPACES) for one in chain),
        )

    def _is_parent_with_quota(self, queue: Queue) -> bool:
        return (
            queue.name in self._children and is_card_quota(queue.annotations.get(CARD_QUOTA)) and self._has_child(queue)
        )

    def _judge(self, job: Job) -> tuple[reasons.Reason, str] | None:
        queue = self._snapshot.queues.get(job.queue)
        if queue is None:
            return None  # refused for that
        row = reasons.QUEUE_ACCEPTS_NO_JOBS
        if queue.name == ROOT:
            return row, row.render(queue=queue.name, cause="it is the root of all queues")
        if self._is_parent_with_quota(queue):
            return row, row.render(queue=queue.name, cause="it has child queues and a card quota of its own")
        blocked = self._blocked(queue)
        if blocked:
            row = reasons.QUEUE_NOT_READY
            return row, row.render(queue=queue.name, cause=blocked)
        for one in (queue, *ancestors(queue, self._snapshot.queues)):
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

    def _blocked(self, queue: Queue) -> str:
        """Why no pod of a NamespaceQueue may start; "" when one may, and for a Queue."""
        if "/" not in queue.name or queue.blocked:
            return queue.blocked
        above = ancestors(queue, self._snapshot.queues)
        for one in above:
            if not one.is_open:
                return f"queue {one.name} is {one.state}"
            if self._flat and (one.capability or one.deserved or one.guarantee) and one.name != ROOT:
                return f"{self._flat[0]} limits no queue below {one.name}; capacity with enableHierarchy does"
        return ""

    def _has_child(self, queue: Queue) -> bool:
        """Whether a queue below it is not above it, too: a circle of parents makes no tree."""
        above = {queue.name, *(one.name for one in ancestors(queue, self._snapshot.queues))}
        return any(name not in above for name in self._children[queue.name])
