"""enqueue: which waiting jobs may have their pods created (core reference §4.1, with R27 and W-15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.action import Action
from capcard_sched.framework.ordering import Rounds

if TYPE_CHECKING:
    from capcard_sched.framework.session import Session
    from capcard_sched.model.job import Job


class Enqueue(Action):
    """Moves jobs from phase Pending to Inqueue, queue by queue in turn, each job asked once per session.

    A refused job does not hold up the ones behind it; why it was refused is recorded on it.
    """

    name = "enqueue"

    def execute(self, session: Session) -> None:
        """Run the action."""
        rounds = Rounds(session)
        for job in session.in_phase_pending():
            rounds.add(job)
        while rounds:
            queue, waiting = rounds.pop_queue()
            if waiting:
                self._ask(session, waiting.pop())
                rounds.push_queue(queue)

    @staticmethod
    def _ask(session: Session, job: Job) -> None:
        try:
            admitted, refusal = session.job_enqueueable(job)
            if admitted:
                session.enqueue(job)
                session.dispatch.notify("job_enqueued", job)
            elif refusal is not None:
                session.refuse(job, refusal)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            session.contain(job, error)
