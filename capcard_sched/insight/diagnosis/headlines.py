"""Stage and cause of every waiting job: the first sentences of their diagnoses, for lists of jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.jobs.phases import FINISHED
from capcard_sched.controllers.objects import BATCH_API, job_phase
from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.limits import LimitReader
from capcard_sched.insight.diagnosis.unscheduled import (
    diagnose_by_conditions,
    diagnose_unscheduled,
    foreign_members,
    replicas_below_minimum,
    with_absent,
)
from capcard_sched.insight.sources.object_view import DeltaObjects, full_name, vcjob_key, vcjobs_of
from capcard_sched.insight.trials.attempt import JobAttempt, behind_head, may_never_start
from capcard_sched.insight.trials.forked_copy import RunningCopy
from capcard_sched.model.losses import losses_of
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.workload import WORKLOAD_KINDS, is_of_vcjob, workload_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.diagnosis import JobDiagnosis
    from capcard_sched.model.job import Job

#: Stages of jobs that wait for nothing.
_SERVED: Final = frozenset({"Scheduled", "Finished", "Terminating"})
_BELOW_MINIMUM: Final = frozenset({PodGroupPhase.PENDING, PodGroupPhase.INQUEUE, PodGroupPhase.UNKNOWN})
#: A diagnosis takes time in proportion to the nodes, milliseconds with a thousand; further jobs have the texts that the
#: scheduler wrote last.
_MOST_DIAGNOSED: Final = 1000
#: Diagnoses times nodes.
_MOST_NODES_READ: Final = 1_000_000
#: Waiting jobs times jobs, pods and nodes of the cluster, up to which each is attempted alone as by `explain`. Beyond,
#: that would take many seconds, and the headline is that of the session of all jobs, with `_UNTRIED`.
_MOST_ATTEMPTED: Final = 10_000
#: Added to the headline of a job that `explain` attempts, and to one from the conditions.
_UNTRIED: Final = "; a start without the other jobs was not tried, `explain` tries it"
_UNDIAGNOSED: Final = "; the last text of the scheduler, not diagnosed anew"


class Headline(msgspec.Struct, frozen=True):
    """Stage of a job that waits, and the first sentence of its diagnosis."""

    stage: str
    summary: str


class Headlines(msgspec.Struct, frozen=True):
    """By key of a job; of a Job without a PodGroup `Job namespace/name`."""

    by_job: dict[str, Headline]


class HeadlineReader:
    """Diagnoses the waiting jobs of a core in copies of the process, whose sessions change nothing here."""

    def __init__(
        self,
        core: Core,
        objects: ObjectView,
        session: Callable[[float], object],
        now: float,
        *,
        unreadable: Sequence[str] = (),
    ) -> None:
        """Begins with the first copy. `now` in Unix seconds.

        `session` runs one at a time that attempts every job; `unreadable`: required resources without which no session
        can run.
        """
        self._core, self._objects, self._session = core, objects, session
        self._unreadable = unreadable
        self._running: RunningCopy[Headlines] | None = self._begin(now)

    def read(self, now: float) -> Mapping[str, Headline]:
        """The headlines of the copy that runs, else of a new one. Raises ForkedCopyError."""
        running = self._running or self._begin(now)
        self._running = None
        return running.result().by_job

    def stop(self) -> None:
        """End a copy whose headlines are not read."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _begin(self, now: float) -> RunningCopy[Headlines]:
        def answer() -> Headlines:
            found = ((key, one) for key, one in self._diagnoses(now) if one.stage not in _SERVED)
            headlines = {key: Headline(one.stage, one.summary) for key, one in found}
            session = self._core.snapshot().session
            for key, head in (session.results.blocked_by_head if session is not None else {}).items():
                own, first = headlines.get(key), headlines.get(head)
                if own is not None and first is not None:
                    headlines[key] = Headline(own.stage, behind_head(own.summary, first.stage, first.summary))
            return Headlines(headlines)

        return RunningCopy(answer, Headlines)

    def _diagnoses(self, now: float) -> Iterator[tuple[str, JobDiagnosis]]:
        objects, state = self._objects, self._core.snapshot().state
        if isinstance(objects, DeltaObjects):
            _read_locally(objects)
        jobs = [job for _, job in sorted(state.jobs.items())]
        waiting = {job.key for job in jobs if _waits(job)}
        if not self._unreadable:
            self._session(now)
        snapshot = self._core.snapshot()
        limits = None if self._unreadable else LimitReader(snapshot, CapacityReader(snapshot))
        vcjobs = vcjobs_of(objects)
        size = len(state.jobs) + len(state.tasks) + len(state.nodes)
        attempts = len(waiting) * size <= _MOST_ATTEMPTED
        diagnosed, most = 0, min(_MOST_DIAGNOSED, _MOST_NODES_READ // max(1, len(state.nodes)))
        for job in jobs:
            owner = self._owner(job, vcjobs)
            if owner is not None and owner.get("kind") == "Job":
                vcjobs.pop(full_name(owner), None)
            if job.key not in waiting:
                continue
            other = diagnose_unscheduled(snapshot, objects, job, owner, now)
            if other is not None:
                yield job.key, other
            elif self._unreadable or diagnosed >= most:
                found = diagnose_by_conditions(objects, job, "", now, self._unreadable)
                yield job.key, found if self._unreadable else _with(found, _UNDIAGNOSED)
            else:
                diagnosed += 1
                found = diagnose_job(snapshot, job, now=now, limits=limits)
                absent = replicas_below_minimum(job, owner) or foreign_members(snapshot, objects, job)
                if absent and job.valid_tasks < job.min_available:
                    yield job.key, with_absent(found, absent)
                else:
                    yield job.key, self._tried(job, owner, found, now, attempts=attempts)
        for (namespace, name), obj in vcjobs.items():
            if job_phase(obj) not in FINISHED:
                other = diagnose_unscheduled(snapshot, objects, None, obj, now)
                if other is not None:
                    yield vcjob_key(namespace, name), other

    def _tried(self, job: Job, owner: Json | None, found: JobDiagnosis, now: float, *, attempts: bool) -> JobDiagnosis:
        """A diagnosis with the results of trials, or with a note that there were none."""
        if attempts:
            vcjob = owner if (owner or {}).get("apiVersion") == BATCH_API else None
            attempt = JobAttempt(self._core, self._objects, job, now, vcjob=vcjob)
            return attempt.diagnose(found, tries_claims=False)
        return _with(found, _UNTRIED) if may_never_start(found) else found

    def _owner(self, job: Job, vcjobs: Mapping[tuple[str, str], Json]) -> Json | None:
        """The object that the pods or the PodGroup of a job are made from, as far as it is at hand."""
        kind, _, name = workload_of(job).partition("/")
        if kind == "job":
            return vcjobs.get((job.namespace, name)) if is_of_vcjob(job) else None
        if not name:
            return self._objects.get("PodGroup", job.namespace, job.name)
        known = WORKLOAD_KINDS.get(kind)
        return self._objects.get(known, job.namespace, name) if known is not None else None


def _with(found: JobDiagnosis, note: str) -> JobDiagnosis:
    return msgspec.structs.replace(found, summary=f"{found.summary.removesuffix('.')}{note}")


def _waits(job: Job) -> bool:
    return bool(job.pending or job.gated) or job.phase in _BELOW_MINIMUM or bool(losses_of(job.tasks.values()))


def _read_locally(objects: DeltaObjects) -> None:
    """Let a view request no single objects: a list has thousands. Events need an event loop of their own."""
    objects.fetch = lambda *_: None
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    objects.fetch_events = lambda *_: []
