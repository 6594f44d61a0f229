"""Who gave how many pods of which card to whom (capacity-card reference §8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.plugins.capacity_card.ledger import Ledger

#: The action that takes from other queues.
_RECLAIM: Final = "reclaim"


class EvictionMetrics:
    """Counts pods that had to leave for a pod of another queue."""

    def __init__(self) -> None:
        #: (victim's queue, reclaimer's queue, card that was held or "") to pods.
        self.counts: dict[tuple[str, str, str], int] = {}

    def count(self, session: Session, ledger: Ledger) -> None:
        """Take in what a session decided. To be called when it closes: the charges given back are known until then."""
        for intent in session.evictions:
            victim = session.tasks_by_uid.get(intent.uid)
            if intent.reason != _RECLAIM or victim is None or victim.job is None:
                continue
            charge = ledger.former_charge_of(victim)
            key = victim.job.queue, intent.queue, charge.card if charge is not None else ""
            self.counts[key] = self.counts.get(key, 0) + 1
