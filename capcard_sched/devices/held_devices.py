"""The cards of an allocated claim: those of its record, else those of its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capcard_sched.devices.device_card import card_of, charge_of, has_cards
from capcard_sched.model.annotations import BOUND_QUEUE, CARD_ASSIGNED
from capcard_sched.model.cards import CARD

if TYPE_CHECKING:
    from capcard_sched.devices.claim_record import ClaimRecord
    from capcard_sched.devices.inventory import DeviceInventory
    from capcard_sched.model.device_objects import Allocation


class HeldDevices(NamedTuple):
    """The cards of an allocation by its devices of today."""

    #: Card to thousandths.
    cards: dict[str, int]
    #: Whether no device is unknown.
    complete: bool


def written_record(queue: str, allocation: Allocation, inventory: DeviceInventory) -> dict[str, str]:
    """The annotations of a claim with a new allocation for a pod of a queue."""
    cards = dict(sorted(held_devices(allocation, inventory).cards.items()))
    return {BOUND_QUEUE: queue, CARD_ASSIGNED: msgspec.json.encode(cards).decode()}


def held_devices(allocation: Allocation, inventory: DeviceInventory, *, is_whole: bool = False) -> HeldDevices:
    """The cards of an allocation; `is_whole`: shares count as whole cards. O(devices)."""
    cards: dict[str, int] = {}
    complete = True
    for result in allocation.devices.results or ():
        if result.admin_access:
            continue
        device = inventory.device((result.driver, result.pool, result.device))
        if device is None:
            complete = complete and not has_cards(result.driver, inventory.cards)
        elif card := card_of(device):
            cards[card] = cards.get(card, 0) + (CARD if is_whole else charge_of(device, result))
    return HeldDevices(cards, complete)


def held_cards_of(record: ClaimRecord, devices: HeldDevices) -> dict[str, int] | None:
    """The cards of an allocated claim: those of its record, else those of its devices; None if one is unknown.

    A record of less than the devices of today does not count.
    """
    if record.cards and sum(amount for _, amount in record.cards) >= sum(devices.cards.values()):
        return dict(record.cards)
    return devices.cards if devices.complete else None
