"""gang: all-or-nothing scheduling of a job's minimum."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from capcard_sched.framework.api.plugin import Plugin, Protection, Sample, VictimDecision
from capcard_sched.framework.toolkit.gang_slack import split_slack
from capcard_sched.model.groups import shortages_of
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.obstacles import obstacle_refusal
from capcard_sched.model.reasons import (
    GANG_READY,
    KUBE_GROUP_INCOMPLETE,
    NOT_ENOUGH_PODS_OF_TASK,
    NOT_ENOUGH_RESOURCES,
    NOT_ENOUGH_SUBGROUPS,
    NOT_ENOUGH_TASKS,
)
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import BINDING, BOUND, RUNNING, TaskStatus, Vote
from capcard_sched.model.workload import has_no_group_of_its_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

#: Condition types of a PodGroup.
UNSCHEDULABLE = "Unschedulable"
SCHEDULED = "Scheduled"

#: Cause of the protection of a pod without PodGroup of its own in reports.
BARE_POD = "gang (bare pod)"


class Gang(Plugin):
    """Schedules the minimum of a job as a unit; only members beyond the minimum are victims.

    With `enablePreemptable: false`, as in the shipped scheduler-conf, the plugin protects no pod. Volcano then evicts
    only the pods that it needs and may leave a gang below its minimum; this scheduler evicts such a gang as a unit.
    """

    name = "gang"
    victims_by_usage = False
    switch_notes: ClassVar[Mapping[str, str]] = {
        "enablePreemptable": "a gang that would fall below its minimum is evicted as a unit; Volcano evicts only the "
        "pods that it needs"
    }

    def setup(self) -> None:
        #: Job key to the number of unplaced members of its minimum, at the last close.
        self._unready: dict[str, int] = {}
        #: Number of sessions, and job key to the number before the first of its current unready streak. A session
        #: skips jobs whose refusal is unchanged: these sessions count too.
        self._sessions = 0
        self._unready_since: dict[str, int] = {}
        #: Job key to the number of sessions that left it unready, without the current streak.
        self._retries: dict[str, int] = {}
        #: Keys of jobs with a condition, hence with series.
        self._seen: dict[str, None] = {}  # 10,000 keys take 0.2 MiB, and in a set 0.5

    def job_valid(self, job: Job) -> Refusal | None:
        """Enough live members, in every role and in total, without gated ones."""
        if not job.roles_valid():
            return Refusal(
                "job_valid", self.name, NOT_ENOUGH_PODS_OF_TASK.code, NOT_ENOUGH_PODS_OF_TASK.render(), queue=job.queue
            )
        valid = job.valid_tasks
        if valid < job.min_available:
            row, name = (KUBE_GROUP_INCOMPLETE, kube_name(job.name)) if kube_name(job.name) else (NOT_ENOUGH_TASKS, "")
            message = row.render(valid=valid, minimum=job.min_available, name=name)
            return Refusal("job_valid", self.name, NOT_ENOUGH_TASKS.code, message, queue=job.queue)
        if job.groups is not None:
            lines = shortages_of(job.groups, job.groups.complete(), "exist")
            if lines:
                return Refusal("job_valid", self.name, NOT_ENOUGH_SUBGROUPS.code, "; ".join(lines), queue=job.queue)
        return obstacle_refusal(job, "job_valid", self.name) if job.needs_gated() else None

    def job_order(self, job: Job) -> int:
        """Degraded gangs (running below their minimum), then other gangs that are not ready, then ready ones."""
        if job.is_ready():
            return 2
        counts = job.counts
        return 0 if counts[RUNNING] or counts[BOUND] or counts[BINDING] else 1

    def job_ready(self, job: Job) -> bool:
        return job.is_ready() and (not job.min_task_member or job.roles_ready())

    def job_pipelined(self, job: Job) -> Vote:
        return Vote.PERMIT if job.is_pipelined() and job.roles_pipelined() else Vote.REJECT

    def job_starving(self, job: Job) -> bool:
        return job.is_starving()

    def protects(self, hook: str, job: Job, priority: int) -> Protection:
        """Of gangs without members beyond their minimum."""
        return Protection.NONE if job.ready_tasks > job.min_available else Protection.IN_TIER

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[()]:
        """Empty: the minimum of a gang is a fact of its job."""
        return ()

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> list[Task] | VictimDecision:
        """The first candidates of each job, as long as the job, and each of its roles, keeps its minimum.

        A bare pod is a gang of one: the cause of its protection is named, because its user created no PodGroup.
        """
        slack, others = split_slack(candidates)
        bare = {each.uid: BARE_POD for each in others if each.job and has_no_group_of_its_own(each.job, each)}
        return VictimDecision({}, slack, causes=bare) if bare else slack

    reclaimable = preemptable

    def close(self, session: Session) -> None:
        """Set the condition of each touched job: Scheduled or Unschedulable."""
        self._sessions += 1
        for key in sorted(session.results.touched_jobs):
            job = session.jobs.get(key)
            if job is None or not job.tasks:
                self._forget(key)
                continue
            self._seen[key] = None
            if self.job_ready(job):
                self._mark_ready(key)
                session.results.set_condition(job, SCHEDULED, GANG_READY.code, GANG_READY.render())
            elif _only_terminating(job):
                self._mark_ready(key)
            else:
                schedulable = job.ready_tasks + session.results.schedulable_pending(job)
                unready = max(0, job.min_available - schedulable)
                self._unready[key] = unready
                self._unready_since.setdefault(key, self._sessions - 1)
                detail, code = session.job_fit_error(job), NOT_ENOUGH_RESOURCES.code
                message = NOT_ENOUGH_RESOURCES.render(unready=unready, total=len(job.tasks), detail=detail)
                lines = [] if job.groups is None else shortages_of(job.groups, job.groups.ready(), "can start")
                if lines:
                    message, code = "; ".join([*lines, message]), NOT_ENOUGH_SUBGROUPS.code
                session.results.set_condition(job, UNSCHEDULABLE, code, message)

    def metrics(self) -> Iterator[Sample]:
        """Series of a job are dropped with the job; `job_id` is the bare name, as in Volcano's dashboards."""
        for key in sorted(self._seen):
            yield Sample("unschedule_task_count", _labels(key), self._unready.get(key, 0))
        for key in sorted(self._retries.keys() | self._unready_since.keys()):
            yield Sample("job_retry_counts", _labels(key), self._retries.get(key, 0) + self._still_unready(key))
        yield Sample("unschedule_job_count", {}, len(self._unready))

    def _still_unready(self, key: str) -> int:
        return self._sessions - self._unready_since.get(key, self._sessions)

    def _mark_ready(self, key: str) -> None:
        self._unready.pop(key, None)
        if key in self._unready_since:  # this session does not count
            self._retries[key] = self._retries.get(key, 0) + self._still_unready(key) - 1
            del self._unready_since[key]

    def _forget(self, key: str) -> None:
        self._seen.pop(key, None)
        self._unready.pop(key, None)
        self._unready_since.pop(key, None)
        self._retries.pop(key, None)


def _labels(key: str) -> dict[str, str]:
    namespace, _, name = key.partition("/")
    return {"job_id": name, "job_ns": namespace}


def _only_terminating(job: Job) -> bool:
    """No member is pending, and the terminating members would complete the minimum."""
    counts = job.counts
    if counts[TaskStatus.PENDING] or counts[TaskStatus.PIPELINED]:
        return False
    return job.ready_tasks + counts[TaskStatus.RELEASING] >= job.min_available
