"""Annotations of an allocated claim: the queue that is charged, and the cards of its devices when they were allocated.

A restart reads them again: later attributes of the devices do not change the charge.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.devices.device_card import card_of, charge_of, has_cards
from capcard_sched.model.annotations import BOUND_QUEUE, CARD_ASSIGNED
from capcard_sched.model.cards import CARD
from capcard_sched.model.device_objects import MAX_RESULTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.devices.inventory import DeviceInventory
    from capcard_sched.model.device_objects import Allocation

#: Characters of the annotation.
_LONGEST: Final = 4096


class ClaimRecord(NamedTuple):
    """The record of an allocated claim; empty for a claim that another scheduler allocated."""

    queue: str = ""
    #: Card and thousandths.
    cards: tuple[tuple[str, int], ...] = ()


class HeldDevices(NamedTuple):
    """The cards of an allocation by its devices of today."""

    #: Card to thousandths.
    cards: Counter[str]
    #: Whether no device is unknown.
    complete: bool


def read_record(annotations: Mapping[str, str]) -> ClaimRecord:
    """The record in the annotations of an allocated claim; without cards if they are malformed."""
    queue, text = annotations.get(BOUND_QUEUE, ""), annotations.get(CARD_ASSIGNED, "")
    if not queue or not text or len(text) > _LONGEST:
        return ClaimRecord(queue)
    try:
        cards = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        return ClaimRecord(queue)
    if not all(card and "|" not in card and 0 < amount <= MAX_RESULTS * CARD for card, amount in cards.items()):
        return ClaimRecord(queue)
    return ClaimRecord(queue, tuple(sorted(cards.items())))


def written_record(queue: str, allocation: Allocation, inventory: DeviceInventory) -> dict[str, str]:
    """The annotations of a claim with a new allocation for a pod of a queue."""
    cards = dict(sorted(held_devices(allocation, inventory).cards.items()))
    return {BOUND_QUEUE: queue, CARD_ASSIGNED: msgspec.json.encode(cards).decode()}


def held_devices(allocation: Allocation, inventory: DeviceInventory, *, is_whole: bool = False) -> HeldDevices:
    """The cards of an allocation; `is_whole`: shares count as whole cards. O(devices)."""
    cards, complete = Counter[str](), True
    for result in allocation.devices.results or ():
        if result.admin_access:
            continue
        device = inventory.device((result.driver, result.pool, result.device))
        if device is None:
            complete = complete and not has_cards(result.driver, inventory.cards)
        elif card := card_of(device):
            cards[card] += CARD if is_whole else charge_of(device, result)
    return HeldDevices(cards, complete)


def held_cards_of(record: ClaimRecord, devices: HeldDevices) -> Counter[str] | None:
    """The cards of an allocated claim: those of its record, else those of its devices; None if one is unknown.

    A record of less than the devices of today does not count.
    """
    if record.cards and sum(amount for _, amount in record.cards) >= devices.cards.total():
        return Counter(dict(record.cards))
    return devices.cards if devices.complete else None
