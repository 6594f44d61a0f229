"""reclaim: capacity for starving jobs from other queues.

A queue stays in the rounds while it has jobs that were not tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from capcard_sched.framework.eviction.group_evictor import GroupEvictor
from capcard_sched.framework.eviction.scope import AcrossQueues
from capcard_sched.framework.session.action import Action
from capcard_sched.framework.session.ordering import contenders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task


class ReclaimArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the action."""

    #: Seconds for which capacity stays nominated after the victims' grace period.
    reservation_seconds: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(name="reservationSeconds", default=60.0)


class Reclaim(Action):
    """Attempts the best job of the best queue that is not overused, again and again.

    The `reclaimable` hooks select the candidates among running pods of other, reclaimable queues. `preemptive` and
    `allocatable` run for every pod before any eviction for it.
    """

    name = "reclaim"
    Arguments = ReclaimArguments
    arguments: ReclaimArguments

    def execute(self, session: Session) -> None:
        scope = AcrossQueues(self.name)
        evictor = GroupEvictor(session, scope, reservation_seconds=self.arguments.reservation_seconds)
        rounds = contenders(session, self.name, session.may_reclaim, "reclaimable", evictor.repeat)
        rest: dict[str, Sequence[Task]] = {}
        while rounds:
            queue, waiting = rounds.pop_queue()
            if not waiting:
                continue
            overused = session.results.guarded(queue, session.overused)
            if overused is None or overused:
                continue
            job = rounds.pop_job(queue)
            if job is None:
                continue
            known = rest.get(job.key)
            tasks = session.pending_tasks(job) if known is None else known
            tasks = evictor.attempt(queue, job, tasks, session.may_reclaim)
            rounds.note_evictions(queue)
            if tasks:
                rest[job.key] = tasks
                rounds.push_job(job)
            elif queue.strict_fifo and session.is_unserved(job):
                session.results.refuse_behind_head(queue, job, waiting, "reclaimable")
                continue
            rounds.push_queue(queue)
        session.failed_attempts.end_evictions("reclaimable", evicted=bool(session.results.evictions))
