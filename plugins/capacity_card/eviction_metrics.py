"""Counts of pods evicted by cross-queue reclaim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.plugins.capacity_card.ledger import Ledger

#: The action that evicts across queues.
_RECLAIM: Final = "reclaim"


class EvictionMetrics:
    """Counts pods evicted by reclaim, by queues and card."""

    def __init__(self) -> None:
        #: (victim's queue, reclaimer's queue, card of the victim or "") to pods.
        self.counts: dict[tuple[str, str, str], int] = {}

    def count(self, session: Session, ledger: Ledger) -> None:
        """Count the evictions of a session, at its close."""
        for intent in session.evictions:
            victim = session.tasks_by_uid.get(intent.uid)
            if intent.reason != _RECLAIM or victim is None or victim.job is None:
                continue
            charge = ledger.charge_of(victim)
            key = victim.job.queue, intent.queue, charge.card if charge is not None else ""
            self.counts[key] = self.counts.get(key, 0) + 1
