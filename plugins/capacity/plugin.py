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
from capcard_sched.plugins.capacity.limits import Needs, QuotaBound, may_hold, may_take_back, tightest
from capcard_sched.plugins.capacity.reclaim import ReclaimPolicy
from capcard_sched.plugins.capacity.series import samples
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
    """Arguments as users write them."""

    #: So many queues above a victim's must be above what they deserve too, 0 for none.
    ancestor_reclaim_level: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="ancestorReclaimLevel", default=0)
    #: Accepted, so that files load; without effect.
    dynamic_resource_allocation: bool = msgspec.field(name="capacity.DynamicResourceAllocationEnable", default=False)
    #: Accepted, so that files load; without effect.
    dra_consumable_capacity: bool = msgspec.field(name="capacity.DRAConsumableCapacityEnable", default=False)


class Capacity(Plugin):
    """Queues with a guaranteed, a deserved and a largest amount; with `enableHierarchy` they form a tree.

    A queue may borrow up to its capability what others do not use, and gives back what it holds beyond deserved.
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
        #: How many trees there have been.
        self._trees = 0
        #: What the tree was built from, by queue.
        self._shape: dict[str, tuple[object, ...]] = {}
        self._total: Vector = np.zeros(0, dtype=np.int64)
        #: How many resource names the tree was built with.
        self._names = 0
        #: Queues whose groups reserve something else than their branch knows.
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
                branch.move(change)
        for flaw in self._tree.flaws:
            session.notice(queues[flaw.queue], flaw.reason, flaw.message)

    # --- orders -----------------------------------------------------------------------------------------------------

    def queue_order(self, queue: Queue) -> tuple[int | float, ...]:
        """Priority, then share of deserved; among equals a queue that deserves something goes first.

        In the tree leaves go before the others, and are compared from the top: two leaves by the shares of the
        branches just below the last one they have in common.
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
        """The queue that is nearer to the reclaimer's in the tree is drained first."""
        if not self.hierarchy:
            return 0
        return -depth_in_common(self._tree.branches[queue.name], self._tree.branches[reclaimer.name])

    # --- quotas -----------------------------------------------------------------------------------------------------

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        barred = self._barred(queue, "allocatable")
        return barred or self._allowance(queue, task.cls, 1).refusal

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        barred = self._barred(queue, "allocatable")
        return Grant(0, barred) if barred else self._allowance(queue, profile.cls, len(tasks))

    def preemptive(self, queue: Queue, task: Task) -> Refusal | None:
        """A queue may reclaim up to what it deserves."""
        barred = self._barred(queue, "preemptive")
        if barred is not None:
            return barred
        needs = self._needs_of(task.cls)
        _, short = tightest(may_take_back(self._tree.branches[queue.name], needs), 1)
        return self._insufficient(needs, short, "preemptive") if short else None

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        """Candidates while their queue holds more than it deserves of what both ask for; guarantees stay whole.

        The others are protected in every tier (W-10). Pods that their gangs can do without are counted first.
        """
        branches = self._tree.branches
        reclaimer = branches.get(task.job.queue) if task.job is not None else None
        if reclaimer is None or reclaimer.fault:
            return VETO
        spare, others = split_slack(candidates)
        known = [
            (candidate, branches[candidate.job.queue])
            for candidate in (*spare, *others)
            if candidate.job is not None and candidate.job.queue in branches
        ]
        reclaim = ReclaimPolicy(reclaimer, self._needs_of(task.cls), level=self.arguments.ancestor_reclaim_level)
        protected = reclaim.protections(known, self._needs_of)
        judged = {candidate.uid for candidate, _ in known} - protected.keys()
        return VictimDecision(protected, [candidate for candidate in candidates if candidate.uid in judged])

    # --- admission --------------------------------------------------------------------------------------------------

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """Within what the queue and all above it may have, counting what admitted groups still have coming to them.

        What the group already holds is not asked for twice, and what others hold beyond their minimum does not count.
        """
        queue = self._session.queues[job.queue]
        barred = self._barred(queue, "job_enqueueable")
        if barred is not None:
            return barred
        if job.min_resources is None:
            return Vote.PERMIT
        self._settle_reservations()
        resources = self._session.resources
        need = unplaced_minimum(job, resources)
        for branch in self._tree.branches[queue.name].path:
            taken = branch.held + branch.reserved
            names = excess(need, taken, branch.real_capability, resources)
            if names:
                column = resources.find(names[0])
                before, most = (0, 0) if column is None else (taken.item(column), branch.real_capability.item(column))
                figures = Figures(names[0], need[names[0]], need[names[0]] + before, most)
                return self._quota_refusal(branch.name, names, figures, "job_enqueueable")
        return Vote.PERMIT

    def admission_version(self, job: Job) -> tuple[object, ...]:
        self._settle_reservations()
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
        promised = sum(task.status is TaskStatus.PIPELINED for task in tasks)
        request = self._session.resources.fit(placement.cls.request)
        if promised:
            branch.move(request * (sign * promised), promised=True)
        if promised < len(tasks):
            branch.move(request * (sign * (len(tasks) - promised)))

    def _settle_reservations(self) -> None:
        for name in self._stale:
            branch = self._tree.branches.get(name)
            if branch is not None:
                branch.reserve(self._inqueue.of(name) - self._elastic.of(name))
        self._stale.clear()

    def _sums(self, of_jobs: QueueSums) -> dict[str, Vector]:
        """Of the jobs of each queue, and of those below it."""
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

    def _allowance(self, queue: Queue, cls: TaskClass, wanted: int) -> Grant:
        needs = self._needs_of(cls)
        count, short = tightest(may_hold(self._tree.branches[queue.name], needs), wanted)
        return Grant(count, self._insufficient(needs, short, "allocatable", count) if short else None)

    def _barred(self, queue: Queue, hook: str) -> Refusal | None:
        """Why the queue gets nothing, whatever is asked for."""
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
        figures = Figures(names[0], amount, bound.taken + amount * (before + 1), bound.limit)
        # Whose limit it is: the queue's own, that of one above, or of `root` for what the cluster keeps for others.
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
    """What the job's tasks hold beyond `minResources`: fresh int64 [resource columns]."""
    if not holds_resources(job):
        return None
    beyond = resources.fit(job.allocated) - known_vector(job.min_resources or {}, resources)
    np.maximum(beyond, 0, out=beyond)
    return beyond
