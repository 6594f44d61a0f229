"""shuffle: evicts the pods that plugins select for rescheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.eviction.victim_index import protection
from capcard_sched.framework.session.action import Action
from capcard_sched.framework.session.statement import Statement
from capcard_sched.framework.toolkit.gang_slack import spare_subgroups
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task


class Shuffle(Action):
    """Evicts the running pods that `victim_tasks` names, job by job.

    Protected pods stay. A gang loses only the pods beyond its minimum, unless all its running pods are named.
    """

    name = "shuffle"

    def execute(self, session: Session) -> None:
        if not session.dispatch.has("victim_tasks"):
            return
        running = [
            task
            for key in sorted(session.jobs)
            for task in session.jobs[key].tasks.values()
            if task.status is TaskStatus.RUNNING
        ]
        named: dict[str, tuple[Job, list[Task]]] = {}
        for task in session.dispatch.union_first_tier("victim_tasks", running):
            if task.job is not None and not protection(session, task):
                named.setdefault(task.job.key, (task.job, []))[1].append(task)
        for job, tasks in named.values():
            self._evict(session, job, tasks)

    def _evict(self, session: Session, job: Job, tasks: list[Task]) -> None:
        statement = Statement(session)
        try:
            tasks = session.dispatch.passed("victim_filter", tasks)
            live = job.ready_tasks - job.counts[TaskStatus.SUCCEEDED]
            if len(tasks) < live and job.groups is not None:
                tasks = spare_subgroups(job, tasks)[0]
            elif len(tasks) < live:
                tasks = tasks[: max(0, job.ready_tasks - job.min_available)] if job.min_available > 1 else tasks
            for task in tasks:
                statement.evict(task, self.name)
            statement.commit()
            session.results.touch(job.key)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            statement.discard()
            session.results.record_hook_error(job, error)
