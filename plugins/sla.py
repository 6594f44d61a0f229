"""How long a job may wait before it goes past the checks of later tiers (plugins reference §11)."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.annotations import SLA_WAITING_TIME, SLA_WAITING_TIME_ALIAS
from capcard_sched.model.reasons import SLA_DEADLINE_REACHED
from capcard_sched.model.status import Vote
from capcard_sched.model.timestamps import DurationError, format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job

#: What jobs write and the argument are spelled alike.
WAITING_TIME_KEY = "sla-waiting-time"


class SlaArguments(msgspec.Struct, frozen=True):
    """How long any job may wait, unless it says so itself."""

    #: A duration such as `30m` or `1h30m`; without one only jobs that say so have a limit.
    waiting_time: str = msgspec.field(name=WAITING_TIME_KEY, default="")


@lru_cache(maxsize=1024)
def waiting_limit(text: str) -> float | None:
    """A limit as written, in seconds; None when it cannot be read or is not above 0."""
    try:
        limit = parse_duration(text)
    except DurationError:
        return None
    return limit if limit > 0 else None


class Sla(Plugin):
    """Orders jobs by deadline and, once a job's has passed, votes for its admission and for its promise of room.

    The deadline is the job's creation plus its waiting time. The vote ends the question at the plugin's tier: what
    stands in later tiers, quotas among it, is not asked any more; in the same tier any refusal wins. To outvote gang or
    overcommit it must stand in a tier before theirs.
    """

    name = "sla"
    Arguments = SlaArguments
    arguments: SlaArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._limit = waiting_limit(self.arguments.waiting_time)
        self._now = 0.0
        self._due: float | None = None
        #: uids of waiting jobs that were told of their deadline.
        self._told: set[str] = set()

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> SlaArguments:
        arguments = problems.decode(SlaArguments, raw)
        assert isinstance(arguments, SlaArguments)
        if arguments.waiting_time and waiting_limit(arguments.waiting_time) is None:
            problems.warning(
                WAITING_TIME_KEY,
                f'"{arguments.waiting_time}" is no duration above 0; jobs that name none have no limit',
                accepted="a duration such as 30m or 1h30m",
            )
            return SlaArguments()
        return arguments

    def open(self, session: Session) -> None:
        """Tell jobs whose deadline has passed while they wait, and find the next deadline. O(waiting jobs)."""
        self._now = now = session.now
        waiting = {job.uid: job for job in chain(session.in_phase_pending(), session.with_pending_tasks())}
        self._told &= waiting.keys()
        coming = math.inf
        for uid, job in waiting.items():
            deadline = self.job_order(job)
            if deadline > now:
                coming = min(coming, deadline)
            elif uid not in self._told:
                self._told.add(uid)
                limit = format_duration(round(deadline - job.created, 3))
                session.notice(job, SLA_DEADLINE_REACHED, SLA_DEADLINE_REACHED.render(limit=limit))
        self._due = coming if coming < math.inf else None

    def next_wakeup(self) -> float | None:
        """The next deadline of a waiting job."""
        return self._due

    def job_order(self, job: Job) -> float:
        """The deadline in Unix seconds; infinity for a job without a limit."""
        notes = job.annotations
        said = notes.get(SLA_WAITING_TIME)
        if said is None:
            said = notes.get(SLA_WAITING_TIME_ALIAS)
        limit = waiting_limit(said) if said is not None else None
        if limit is None:
            limit = self._limit
        return job.created + limit if limit is not None else math.inf

    def job_enqueueable(self, job: Job) -> Vote:
        return Vote.PERMIT if self.job_order(job) <= self._now else Vote.ABSTAIN

    job_pipelined = job_enqueueable

    def admission_version(self, job: Job) -> Vote:
        return self.job_enqueueable(job)
