"""The scopes of preemption: between jobs of one queue, within one job, across queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from capcard_sched.framework.eviction.victim_index import may_be_evicted
from capcard_sched.model import reasons
from capcard_sched.model.status import EVICTABLE_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from capcard_sched.framework.api.node_view import Mask
    from capcard_sched.framework.backlog.failed_searches import EvictionHook
    from capcard_sched.framework.eviction.bounds import Cost, UnitTable
    from capcard_sched.framework.eviction.victim_index import VictimUnit
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.session.statement import Statement
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal


class WithinQueue:
    """Jobs of a queue preempt others of the queue. The base of the other scopes."""

    hook: ClassVar[EvictionHook] = "preemptable"
    #: Whether every pod is evicted alone, whatever happens to its gang; failures of such searches are not kept.
    singly: ClassVar[bool] = False
    #: Whether evictions can free quota of the preemptor's own queue.
    frees_own_quota: ClassVar[bool] = True
    #: Statuses of candidates.
    statuses: ClassVar[tuple[TaskStatus, ...]] = EVICTABLE_STATUSES
    #: The events on a preemptor that gets capacity, and on one that gets none.
    success: ClassVar[reasons.Reason] = reasons.CAPACITY_PREEMPTED
    failure: ClassVar[reasons.Reason | None] = None

    def __init__(self, action: str, *, lower_only: bool = False) -> None:
        """`action`: the name of the action, the reason of its evictions. `lower_only`: of jobs of a lower priority."""
        self.action = action
        self._lower_only = lower_only

    def key(self, job: Job) -> tuple[str, str]:
        """Jobs with equal keys have the same candidates."""
        return job.queue, ""

    def outside(self, session: Session, preemptor: Task, task: Task) -> str:
        """The cause that excludes a pod without permanent protection for this preemptor; "" for none."""
        job, own = task.job, preemptor.job
        assert job is not None
        assert own is not None
        if task.status not in EVICTABLE_STATUSES:
            return "terminating"
        if preemptor.cls.best_effort and not task.cls.best_effort:
            return "not-best-effort"
        return self._outside_job(own, job)

    def _outside_job(self, own: Job, job: Job) -> str:
        if job is own:
            return "same-job"
        if job.queue != own.queue:
            return "other-queue"
        return "priority" if self._lower_only and job.priority >= own.priority else ""

    def mask(self, table: UnitTable, job: Job) -> Mask:
        """The units of candidates: bool [units]. The preemptor's own pods may be among them."""
        return table.of_queue(job.queue)

    def cost(
        self, session: Session, units: Sequence[VictimUnit], tasks: Collection[Task], surplus: int, alternative: int
    ) -> Cost:
        """The cost of evicting units with these pods, without the row."""
        queues = session.queues
        return (
            max(queues[unit.job.queue].priority for unit in units),
            max(unit.job.priority for unit in units),
            len({unit.job.key for unit in units if unit.breaks}),
            len(tasks),
            surplus,
            -min(task.created for task in tasks),
            alternative,
        )

    def refusal(self, session: Session, queue: Queue, task: Task) -> Refusal | None:
        """The reason for not searching victims for the pod at all, or None."""
        return None

    def is_preempted_back(
        self, session: Session, statement: Statement, job: Job, task: Task, node: Node, victims: Sequence[Task]
    ) -> bool:
        """Whether a victim's job could evict the pod in turn as soon as it runs on the node.

        `victims`: one pod of each unit; the last operation of the statement pipelines the pod.
        """
        if not may_be_evicted(task):
            return False
        rivals = [victim for victim in victims if self.may_preempt_back(session, job, victim)]
        if rivals:
            rivals = self._unless_protected(session, job, task, node, rivals)
        if not rivals:
            return False
        mark = len(statement)
        statement.rollback(mark - 1)  # for the plugins it is allocated, as it will be when a rival returns
        statement.allocate(job, [task], [node])
        found = any(session.dispatch.judge(self.hook, victim, [task]).victims for victim in rivals)
        statement.rollback(mark - 1)
        statement.pipeline(job, [task], [node])
        return found

    def _unless_protected(
        self, session: Session, job: Job, task: Task, node: Node, rivals: Sequence[Task]
    ) -> list[Task]:
        """The rivals from whose jobs no plugin protects the pod's job, once the pod runs on the node.

        That follows from the job alone: most trials of rivals end here, and no plugin is notified.
        """
        state, protects, by_priority = session.state, session.dispatch.protects, self.hook == "preemptable"
        state.unplace(job, [task])
        state.place(job, [task], [node], TaskStatus.ALLOCATED)
        try:
            # Within a job, priorities of pods decide.
            return [
                rival
                for rival in rivals
                if rival.job is None
                or rival.job is job
                or not protects(self.hook, job, rival.job.priority if by_priority else 0)
            ]
        finally:
            state.unplace(job, [task])
            state.place(job, [task], [node], TaskStatus.PIPELINED)

    def may_preempt_back(self, session: Session, preemptor: Job, victim: Task) -> bool:
        """Whether the victim's job could evict pods of the preemptor in turn, if the hook allows it."""
        return victim.job is preemptor or (victim.job is not None and session.job_starving(victim.job))


class WithinJob(WithinQueue):
    """Pods of a job preempt others of the job."""

    singly = True

    def key(self, job: Job) -> tuple[str, str]:
        return job.queue, job.key

    def _outside_job(self, own: Job, job: Job) -> str:
        return "" if job is own else "other-job"

    def mask(self, table: UnitTable, job: Job) -> Mask:
        return table.of_job(job)

    def cost(
        self, session: Session, units: Sequence[VictimUnit], tasks: Collection[Task], surplus: int, alternative: int
    ) -> Cost:
        return max(task.priority for task in tasks), len(tasks), surplus


class AcrossQueues(WithinQueue):
    """Jobs of a queue reclaim capacity from running pods of other, reclaimable queues."""

    hook = "reclaimable"
    frees_own_quota = False
    statuses = (TaskStatus.RUNNING,)
    success = reasons.CAPACITY_RECLAIMED
    failure = reasons.RECLAIM_FAILED

    def outside(self, session: Session, preemptor: Task, task: Task) -> str:
        job, own = task.job, preemptor.job
        assert job is not None
        assert own is not None
        if task.status not in self.statuses:
            return "not-running" if task.status in EVICTABLE_STATUSES else "terminating"
        if job.queue == own.queue:
            return "same-queue"
        return "" if session.queues[job.queue].reclaimable else "queue-not-reclaimable"

    def mask(self, table: UnitTable, job: Job) -> Mask:
        return table.units.running & table.reclaimable() & ~table.of_queue(job.queue)

    def refusal(self, session: Session, queue: Queue, task: Task) -> Refusal | None:
        return session.dispatch.refusal("preemptive", queue, task)

    def may_preempt_back(self, session: Session, preemptor: Job, victim: Task) -> bool:
        job = victim.job
        if job is None or not session.queues[preemptor.queue].reclaimable:
            return False
        queue = session.queues[job.queue]
        hungry = session.may_reclaim(job) and not session.overused(queue)
        return hungry and self.refusal(session, queue, victim) is None
