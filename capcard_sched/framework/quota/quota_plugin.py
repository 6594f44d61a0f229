"""The base of plugins that limit queues by resource: admission, allocation and preemption against limits.

A plugin provides the limits; the sums of its queues, the number of pods that fit, refusals and series are common.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from capcard_sched.framework.api.plugin import Grant, Plugin, Sample
from capcard_sched.framework.quota.limits import UNLIMITED, admit, refusal, shortage_at, tightest
from capcard_sched.framework.quota.queue_sums import (
    QueueSums,
    admitted_reservation,
    elastic,
    requested,
    reservation,
    unplaced_minimum,
)
from capcard_sched.model.device_quota import is_capacity_quota
from capcard_sched.model.reasons import (
    QUEUE_NOT_OPEN,
    QUEUE_NOT_OPEN_ALLOCATE,
    QUEUE_QUOTA_INSUFFICIENT,
)
from capcard_sched.model.refusal import ExceededLimit, Figures, Limiter, Refusal
from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN
from capcard_sched.model.status import Vote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.quota.limits import Needs, QuotaBound
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.resources import Amounts, ResourceColumns, Vector
    from capcard_sched.model.task_class import TaskClass


class AdmissionPlugin(Plugin):
    """Admits jobs by resource, within limits on what all admitted jobs use and reserve.

    Subclasses implement `_admission_limits`.
    """

    #: Reason of a refusal, and the word before each resource in its message.
    _reason: ClassVar[Reason] = QUEUE_QUOTA_INSUFFICIENT
    _word: ClassVar[str] = "insufficient"

    def setup(self) -> None:
        self._inqueue = QueueSums(self._admitted_reservation)
        self._session: Session

    def open(self, session: Session) -> None:
        self._session = session
        self._inqueue.refresh(session)

    def _admission_limits(self, queue: Queue) -> Iterable[tuple[str, Vector, Vector, Vector]]:
        """Owner, amounts in use with reservations, these, and limit, of every limit at enqueue, nearest first."""
        raise NotImplementedError

    def _unplaced(self, job: Job) -> Amounts:
        """The part of the minimum of a job that it does not hold yet, by resource."""
        return unplaced_minimum(job, self._session.resources)

    def _reservation(self, job: Job) -> Vector | None:
        """What a job reserves once it is admitted: int64 [resource columns]; None for nothing."""
        return None if job.min_resources is None else reservation(job, self._session.resources)

    def _admitted_reservation(self, job: Job, resources: ResourceColumns) -> Vector | None:
        """`_reservation` of an admitted job, else None."""
        return admitted_reservation(job, resources)

    def _limiter(self) -> Limiter | None:
        """The object of its admission limits; None for queues."""
        return None

    def _barred(self, queue: Queue, hook: str) -> Refusal | None:
        """The refusal of a queue that accepts nothing, whatever the request."""
        return None

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """The unplaced minimum fits every limit beside the reservations."""
        queue = self._session.queues[job.queue]
        barred = self._barred(queue, "job_enqueueable")
        if barred is not None:
            return barred
        resources, need = self._session.resources, self._unplaced(job)
        for owner, used, reserved, limit in self._admission_limits(queue):
            found = admit(need, used, reserved, limit, resources)
            if found is not None:
                return refusal(self.name, "job_enqueueable", owner, self._reason, self._word, found, self._limiter())
        return Vote.PERMIT

    def admission_version(self, job: Job) -> tuple[object, ...]:
        """The content that `job_enqueueable` reads."""
        queue = self._session.queues[job.queue]
        barred = self._barred(queue, "job_enqueueable")
        resources, need = self._session.resources, {} if barred is not None else self._unplaced(job)
        if not need:
            return barred is None or barred.message, True
        limits = [(owner, used.tobytes(), limit.tobytes()) for owner, used, _, limit in self._admission_limits(queue)]
        return queue.name, len(resources), *need.items(), *limits

    def reservation_changed(self, job: Job) -> None:
        self._inqueue.touch(job)

    def job_enqueued(self, job: Job) -> None:
        reserved = self._reservation(job)
        if reserved is not None:
            self._inqueue.put(job, reserved)


class QuotaPlugin(AdmissionPlugin):
    """Limits queues by resource.

    Subclasses implement `_admission_limits`, without the elastic amounts of jobs, `_capabilities`, `_pod_bounds` and
    `_count`.
    """

    def setup(self) -> None:
        super().setup()
        self._requested = QueueSums(requested)
        self._elastic = QueueSums(elastic)
        self._needs: dict[TaskClass, Needs] = {}

    def open(self, session: Session) -> None:
        super().open(session)
        self._needs.clear()
        self._requested.refresh(session)
        self._elastic.refresh(session)

    def exceeded_limit(self, job: Job) -> ExceededLimit | None:
        """The least capability that the minimum exceeds; of equal ones the topmost."""
        resources, queue = self._session.resources, self._session.queues.get(job.queue)
        minimum = self._minimum(job) if queue is not None else {}
        if queue is None or not minimum:
            return None
        capabilities = list(self._capabilities(queue))
        for name in resources.sorted_names(minimum):
            column = resources.find(name)
            if column is None or column == PODS_COLUMN:
                continue
            owner, limit = min(reversed([(one, most.item(column)) for one, most in capabilities]), key=itemgetter(1))
            needed = minimum[name]
            if needed > limit:
                return ExceededLimit(Figures(name, needed, needed, limit), owner)
        return None

    def reserved_amounts(self, job: Job) -> dict[str, int]:
        """Of all resources."""
        resources = self._session.resources
        vector = self._admitted_reservation(job, resources)
        columns = () if vector is None else np.flatnonzero(vector).tolist()
        return {resources.names[column]: int(vector[column]) for column in columns if vector is not None}

    def _minimum(self, job: Job) -> Amounts:
        """What a job needs at least, whether it holds it or not, by resource."""
        return job.min_resources or {}

    def _capabilities(self, queue: Queue) -> Iterable[tuple[str, Vector]]:
        """Owner and limit of the queue and of every ancestor that limits it, nearest first.

        A limit is the largest amount that the owner can hold in a cluster of any size.
        """
        raise NotImplementedError

    def _pod_bounds(self, queue: Queue, cls: TaskClass, hook: str) -> Iterable[QuotaBound]:
        """The limits on further pods of a class, for the hook `allocatable` or `preemptive`."""
        raise NotImplementedError

    def _count(self, placement: Placement, sign: int) -> None:
        """Add a placement of this session to the usage (1), or subtract it (-1)."""
        raise NotImplementedError

    def _barred(self, queue: Queue, hook: str) -> Refusal | None:
        if queue.is_open:
            return None
        enqueue = hook == "job_enqueueable"
        row = QUEUE_NOT_OPEN if enqueue else QUEUE_NOT_OPEN_ALLOCATE
        message = row.render(queue=queue.name, state=queue.state)
        return Refusal(hook, self.name, row.code, message, queue=queue.name, event=enqueue)

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        return self._grant(queue, task.cls, 1, "allocatable").refusal

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        return self._grant(queue, profile.cls, len(tasks), "allocatable")

    def preemptive(self, queue: Queue, task: Task) -> Refusal | None:
        """A queue may reclaim up to what it deserves."""
        return self._grant(queue, task.cls, 1, "preemptive").refusal

    def on_allocate(self, placement: Placement) -> None:
        self._moved(placement, +1)

    def on_deallocate(self, placement: Placement) -> None:
        self._moved(placement, -1)

    def _grant(self, queue: Queue, cls: TaskClass, wanted: int, hook: str) -> Grant:
        """How many of `wanted` pods of the class fit one after the other."""
        barred = self._barred(queue, hook)
        if barred is not None:
            return Grant(0, barred)
        count, reached = tightest(self._pod_bounds(queue, cls, hook), wanted)
        if not reached:
            return Grant(count)
        # Of the queue itself, an ancestor, or `root` for resources kept for the guarantees of other queues.
        found = shortage_at(reached, count)
        return Grant(count, refusal(self.name, hook, found.queue, QUEUE_QUOTA_INSUFFICIENT, "insufficient", found))

    def _moved(self, placement: Placement, sign: int) -> None:
        job = placement.job
        if job.queue in self._session.queues:
            # Recomputed at the next read, not here: when `on_deallocate` runs, the pods are still placed.
            self._elastic.touch(job)
            self._inqueue.touch(job)
            self._count(placement, sign)

    def _needs_of(self, cls: TaskClass) -> Needs:
        needs = self._needs.get(cls)
        if needs is None:
            resources = self._session.resources
            columns = {resources.names[c]: c for c in np.flatnonzero(cls.request > 0).tolist() if c != PODS_COLUMN}
            needs = self._needs[cls] = [
                (name, columns[name], int(cls.request[columns[name]])) for name in resources.sorted_names(columns)
            ]
        return needs

    def _series(self, queue: str, kinds: Mapping[str, Vector]) -> Iterator[Sample]:
        """The series of quantities by kind, without unlimited amounts; scalars in thousandths, 0 for a removed one."""
        labels = {"queue_name": queue}
        for kind, vector in kinds.items():
            for column, resource in enumerate(self._session.resources.names):
                amount = vector.item(column) if column < len(vector) else 0
                if amount >= UNLIMITED:
                    continue
                if column == CPU_COLUMN:
                    yield Sample(f"queue_{kind}_milli_cpu", labels, amount)
                elif column == MEMORY_COLUMN:
                    yield Sample(f"queue_{kind}_memory_bytes", labels, amount)
                else:
                    value = amount * 1000 if is_capacity_quota(resource) else amount
                    yield Sample(f"queue_{kind}_scalar_resources", {**labels, "resource": resource}, value)
