"""Which queue is served first (capacity-card reference §6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capcard_sched.model.queue import Queue
    from capcard_sched.plugins.capacity_card.ledger import Ledger


def queue_key(ledger: Ledger, queue: Queue) -> tuple[int, float]:
    """Higher `spec.priority` first, then the lower share; equal keys leave it to the next plugin."""
    account = ledger.queues.get(queue.name)
    return -queue.priority, account.share if account is not None else 0.0
