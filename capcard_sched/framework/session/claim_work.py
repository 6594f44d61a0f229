"""A bound on the work of one session for pods of one namespace whose ResourceClaims get no devices.

Claims of different content share no search, and a failed attempt of a pod with claims is repeated after each change of
devices. A namespace beyond its bound gets no further attempt of a job with claims in the session: its jobs are deferred
as by the session deadline. The bound is counted, not measured: a replay reaches it at the same attempts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.model.job import Job

#: Searches of one node that find no devices, in one session, for the pods of one namespace: about two CPU seconds.
MOST_SEARCHES: Final = 20_000
#: Searches that cost as much as a failed attempt whose results are kept.
_ATTEMPT: Final = 4


class ClaimWork:
    """The searches of each namespace in one session that found no devices."""

    def __init__(self, failed: Callable[[], int], *, is_enabled: bool) -> None:
        """`failed`: the number of searches so far that found no devices. `is_enabled`: whether there are claims."""
        self.is_enabled = is_enabled
        self._failed = failed
        self._used: dict[str, int] = {}
        #: The job whose attempt runs, and the searches before it.
        self._job: Job | None = None
        self._before = 0

    def allows_attempt(self, job: Job) -> bool:
        """Whether a job may be tried now; if so, its attempt begins."""
        if not self.is_enabled:
            return True
        self._end_attempt()
        if not _has_claims(job):
            return True
        if self._used.get(job.namespace, 0) >= MOST_SEARCHES:
            return False
        self._job, self._before = job, self._failed()
        return True

    def is_exhausted(self, job: Job) -> bool:
        """Whether the running attempt of a job goes beyond the bound of its namespace."""
        if self._job is not job:
            return False
        return self._used.get(job.namespace, 0) + self._failed() - self._before >= MOST_SEARCHES

    def _end_attempt(self) -> None:
        job, self._job = self._job, None
        if job is not None and job.pending:
            used = self._failed() - self._before + _ATTEMPT
            self._used[job.namespace] = self._used.get(job.namespace, 0) + used


def _has_claims(job: Job) -> bool:
    """Whether a pending pod of a job has claims."""
    return any(task.cls.claims for task in job.pending.values())
