"""Half gangs: PodGroups with bound pods whose minimum was never bound, as a leader leaves them that ends meanwhile.

Before the actions of a session their pending pods are placed, whatever their queue and priority. A gang that stays
half for longer than the timeout has its bound pods evicted. Everything follows from objects: the phase and conditions
of the PodGroup show whether its minimum was bound, and condition `HalfGang` contains the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.quoting import plural
from capcard_sched.model.reasons import GANG_WAS_WHOLE, HALF_GANG, HALF_GANG_EVICTED
from capcard_sched.model.status import BOUND, EVICTABLE_STATUSES, RUNNING, PodGroupPhase
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.session.action import Action
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task

#: Seconds. Default of `--half-gang-timeout`.
HALF_GANG_SECONDS: Final = 60.0
#: Reason of the evictions.
_EVICTION: Final = "half-gang"


class HalfGangs:
    """The half gangs of all sessions, with the time since which each is half."""

    def __init__(self, timeout: float) -> None:
        #: Seconds; 0 evicts nothing.
        self.timeout: Final = timeout
        #: Job key to the uid of its PodGroup and the Unix seconds since which it is half.
        self._since: dict[str, tuple[str, float]] = {}
        #: Unix seconds of the next eviction; None for none.
        self.next_wakeup: float | None = None

    def complete(self, session: Session, actions: Sequence[Action]) -> None:
        """Places the pending pods of half gangs, before the actions run. O(jobs below their minimum) and attempts."""
        halves = [job for job in session.state.partial.values() if job.pending and _members_of(session, job)]
        if not halves:
            return
        keyed = [(key, job) for job in halves if (key := session.results.guarded(job, session.job_key)) is not None]
        session.deadline.begin_action()
        with session.assumptions.complete_gangs():
            for _, job in sorted(keyed, key=lambda item: item[0]):
                if not (session.deadline.allows_attempt(job.queue) and session.namespace_work.allows_attempt(job)):
                    continue
                try:
                    self._complete_one(session, actions, job)
                except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                    session.results.record_hook_error(job, error)
                session.namespace_work.end_attempt()

    @staticmethod
    def _complete_one(session: Session, actions: Sequence[Action], job: Job) -> None:
        if session.job_valid(job) is not None:
            return
        queue, unadmitted = session.queues[job.queue], session.is_pending_phase(job)
        for action in actions:
            action.complete(session, queue, job)
        if not session.job_ready(job):
            session.note_failure(queue, job, None)  # no record: each session tries again
        elif unadmitted:
            session.enqueue(job)
            session.dispatch.notify("job_enqueued", job)

    def end(self, session: Session, *, evicts: bool) -> None:
        """Sets the conditions of jobs below their minimum; `evicts`: overdue half gangs lose their bound pods."""
        known, self._since, self.next_wakeup = self._since, {}, None
        for key in sorted(session.state.partial):
            job = session.state.partial[key]
            members = _members_of(session, job)
            if members:
                self._note(session, job, members, known.get(key), evicts=evicts)
            elif job.was_whole and job.is_partial() and job.counts[BOUND] and not job.counts[RUNNING]:
                session.results.set_condition(job, GANG_WAS_WHOLE.code, GANG_WAS_WHOLE.code, GANG_WAS_WHOLE.render())

    def _note(
        self, session: Session, job: Job, members: list[Task], known: tuple[str, float] | None, *, evicts: bool
    ) -> None:
        if known is None or known[0] != job.uid:
            known = job.uid, _recorded_since(job) or session.now
        since = min(known[1], session.now)  # a clock that was set back does not extend the timeout
        bound, minimum, end = len(members), job.min_available, since + self.timeout
        if evicts and self.timeout and end <= session.now:
            self._evict(session, job, members)
            return
        self._since[job.key] = job.uid, since
        if self.timeout and end > session.now:
            self.next_wakeup = end if self.next_wakeup is None else min(self.next_wakeup, end)
        after = f"; without them the bound pods are evicted after {self.timeout:g} s" if self.timeout else ""
        text = HALF_GANG.render(bound=plural(bound, "pod"), minimum=minimum, end=after)
        session.results.set_condition(job, HALF_GANG.code, HALF_GANG.code, text)
        session.results.notice(job, HALF_GANG, text)

    def _evict(self, session: Session, job: Job, members: list[Task]) -> None:
        text = HALF_GANG_EVICTED.render(
            bound=plural(len(members), "pod"), minimum=job.min_available, seconds=f"{self.timeout:g}"
        )
        statement = Statement(session)
        try:
            for task in sorted(members, key=session.task_key):
                statement.evict(task, _EVICTION, f"its gang never had its minimum of {job.min_available}")
            statement.commit()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            statement.discard()
            session.results.record_hook_error(job, error)
            return
        session.results.notice(job, HALF_GANG_EVICTED, text)
        session.results.touch(job.key)
        if job.phase is PodGroupPhase.INQUEUE:
            session.requeue(job)  # its reservation ends: other jobs are admitted


def _members_of(session: Session, job: Job) -> list[Task]:
    """The bound pods of a half gang that can be evicted; none for another job.

    Pods that request nothing hold nothing; they do not count.
    """
    if job.was_whole or job.implicit or not job.uid or job.key not in session.jobs:
        return []
    members = [
        task
        for task in job.tasks.values()
        if task.status in EVICTABLE_STATUSES and task.ours and not task.deleting and not task.cls.best_effort
    ]
    return members if members and session.results.guarded(job, session.job_ready) is False else []


def _recorded_since(job: Job) -> float:
    """Unix seconds since which the PodGroup is recorded as a half gang; 0.0 for none."""
    found = (each for each in job.conditions if each.type == HALF_GANG.code and each.status == "True")
    return next((parse_time(each.last_transition_time) for each in found), 0.0)
