"""Charges of pods and their sums: cpu, memory and cards.

Units: milli-cores, bytes, thousandths of a card. Exact integers, no epsilon. Shares of cards count
beside the cards under their resource name. The ledger holds nothing else: RDMA, hugepages, `pods` and unknown devices
are not charged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Charge(NamedTuple):
    """The amounts one pod is charged to its queue. Charges of equal pods are one object."""

    cpu: int
    memory: int
    #: A card; `A|B` for a claim (no node chosen yet); "" without cards.
    card: str
    amount: int
    #: Id of the task class it was computed for.
    class_id: int
    #: False when the card part could not be computed and is missing.
    complete: bool = True
    #: Shares of cards: resource and amount, sorted.
    shares: tuple[tuple[str, int], ...] = ()


class ChargeSum:
    """A sum of charges. `cards` holds cards, claims and shares; those whose sum is zero have no entry."""

    __slots__ = ("cards", "cpu", "memory")

    def __init__(self, cpu: int = 0, memory: int = 0, cards: Mapping[str, int] | None = None) -> None:
        self.cpu = cpu
        self.memory = memory
        self.cards: dict[str, int] = {card: amount for card, amount in cards.items() if amount} if cards else {}

    @property
    def is_empty(self) -> bool:
        """Nothing of anything."""
        return not (self.cpu or self.memory or self.cards)

    def add(self, charge: Charge, times: int = 1) -> None:
        """Add one charge `times` times; negative subtracts."""
        self.cpu += charge.cpu * times
        self.memory += charge.memory * times
        if charge.card:
            self.add_card(charge.card, charge.amount * times)
        for resource, amount in charge.shares:
            self.add_card(resource, amount * times)

    def add_card(self, card: str, amount: int) -> None:
        """Add to one card or claim."""
        total = self.cards.get(card, 0) + amount
        if total:
            self.cards[card] = total
        else:
            self.cards.pop(card, None)

    def merge(self, other: ChargeSum, sign: int = 1) -> None:
        """Add (1) or subtract (-1) a sum."""
        self.cpu += sign * other.cpu
        self.memory += sign * other.memory
        for card, amount in other.cards.items():
            self.add_card(card, sign * amount)

    def without(self, held: ChargeSum) -> ChargeSum:
        """The part that `held` does not cover, floored at 0.

        Single cards are covered first; the rest of A and B, or of the claim itself, covers a claim `A|B`.
        """
        left = dict(held.cards)
        uncovered: dict[str, int] = {}
        for key in sorted(self.cards, key=lambda key: (len(alternatives_of(key)), key)):
            amount = self.cards[key]
            for source in (*(same for same in left if same_set(same, key)), *alternatives_of(key)):
                taken = min(amount, left.get(source, 0))
                if taken > 0:
                    left[source] -= taken
                    amount -= taken
            uncovered[key] = amount
        return ChargeSum(max(0, self.cpu - held.cpu), max(0, self.memory - held.memory), uncovered)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ChargeSum)
            and (self.cpu, self.memory) == (other.cpu, other.memory)
            and self.cards == other.cards
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ChargeSum(cpu={self.cpu}, memory={self.memory}, cards={self.cards})"


def total_of(charges: Iterable[Charge]) -> ChargeSum:
    """The sum of some charges."""
    tally = ChargeSum()
    for charge in charges:
        tally.add(charge)
    return tally


@lru_cache(maxsize=4096)
def alternatives_of(key: str) -> tuple[str, ...]:
    """The cards of a key: one for a single card, several for a claim."""
    return tuple(key.split("|"))


def same_set(one: str, other: str) -> bool:
    """Whether two keys name the same alternatives: `A|B` and `B|A` differ in preference only."""
    return one == other or ("|" in one and "|" in other and set(alternatives_of(one)) == set(alternatives_of(other)))
