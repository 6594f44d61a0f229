"""priority: higher priority first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.model.job import Job, Task


class Priority(Plugin):
    """Orders jobs and tasks by priority; higher ones preempt lower ones of their queue.

    Has no `reclaimable`: priority does not protect across queues.
    """

    name = "priority"

    def task_order(self, task: Task) -> int:
        return -task.priority

    def job_order(self, job: Job) -> int:
        return -job.priority

    def job_starving(self, job: Job) -> bool:
        """Whether some member is not placed, also beyond the gang minimum."""
        counts = job.counts
        return job.ready_tasks + counts[TaskStatus.PIPELINED] < len(job.tasks)

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
        """Tasks of jobs of lower priority; inside the preemptor's own job, tasks of lower priority."""
        preemptor = task.job
        if preemptor is None:
            return []
        victims = []
        for candidate in candidates:
            job = candidate.job
            if job is None:
                continue
            if candidate.priority < task.priority if job is preemptor else job.priority < preemptor.priority:
                victims.append(candidate)
        return victims
