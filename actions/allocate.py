"""allocate: nodes for pending tasks, gang by gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.session.action import Action, PlacingArguments
from capcard_sched.framework.session.gang_allocator import GangAllocator
from capcard_sched.framework.session.group_attempt import GroupAttempt
from capcard_sched.framework.session.hypernode_search import HyperNodeSearch, Visit
from capcard_sched.framework.session.ordering import Rounds
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model import reasons
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.placement.engine import PlacementEngine
    from capcard_sched.framework.session.ordering import KeyHeap
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue


class Allocate(Action):
    """Places the tasks of the best job of the best queue on a statement, then evaluates the order again.

    A ready job is committed, a pipelined one keeps its placements until the session ends, any other is undone. A job
    has one full attempt per session; an elastic one returns for more after the attempts of the others.
    """

    name = "allocate"
    Arguments = PlacingArguments
    arguments: PlacingArguments

    def complete(self, session: Session, queue: Queue, job: Job) -> None:
        self._visit(session, queue, job, None, alone=False)

    def execute(self, session: Session) -> None:
        rounds = self._collect(session)
        tasks: dict[str, Sequence[Task]] = {}
        while rounds:
            queue, waiting = rounds.pop_queue()
            if not waiting or (overused := session.results.guarded(queue, session.overused)) is None:
                continue
            if overused:
                self._refuse_all(session, queue, waiting)
                continue
            job = rounds.pop_job(queue)
            if job is None:
                continue
            rest = self._visit(session, queue, job, tasks.get(job.key), alone=not waiting and not rounds)
            if rest:
                tasks[job.key] = rest
                rounds.push_job(job)
            elif queue.strict_fifo and session.is_unserved(job):
                session.results.refuse_behind_head(queue, job, waiting, "overused")
                continue
            rounds.push_queue(queue)

    @staticmethod
    def _collect(session: Session) -> Rounds:
        """Schedulable jobs by queue. Without `enqueue` in the conf, pending jobs are admitted here."""
        rounds = Rounds(session, Allocate.name, "overused")
        if "enqueue" not in session.actions:
            for job in session.in_phase_pending():
                session.enqueue(job)
        for job in session.to_attempt():
            if session.is_pending_phase(job):
                continue
            try:
                invalid = session.job_valid(job)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                session.results.record_hook_error(job, error)
                continue
            if invalid is None:
                rounds.add(job)
            else:
                session.results.touch(job.key)
                session.results.refuse(job, invalid)
                session.results.explain_pending(job, invalid)
                session.note_failure(session.queues[job.queue], job, {})
        return rounds

    @staticmethod
    def _refuse_all(session: Session, queue: Queue, waiting: KeyHeap[Job]) -> None:
        """Refuses all jobs of an overused queue, which gets nothing more in this session."""
        row = reasons.QUEUE_OVERUSED
        refusal = Refusal("overused", "", row.code, row.render(queue=queue.name), queue=queue.name)
        for job in waiting:
            session.note_failure(queue, job, {})
        session.results.refuse_all(waiting, refusal)

    @staticmethod
    def _visit(
        session: Session, queue: Queue, job: Job, tasks: Sequence[Task] | None, *, alone: bool
    ) -> Sequence[Task]:
        """Tries to place the tasks: the rest of an earlier visit, or all pending ones.

        Returns the tasks to return for: only a ready job returns.
        """
        session.results.report.count_visit()
        session.results.touch(job.key)
        statement = Statement(session)
        try:
            pending = tasks or session.pending_tasks(job)
            if job.pending_best_effort:
                pending = [task for task in pending if not task.cls.best_effort]
            if not pending:
                return ()
            if job.groups is not None:
                return Allocate._visit_groups(session, queue, job, statement, pending, alone=alone)
            allocator = None
            if job.topology is None or not job.topology.hard:
                allocator = GangAllocator(session, statement, queue, job, pending)
                processed = allocator.run(alone=alone)
            else:

                def visit(engine: PlacementEngine) -> Visit:
                    trial = GangAllocator(session, statement, queue, job, pending, engine, explains=False)
                    return Visit(trial.run(alone=alone), trial.by_amounts)

                processed = HyperNodeSearch(session, statement, queue, job, pending, visit).run()
            if session.job_ready(job):
                failed = None if len(statement) else allocator
                session.note_failure(queue, job, None if failed is None else failed.all_shortages())
                statement.commit()
                return pending[processed:] if processed else ()
            if session.job_pipelined(job):
                statement.keep()
            else:
                session.observe_failure(session, job, session.engine)
                shortages = None
                if allocator is not None:
                    shortages = allocator.all_shortages()
                    allocator.try_rest()
                statement.discard()
                session.note_failure(queue, job, shortages)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            statement.discard()
            session.results.record_hook_error(job, error)
        return ()

    @staticmethod
    def _visit_groups(
        session: Session, queue: Queue, job: Job, statement: Statement, pending: Sequence[Task], *, alone: bool
    ) -> Sequence[Task]:
        """`_visit` of a job with subgroups: each one is placed whole."""
        attempt = GroupAttempt(session, statement, queue, job, pending)
        if attempt.run(alone=alone):
            session.note_failure(queue, job, None)
            statement.commit()
            return attempt.rest()
        if len(statement):
            statement.keep()
            return ()
        session.observe_failure(session, job, session.engine)
        session.note_failure(queue, job, attempt.shortages())
        return ()
