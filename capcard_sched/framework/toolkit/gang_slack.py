"""Pods that a gang can lose and still keep its minimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.job import Job, Task

#: Statuses that count towards the minimum of a gang and of its roles.
_READY = (TaskStatus.ALLOCATED, TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.SUCCEEDED)


class GangSlack:
    """The number of members that a gang can lose, in total and per role."""

    __slots__ = ("_job", "_left", "_roles")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._left = job.ready_tasks - job.min_available
        self._roles: dict[str, int] = {}

    def spares(self, task: Task) -> bool:
        """Whether the gang can lose one more task of the role, which then counts as lost."""
        job, role = self._job, task.role
        if self._left <= 0:
            return False
        minimum = job.min_task_member.get(role, 0) if job.checks_roles else 0
        if minimum > 0:
            if role not in self._roles:
                counts = job.roles.get(role)
                self._roles[role] = (0 if counts is None else sum(counts[status] for status in _READY)) - minimum
            if self._roles[role] <= 0:
                return False
            self._roles[role] -= 1
        self._left -= 1
        return True


def split_slack(candidates: Iterable[Task]) -> tuple[list[Task], list[Task]]:
    """Candidates that their job, and its roles, can lose and keep the minimum, taken in order; and the others.

    Both lists keep the given order; a pod without a job is among the others. O(candidates).
    """
    gangs: dict[str, GangSlack] = {}
    slack: list[Task] = []
    others: list[Task] = []
    for task in candidates:
        job = task.job
        if job is not None:
            gang = gangs.get(job.key)
            if gang is None:
                gang = gangs[job.key] = GangSlack(job)
            if gang.spares(task):
                slack.append(task)
                continue
        others.append(task)
    return slack, others
