"""Sums over jobs, per queue, per subtree of queues and in total, maintained incrementally.

It also holds the reservation of an admitted group, which every admission plugin counts the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from capcard_sched.model.status import PodGroupPhase, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.resources import Amounts, ResourceColumns, Vector


#: A mutable amount with `+=` and `-=`: a vector, or a record of several quantities.
Amount = TypeVar("Amount", bound=Any)


class SumTree(Generic[Amount]):
    """One sum per queue, and one per queue and all queues below it. A queue is created, with 0, by its first use."""

    __slots__ = ("_above", "_including", "_own", "_subtrees", "_zero")

    def __init__(self, zero: Callable[[], Amount]) -> None:
        self._zero = zero
        self._own: dict[str, Amount] = {}
        #: Of the queues that have queues below; the others have one sum.
        self._subtrees: dict[str, Amount] = {}
        self._above: Mapping[str, Sequence[str]] = {}
        self._including: dict[str, tuple[Amount, ...]] = {}

    def own(self, queue: str) -> Amount:
        """The sum over the queue's own jobs, live."""
        return self.including(queue)[0]

    def subtree(self, queue: str) -> Amount:
        """The sum over the jobs of the queue and of all queues below it, live; `own` itself without queues below."""
        return self._subtrees[queue] if queue in self._subtrees else self.including(queue)[0]

    def including(self, queue: str) -> tuple[Amount, ...]:
        """Every sum that includes the queue's own jobs, its own first."""
        found = self._including.get(queue)
        if found is None:
            own = self._own.setdefault(queue, self._zero())
            subtrees = [self._subtrees[one] for one in (queue, *self._above.get(queue, ())) if one in self._subtrees]
            found = self._including[queue] = own, *subtrees
        return found

    def add(self, queue: str, amounts: Amount) -> None:
        """Add to the sum of a queue and to those of the queues above it."""
        for each in self.including(queue):
            each += amounts  # noqa: PLW2901 - in place

    def subtract(self, queue: str, amounts: Amount) -> None:
        for each in self.including(queue):
            each -= amounts  # noqa: PLW2901 - in place

    def connect(self, above: Mapping[str, Sequence[str]]) -> None:
        """Arrange the queues as a tree and sum up the subtrees. O(queues x depth).

        `above`: for each queue the names of its ancestors, nearest first.
        """
        self._above = above
        self._subtrees = {name: self._zero() for names in above.values() for name in names}
        self._including.clear()
        for queue in self._own:
            own, *subtrees = self.including(queue)
            for each in subtrees:
                each += own  # noqa: PLW2901 - in place

    def drop(self, queue: str) -> None:
        """Remove the sum of a queue without amounts."""
        self._own.pop(queue, None)
        self._including.pop(queue, None)

    def clear(self) -> None:
        """Set all sums to 0; the tree stays."""
        self._own.clear()
        self.connect(self._above)


class _Entry(NamedTuple):
    queue: str
    amounts: Vector


class QueueSums:
    """The sum of one quantity over all jobs of the session, per queue, per subtree and in total.

    `contribution(job, resources)` returns a fresh int64 [resource columns], or None for nothing; it must depend on the
    job alone. `refresh` in the `open` hook recomputes it for the changed jobs, O(changed). A plugin that needs exact
    sums inside a session calls `touch` where a job moves; its contribution is recomputed on the next read.
    """

    def __init__(self, contribution: Callable[[Job, ResourceColumns], Vector | None]) -> None:
        self._contribution = contribution
        self._entries: dict[str, _Entry] = {}
        self._tree: SumTree[Vector] = SumTree(self._zeros)
        self._touched: dict[str, Job] = {}
        self._resources: ResourceColumns | None = None
        self._names = 0
        self._total = np.zeros(0, dtype=np.int64)

    def refresh(self, session: Session) -> None:
        """Applies `session.changed`. For the `open` hook, once per session.

        Jobs whose queue appeared or disappeared are among the changed ones; jobs that left the session are dropped.
        """
        changed, jobs, resources = session.changed, session.jobs, session.resources
        if changed.everything or resources is not self._resources or len(resources) != self._names:
            self._rebuild(resources, jobs)
        else:
            for key in changed.jobs | self._touched.keys():
                job = jobs.get(key)
                if job is None:
                    self._remove(key)
                else:
                    self._set(job, self._contribution(job, resources))
            for queue in changed.queues - session.queues.keys():
                self._tree.drop(queue)
        self._touched.clear()

    def connect(self, above: Mapping[str, Sequence[str]]) -> None:
        self._tree.connect(above)

    def touch(self, job: Job) -> None:
        """Recomputes the job's contribution before the next read."""
        self._touched[job.key] = job

    def put(self, job: Job, amounts: Vector | None) -> None:
        """Sets the job's contribution until it changes again."""
        self._touched.pop(job.key, None)
        self._set(job, amounts)

    def of(self, queue: str) -> Vector:
        """The sum over a queue's jobs: int64 [resource columns], live; read-only."""
        self._flush()
        return self._tree.own(queue)

    def subtree(self, queue: str) -> Vector:
        """The sum over the jobs of a queue and of all queues below it: int64 [resource columns], live; read-only."""
        self._flush()
        return self._tree.subtree(queue)

    @property
    def total(self) -> Vector:
        """The sum over all jobs: int64 [resource columns], live; read-only."""
        self._flush()
        return self._total

    def _flush(self) -> None:
        """Recomputes the contributions of the touched jobs now."""
        if self._touched:
            assert self._resources is not None
            for job in self._touched.values():
                self._set(job, self._contribution(job, self._resources))
            self._touched.clear()

    def _rebuild(self, resources: ResourceColumns, jobs: Mapping[str, Job]) -> None:
        self._resources = resources
        self._names = len(resources)
        self._entries.clear()
        self._tree.clear()
        self._total = resources.zeros()
        for job in jobs.values():
            self._set(job, self._contribution(job, resources))

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._total -= entry.amounts
            self._tree.subtract(entry.queue, entry.amounts)

    def _set(self, job: Job, amounts: Vector | None) -> None:
        self._remove(job.key)
        if amounts is not None:
            self._entries[job.key] = _Entry(job.queue, amounts)
            self._total += amounts
            self._tree.add(job.queue, amounts)

    def _zeros(self) -> Vector:
        assert self._resources is not None, "refresh comes first"
        return self._resources.zeros()


