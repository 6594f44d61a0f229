"""priority: higher priority first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.api.plugin import Plugin, Protection
from capcard_sched.model.job import CRITICAL_CLASSES, SYSTEM_NAMESPACE
from capcard_sched.model.reasons import PRIORITY_CLASS_IGNORED
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue


class PriorityArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Bounds the priority of a job by the highest PriorityClass of its pods, which ResourceQuotas can restrict.
    bound_by_pods: bool = msgspec.field(name="priority.boundByPods", default=False)


class Priority(Plugin):
    """Orders jobs and tasks by priority; higher ones preempt lower ones of their queue.

    Has no `reclaimable`: priority does not protect across queues.
    """

    name = "priority"
    victims_by_usage = False
    Arguments = PriorityArguments
    arguments: PriorityArguments

    def setup(self) -> None:
        self._classes: Mapping[str, tuple[int, bool]] = {}
        self._default = 0

    def open(self, session: Session) -> None:
        """Reports jobs whose critical class does not count. O(changed jobs)."""
        self._classes = session.snapshot.priority_classes
        self._default = max((value for value, is_default in self._classes.values() if is_default), default=0)
        row = PRIORITY_CLASS_IGNORED
        for key in sorted(session.jobs if session.changed.everything else session.changed.jobs):
            job = session.jobs.get(key)
            if job is not None and job.priority_class_name in CRITICAL_CLASSES and job.namespace != SYSTEM_NAMESPACE:
                session.results.notice(job, row, row.render(name=job.priority_class_name))

    def _job_priority(self, job: Job) -> int:
        if not self.arguments.bound_by_pods or not job.tasks:
            return job.priority
        classes = {task.cls.priority_class_name for task in job.tasks.values()}
        return min(job.priority, max(self._classes.get(name, (self._default, False))[0] for name in classes))

    def task_order(self, task: Task) -> int:
        return -task.priority

    def job_order(self, job: Job) -> int:
        return -(self._job_priority(job) if self.arguments.bound_by_pods else job.priority)

    def job_starving(self, job: Job) -> bool:
        """Whether some member is not placed, also beyond the gang minimum."""
        counts = job.counts
        return job.ready_tasks + counts[TaskStatus.PIPELINED] < len(job.tasks)

    def protects(self, hook: str, job: Job, priority: int) -> Protection:
        """Of jobs whose priority is not lower; with `boundByPods` the priority depends on more than the job."""
        lower = hook != "preemptable" or self.arguments.bound_by_pods or job.priority < priority
        return Protection.NONE if lower else Protection.IN_TIER

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[object, ...]:
        """Priorities are facts of the jobs; with `boundByPods` they follow from the PriorityClasses, too."""
        return (tuple(self._classes.items()), self._default) if self.arguments.bound_by_pods else ()

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
        """Tasks of jobs of lower priority; inside the preemptor's own job, tasks of lower priority."""
        preemptor = task.job
        if preemptor is None:
            return []
        victims, priority = [], self._job_priority(preemptor)
        for candidate in candidates:
            job = candidate.job
            if job is None:
                continue
            if candidate.priority < task.priority if job is preemptor else self._job_priority(job) < priority:
                victims.append(candidate)
        return victims
