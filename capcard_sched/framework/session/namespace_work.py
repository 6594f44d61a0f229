"""Bounds on the work of one session for pods of one namespace: searches, selectors, and comparisons of PodGroups.

Claims of different content share no search, and a failed attempt of a pod with claims is repeated after each change of
devices. Selectors end an attempt at the step that reaches their bound. Terms between PodGroups with different selectors
are each compared with the groups of the cluster. A namespace beyond a bound gets no further attempt of such a job in
the session: its jobs are deferred as by the session deadline. The bounds are counted, not measured: a replay reaches
them at the same attempts.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from capcard_sched.devices.selector_work import SelectorMeter
from capcard_sched.model import reasons

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capcard_sched.devices.selector_work import SelectorWork
    from capcard_sched.model.job import Job
    from capcard_sched.model.reasons import Reason

#: Searches of one node that find no devices, in one session, for the pods of one namespace: about two CPU seconds.
MOST_SEARCHES: Final = 20_000
#: Comparisons of a PodGroup or HyperNode with a term, in one session, for the PodGroups of one namespace: about 0.4 CPU
#: seconds. The attempt that reaches the bound ends as without it.
MOST_COMPARISONS: Final = 200_000
#: Searches that cost as much as a failed attempt whose results are kept.
_ATTEMPT: Final = 4


class NamespaceWork:
    """What one session did for the pods of each namespace."""

    def __init__(self, failed: Callable[[], int], selectors: SelectorWork, *, has_claims: bool) -> None:
        """`failed`: the number of searches so far that found no devices; `selectors`: the work of this session.

        `has_claims`: whether there are claims.
        """
        #: Whether a plugin counts comparisons.
        self.counts_comparisons = False
        self._has_claims, self._failed, self._selectors = has_claims, failed, selectors
        self._is_open = True
        self._searches, self._comparisons = Counter[str](), Counter[str]()
        #: The job of the last attempt.
        self._tried: Job | None = None
        #: The job with claims whose attempt runs, and the searches before it.
        self._job: Job | None = None
        self._before = 0

    @property
    def is_enabled(self) -> bool:
        """Whether `allows_attempt` may be false."""
        return self._has_claims or self.counts_comparisons

    def allows_attempt(self, job: Job) -> bool:
        """Whether a job may be tried now; if so, its attempt begins."""
        if not self.is_enabled:
            return True
        self.end_attempt()
        has_claims = self._has_claims and any(task.cls.claims for task in job.pending.values())
        if has_claims and (
            self._searches[job.namespace] >= MOST_SEARCHES or self._selectors.is_exhausted(job.namespace)
        ):
            return False
        if job.anti_affinity and self._comparisons[job.namespace] >= MOST_COMPARISONS:
            return False
        self._tried = job
        if has_claims:
            self._job, self._before = job, self._failed()
        return True

    def is_exhausted(self, job: Job) -> bool:
        """Whether the running attempt of a job goes beyond the searches or the selectors of its namespace."""
        if self._job is not job:
            return False
        if self._selectors.is_exhausted(job.namespace):
            return True
        return self._searches[job.namespace] + self._failed() - self._before >= MOST_SEARCHES

    def meter(self, namespace: str, *contents: bytes, in_attempts: bool = False) -> SelectorMeter:
        """Counts the selectors of claims of these contents. They end at the bounds until `end`.

        `in_attempts`: they end in the running attempt of a job of the namespace only, which is tried again, and in
        `plans_of`.
        """
        ends = self._is_open and (not in_attempts or (self._job is not None and self._job.namespace == namespace))
        return SelectorMeter(self._selectors, namespace, contents, ends=ends)

    def end(self) -> None:
        """The session ended: what reads its state later has no bounds."""
        self.end_attempt()
        self._is_open = False

    @contextmanager
    def plans_of(self, job: Job) -> Iterator[None]:
        """While it is open, after the actions, the claims of a job are planned within the bounds of its namespace.

        What is beyond raises EvaluationsPostponedError.
        """
        before, self._job = self._job, job
        try:
            yield
        finally:
            self._job = before

    def compare(self, namespace: str, count: int) -> None:
        """Counts comparisons for a PodGroup of a namespace."""
        self._comparisons[namespace] += count

    def may_compare(self, job: Job) -> bool:
        """Whether the terms of a job may be evaluated: in its own attempt always."""
        return self._tried is job or self._comparisons[job.namespace] < MOST_COMPARISONS

    def reason(self, job: Job) -> Reason:
        """Why an attempt of a job was refused or ended."""
        if job.anti_affinity and self._comparisons[job.namespace] >= MOST_COMPARISONS:
            return reasons.GROUP_COMPARISONS
        return reasons.CLAIM_SELECTORS if self._selectors.is_exhausted(job.namespace) else reasons.CLAIM_SEARCHES

    def end_attempt(self) -> None:
        """The running attempt ended."""
        job, self._job = self._job, None
        if job is not None and job.pending:
            self._searches[job.namespace] += self._failed() - self._before + _ATTEMPT
