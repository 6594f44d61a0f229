"""PodGroups at the end of a session: their phase, and the missing ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.session.results import GroupCondition
from capcard_sched.model import reasons
from capcard_sched.model.annotations import CARD_REQUEST
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.losses import stranded_of
from capcard_sched.model.reasons import NODE_NOT_READY
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import (
    COMPLETED_STATUSES,
    PHASE_COMPLETED,
    PHASE_INQUEUE,
    PHASE_PENDING,
    RELEASING,
    RUNNING,
    SCHEDULED_STATUSES,
    PodGroupPhase,
    TaskStatus,
)
from capcard_sched.model.workload import names_made_group

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job

#: Seconds before a missing PodGroup, and a gang without all its pods, are reported: controllers create one by one.
GRACE_SECONDS: Final = 5.0
_SCHEDULED: Final = (*SCHEDULED_STATUSES, RELEASING)


class MissingGroups:
    """Missing PodGroups with the session time of their first sight, and the refusals of the overdue ones."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        #: One record per missing PodGroup: a refusal that stays the same record is not reported again.
        self._refusals: dict[str, Refusal] = {}
        #: Unix seconds at which the next grace period ends; None for none.
        self.next_wakeup: float | None = None

    def update(self, missing: Mapping[str, Job], now: float) -> Mapping[str, Refusal]:
        """Updates the missing PodGroups, by job key; returns the refusals of the overdue ones.

        `now` in Unix seconds. A job without schedulable pods does not count.
        """
        self._since = {
            key: min(self._since.get(key, now), now)  # a clock that was set back does not extend the grace period
            for key, job in missing.items()
            if job.pending
        }
        ends = {key: since + GRACE_SECONDS for key, since in self._since.items()}
        self.next_wakeup = min((end for end in ends.values() if end > now), default=None)
        self._refusals = {
            key: self._refusals.get(key) or refusal_of(missing[key]) for key, end in sorted(ends.items()) if end <= now
        }
        return self._refusals


class IncompleteGangs:
    """Gangs without all their pods, with the ends of their grace periods. One per core."""

    def __init__(self) -> None:
        #: Job key to the end of its grace period in Unix seconds; ends in the past stay until the gang is complete.
        self._ends: dict[str, float] = {}
        self._open: set[str] = set()

    @property
    def next_wakeup(self) -> float | None:
        """Unix seconds at which the next grace period ends; None for none."""
        return min((self._ends[key] for key in self._open), default=None)

    def is_early(self, job: Job, now: float) -> bool:
        """Whether the pods of a gang do not all exist yet, and the grace period is not over; `now` in Unix seconds."""
        if job.valid_tasks >= job.min_available and job.roles_valid() and _has_subgroups(job):
            self._ends.pop(job.key, None)
            self._open.discard(job.key)
            return False
        end = self._ends.setdefault(job.key, now + GRACE_SECONDS)
        if end <= now:
            return False
        self._open.add(job.key)
        return True

    def pop_expired(self, now: float) -> list[str]:
        """Keys of the jobs whose grace period ended, once each; `now` in Unix seconds."""
        ended = sorted(key for key in self._open if self._ends[key] <= now)
        self._open.difference_update(ended)
        return ended

    def keep(self, jobs: Container[str]) -> None:
        """Drops jobs that are gone. `jobs`: keys."""
        self._ends = {key: end for key, end in self._ends.items() if key in jobs}
        self._open &= self._ends.keys()


def refusal_of(job: Job) -> Refusal:
    """The refusal of a job whose PodGroup does not exist."""
    row, name = reasons.PODGROUP_NOT_FOUND, kube_name(job.name)
    text = row.render(namespace=job.namespace, name=job.name)
    if name:
        text = reasons.KUBE_GROUP_MISSING.render(name=name)
    elif names_made_group(job):
        text = reasons.AUTOMATIC_GROUP_MISSING.render(name=job.name)
    return Refusal("session", "", row.code, text, event=True, pods_too=True)


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
    if job.phase is PHASE_COMPLETED and job.count(COMPLETED_STATUSES) == len(job.tasks):
        return PHASE_COMPLETED  # also when its finished pods are deleted
    if counts[RUNNING] and unschedulable:
        return PodGroupPhase.UNKNOWN
    scheduled = job.count(SCHEDULED_STATUSES) + counts[RELEASING]
    completed = job.count(COMPLETED_STATUSES)
    if scheduled >= job.min_available and _is_begun(job) and (scheduled or _wants_nothing(job)):
        return PHASE_COMPLETED if completed == len(job.tasks) else PodGroupPhase.RUNNING
    return PHASE_INQUEUE if job.phase is PHASE_INQUEUE else PHASE_PENDING


def _has_subgroups(job: Job) -> bool:
    """Whether the pods of the subgroups that the job needs exist."""
    return job.groups is None or not any(job.groups.missing(job.groups.complete()))


def _is_begun(job: Job) -> bool:
    """Whether the subgroups that the job needs are scheduled, or were."""
    return job.groups is None or job.was_whole or job.groups.reach(_SCHEDULED, best_effort=False)


def _wants_nothing(job: Job) -> bool:
    """Whether the job has no pods and was admitted without a request."""
    requested = CARD_REQUEST in job.annotations or any((job.min_resources or {}).values())
    return not job.tasks and not requested and job.phase is not PHASE_PENDING


def waiting_kube_group(session: Session, job: Job) -> GroupCondition:
    """The condition of a waiting PodGroup of `scheduling.k8s.io` for which no plugin has one."""
    row, text, binding = reasons.KUBE_GROUP_NOT_BOUND, session.job_fit_error(job), job.counts[TaskStatus.BINDING]
    if binding:
        text = f"{binding} {'is' if binding == 1 else 'are'} being bound"
    detail = f": {text}" if text else ""
    if not session.dispatch.has("job_ready"):
        detail += (
            "; no plugin of the scheduler-conf enforces minCount, so pods are bound one by one: add the plugin gang"
        )
    message = row.render(bound=job.ready_tasks - binding, minimum=job.min_available, detail=detail)
    return GroupCondition("Unschedulable", row.code, message)


def report_stranded(session: Session) -> None:
    """Event and condition of each touched job with members on nodes that are not ready or deleted."""
    row, jobs = NODE_NOT_READY, session.jobs
    for key in sorted(session.results.touched_jobs):
        job = jobs.get(key)
        found = stranded_of(job.tasks.values()) if job is not None else []
        if job is not None and found:
            text = "; ".join(found)
            message = row.render(detail=text[:1].upper() + text[1:])
            session.results.notice(job, row, message)
            session.results.set_condition(job, row.code, row.code, message)
