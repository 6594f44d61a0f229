"""backfill: nodes for pods that request nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.framework.session.action import Action, PlacingArguments
from capcard_sched.framework.session.ordering import Rounds
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.groups import SubGroup, SubGroups
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue


class Backfill(Action):
    """Places best-effort tasks of admitted, valid jobs, queue by queue and job by job, on any feasible node.

    Such pods consume no quota, but its plugins are called all the same: one that names a card without a request must
    not start without it, and a closed queue starts nothing. A job is committed when it is ready afterwards.
    """

    name = "backfill"
    Arguments = PlacingArguments
    arguments: PlacingArguments

    def execute(self, session: Session) -> None:
        rounds = Rounds(session, self.name)
        for job in session.to_attempt():
            if (
                not job.pending_best_effort
                or session.is_pending_phase(job)
                or job.key in session.results.blocked_by_head
            ):
                continue
            if session.results.guarded(job, lambda job: session.job_valid(job) is None):
                session.results.guarded(job, rounds.add)
        while rounds:
            queue, waiting = rounds.pop_queue()
            while waiting and (best := rounds.pop_job(queue)) is not None:
                self._visit(session, queue, best)

    @staticmethod
    def _visit(session: Session, queue: Queue, job: Job) -> None:
        statement = Statement(session)
        try:
            session.results.touch(job.key)
            tasks = [task for task in session.pending_tasks(job) if task.cls.best_effort]
            if job.groups is None:
                for task in tasks:
                    place_best_effort(session, statement, queue, job, task)
            else:
                place_in_subgroups(session, statement, queue, job, job.groups, tasks)
            if session.job_ready(job):
                statement.commit()
            else:
                statement.discard()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            statement.discard()
            session.results.record_hook_error(job, error)


def place_in_subgroups(
    session: Session, statement: Statement, queue: Queue, job: Job, groups: SubGroups, tasks: Sequence[Task]
) -> None:
    """Places tasks of a job with subgroups: those of one only if the subgroup has its size with them."""
    members: dict[SubGroup | None, list[Task]] = {}
    for task in tasks:
        members.setdefault(groups.of(task), []).append(task)
    for group, own in members.items():
        begin = len(statement)
        if group is not None and groups.ready_of(group) < groups.size_of(group) and not groups.bound_of(group):
            continue  # its other pods do not run yet
        for task in own:
            place_best_effort(session, statement, queue, job, task)
        if group is not None and 0 < groups.bound_of(group) < groups.size_of(group):
            unplaced = any(task.status is TaskStatus.PENDING for task in own)
            if unplaced and groups.bound_of(group) == len(statement) - begin:
                statement.rollback(begin)


def place_best_effort(session: Session, statement: Statement, queue: Queue, job: Job, task: Task) -> None:
    """Places one task on the best feasible node, or records the reason why there is none."""
    engine = session.engine
    signature = engine.signature(queue, task)
    refusal = session.dispatch.refusal("allocatable", queue, task)
    if refusal is not None:
        session.results.set_outcome(task, TaskOutcome("refused", refusal.message, refusal=refusal))
        session.results.refuse(task, refusal)
        return
    refusal = session.dispatch.refusal("pre_predicate", signature)
    if refusal is not None:
        session.results.set_outcome(task, TaskOutcome("unfit", refusal.message, refusal=refusal))
        return
    row = engine.best(signature)
    if row < 0:
        session.results.set_outcome(task, TaskOutcome("unfit", engine.diagnose(signature)[0]))
        return
    statement.allocate(job, [task], [session.nodes.nodes[row]])
