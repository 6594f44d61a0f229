"""reclaim: room for starving jobs from other queues (core reference §4.6, tidal reference §7).

With W-03, W-05, W-09, W-13 (a queue stays while it has jobs that were not tried) and W-34.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from capcard_sched.framework.eviction.evictor import Evictor
from capcard_sched.framework.eviction.victim_index import Scope
from capcard_sched.framework.session.action import Action
from capcard_sched.framework.session.ordering import contenders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task


class ReclaimArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the action."""

    #: Room that was made is kept for its pod for so long after the victims should be gone.
    reservation_seconds: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(name="reservationSeconds", default=60.0)


class Reclaim(Action):
    """Takes the best queue that does not have all it deserves, in it the best job, and gives it one turn; then again.

    Who may be taken is what the `reclaimable` hooks say of running pods of other, reclaimable queues. `preemptive` and
    `allocatable` are asked of every pod before anybody leaves for it.
    """

    name = "reclaim"
    Arguments = ReclaimArguments
    arguments: ReclaimArguments

    def execute(self, session: Session) -> None:
        """Run the action."""
        rounds = contenders(session, session.may_reclaim)
        scope = Scope("queues", "reclaimable", self.name)
        evictor = Evictor(session, scope, reservation_seconds=self.arguments.reservation_seconds)
        rest: dict[str, Sequence[Task]] = {}
        while rounds:
            queue, waiting = rounds.pop_queue()
            if not waiting:
                continue
            try:
                overused = session.overused(queue)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                session.record_hook_error(queue, error)
                continue
            if overused:
                continue
            job = waiting.pop()
            known = rest.get(job.key)
            tasks = session.pending_tasks(job) if known is None else known
            tasks = evictor.turn(queue, job, tasks, session.may_reclaim)
            if tasks:
                rest[job.key] = tasks
                rounds.push_job(job)
            elif queue.strict_fifo and session.is_unserved(job):
                session.refuse_behind_head(queue, job, waiting, "reclaimable")
                continue
            rounds.push_queue(queue)
