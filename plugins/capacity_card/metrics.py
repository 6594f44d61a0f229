"""Series of queues, cards and evictions, and the annotation `volcano.sh/card.allocated` of queues."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from capcard_sched.framework.api.plugin import Sample
from capcard_sched.model.annotations import CARD_ALLOCATED
from capcard_sched.model.cards import CARD
from capcard_sched.plugins.capacity_card.charge import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.framework.session.session import Session
    from capcard_sched.plugins.capacity_card.cards import CardInventory
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.quota import QueueAccount
    from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals, ValidationWarnings

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


def samples(
    ledger: Ledger,
    inventory: CardInventory,
    refusals: QuotaRefusals,
    warnings: ValidationWarnings,
    evictions: EvictionMetrics,
) -> Iterator[Sample]:
    """All current series. Sums of a parent include the queues below it. O(queues x their cards)."""
    ledger.recompute()
    for name in sorted(ledger.queues):
        yield from _of_queue(ledger.queues[name])
    for card in sorted(inventory.totals.keys() | _limited_or_held(ledger)):
        yield Sample("card_total", {"card": card}, inventory.totals.get(card, 0) / CARD)
    for card, service in sorted(ledger.by_service):
        amount = ledger.by_service[card, service] / CARD
        yield Sample("card_allocated", {"card": card, "service_type": service}, amount)
    for (queue, hook, reason), count in sorted(refusals.counts.items()):
        if queue not in ledger.queues:
            continue
        labels = {"queue_name": queue, "hook": hook, "reason": reason}
        yield Sample("capacity_card_refusals_total", labels, count)
    for (victim, reclaimer, card), count in sorted(evictions.counts.items()):
        if victim not in ledger.queues or reclaimer not in ledger.queues:
            continue
        labels = {"victim_queue": victim, "reclaimer_queue": reclaimer, "card": card}
        yield Sample("capacity_card_evictions_total", labels, count)
    for kind, reason, count in warnings.counts():
        yield Sample("capacity_card_invalid_objects", {"kind": kind, "reason": reason}, count)

    yield Sample("capacity_card_internal_errors_total", {}, ledger.internal_errors)


def _limited_or_held(ledger: Ledger) -> set[str]:
    """Cards in quotas or in use, also those no node offers: their total is exported as 0."""
    limited = {card for account in ledger.queues.values() for card in account.quota.cards if account.quota.limit(card)}
    return limited | {card for (card, _), amount in ledger.by_service.items() if amount}


def _of_queue(account: QueueAccount) -> Iterator[Sample]:
    queue, quota, sums = {"queue_name": account.name}, account.quota, account.subtree
    allocated, pending = sums.allocated, sums.pending
    yield Sample("queue_share", queue, account.share)
    for unit, (key, dimension) in zip(("milli_cpu", "memory_bytes"), quota.plain.items(), strict=True):
        yield Sample(f"queue_allocated_{unit}", queue, allocated[key])
        yield Sample(f"queue_request_{unit}", queue, allocated[key] + pending[key])
        yield Sample(f"queue_deserved_{unit}", queue, dimension.deserved)
        yield Sample(f"queue_real_capacity_{unit}", queue, dimension.real_capability)
        if dimension.capability is not None:  # unset is absent, not 0
            yield Sample(f"queue_capacity_{unit}", queue, dimension.capability)
    for card in sorted(sums.seen - PLAIN.keys()):
        limit, held = quota.limit(card), allocated[card]
        request = held + pending[card]
        by_card = {**queue, "card": card}
        if account.is_limited(card):  # a parent without a card quota has no limit, which is not 0
            yield Sample("queue_card_capacity", by_card, limit / CARD)
            yield Sample("queue_card_deserved", by_card, limit / CARD)
        yield Sample("queue_card_allocated", by_card, held / CARD)
        yield Sample("queue_card_request", by_card, request / CARD)
        yield Sample("queue_card_inqueue", by_card, sums.inqueue[card] / CARD)
        yield Sample("queue_card_elastic", by_card, sums.elastic[card] / CARD)
        by_resource = {**queue, "resource": card}
        yield Sample("queue_allocated_scalar_resources", by_resource, held)
        yield Sample("queue_request_scalar_resources", by_resource, request)
        if account.is_limited(card):
            yield Sample("queue_deserved_scalar_resources", by_resource, limit)
            yield Sample("queue_capacity_scalar_resources", by_resource, limit)
            yield Sample("queue_real_capacity_scalar_resources", by_resource, limit)
