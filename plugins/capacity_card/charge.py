"""Charges of pods and their sums: cpu, memory and cards.

Units: milli-cores, bytes, thousandths of a card. Exact integers, no epsilon. A card is a key like cpu and memory;
shares of cards count under their resource name. The ledger holds nothing else: RDMA, hugepages, `pods` and unknown
devices are not charged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from capcard_sched.model.resources import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

#: A key and its amount.
Part: TypeAlias = tuple[str, int]
#: Keys of cpu and memory. No card name begins with a space, and they precede all cards in sorted order.
CPU_KEY: Final = " cpu"
MEMORY_KEY: Final = " memory"
#: Key to the name of the resource in messages, for keys that are no card.
PLAIN: Final = {CPU_KEY: CPU, MEMORY_KEY: MEMORY}


class Charge(NamedTuple):
    """The amounts one pod is charged to its queue. Charges of equal pods are one object."""

    #: Key and amount > 0 of cpu, memory, shares of cards, and last the cards.
    amounts: tuple[Part, ...]
    #: The key of its card; `A|B` for a claim (no node chosen yet); "" without cards.
    card: str
    #: The amount of that key.
    amount: int
    #: Id of the task class it was computed for.
    class_id: int
    #: False when the card part could not be computed and is missing.
    complete: bool = True
    #: The part of `amounts` that are shares of cards.
    shares: tuple[Part, ...] = ()
    #: Further cards of ResourceClaims, sorted.
    others: tuple[Part, ...] = ()

    @property
    def held(self) -> tuple[Part, ...]:
        """Its card, which may have an amount of 0, and the further ones."""
        return (self.card, self.amount), *self.others

    @property
    def cards(self) -> tuple[Part, ...]:
        """The cards with an amount."""
        return ((self.card, self.amount), *self.others) if self.amount else self.others

    @property
    def plain(self) -> tuple[Part, ...]:
        """The amounts of cpu, memory and shares."""
        return self.amounts[: len(self.amounts) - len(self.cards)]

    def with_cards(self, held: Sequence[Part]) -> Charge:
        """The same with other cards, as of `held`, complete."""
        (card, amount), *more = held
        others = tuple(sorted([each for each in more if each[1]]))
        cards = ((card, amount), *others) if amount else others
        return self._replace(amounts=(*self.plain, *cards), card=card, amount=amount, complete=True, others=others)


class ChargeSum(dict[str, int]):
    """A sum of charges by key: cpu, memory, cards, claims and shares. Keys whose sum is zero have no entry."""

    __slots__ = ()

    def __missing__(self, key: str) -> int:
        return 0

    @property
    def cards(self) -> dict[str, int]:
        """The amounts of cards, claims and shares."""
        return {key: amount for key, amount in self.items() if key not in PLAIN}

    def add(self, amounts: Iterable[tuple[str, int]], times: int = 1) -> None:
        if times == 1 and not self:
            self.update(amounts)
            return
        held = self.get
        for key, amount in amounts:
            total = held(key, 0) + amount * times
            if total:
                self[key] = total
            else:
                self.pop(key, None)

    def replace(self, old: ChargeSum, new: ChargeSum) -> None:
        """Subtract one sum and add another."""
        if old:
            self.add(old.items(), -1)
        if new:
            self.add(new.items())

    def put(self, key: str, amount: int) -> None:
        if amount:
            self[key] = amount
        else:
            self.pop(key, None)

    def __iadd__(self, other: ChargeSum) -> Self:
        self.add(other.items())
        return self

    def __isub__(self, other: ChargeSum) -> Self:
        self.add(other.items(), -1)
        return self

    def without(self, held: ChargeSum) -> ChargeSum:
        """The part that `held` does not cover, floored at 0.

        Single keys are covered first; the rest of A and B, or of the claim itself, covers a claim `A|B`.
        """
        if not held:
            return self
        left = dict(held)
        uncovered = ChargeSum()
        for key in sorted(self, key=lambda key: (len(alternatives_of(key)), key)):
            amount = self[key]
            for source in (*(same for same in left if same_set(same, key)), *alternatives_of(key)):
                taken = min(amount, left.get(source, 0))
                if taken > 0:
                    left[source] -= taken
                    amount -= taken
            uncovered.put(key, amount)
        return uncovered


#: The sums of a job without any. Sums of jobs are replaced, never changed in place: jobs with equal ones share them.
NO_CHARGE: Final = ChargeSum()


class JobQuantities(NamedTuple):
    """Amounts of one job, derived from its pods and annotations."""

    want: ChargeSum
    need: ChargeSum
    #: Charges of gated pods, which are left out of reservations.
    gated: ChargeSum
    #: Charges of Pending pods, claims under their own key.
    pending: ChargeSum
    #: Amounts held beyond the minimum.
    elastic: ChargeSum
    #: Whether any pod is not finished.
    has_pods: bool
    #: Why the need cannot be computed: the error of a pending pod of the minimum set.
    error: str
    #: Why the annotation is invalid; it refuses the job only while no pod exists.
    request_problem: str


def alternatives_of(key: str) -> tuple[str, ...]:
    """The cards of a key: one for a single card, several for a claim."""
    return tuple(key.split("|"))


def same_set(one: str, other: str) -> bool:
    """Whether two keys name the same alternatives: `A|B` and `B|A` differ in preference only."""
    return one == other or ("|" in one and "|" in other and set(alternatives_of(one)) == set(alternatives_of(other)))
