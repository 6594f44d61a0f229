"""The end of a session: phases, conditions, statuses and events, as intents.

The last writes are remembered, so that nothing is written twice and an unchanged cluster causes no writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import UNSET, UnsetType

from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.framework.close.never_starting import NeverStarting
from capcard_sched.framework.close.pod_conditions import PodConditions, report_ungated
from capcard_sched.framework.close.podgroups import (
    IncompleteGangs,
    MissingGroups,
    enter_phase,
    report_stranded,
    waiting_kube_group,
)
from capcard_sched.framework.close.queue_status import QueueStatuses
from capcard_sched.framework.close.session_events import SessionEvents
from capcard_sched.framework.close.write_conflict_backoff import WriteConflictBackoff
from capcard_sched.framework.eviction.nominations import release_idle_capacity
from capcard_sched.framework.placement.hypernode_bounds import annotation_changes, merged
from capcard_sched.framework.session.carry_over import REFRESH_SECONDS
from capcard_sched.framework.session.report import Timing
from capcard_sched.framework.session.results import reference
from capcard_sched.model import reasons
from capcard_sched.model.intents import (
    AnnotateNode,
    AnnotatePodGroup,
    Intent,
    ObjectRef,
    UpdatePodGroup,
)
from capcard_sched.model.job import shared_counts
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.namespace_queues import missing_text
from capcard_sched.model.objects import PodGroupCondition
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import (
    FAILED,
    PHASE_INQUEUE,
    PHASE_PENDING,
    RUNNING,
    SUCCEEDED,
    PodGroupPhase,
    TaskStatus,
)
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.workload import MADE_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from capcard_sched.framework.session.results import GroupCondition
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job

#: The kinds of failure of a job's tasks: kind of outcome, and hook, plugin and reason of its refusal.
FailureKinds: TypeAlias = frozenset[tuple[str, str, str, str]]
_OPPOSITE = {"Scheduled": "Unschedulable", "Unschedulable": "Scheduled"}
_WAITING = (PHASE_PENDING, PHASE_INQUEUE, PodGroupPhase.UNKNOWN)
#: Conditions that become False in a session that does not set them.
_PASSING = frozenset(
    row.code for row in (reasons.CAN_NEVER_START, reasons.NODE_NOT_READY, reasons.HALF_GANG, reasons.GANG_WAS_WHOLE)
)


class SessionCloser:
    """Converts the decisions of a session to intents. One per core: it remembers the last writes."""

    def __init__(self, timer: Callable[[], float] | None = None, *, precise: bool = True) -> None:
        """`precise` as `PodConditions`."""
        self._timer = timer
        self._events = SessionEvents()
        #: Job key to the last failure whose texts were written, and the Unix seconds of their next refresh.
        self._failures: dict[str, tuple[FailureKinds, float]] = {}
        self._pod_conditions = PodConditions(precise=precise)
        #: The last conditions of a job: jobs that start in one session have equal ones, and share them.
        self._recent_conditions: tuple[PodGroupCondition, ...] = ()
        #: The leader term of the last writes: unsent writes of an earlier term are lost.
        self._term = 0
        self._missing_groups, self._incomplete_gangs = MissingGroups(), IncompleteGangs()
        self._never_starting = NeverStarting()
        #: The last writes of PodGroup statuses and annotations, by job key.
        self._status_writes, self._annotation_writes = WriteConflictBackoff(), WriteConflictBackoff()
        self._queue_statuses = QueueStatuses()

    @property
    def next_wakeup(self) -> float | None:
        """Unix seconds of the next write without a change of the cluster; None for none."""
        parts = (self._missing_groups, self._incomplete_gangs, self._status_writes, self._annotation_writes,
                 self._queue_statuses, self._pod_conditions)  # fmt: skip
        return min((part.next_wakeup for part in parts if part.next_wakeup is not None), default=None)

    def close(self, session: Session) -> list[Intent]:
        """All intents of the session, binds first."""
        if session.state.terms != self._term:
            self._term = session.state.terms
            for writes in (self._events, self._failures, self._pod_conditions, self._never_starting):
                writes.clear()
        again = self._status_writes.pop_expired(session.now)
        session.results.touch(*again, *self._annotation_writes.pop_expired(session.now))
        overdue = [*self._incomplete_gangs.pop_expired(session.now), *self._pod_conditions.pop_expired(session.now)]
        session.results.touch(*overdue)
        for key in overdue:
            self._failures.pop(key, None)
        self._refuse_orphans(session)
        groupless = self._refuse_without_group(session)
        release_idle_capacity(session)
        claimed = self._pod_conditions.update_claims(session)
        self._undo_pipelines(session)
        self._explain_enqueue_refusals(session)
        self._close_plugins(session)
        skipped = self._never_starting.report(session)
        report_stranded(session)
        intents: list[Intent] = [*session.results.binds, *session.results.evictions]
        jobs = [session.state.jobs[key] for key in sorted(session.results.touched_jobs) if key in session.state.jobs]
        admitted = frozenset(session.results.report.enqueued)
        unwritten = {*admitted, *session.results.report.requeued, *again}
        self._events.begin_close(session)
        for bind in [bind for bind in session.results.binds if bind.gate]:
            about = ObjectRef("Pod", bind.namespace, bind.name, bind.uid)
            report_ungated(session, about, bind.queue, self._events, intents)
        for job in jobs:
            if job.uid:
                self._close_job(session, job, intents, unwritten=job.key in unwritten, admitted=job.key in admitted)
            # The controllers make a PodGroup in a moment: a condition until then would be a write for each pod.
            elif job.key in groupless or (job.pending and not job.name.startswith(MADE_GROUP)):
                self._close_pods(session, job, intents, is_early=job.key not in groupless)
        self._pod_conditions.renew(session, claimed, self._events, intents)
        for job in skipped:
            self._add_never_starting(session, job, intents)
        self._queue_statuses.close(session, intents)
        intents += [AnnotateNode(name, dict(notes)) for name, notes in sorted(session.results.node_annotations.items())]
        intents += [intent for _, intent in sorted(session.results.config_map_writes.items())]
        self._events.emit_refusals(session, intents)
        for notice in sorted(session.results.notices):
            self._events.emit(session, intents, notice.object, notice.reason.type, notice.reason.code, notice.message,
                       notice.component, slot=notice.reason.code)  # fmt: skip
        self._keep_failures(session)
        session.results.end()
        return intents

    def _close_plugins(self, session: Session) -> None:
        for plugin in session.dispatch.plugins:
            close = plugin.method("close")
            if close is None:
                continue
            began = 0.0 if self._timer is None else self._timer()
            try:
                close(session)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                session.results.record_failure(plugin.name, "close", error)
            if self._timer is not None:
                took = self._timer() - began
                session.results.report.add_timing(Timing("plugin", plugin.name, "OnSessionClose", took))

    # --- before the plugins close -----------------------------------------------------------------------------------

    @staticmethod
    def _refuse_orphans(session: Session) -> None:
        """Refuses jobs whose queue does not exist, and those with fields that are not supported."""
        for key in sorted(session.state.orphans):
            job = session.state.orphans[key]
            row = reasons.QUEUE_NOT_FOUND
            text = row.render(problem=missing_text(job.queue))
            refusal = Refusal("session", "", row.code, text, queue=job.queue, event=True, pods_too=True)
            session.results.refuse(job, refusal)
        row = reasons.UNSUPPORTED_FEATURE
        for key, text in sorted(session.state.held.items()):
            job = session.state.jobs[key]
            if job.pending and key not in session.state.orphans:
                session.results.refuse(
                    job, Refusal("session", "", row.code, text, queue=job.queue, event=True, pods_too=True)
                )

    def _refuse_without_group(self, session: Session) -> Container[str]:
        """Refuses the pods of overdue missing PodGroups. Returns the keys of their jobs."""
        refusals = self._missing_groups.update(session.state.groups_missing, session.now)
        for key, refusal in refusals.items():
            session.results.refuse(session.state.jobs[key], refusal)
        return refusals

    @staticmethod
    def _undo_pipelines(session: Session) -> None:
        for placement in session.results.pop_pipelines():
            try:
                session.dispatch.notify("on_deallocate", placement)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                session.results.record_hook_error(placement.job, error)
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                allocated = task.status is TaskStatus.ALLOCATED
                nominated = task.uid in session.carry_over.nominations
                outcome = TaskOutcome("schedulable" if allocated else "pipelined", "", node.name, nominated=nominated)
                session.results.set_outcome(task, outcome)
            session.state.unplace(placement.job, placement.tasks)
            session.results.end_skipping(placement.job)

    @staticmethod
    def _explain_enqueue_refusals(session: Session) -> None:
        """Gives the refusal of a job at enqueue to its pods."""
        for (ref, hook), refusal in session.results.refusals.items():
            if ref.kind != "PodGroup" or hook not in ("job_enqueueable", "session"):
                continue
            job = session.state.jobs.get(f"{ref.namespace}/{ref.name}")
            if job is None:
                continue
            session.results.explain_pending(job, refusal)
            # No plugin handles a job in an unknown queue: its condition is set here, unless its pods run.
            if not job.tasks or (hook == "session" and not job.allocated_tasks):
                session.results.set_condition(job, "Unschedulable", refusal.reason, refusal.message)

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _close_job(self, session: Session, job: Job, intents: list[Intent], *, unwritten: bool, admitted: bool) -> None:
        """Phase, conditions, counts and events. `unwritten`: the PodGroup in the API server differs from the job."""
        if not unwritten and self._repeats_failure(session, job):
            self._add_never_starting(session, job, intents)
            return
        wanted = session.results.conditions.get(job.key, [])
        unschedulable = any(condition.type == "Unschedulable" for condition in wanted)
        before, phase = job.phase, enter_phase(session, job, unschedulable=unschedulable)
        if session.carry_over.is_silent and job.topology is None and not session.carry_over.expired_nominations:
            return
        if kube_name(job.name) and phase in _WAITING and not unschedulable:
            wanted = [*wanted, waiting_kube_group(session, job)]
        conditions = self._conditions(session, job, wanted)
        counts = job.counts
        status_counts = shared_counts(counts[RUNNING], counts[SUCCEEDED], counts[FAILED])
        changed = phase is not before or unwritten or conditions != job.conditions or status_counts != job.status_counts
        if changed and (
            job.implicit
            or self._status_writes.may_write(job.key, (phase, status_counts, *wanted), session.now, job.uid)
        ):
            job.conditions, job.status_counts = conditions, status_counts
            if not job.implicit:
                # A gang with bindings has its pods, and its next phase replaces this one while they are written.
                admitted = admitted and phase is PHASE_INQUEUE and not counts[TaskStatus.BINDING]
                intents.append(
                    UpdatePodGroup(
                        job.namespace,
                        job.name,
                        job.uid,
                        phase.value,
                        *status_counts,
                        conditions,
                        admitted,
                        _started(session, job),
                    )
                )
        if job.topology is not None:
            notes = annotation_changes(session.snapshot.tree, job)
            if notes and self._annotation_writes.may_write(job.key, (*notes.items(),), session.now, job.uid):
                job.annotations = merged(job.annotations, notes)
                intents.append(AnnotatePodGroup(job.namespace, job.name, job.uid, notes))
        ref = reference(job)
        if phase in _WAITING:
            is_reported = job.tasks and not job.implicit and unschedulable and job.key not in session.state.orphans
            if is_reported and not self._incomplete_gangs.is_early(job, session.now):
                message = reasons.PODGROUP_UNSCHEDULABLE.render(
                    pending=counts[TaskStatus.PENDING], total=len(job.tasks), detail=session.job_fit_error(job)
                )
                self._events.emit(session, intents, ref, "Warning", reasons.PODGROUP_UNSCHEDULABLE.code, message,
                           slot="gang", normalise=True)  # fmt: skip
        elif changed and not job.implicit and phase is PodGroupPhase.RUNNING:
            self._events.emit(session, intents, ref, "Normal", reasons.PODGROUP_SCHEDULED.code,
                       reasons.PODGROUP_SCHEDULED.text, slot="gang")  # fmt: skip
        if job.pending or job.gated:
            self._close_pods(session, job, intents)

    def _add_never_starting(self, session: Session, job: Job, intents: list[Intent]) -> None:
        """The condition CanNeverStart of a job whose other texts stay as they are."""
        code = reasons.CAN_NEVER_START.code
        wanted = [row for row in session.results.conditions.get(job.key, ()) if row.type == code]
        if not (wanted or any(condition.type == code for condition in job.conditions)):
            return
        slots, stamp = {condition.type: condition for condition in job.conditions}, format_timestamp(session.now)
        for row in wanted:
            self._set(slots, code, "True", row.reason, row.message, session.uid, stamp)
        if not wanted:
            self._end(slots, code, session.uid, stamp)
        conditions, content = tuple(slots.values()), (job.phase, job.status_counts, *wanted)
        if session.carry_over.is_silent or job.implicit or conditions == job.conditions:
            return
        if self._status_writes.may_write(job.key, content, session.now, job.uid):
            job.conditions = conditions
            phase, counts = job.phase.value, job.status_counts
            intents.append(
                UpdatePodGroup(
                    job.namespace, job.name, job.uid, phase, *counts, conditions, False, _started(session, job)
                )
            )

    def _conditions(
        self, session: Session, job: Job, wanted: Sequence[GroupCondition]
    ) -> tuple[PodGroupCondition, ...]:
        """The job's conditions with the wanted ones True, their opposites False; times change with the status only."""
        if not wanted:
            return job.conditions
        slots = {condition.type: condition for condition in job.conditions}
        stamp = format_timestamp(session.now)
        for condition in wanted:
            self._set(slots, condition.type, "True", condition.reason, condition.message, session.uid, stamp)
            self._end(slots, _OPPOSITE.get(condition.type, ""), session.uid, stamp)
        for passing in [type for type in slots if type in _PASSING]:
            if all(condition.type != passing for condition in wanted):
                self._end(slots, passing, session.uid, stamp)
        conditions = tuple(slots.values())
        if conditions != self._recent_conditions:
            self._recent_conditions = conditions
        return self._recent_conditions

    def _end(self, slots: dict[str, PodGroupCondition], type: str, uid: str, stamp: str) -> None:
        """A condition that is there becomes False, with its reason and message."""
        old = slots.get(type)
        if old is not None:
            self._set(slots, type, "False", old.reason, old.message, uid, stamp)

    @staticmethod
    def _set(
        slots: dict[str, PodGroupCondition], type: str, status: str, reason: str, message: str, uid: str, stamp: str
    ) -> None:
        old = slots.get(type)
        if old is not None and (old.status, old.reason, old.message) == (status, reason, message):
            return
        changed = old.last_transition_time if old is not None and old.status == status else stamp
        slots[type] = PodGroupCondition(type, status, uid, changed, reason, message)

    def _close_pods(self, session: Session, job: Job, intents: list[Intent], *, is_early: bool = False) -> None:
        is_early = self._incomplete_gangs.is_early(job, session.now) or is_early
        self._pod_conditions.close(session, job, self._events, intents, is_early=is_early)

    # --- failures ----------------------------------------------------------------------------------------------------

    def _repeats_failure(self, session: Session, job: Job) -> bool:
        """Whether an unchanged job failed to be placed as before, and its texts need no refresh yet.

        Texts contain figures of the whole cluster. Refreshing them with every change of the cluster would rewrite
        every waiting job in every session.
        """
        failure = _failure_of(session, job)
        if failure is None:
            self._failures.pop(job.key, None)
            return False
        known = self._failures.get(job.key)
        evicted = job.key in session.state.changes.jobs
        unchanged = job.key not in session.changed.jobs and not evicted and not session.changed.everything
        if known is not None and unchanged and known[0] == failure and session.now < known[1]:
            return True
        self._failures[job.key] = failure, session.now + REFRESH_SECONDS
        return False

    def _keep_failures(self, session: Session) -> None:
        """Hands the failures of the session over to the next ones, which skip their jobs."""
        if session.results.report.evicted or session.results.report.errors:
            return
        changed = session.state.changes.jobs
        by_object: dict[ObjectRef, list[str]] = {}
        for ref, hook in session.results.refusals:
            by_object.setdefault(ref, []).append(hook)

        def results_of(job: Job, refresh_at: float) -> tuple[float, dict[str, TaskOutcome], dict[Any, Refusal]]:
            """The time of the next refresh, Unix seconds, and the outcomes and refusals of the job and its pods."""
            outcomes = {
                uid: outcome for uid in job.pending if (outcome := session.results.outcomes.get(uid)) is not None
            }
            refs = [reference(job), *(reference(task) for task in job.pending.values())]
            keys = [(ref, hook) for ref in refs for hook in by_object.get(ref, ())]
            return (
                min([refresh_at, *self._events.refreshes(keys)]),
                outcomes,
                {key: session.results.refusals[key] for key in keys},
            )

        for key, failure in session.failures.items():
            if key not in changed and key in self._failures:
                results = results_of(failure.job, self._failures[key][1])
                session.failed_attempts.add(failure, *results, session.eviction_needs)
        for key, (job, version) in session.refused_jobs.items():
            if key not in changed:
                known = session.carry_over.admissions.get(key)
                results = results_of(job, session.now + REFRESH_SECONDS if known is None else known.refresh_at)
                session.failed_attempts.add_refused(job, version, session.admission_version, *results)

    def forget_pod(self, ref: ObjectRef) -> None:
        """Drops the last writes about a pod that is gone or bound."""
        self._pod_conditions.forget(ref.uid)

    def prune(self, alive: Container[str], jobs: Container[str], now: float) -> None:
        """Drops conditions of pods that are gone, and events that would be written again anyway.

        `alive`: uids of pods; `jobs`: keys of jobs; `now` in Unix seconds.
        """
        self._incomplete_gangs.keep(jobs)
        self._pod_conditions.prune(alive)
        self._events.prune(now)
        self._failures = {key: value for key, value in self._failures.items() if value[1] > now}
        for writes in (self._status_writes, self._annotation_writes, self._queue_statuses):
            writes.prune(now)


def _started(session: Session, job: Job) -> bool | UnsetType:
    """Whether a PodGroup of `scheduling.k8s.io` started before; unset for others."""
    return session.state.kube_groups.has_started(job.key) or UNSET


def _failure_of(session: Session, job: Job) -> FailureKinds | None:
    """The kinds of failure of the pending tasks that found no place; None when that is not the whole state of the job.

    Which of its tasks would fit beside them, and all figures, are left out: they change with every other placement.
    """
    if job.phase is PHASE_PENDING or job.topology is not None or job.key in session.results.pipelined_jobs:
        return None
    kinds: set[tuple[str, str, str, str]] = set()
    for uid in job.pending:
        outcome = session.results.outcomes.get(uid)
        if uid in session.carry_over.expired_nominations:
            return None
        if outcome is not None and outcome.kind in ("refused", "unfit"):
            refusal = outcome.refusal
            cause = ("", "", "") if refusal is None else refusal.kind
            kinds.add((outcome.kind, *cause))
    return frozenset(kinds) or None
