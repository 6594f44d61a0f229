"""The annotation `volcano.sh/card.allocated` of queues (`publishCardUsage`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from capcard_sched.model.annotations import CARD_ALLOCATED
from capcard_sched.model.cards import CARD

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.plugins.capacity_card.ledger import Ledger


def card_usage(cards: dict[str, int]) -> str | None:
    """JSON of card to whole cards, sorted, without zeros; None when nothing is held."""
    held = {card: -(-amount // CARD) for card, amount in sorted(cards.items()) if amount > 0}
    return json.dumps(held, separators=(",", ":")) if held else None


def publish_card_usage(session: Session, ledger: Ledger) -> None:
    """Annotate the queues whose annotation differs from the usage of their subtree. O(queues)."""
    for name, account in ledger.queues.items():
        queue = session.queues[name]
        usage = card_usage(account.subtree.allocated.cards)
        if queue.annotations.get(CARD_ALLOCATED) != usage:
            session.annotate_queue(queue, {CARD_ALLOCATED: usage})
