"""Queues of jobs with bound tasks: fixed by the first binding until the last bound task is finished or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capcard_sched.model.job import Job


class FixedQueues:
    """The queue that the bindings of a job fix, and the queue that the job requests meanwhile.

    Memory fixes it from the end of the initial lists on. The annotation that a binding writes fixes it after a restart,
    and in a standby whose watch delivers an edit of the PodGroup before the binding.
    """

    def __init__(self) -> None:
        #: Whether the initial lists are complete.
        self.live = False
        #: The queue that each job with another fixed queue requests, by job key.
        self._requested: dict[str, str] = {}
        #: Age of the oldest bound task with the annotation, and its queue, by job key.
        self._noted: dict[str, tuple[tuple[float, str], str]] = {}

    def of(self, job: Job) -> str:
        """The fixed queue of a job; "" for none."""
        noted = self._noted.get(job.key)
        if noted is not None:
            return noted[1]
        return job.queue if self.live and job.bound else ""

    def note(self, job: Job, age: tuple[float, str], queue: str) -> bool:
        """Fix the queue that a binding wrote; whether the fixed queue changed.

        `age`: creation time and uid of the bound task, which is in `job.tasks`. The oldest task decides, since lists
        have any order; a queue in memory precedes it.
        """
        before = self._noted.get(job.key)
        if before is not None and before[0] <= age:
            return False
        if before is None and self.live and job.bound > 1:
            return False
        self._noted[job.key] = age, queue
        return job.queue != queue

    def requested(self, job: Job) -> str:
        return self._requested.get(job.key, job.queue)

    def request(self, job: Job, queue: str) -> str:
        """Record the queue that a job requests. Returns the queue that applies."""
        fixed = self.of(job)
        if fixed in ("", queue):
            self._requested.pop(job.key, None)
            return queue
        self._requested[job.key] = queue
        return fixed

    def release(self, job: Job) -> str | None:
        """End the fixing of a job without bound tasks. Returns the queue that it requests, if another one was fixed."""
        self._noted.pop(job.key, None)
        return self._requested.pop(job.key, None)
