"""Admits a job whose waiting time has passed, whatever the plugins of later tiers vote."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.annotations import SLA_WAITING_TIME, SLA_WAITING_TIME_ALIAS
from capcard_sched.model.reasons import SLA_DEADLINE_REACHED
from capcard_sched.model.report_once import ReportOnce
from capcard_sched.model.status import Vote
from capcard_sched.model.text_cache import text_cache
from capcard_sched.model.timestamps import DurationError, format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job

#: The argument has the name of the annotation.
WAITING_TIME_KEY = "sla-waiting-time"


class SlaArguments(msgspec.Struct, frozen=True):
    """The default waiting time of jobs."""

    #: A duration such as `30m` or `1h30m`; without it only jobs with an annotation have a limit.
    waiting_time: str = msgspec.field(name=WAITING_TIME_KEY, default="")


# Computed 6.1 us, kept 2 (benchmarks/caches.py).
@text_cache(1024)
def waiting_limit(text: str) -> float | None:
    """Seconds of a limit; None when the text is not a duration above 0."""
    try:
        limit = parse_duration(text)
    except DurationError:
        return None
    return limit if limit > 0 else None


class Sla(Plugin):
    """Orders jobs by deadline and, after the deadline, votes to admit and to pipeline a job.

    The deadline is the creation time of the job plus its waiting time. The vote is final at the plugin's tier: plugins
    in later tiers, quotas included, are not called; in the same tier any rejection wins. To override gang or overcommit
    the plugin must be in an earlier tier.
    """

    name = "sla"
    Arguments = SlaArguments
    arguments: SlaArguments

    def setup(self) -> None:
        self._limit = waiting_limit(self.arguments.waiting_time)
        self._now = 0.0
        self._due: float | None = None
        #: Passed deadlines by uid of a waiting job.
        self._passed: ReportOnce[str, None] = ReportOnce()

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> SlaArguments:
        arguments = problems.decode(SlaArguments, raw)
        if arguments.waiting_time and waiting_limit(arguments.waiting_time) is None:
            problems.warning(
                WAITING_TIME_KEY,
                f'"{arguments.waiting_time}" is not a duration above 0; jobs without an annotation have no limit',
                accepted="a duration such as 30m or 1h30m",
            )
            return SlaArguments()
        return arguments

    def open(self, session: Session) -> None:
        """Report waiting jobs whose deadline has passed, and find the next deadline. O(waiting jobs)."""
        self._now = now = session.now
        waiting = {job.uid: job for job in chain(session.in_phase_pending(), session.with_pending_tasks())}
        self._passed.keep(waiting)
        coming = math.inf
        for uid, job in waiting.items():
            deadline = self.job_order(job)
            if deadline > now:
                coming = min(coming, deadline)
            elif self._passed.update(uid, (None,)):
                limit = format_duration(round(deadline - job.created, 3))
                session.results.notice(job, SLA_DEADLINE_REACHED, SLA_DEADLINE_REACHED.render(limit=limit))
        self._due = coming if coming < math.inf else None

    def next_wakeup(self) -> float | None:
        return self._due

    def job_order(self, job: Job) -> float:
        """The deadline in Unix seconds; infinity for a job without a limit."""
        annotations = job.annotations
        text = annotations.get(SLA_WAITING_TIME)
        if text is None:
            text = annotations.get(SLA_WAITING_TIME_ALIAS)
        limit = waiting_limit(text) if text is not None else None
        if limit is None:
            limit = self._limit
        return job.created + limit if limit is not None else math.inf

    def job_enqueueable(self, job: Job) -> Vote:
        return Vote.PERMIT if self.job_order(job) <= self._now else Vote.ABSTAIN

    job_pipelined = job_enqueueable

    def admission_version(self, job: Job) -> Vote:
        return self.job_enqueueable(job)
