"""Admitted jobs without progress: they hold a reservation and have no pod placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.status import PHASE_INQUEUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from capcard_sched.model.job import Job


class AdmissionTimes(NamedTuple):
    """The order of admission among jobs without progress. Unix seconds by key of a job."""

    #: Queue and job to the time since which the admitted job has had no pod placed, the longest first.
    stuck_since: Mapping[tuple[str, str], float]
    #: The time at which the job returned to Pending.
    requeued_at: Mapping[str, float]


class StalledJobs:
    """The admitted jobs without a placed pod, by queue, the longest first."""

    def __init__(self) -> None:
        #: Unix seconds since which a job has had no pod placed, by queue and job key; and the queue by job key.
        self._since: dict[str, dict[str, float]] = {}
        self._queue_of: dict[str, str] = {}

    @property
    def queues(self) -> frozenset[str]:
        """Those with such a job."""
        return frozenset(name for name, jobs in self._since.items() if jobs)

    def times(self) -> dict[tuple[str, str], float]:
        """Queue and key of each job to its Unix seconds, the longest of a queue first."""
        return {(queue, key): since for queue, jobs in self._since.items() for key, since in jobs.items()}

    def resume(self, times: Mapping[tuple[str, str], float]) -> None:
        """Continues with these times."""
        for (queue, key), since in times.items():
            self._set(key, queue, since)

    def update(self, jobs: Mapping[str, Job], changed: Iterable[str] | None, now: float) -> None:
        """Applies changes of jobs, by key; None: of all jobs, gone ones included."""
        for key in sorted(jobs.keys() | self._queue_of.keys() if changed is None else changed):
            job = jobs.get(key)
            known, queue = self._queue_of.get(key), job.queue if job is not None and _is_stalled(job) else None
            if known == queue:
                continue
            if known is not None:
                self._remove(key)
            if queue is not None:
                self._set(key, queue, now)

    def overdue(self, queue: str, timeout: float, now: float) -> Iterator[str]:
        """Removes and yields the keys of the jobs of a queue that have stalled for `timeout` seconds."""
        stalled = self._since.get(queue, {})
        while stalled:
            key = next(iter(stalled))
            if now < stalled[key] + timeout:
                return
            self._remove(key)
            yield key

    def earliest(self, queue: str) -> float | None:
        """The time of the job of a queue that has stalled the longest."""
        return next(iter(self._since.get(queue, {}).values()), None)

    def _set(self, key: str, queue: str, since: float) -> None:
        self._since.setdefault(queue, {})[key] = since
        self._queue_of[key] = queue

    def _remove(self, key: str) -> None:
        del self._since[self._queue_of.pop(key)][key]


def _is_stalled(job: Job) -> bool:
    """Whether a job was admitted and has no pod placed or nominated, also when its pods were never created."""
    return job.phase is PHASE_INQUEUE and not job.allocated_tasks and not job.waiting_tasks
