"""The state machine of a Job: one table of phases and actions, and the rules by which a phase follows from counts."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from capcard_sched.controllers.jobs.job_spec import JobSpec

PENDING, RUNNING, RESTARTING = "Pending", "Running", "Restarting"
ABORTING, ABORTED = "Aborting", "Aborted"
COMPLETING, COMPLETED = "Completing", "Completed"
TERMINATING, TERMINATED = "Terminating", "Terminated"
FAILED = "Failed"

SYNC = "SyncJob"
ABORT, RESTART, RESUME = "AbortJob", "RestartJob", "ResumeJob"
RESTART_TASK, RESTART_POD = "RestartTask", "RestartPod"
RESTART_PARTITION = "RestartPartition"
TERMINATE, COMPLETE = "TerminateJob", "CompleteJob"

#: Phases that no action leaves.
FINISHED: Final = frozenset({COMPLETED, FAILED, TERMINATED})
#: Phases in which pods are kept and created.
ACTIVE: Final = frozenset({PENDING, RUNNING})
#: A phase that waits until no pod is alive, and the phase that follows.
LEADS_TO: Final = {ABORTING: ABORTED, COMPLETING: COMPLETED, TERMINATING: TERMINATED}
#: Actions on the task, partition or pod of an event.
TARGETED: Final = frozenset({RESTART_TASK, RESTART_PARTITION, RESTART_POD})
#: Actions after which no pod of the Job lives.
WHOLE_JOB: Final = frozenset({ABORT, RESTART, COMPLETE, TERMINATE})


class Census(NamedTuple):
    """The pods of a Job, counted."""

    pending: int
    running: int
    succeeded: int
    failed: int
    #: Pods whose deletion has begun or is due.
    terminating: int
    unknown: int
    #: Task name to pod phase to number.
    by_task: dict[str, dict[str, int]]

    @property
    def alive(self) -> bool:
        """Whether a pod still holds resources or is about to."""
        return self.pending + self.running + self.terminating > 0

    def of_task(self, task: str, *phases: str) -> int:
        counts = self.by_task.get(task, {})
        return sum(counts.get(phase, 0) for phase in phases)


class Kill(enum.Enum):
    """Which pods an action deletes."""

    NONE = "none"
    #: All but those that are Succeeded or Failed.
    SOFT = "soft"
    #: All but those that are Succeeded.
    UNSUCCESSFUL = "unsuccessful"
    ALL = "all"
    #: Those of one task or partition, or one pod; the PodGroup stays.
    TARGET = "target"


class Transition(NamedTuple):
    """The effect of an action in a phase."""

    phase: str
    kill: Kill = Kill.NONE
    #: Whether `retryCount` rises.
    retry: bool = False
    #: Whether a rise of `retryCount` counts towards `maxRetry`.
    counts: bool = True


_TAKE_DOWN = {
    ABORT: Transition(ABORTING, Kill.SOFT),
    TERMINATE: Transition(TERMINATING, Kill.SOFT),
    COMPLETE: Transition(COMPLETING, Kill.SOFT),
}
_FROM_ACTIVE = {
    **_TAKE_DOWN,
    RESTART: Transition(RESTARTING, Kill.ALL, retry=True),
    **dict.fromkeys(TARGETED, Transition(RESTARTING, Kill.TARGET, retry=True)),
}
#: A resume is a decision of a user, not a retry.
_RESUMED = {RESUME: Transition(RESTARTING, Kill.UNSUCCESSFUL, retry=True, counts=False)}
#: Phase to action to effect. An action that is not listed changes nothing: the Job is synced.
TABLE: Final[dict[str, dict[str, Transition]]] = {
    PENDING: _FROM_ACTIVE,
    RUNNING: _FROM_ACTIVE,
    RESTARTING: {
        **_TAKE_DOWN,
        RESTART: Transition(RESTARTING, Kill.ALL),
        RESUME: Transition(RESTARTING, Kill.ALL),
        **dict.fromkeys(TARGETED, Transition(RESTARTING, Kill.TARGET)),
    },
    ABORTING: _RESUMED,
    ABORTED: _RESUMED,
}


def transition(phase: str, action: str) -> Transition | None:
    """The effect of an action, None when the Job is only synced."""
    return TABLE.get(phase, {}).get(action)


def following(phase: str, job: JobSpec, count: Census, retries: int) -> str:
    """The phase that follows from the counts; the same phase when none does."""
    if phase == RESTARTING:
        if retries >= job.max_retry:
            return FAILED
        # A Job that was scaled below its minimum does not wait for pods that it cannot have.
        enough = job.replicas - count.terminating >= min(job.min_available, job.replicas)
        return PENDING if enough else RESTARTING
    if phase in LEADS_TO:
        return phase if count.alive else LEADS_TO[phase]
    if phase == RUNNING:
        return _after_running(job, count)
    if phase == PENDING and (present := count.running + count.succeeded + count.failed):
        return RUNNING if present >= job.min_available else PENDING
    return phase


def ending(job: JobSpec, count: Census) -> str:
    """The phase of a Job of which no further pod ends."""
    if job.min_success is not None:
        return COMPLETED if count.succeeded >= job.min_success else FAILED
    if job.checks_tasks and any(count.of_task(task.name, "Succeeded") < task.min_available for task in job.tasks):
        return FAILED
    return COMPLETED if count.succeeded >= job.min_available else FAILED


def _after_running(job: JobSpec, count: Census) -> str:
    """The phase that follows Running: the first rule that applies."""
    total = job.replicas
    if total == 0:
        return RUNNING
    if job.min_success is not None and count.succeeded >= job.min_success:
        return COMPLETED
    if count.succeeded + count.failed == total:
        return ending(job, count)
    return PENDING if count.pending > total - job.min_available else RUNNING
