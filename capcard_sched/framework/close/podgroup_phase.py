"""The phase of a PodGroup at the end of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import CARD_REQUEST
from capcard_sched.model.status import COMPLETED_STATUSES, SCHEDULED_STATUSES, PodGroupPhase, TaskStatus

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job


def enter_phase(session: Session, job: Job, *, unschedulable: bool) -> PodGroupPhase:
    """`next_phase`, which the job enters."""
    phase = next_phase(job, unschedulable=unschedulable)
    if phase is not job.phase:
        # The echo of our own write is no change, but sums over phases must follow.
        session.state.changes.jobs.add(job.key)
    job.phase = phase
    return phase


def next_phase(job: Job, *, unschedulable: bool) -> PodGroupPhase:
    """The phase of a job at close. Completed requires that no live member remains."""
    counts = job.counts
    if job.phase is PodGroupPhase.COMPLETED and job.count(COMPLETED_STATUSES) == len(job.tasks):
        return PodGroupPhase.COMPLETED  # also when its finished pods are deleted
    if counts[TaskStatus.RUNNING] and unschedulable:
        return PodGroupPhase.UNKNOWN
    scheduled = job.count(SCHEDULED_STATUSES) + counts[TaskStatus.RELEASING]
    completed = job.count(COMPLETED_STATUSES)
    if scheduled >= job.min_available and (scheduled or _wants_nothing(job)):
        return PodGroupPhase.COMPLETED if completed == len(job.tasks) else PodGroupPhase.RUNNING
    return PodGroupPhase.INQUEUE if job.phase is PodGroupPhase.INQUEUE else PodGroupPhase.PENDING


def _wants_nothing(job: Job) -> bool:
    """Whether the job has no pods and was admitted without a request."""
    requested = CARD_REQUEST in job.annotations or any((job.min_resources or {}).values())
    return not job.tasks and not requested and job.phase is not PodGroupPhase.PENDING
