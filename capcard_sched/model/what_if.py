"""The report of `what-if`: differences between two simulations, before and after changes of the input."""

from __future__ import annotations

from typing import Literal

from capcard_sched.model.trials import API_VERSION, ChangedUsage, InsightPart


class JobChange(InsightPart, frozen=True, kw_only=True):
    """A job that starts in one of the two simulations only, or at another time."""

    #: `namespace/kind/name`.
    job: str
    #: Seconds from its creation until its minimum of pods runs; None: it does not start.
    wait_before: float | None
    wait_after: float | None

    @property
    def added_wait(self) -> float:
        """Seconds by which the start is later; negative for an earlier one."""
        return (self.wait_after or 0.0) - (self.wait_before or 0.0)


class PodCounts(InsightPart, frozen=True, kw_only=True):
    """Numbers of pods of a job in the two simulations."""

    job: str
    before: int
    after: int


class WhatIfReport(InsightPart, frozen=True, kw_only=True):
    """The effect of changes. Simulations are compared at their ends."""

    api_version: Literal["insight.capcard-sched.io/v1alpha1"] = API_VERSION
    kind: Literal["WhatIfReport"] = "WhatIfReport"
    #: The changes, as on the command line.
    changes: tuple[str, ...]
    #: Seconds of virtual time at the end of the two simulations.
    end_before: float
    end_after: float
    #: Jobs that start only after the changes, and only before them.
    starts: tuple[JobChange, ...]
    blocked: tuple[JobChange, ...]
    #: Jobs that start in both, at another time.
    moved: tuple[JobChange, ...]
    #: Pods that run or have succeeded, of jobs that start in both, where the numbers differ.
    pods: tuple[PodCounts, ...]
    #: Evicted pods, where the numbers differ.
    evictions: tuple[PodCounts, ...]
    usage: tuple[ChangedUsage, ...]

    @property
    def is_worse(self) -> bool:
        """Whether a job no longer starts, waits longer, has fewer pods, or loses more pods to evictions."""
        return bool(
            self.blocked
            or any(job.added_wait > 0 for job in self.moved)
            or any(count.after < count.before for count in self.pods)
            or any(count.after > count.before for count in self.evictions)
        )
