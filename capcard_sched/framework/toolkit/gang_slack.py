"""Pods that a gang can lose and still keep its minimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.job import Job, Task

#: Statuses that count towards the minimum of a gang and of its roles.
_READY = (TaskStatus.ALLOCATED, TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.SUCCEEDED)


def split_slack(candidates: Iterable[Task]) -> tuple[list[Task], list[Task]]:
    """Candidates that their job, and its roles, can lose and keep the minimum, taken in order; and the others.

    Both lists keep the given order; a pod without a job is among the others. O(candidates).
    """
    left: dict[tuple[str, str | None], int] = {}
    slack: list[Task] = []
    others: list[Task] = []
    for task in candidates:
        job = task.job
        if job is None:
            others.append(task)
            continue
        floors = _floors(job, task)
        for key in floors:
            if key not in left:
                left[key] = _above_minimum(job, key[1])
        if all(left[key] > 0 for key in floors):
            for key in floors:
                left[key] -= 1
            slack.append(task)
        else:
            others.append(task)
    return slack, others


def _floors(job: Job, task: Task) -> tuple[tuple[str, str | None], ...]:
    """(job, role) of the minimums that the task counts towards; role None is the whole gang."""
    if job.checks_roles and job.min_task_member.get(task.role, 0) > 0:
        return (job.key, None), (job.key, task.role)
    return ((job.key, None),)


def _above_minimum(job: Job, role: str | None) -> int:
    if role is None:
        return job.ready_tasks - job.min_available
    counts = job.roles.get(role)
    return (0 if counts is None else sum(counts[status] for status in _READY)) - job.min_task_member[role]
