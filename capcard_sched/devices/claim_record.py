"""Annotations of an allocated claim: the queue that is charged, and the cards of its devices when they were allocated.

A restart reads them again: later attributes of the devices do not change the charge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.model.annotations import BOUND_QUEUE, CARD_ASSIGNED
from capcard_sched.model.cards import CARD
from capcard_sched.model.device_objects import MAX_RESULTS

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Characters of the annotation.
_LONGEST: Final = 4096


class ClaimRecord(NamedTuple):
    """The record of an allocated claim; empty for a claim that another scheduler allocated."""

    queue: str = ""
    #: Card and thousandths.
    cards: tuple[tuple[str, int], ...] = ()


def read_record(annotations: Mapping[str, str]) -> ClaimRecord:
    """The record in the annotations of an allocated claim; without cards if they are malformed."""
    queue, text = annotations.get(BOUND_QUEUE, ""), annotations.get(CARD_ASSIGNED, "")
    if not queue or not text or len(text) > _LONGEST:
        return ClaimRecord(queue)
    try:
        cards = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        return ClaimRecord(queue)
    for card, amount in cards.items():
        if not card.strip() or card != card.strip() or "|" in card or not 0 < amount <= MAX_RESULTS * CARD:
            return ClaimRecord(queue)
    return ClaimRecord(queue, tuple(sorted(cards.items())))
