"""The capacity-card plugin.

Sums by queue and bounds on further pods come from `framework/quota`. Inputs: `cards` (of nodes and pods), `minimum`
(request of a job), `quota` (limits and accounts of a queue). Usage: `charge`, `ledger`. Hooks by subject, each a class
above the one before: `selection`, `quota_checks` with `multi_card_admission`, `reclaim`, `reporting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import CARD_ASSIGNED
from capcard_sched.model.explanation import JobCards, PodCards
from capcard_sched.plugins.capacity_card.reporting import CardReports

if TYPE_CHECKING:
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task_class import TaskClass


class CapacityCard(CardReports):
    """Limits queues and subtrees by card model at enqueue, allocate and preempt, and reclaims cards from training jobs.

    Keeps the accounts of jobs and queues.
    """

    name = "capacity-card"

    def open(self, session: Session) -> None:
        super().open(session)
        renamed = self.inventory.refresh(session, self.ledger.held_cards())
        self._renames += bool(renamed)
        # A change of everything includes a new accounting of shared devices.
        if renamed or session.changed.everything or self.demands.over_capacity:
            self.demands.forget()
        queues, jobs = self.ledger.refresh(session, renamed)
        self._report_invalid(session, queues, jobs)

    def job_cards(self, job: Job) -> JobCards | None:
        account = self.ledger.jobs.get(job.key)
        if account is None:
            return None
        self.ledger.current(account)
        return JobCards(account.allocated.cards, account.inqueue.cards)

    def pod_cards(self, cls: TaskClass) -> PodCards | None:
        demand = self.demands.of(cls)
        return PodCards(demand.names, demand.alternatives, demand.amount, demand.error)

    def queue_order(self, queue: Queue) -> tuple[int, float]:
        """Higher `spec.priority` first, then the lower share; equal keys leave the order to the next plugin."""
        account = self.ledger.queues.get(queue.name)
        return -queue.priority, account.share if account is not None else 0.0

    def on_allocate(self, placement: Placement) -> None:
        self.ledger.charge(placement)

    def on_deallocate(self, placement: Placement) -> None:
        self.ledger.discharge(placement)

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]] | None:
        """The alternative a pod is bound with: the charge survives restarts."""
        if len(self.demands.of(placement.cls).names) < 2:
            return None
        charges = ((task.uid, self.ledger.charge_of(task)) for task in placement.tasks)
        return {uid: {CARD_ASSIGNED: charge.card} for uid, charge in charges if charge is not None and charge.card}
