"""The capacity plugin: hooks over the tree of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from capcard_sched.framework.api.plugin import VETO, Sample, VictimDecision
from capcard_sched.framework.quota.quota_plugin import QuotaPlugin
from capcard_sched.framework.toolkit.gang_slack import split_slack
from capcard_sched.model.reasons import QUEUE_NOT_LEAF
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import TaskStatus
from capcard_sched.plugins.capacity.bounds import allocation_bounds, reclaim_bounds
from capcard_sched.plugins.capacity.reclaim import ReclaimPolicy
from capcard_sched.plugins.capacity.tree import Tree, depth_in_common

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.quota.limits import Needs, QuotaBound
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector


class CapacityArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Number of ancestors of a victim's queue that must exceed their deserved amounts too.
    ancestor_reclaim_level: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="ancestorReclaimLevel", default=0)
    #: Accepted for compatibility, ignored.
    dynamic_resource_allocation: bool = msgspec.field(name="capacity.DynamicResourceAllocationEnable", default=False)
    #: Accepted for compatibility, ignored.
    dra_consumable_capacity: bool = msgspec.field(name="capacity.DRAConsumableCapacityEnable", default=False)


class Capacity(QuotaPlugin):
    """Queues with guarantee, deserved and capability; with `enableHierarchy` they form a tree.

    A queue borrows unused resources up to its capability; other queues reclaim its usage beyond deserved.
    """

    name = "capacity"
    Arguments = CapacityArguments
    arguments: CapacityArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._tree: Tree
        #: Inputs of the tree, by queue.
        self._shape: dict[str, tuple[object, ...]] = {}
        self._total: Vector = np.zeros(0, dtype=np.int64)
        #: Number of resource names the tree was built with.
        self._names = 0

    def open(self, session: Session) -> None:
        super().open(session)
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
            self._tree = Tree(queues, self._total, resources, session.share_columns, hierarchy=self.hierarchy)
            for sums in (self._requested, self._inqueue, self._elastic):
                sums.connect(self._tree.ancestors)
            moved = set(queues)
        else:
            moved = changed.queues
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

    def _pod_bounds(self, queue: Queue, needs: Needs, hook: str) -> Iterator[QuotaBound]:
        branch = self._tree.branches[queue.name]
        if hook == "preemptive":
            return reclaim_bounds(branch, needs)
        return allocation_bounds(branch, needs, nominating=self._session.nominating)

    def _admission_limits(self, queue: Queue) -> Iterator[tuple[str, Vector, Vector]]:
        """The real capability of the queue and of all above it."""
        for branch in self._tree.branches[queue.name].path:
            reserved = self._inqueue.subtree(branch.name) - self._elastic.subtree(branch.name)
            yield branch.name, branch.held + reserved, branch.real_capability

    def _capabilities(self, queue: Queue) -> Iterator[tuple[str, Vector]]:
        return ((branch.name, branch.ceiling) for branch in self._tree.branches[queue.name].path)

    def _barred(self, queue: Queue, hook: str) -> Refusal | None:
        """The refusal of a queue that is faulty, closed or not a leaf, whatever the request."""
        branch = self._tree.branches[queue.name]
        if branch.fault:
            code, message = "InvalidQueueHierarchy", branch.fault
        elif self.hierarchy and not branch.is_leaf:
            code, message = QUEUE_NOT_LEAF.code, QUEUE_NOT_LEAF.render(queue=queue.name)
        else:
            return super()._barred(queue, hook)
        return Refusal(hook, self.name, code, message, queue=queue.name, event=hook == "job_enqueueable")

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

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[object, ...]:
        """The place in the tree; of victims what their branches hold, deserve and guarantee."""
        branch = self._tree.branches[queue.name]
        if role == "preemptor":
            places = tuple([one.name for one in branch.chain()]), tuple([one.name for one in branch.path])
            return branch.fault, *places
        # The root is above every preemptor: what it holds protects nothing.
        amounts = [
            (one.name, one.deserved.tobytes(), one.named, one.allocated.tobytes(), one.guarantee.tobytes())
            for one in branch.path
            if one.parent is not None
        ]
        return branch.fault, len(branch.path), *amounts

    # --- admission --------------------------------------------------------------------------------------------------

    def allocation_version(self, queue: Queue) -> tuple[object, ...]:
        branch = self._tree.branches[queue.name]
        barred = self._barred(queue, "allocatable")
        amounts = [
            vector.tobytes()
            for one in (branch.chain() if branch.guarded else branch.path)
            for vector in (one.held, one.releasing, one.real_capability, one.kept, one.earmarked)
        ]
        return barred is None or barred.message, branch.deserved.tobytes(), branch.named, *amounts

    # --- metrics ----------------------------------------------------------------------------------------------------

    def metrics(self) -> Iterator[Sample]:
        for name, branch in self._tree.branches.items():
            if name not in self._session.queues:
                continue
            kinds = {
                "allocated": branch.allocated,
                "request": self._requested.subtree(name),
                "deserved": branch.deserved,
                "inqueue": self._inqueue.subtree(name),
                "real_capacity": branch.real_capability,
            }
            if branch.queue is not None and branch.queue.capability:
                kinds["capacity"] = branch.capability  # only where one is set
            yield from self._series(name, kinds)
            share = branch.dominant_share()
            yield Sample("queue_share", {"queue_name": name}, share)
            yield Sample("queue_overused", {"queue_name": name}, float(share > 1))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _count(self, placement: Placement, sign: int) -> None:
        job, tasks = placement.job, placement.tasks
        branch = self._tree.branches.get(job.queue)
        if branch is None:
            return
        pipelined = sum(task.status is TaskStatus.PIPELINED for task in tasks)
        request = self._session.resources.fit(placement.cls.request)
        if pipelined:
            branch.add(request * (sign * pipelined), pipelined=True)
        if pipelined < len(tasks):
            branch.add(request * (sign * (len(tasks) - pipelined)))
        evicted = sum(task.status in (TaskStatus.RUNNING, TaskStatus.BOUND) for task in tasks)
        if evicted:
            branch.release(request * (-sign * evicted))


def _shape(queue: Queue) -> tuple[object, ...]:
    return queue.uid, id(queue), queue.parent, queue.capability, queue.deserved, queue.guarantee