def known_vector(amounts: Amounts, resources: ResourceColumns) -> Vector:
    """`amounts` as int64 [resource columns], without names that have no column.

    For use inside a session, where columns must not be added. No node offers a resource without a column, and no pod
    requests it.
    """
    vector = resources.zeros()
    for name, amount in amounts.items():
        column = resources.find(name)
        if column is not None:
            vector[column] = amount
    return vector


def holds_resources(job: Job) -> bool:
    """Whether some task of the job is in an allocated status. Cheaper than counting them."""
    counts = job.counts
    return bool(
        counts[TaskStatus.RUNNING]
        or counts[TaskStatus.BOUND]
        or counts[TaskStatus.BINDING]
        or counts[TaskStatus.ALLOCATED]
    )


def unplaced_minimum(job: Job, resources: ResourceColumns) -> Amounts:
    """The part of `minResources` that the job's tasks do not hold yet, by name, base units, floored at 0.

    Both sides are in base units (thousandths for cards); Volcano mixes units and loses the reservations of cards of
    partly running groups.
    """
    minimum = job.min_resources or {}
    if not holds_resources(job):
        return minimum
    allocated = job.allocated
    left: dict[str, int] = {}
    for name, amount in minimum.items():
        column = resources.find(name)
        held = allocated.item(column) if column is not None and column < len(allocated) else 0
        left[name] = max(0, amount - held)
    return left


def reservation(job: Job, resources: ResourceColumns) -> Vector:
    """The capacity an admitted job is still entitled to: its unplaced minimum less the requests of its gated tasks.

    int64 [resource columns], floored at 0 per resource. 0 for a job that no set of nodes holds.
    """
    if job.node_limit is not None:
        return resources.zeros()
    vector = known_vector(unplaced_minimum(job, resources), resources)
    if job.gated:
        for task in job.gated.values():
            vector -= resources.fit(task.cls.request)
        np.maximum(vector, 0, out=vector)
    return vector


#: Statuses of placed tasks that stay.
_LIVE = (TaskStatus.ALLOCATED, TaskStatus.PIPELINED, TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING)


def awaits_pods(job: Job) -> bool:
    """Whether an admitted job has pods to place: pending ones, or some of its minimum that are not created yet.

    A PodGroup is admitted before its pods are created. Pods that are missing are still to be created while none was,
    or while others of the job are alive; of a job whose pods all ended or were deleted, no more are expected. Pods that
    no set of nodes holds together are not expected either: they would hold their reservation forever.
    """
    if job.node_limit is not None:
        return False
    if job.counts[TaskStatus.PENDING]:
        return True
    if job.phase is not PodGroupPhase.INQUEUE or len(job.tasks) >= max(job.min_available, 1):
        return False
    return job.count(_LIVE) > 0 if job.tasks else not job.had_tasks


#: Statuses whose requests count neither as allocated nor as pending.
_NEITHER = (
    TaskStatus.PIPELINED,
    TaskStatus.RELEASING,
    TaskStatus.SUCCEEDED,
    TaskStatus.FAILED,
    TaskStatus.UNKNOWN,
)


def requested(job: Job, resources: ResourceColumns) -> Vector | None:
    """Requests of the job's allocated and pending tasks: fresh int64 [resource columns]."""
    if not job.tasks:
        return None
    counts = job.counts
    if not any(counts[status] for status in _NEITHER):
        return resources.fit(job.total_request).copy()
    total = resources.fit(job.allocated).copy()
    for task in job.tasks.values():
        if task.status is TaskStatus.PENDING:
            total += resources.fit(task.cls.request)
    return total


def elastic(job: Job, resources: ResourceColumns) -> Vector | None:
    """Allocated amounts beyond `minResources`: fresh int64 [resource columns]."""
    if not holds_resources(job):
        return None
    beyond = resources.fit(job.allocated) - known_vector(job.min_resources or {}, resources)
    np.maximum(beyond, 0, out=beyond)
    return beyond


def admitted_reservation(job: Job, resources: ResourceColumns) -> Vector | None:
    """`reservation` of an admitted job, else None.

    Admitted are groups in phase Inqueue, and Running ones that have their minimum of members placed. Both count the
    unplaced part: placed tasks count as allocated.
    """
    return reservation(job, resources) if job.min_resources is not None and is_admitted(job) else None


def is_admitted(job: Job) -> bool:
    """Whether an admitted job holds a reservation for pods without a node."""
    is_served = job.phase is PodGroupPhase.RUNNING and job.allocated_tasks >= job.min_available
    return (is_served or job.phase is PodGroupPhase.INQUEUE) and awaits_pods(job)
