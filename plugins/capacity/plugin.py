"""The capacity plugin: hooks over the tree of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from capcard_sched.framework.api.plugin import VETO, Grant, Placement, Plugin, Sample, VictimDecision
from capcard_sched.framework.quota.queue_sums import (
    QueueSums,
    admitted_reservation,
    excess,
    holds_resources,
    known_vector,
    listed,
    reservation,
    unplaced_minimum,
)
from capcard_sched.framework.toolkit.gang_slack import split_slack
from capcard_sched.model.reasons import (
    QUEUE_NOT_LEAF,
    QUEUE_NOT_OPEN,
    QUEUE_NOT_OPEN_ALLOCATE,
    QUEUE_QUOTA_INSUFFICIENT,
)
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.resources import PODS_COLUMN
from capcard_sched.model.status import TaskStatus, Vote
from capcard_sched.plugins.capacity.limits import Needs, QuotaBound, allocation_bounds, reclaim_bounds, tightest
from capcard_sched.plugins.capacity.metrics import samples
from capcard_sched.plugins.capacity.reclaim import ReclaimPolicy
from capcard_sched.plugins.capacity.tree import Tree, depth_in_common

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import ResourceColumns, Vector
    from capcard_sched.model.task_class import TaskClass


class CapacityArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Number of ancestors of a victim's queue that must exceed their deserved amounts too.
    ancestor_reclaim_level: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="ancestorReclaimLevel", default=0)
    #: Accepted for compatibility, ignored.
    dynamic_resource_allocation: bool = msgspec.field(name="capacity.DynamicResourceAllocationEnable", default=False)
    #: Accepted for compatibility, ignored.
    dra_consumable_capacity: bool = msgspec.field(name="capacity.DRAConsumableCapacityEnable", default=False)


class Capacity(Plugin):
    """Queues with guarantee, deserved and capability; with `enableHierarchy` they form a tree.

    A queue borrows unused resources up to its capability; other queues reclaim its usage beyond deserved.
    """

    name = "capacity"
    Arguments = CapacityArguments
    arguments: CapacityArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._requested = QueueSums(_requested)
        self._inqueue = QueueSums(admitted_reservation)
        self._elastic = QueueSums(_elastic)
        self._session: Session
        self._tree: Tree
        #: Number of trees built so far.
        self._trees = 0
        #: Inputs of the tree, by queue.
        self._shape: dict[str, tuple[object, ...]] = {}
        self._total: Vector = np.zeros(0, dtype=np.int64)
        #: Number of resource names the tree was built with.
        self._names = 0
        #: Queues whose reservations are recomputed before the next read.
        self._stale: set[str] = set()
        self._needs: dict[TaskClass, Needs] = {}

    def open(self, session: Session) -> None:
        self._session = session
        self._needs.clear()
        for sums in (self._requested, self._inqueue, self._elastic):
            sums.refresh(session)
        resources, changed, queues = session.resources, session.changed, session.queues
        total = resources.fit(session.total)
        if (
            changed.everything
            or len(resources) != self._names
            or len(queues) != len(self._shape)
            or any(name not in queues or _shape(queues[name]) != self._shape.get(name) for name in changed.queues)
            or not np.array_equal(total, self._total)
        ):
            self._names, self._total = len(resources), total.copy()
            self._shape = {name: _shape(queue) for name, queue in queues.items()}
            self._trees += 1
            self._tree = Tree(queues, self._total, resources, hierarchy=self.hierarchy)
            moved, self._stale = set(queues), set(queues)
        else:
            moved = changed.queues
            self._stale |= moved
            self._stale.update(session.jobs[key].queue for key in changed.jobs if key in session.jobs)
        for name in sorted(moved):
            branch = self._tree.branches[name]
            change = resources.fit(queues[name].allocated) - branch.own
            if change.any():
                branch.add(change)
            released = resources.fit(queues[name].releasing) - branch.own_releasing
            if released.any():
                branch.release(released)
        for problem in self._tree.problems:
            session.notice(queues[problem.queue], problem.reason, problem.message)

    # --- orders -----------------------------------------------------------------------------------------------------

    def queue_order(self, queue: Queue) -> tuple[int | float, ...]:
        """Priority, then share of deserved; among equals a queue with deserved resources goes first.

        In the tree leaves precede the others and compare from the top: two leaves by the shares of the branches just
        below their lowest common ancestor.
        """
        branch = self._tree.branches[queue.name]
        if not self.hierarchy:
            return (-queue.priority, branch.dominant_share(), not branch.named)
        if not branch.is_leaf:
            return (-queue.priority, 1, branch.dominant_share(), not branch.named)
        ways = [(one.dominant_share(), not one.named) for one in branch.chain() if one is not self._tree.root]
        levels = [key for way in reversed(ways) for key in way]
        return (-queue.priority, 0, *levels)

    def victim_queue_order(self, queue: Queue, reclaimer: Queue) -> int:
        """Victims come first from the queue that is nearer to the reclaimer's in the tree."""
        if not self.hierarchy:
            return 0
        return -depth_in_common(self._tree.branches[queue.name], self._tree.branches[reclaimer.name])

    # --- quotas -----------------------------------------------------------------------------------------------------

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        barred = self._barred(queue, "allocatable")
        return barred or self._grant(queue, task.cls, 1).refusal

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        barred = self._barred(queue, "allocatable")
        return Grant(0, barred) if barred else self._grant(queue, profile.cls, len(tasks))

    def preemptive(self, queue: Queue, task: Task) -> Refusal | None:
        """A queue may reclaim up to what it deserves."""
        barred = self._barred(queue, "preemptive")
        if barred is not None:
            return barred
        needs = self._needs_of(task.cls)
        _, short = tightest(reclaim_bounds(self._tree.branches[queue.name], needs), 1)
        return self._insufficient(needs, short, "preemptive") if short else None

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        """Candidates while their queue exceeds its deserved amount of a resource both request; guarantees are kept.

        The others are protected in every tier. Members beyond the minimum of their gang are examined first.
        """
        branches = self._tree.branches
        reclaimer = branches.get(task.job.queue) if task.job is not None else None
        if reclaimer is None or reclaimer.fault:
            return VETO
        surplus, others = split_slack(candidates)
        queued = [
            (candidate, branches[candidate.job.queue])
            for candidate in (*surplus, *others)
            if candidate.job is not None and candidate.job.queue in branches
        ]
        reclaim = ReclaimPolicy(reclaimer, self._needs_of(task.cls), level=self.arguments.ancestor_reclaim_level)
        protected = reclaim.protections(queued, self._needs_of)
        victims = {candidate.uid for candidate, _ in queued} - protected.keys()
        return VictimDecision(protected, [candidate for candidate in candidates if candidate.uid in victims])

    # --- admission --------------------------------------------------------------------------------------------------

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """The unplaced minimum fits the real capability of the queue and of all above it, with reservations counted.

        Elastic amounts of other jobs do not count.
        """
        queue = self._session.queues[job.queue]
        barred = self._barred(queue, "job_enqueueable")
        if barred is not None:
            return barred
        if job.min_resources is None:
            return Vote.PERMIT
        self._update_reservations()
        resources = self._session.resources
        need = unplaced_minimum(job, resources)
        for branch in self._tree.branches[queue.name].path:
            used = branch.held + branch.reserved
            names = excess(need, used, branch.real_capability, resources)
            if names:
                column = resources.find(names[0])
                before, limit = (0, 0) if column is None else (used.item(column), branch.real_capability.item(column))
                figures = Figures(names[0], need[names[0]], need[names[0]] + before, limit)
                return self._quota_refusal(branch.name, names, figures, "job_enqueueable")
        return Vote.PERMIT

    def admission_version(self, job: Job) -> tuple[object, ...]:
        self._update_reservations()
        queue = self._session.queues[job.queue]
        need = unplaced_minimum(job, self._session.resources)
        versions = [branch.version for branch in self._tree.branches[queue.name].path]
        return (self._trees, queue.name, queue.state, job.min_resources is None, *need.items(), *versions)

    def job_enqueued(self, job: Job) -> None:
        if job.min_resources is not None:
            self._inqueue.put(job, reservation(job, self._session.resources))
            self._stale.add(job.queue)

    # --- events -----------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        self._moved(placement, +1)

    def on_deallocate(self, placement: Placement) -> None:
        self._moved(placement, -1)

    def metrics(self) -> Iterator[Sample]:
        requests, inqueue = self._sums(self._requested), self._sums(self._inqueue)
        for name, branch in self._tree.branches.items():
            if name in self._session.queues:
                yield from samples(branch, requests[name], inqueue[name], self._session.resources)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _moved(self, placement: Placement, sign: int) -> None:
        job, tasks = placement.job, placement.tasks
        branch = self._tree.branches.get(job.queue)
        if branch is None:
            return
        self._elastic.touch(job)
        self._inqueue.touch(job)
        self._stale.add(job.queue)
        pipelined = sum(task.status is TaskStatus.PIPELINED for task in tasks)
        request = self._session.resources.fit(placement.cls.request)
        if pipelined:
            branch.add(request * (sign * pipelined), pipelined=True)
        if pipelined < len(tasks):
            branch.add(request * (sign * (len(tasks) - pipelined)))
        evicted = sum(task.status in (TaskStatus.RUNNING, TaskStatus.BOUND) for task in tasks)
        if evicted:
            branch.release(request * (-sign * evicted))

    def _update_reservations(self) -> None:
        for name in self._stale:
            branch = self._tree.branches.get(name)
            if branch is not None:
                branch.reserve(self._inqueue.of(name) - self._elastic.of(name))
        self._stale.clear()

    def _sums(self, of_jobs: QueueSums) -> dict[str, Vector]:
        """Sums over the jobs of each queue and of the queues below it."""
        branches = self._tree.branches
        totals = {name: self._session.resources.zeros() for name in branches}
        for name, branch in branches.items():
            for above in branch.chain() if self.hierarchy else (branch,):
                if above.name in totals:
                    totals[above.name] += of_jobs.of(name)
        return totals

    def _needs_of(self, cls: TaskClass) -> Needs:
        needs = self._needs.get(cls)
        if needs is None:
            names = self._session.resources.names
            needs = self._needs[cls] = [
                (names[column], column, int(cls.request[column]))
                for column in np.flatnonzero(cls.request > 0).tolist()
                if column != PODS_COLUMN
            ]
        return needs

    def _grant(self, queue: Queue, cls: TaskClass, wanted: int) -> Grant:
        needs = self._needs_of(cls)
        bounds = allocation_bounds(self._tree.branches[queue.name], needs, nominating=self._session.nominating)
        count, short = tightest(bounds, wanted)
        return Grant(count, self._insufficient(needs, short, "allocatable", count) if short else None)

    def _barred(self, queue: Queue, hook: str) -> Refusal | None:
        """The refusal of a queue that is faulty, closed or not a leaf, whatever the request."""
        enqueue = hook == "job_enqueueable"
        branch = self._tree.branches[queue.name]
        if branch.fault:
            return Refusal(hook, self.name, "InvalidQueueHierarchy", branch.fault, queue=queue.name, event=enqueue)
        if self.hierarchy and not branch.is_leaf:
            reason, message = QUEUE_NOT_LEAF, QUEUE_NOT_LEAF.render(queue=queue.name)
        elif not queue.is_open:
            reason = QUEUE_NOT_OPEN if enqueue else QUEUE_NOT_OPEN_ALLOCATE
            message = reason.render(queue=queue.name, state=queue.state)
        else:
            return None
        return Refusal(hook, self.name, reason.code, message, queue=queue.name, event=enqueue)

    def _insufficient(self, needs: Needs, short: Sequence[QuotaBound], hook: str, before: int = 0) -> Refusal:
        """Refusal of the pod that comes after `before` others of its class."""
        bounds = {bound.resource: bound for bound in short}
        names = self._session.resources.sorted_names(bounds)
        bound = bounds[names[0]]
        amount = next(amount for name, _, amount in needs if name == names[0])
        figures = Figures(names[0], amount, bound.held + amount * (before + 1), bound.limit)
        # The queue itself, an ancestor, or `root` for resources kept for the guarantees of other queues.
        return self._quota_refusal(bound.queue, names, figures, hook)

    def _quota_refusal(self, queue: str, names: list[str], figures: Figures, hook: str) -> Refusal:
        row = QUEUE_QUOTA_INSUFFICIENT
        return Refusal(
            hook,
            self.name,
            row.code,
            row.render(dimensions=listed("insufficient", names)),
            queue=queue,
            figures=figures,
            event=hook == "job_enqueueable",
            type=row.type,
        )


def _shape(queue: Queue) -> tuple[object, ...]:
    return queue.uid, id(queue), queue.parent, queue.capability, queue.deserved, queue.guarantee


def _requested(job: Job, resources: ResourceColumns) -> Vector | None:
    """Requests of the job's allocated and pending tasks: fresh int64 [resource columns]."""
    if not job.tasks:
        return None
    total = resources.fit(job.allocated).copy()
    if job.counts[TaskStatus.PENDING]:
        for task in job.tasks.values():
            if task.status is TaskStatus.PENDING:
                total += resources.fit(task.cls.request)
    return total


def _elastic(job: Job, resources: ResourceColumns) -> Vector | None:
    """Allocated amounts beyond `minResources`: fresh int64 [resource columns]."""
    if not holds_resources(job):
        return None
    beyond = resources.fit(job.allocated) - known_vector(job.min_resources or {}, resources)
    np.maximum(beyond, 0, out=beyond)
    return beyond
