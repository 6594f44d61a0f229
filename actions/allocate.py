"""allocate: nodes for pending tasks, gang by gang (core reference §4.3, with W-07, W-08, W-13 and W-17 to W-19)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.action import Action
from capcard_sched.framework.attempt import Attempt
from capcard_sched.framework.ordering import KeyHeap
from capcard_sched.model import reasons
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task import Task


class Allocate(Action):
    """Takes the best queue, in it the best job, and places its tasks on a statement; then looks at the order again.

    A ready job is committed, one that is promised room keeps it until the session ends, any other is undone. A job
    has one full attempt per session; an elastic one comes back for more after the others had their turn.
    """

    name = "allocate"

    def execute(self, session: Session) -> None:
        """Run the action."""
        jobs, queues = self._collect(session)
        tasks: dict[str, Sequence[Task]] = {}
        while queues:
            queue = queues.pop()
            waiting = jobs[queue.name]
            if not waiting:
                continue
            if session.overused(queue):
                self._refuse_all(session, queue, waiting)
                continue
            job = waiting.pop()
            pending = tasks.get(job.key)
            if pending is None:
                pending = [task for task in session.pending_tasks(job) if not task.cls.best_effort]
            rest = self._visit(session, queue, job, pending, alone=not waiting and not queues)
            if rest:
                tasks[job.key] = rest
                waiting.push(job)
            queues.push(queue)

    @staticmethod
    def _collect(session: Session) -> tuple[dict[str, KeyHeap[Job]], KeyHeap[Queue]]:
        """Jobs that may be placed now, by queue. Without `enqueue` in the conf, waiting jobs enter here."""
        jobs: dict[str, KeyHeap[Job]] = {}
        queues: KeyHeap[Queue] = KeyHeap(session.queue_key)
        enqueues = "enqueue" in session.actions
        if not enqueues:
            for job in session.in_phase_pending():
                session.enqueue(job)
        for job in session.with_pending_tasks():
            if session.is_pending_phase(job):
                continue
            try:
                invalid = session.job_valid(job)
                session.touched_jobs.add(job.key)
                if invalid is not None:
                    session.refuse(job, invalid)
                    session.explain_pending(job, invalid)
                    continue
                heap = jobs.get(job.queue)
                if heap is None:
                    heap = jobs[job.queue] = KeyHeap(session.job_key)
                    queues.push(session.queues[job.queue])
                heap.push(job)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                session.contain(job, error)
        return jobs, queues

    @staticmethod
    def _refuse_all(session: Session, queue: Queue, waiting: KeyHeap[Job]) -> None:
        """An overused queue gets nothing more in this session; its jobs are told (W-19)."""
        row = reasons.QUEUE_OVERUSED
        refusal = Refusal("overused", "", row.code, row.render(queue=queue.name), queue=queue.name)
        for job in waiting:
            session.refuse(job, refusal)
            session.explain_pending(job, refusal)

    @staticmethod
    def _visit(session: Session, queue: Queue, job: Job, tasks: Sequence[Task], *, alone: bool) -> Sequence[Task]:
        """Try to place the tasks. Returns those to come back for: only a job that got what it asked for comes back."""
        session.report.visited_jobs += 1
        if not tasks:
            return ()
        statement = session.statement()
        try:
            dealt_with = Attempt(session, statement, queue, job, tasks).run(alone=alone)
            if session.job_ready(job):
                progressed = bool(statement)
                statement.commit()
                return tasks[dealt_with:] if progressed or dealt_with else ()
            if session.job_pipelined(job):
                statement.keep()
            else:
                statement.discard()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            statement.discard()
            session.contain(job, error)
        return ()
