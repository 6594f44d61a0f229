"""enqueue: admission of pending jobs, whose pods are then created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from capcard_sched.framework.backlog.stalled_jobs import AdmissionTimes, StalledJobs
from capcard_sched.framework.session.action import Action
from capcard_sched.framework.session.ordering import Rounds
from capcard_sched.model import reasons
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import PHASE_INQUEUE

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job


class EnqueueArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the action."""

    #: Seconds after which an admitted job without a placed pod returns to Pending when others of its queue wait. It is
    #: admitted again after the jobs that were not tried since. 0 disables it, as in Volcano.
    inqueue_timeout_seconds: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(
        name="inqueueTimeoutSeconds", default=0.0
    )


class Enqueue(Action):
    """Moves jobs from phase Pending to Inqueue, queue by queue in turn, each job once per session.

    An admitted job whose minimum exceeds a limit of its queue returns to Pending at once.

    A refused job does not block the jobs behind it; its refusal is recorded. An admitted job without progress holds its
    reservation against others: after a timeout it is requeued behind them. A strict FIFO queue keeps its order.
    """

    name = "enqueue"
    Arguments = EnqueueArguments
    arguments: EnqueueArguments

    def __init__(self, arguments: EnqueueArguments | None = None) -> None:
        super().__init__(arguments)
        self._stalled = StalledJobs()
        #: The limits of each queue at the last session.
        self._queue_limits: dict[str, tuple[object, ...]] = {}
        #: Unix seconds at which a job without progress returned to Pending, by job key: others go first.
        self._requeued_at: dict[str, float] = {}

    def progress(self) -> AdmissionTimes:
        return AdmissionTimes(self._stalled.times(), dict(self._requeued_at))

    def resume(self, progress: AdmissionTimes) -> None:
        """Continues with these times."""
        self._requeued_at = dict(progress.requeued_at)
        self._stalled.resume(progress.stuck_since)

    def execute(self, session: Session) -> None:
        self._requeue_impossible(session)
        failed = self._requeue_failed(session)
        if self.arguments.inqueue_timeout_seconds:
            self._requeue_stuck(session)
        rounds, requeued = Rounds(session, self.name, "job_enqueueable"), self._requeued_at
        later = []
        for job in session.to_admit():
            if job.key in failed:
                row = reasons.PROVISIONING_BACKOFF
                session.results.refuse(
                    job,
                    Refusal("job_enqueueable", "", row.code, row.text, queue=job.queue, pods_too=True, in_order=True),
                )
                continue
            if job.key in requeued:
                later.append(job)
            else:
                rounds.add(job)
        while rounds:
            queue, waiting = rounds.pop_queue()
            if not waiting:
                continue
            best = rounds.pop_job(queue)
            if best is None:
                continue
            self._admit(session, best)
            if queue.strict_fifo and session.is_pending_phase(best):
                session.results.refuse_behind_head(queue, best, waiting, "job_enqueueable")
            else:
                rounds.push_queue(queue)
        for job in sorted(later, key=lambda job: (requeued[job.key], job.key)):
            if requeued[job.key] < session.now and session.deadline.allows_attempt(job.queue):
                self._admit(session, job)

    def _requeue_impossible(self, session: Session) -> None:
        """Requeues admitted jobs whose minimum exceeds a limit now: they would hold their reservation for nothing.

        O(changed jobs and queues), and O(jobs) when the limits of a queue change.
        """
        queues, jobs, changed = session.queues, session.jobs, session.changed
        names = queues.keys() | self._queue_limits.keys() if changed.everything else changed.queues
        limits = {name: queues[name].limits if name in queues else None for name in names}
        moved = [name for name, found in limits.items() if self._queue_limits.get(name) != found]
        for name, found in limits.items():
            if found is None:
                self._queue_limits.pop(name, None)
            else:
                self._queue_limits[name] = found
        for key in sorted(jobs if moved or changed.everything else changed.jobs):
            job = jobs.get(key)
            if job is None or job.phase is not PHASE_INQUEUE:
                continue
            try:
                with session.assumptions.assume_admission():
                    is_impossible = session.exceeded_limit(job) is not None
                    if is_impossible and not session.dispatch.votes("job_enqueueable", job)[0]:
                        session.requeue(job)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                session.results.record_hook_error(job, error)

    def _requeue_failed(self, session: Session) -> AbstractSet[str]:
        """Requeues admitted jobs whose ProvisioningRequest failed, for the jobs that wait behind them.

        Returns the keys of the waiting jobs in that state.
        """
        if not session.carry_over.provisioning_class:
            return frozenset()
        jobs, failed = session.jobs, session.state.provisioning.failed(session.jobs, session.now)
        waiting = [job for job in session.to_admit() if job.key not in failed] if failed else []
        waited_for = session.failed_attempts.refused_queues.union(job.queue for job in waiting)
        for key in sorted(failed):
            job = jobs[key]
            if job.phase is PHASE_INQUEUE and job.queue in waited_for and not job.allocated_tasks:
                session.requeue(job)
        return failed

    def _requeue_stuck(self, session: Session) -> None:
        """Requeues admitted jobs without progress for the jobs that wait behind them. O(changed and overdue jobs)."""
        jobs, queues, timeout = session.jobs, session.queues, self.arguments.inqueue_timeout_seconds
        self._requeued_at = {
            key: moment
            for key, moment in self._requeued_at.items()
            if key in jobs and session.is_pending_phase(jobs[key])
        }
        changed = session.changed
        self._stalled.update(jobs, None if changed.everything else changed.jobs, session.now)
        waited_for = session.failed_attempts.refused_queues.union(job.queue for job in session.to_admit())
        ends = []
        for name in sorted(waited_for & self._stalled.queues & queues.keys()):
            if queues[name].strict_fifo:
                continue
            for key in self._stalled.overdue(name, timeout, session.now):
                self._requeued_at[key] = session.now
                session.requeue(jobs[key])
                session.results.refuse(jobs[key], self._timeout_refusal(jobs[key]))
            if (since := self._stalled.earliest(name)) is not None:
                ends.append(since + timeout)
        self.next_wakeup = min(ends, default=None)

    def _admit(self, session: Session, job: Job) -> None:
        try:
            admitted, refusal = session.job_enqueueable(job)
            if admitted:
                session.enqueue(job)
                session.dispatch.notify("job_enqueued", job)
            elif refusal is not None:
                session.results.refuse(job, refusal)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            session.results.record_hook_error(job, error)

    def _timeout_refusal(self, job: Job) -> Refusal:
        row = reasons.INQUEUE_TIMEOUT
        message = row.render(seconds=f"{self.arguments.inqueue_timeout_seconds:g}", queue=job.queue)
        return Refusal(
            "job_enqueueable", "", row.code, message, queue=job.queue, event=True, pods_too=True, in_order=True
        )
