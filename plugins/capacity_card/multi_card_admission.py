"""Joint feasibility of claims and single cards within the quotas of a queue.

A claim `A|B` may be met by A, by B or by a mix. One maximum flow from claims to free quota decides: all claims can be
met together exactly when the flow meets each of them. Otherwise the cards that a claim still reaches are a minimum cut:
the claims confined to them exceed their free quota.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.framework.quota.limits import QuotaShortage
from capcard_sched.model.refusal import Figures
from capcard_sched.plugins.capacity_card.charge import alternatives_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.plugins.capacity_card.charge import ChargeSum

    Cards = frozenset[str]


class Overdraft(NamedTuple):
    """A set of cards whose requests exceed its quota."""

    cards: frozenset[str]
    total: int
    limit: int


class MultiCardAdmission:
    """Amounts of single cards, and claims, of one queue: allocated, reserved and requested.

    `limit` returns the quota of a card. Amounts are in thousandths.
    """

    def __init__(self, amounts: Iterable[tuple[str, int]], limit: Callable[[str], int]) -> None:
        """`amounts` by key, of single cards and of claims; a key may repeat."""
        self._limit = limit
        self._used: dict[str, int] = {}
        claims: dict[Cards, int] = {}
        for key, amount in amounts:
            alternatives = alternatives_of(key)
            if len(alternatives) == 1:
                self._used[key] = self._used.get(key, 0) + amount
            elif amount > 0:
                cards = frozenset(alternatives)
                claims[cards] = claims.get(cards, 0) + amount
        #: Sorted: messages must not depend on the order of events.
        self._claims = {cards: claims[cards] for cards in sorted(claims, key=sorted)}
        self._cuts: list[Cards] | None = None

    def overdraft(self, touching: Iterable[str]) -> Overdraft | None:
        """A set of cards touching one of `touching` whose requests exceed its quota, or None: itself, or a minimum cut.

        Polynomial in claims and cards.
        """
        if self._cuts is None:
            self._cuts = self._unmet()
        requested = frozenset(touching)
        cuts = [cards for cards in self._cuts if cards & requested]
        if not cuts:
            return None
        found = self._weigh(requested)
        return found if found.total > found.limit else self._weigh(min(cuts, key=lambda cut: (len(cut), sorted(cut))))

    def _weigh(self, cards: Cards) -> Overdraft:
        # min(): a card above its quota must not reduce the free quota of other cards.
        used = sum(min(self._used.get(card, 0), self._limit(card)) for card in cards)
        claimed = sum(amount for alternatives, amount in self._claims.items() if alternatives <= cards)
        return Overdraft(cards, used + claimed, sum(self._limit(card) for card in cards))

    def _unmet(self) -> list[Cards]:
        """A maximum flow along shortest augmenting paths; the cards that each unmet claim reaches then."""
        cards = frozenset[str]().union(*self._claims)
        free = {card: max(0, self._limit(card) - self._used.get(card, 0)) for card in cards}
        #: Card to the claims that hold some of it, and how much.
        given: dict[str, dict[Cards, int]] = {card: {} for card in cards}
        cuts = []
        for claim, amount in self._claims.items():
            left = amount
            while left:
                reached = _reach(claim, given, free)
                last = next(reversed(reached))
                if not free[last]:
                    cuts.append(frozenset(reached))  # later flows never leave it
                    break
                path = [(last, *reached[last])]
                while (before := path[-1][2]) is not None:
                    path.append((before, *reached[before]))
                step = min(left, free[last], *(given[before][owner] for _, owner, before in path if before is not None))
                for card, owner, before in path:
                    given[card][owner] = given[card].get(owner, 0) + step
                    if before is not None:
                        given[before][owner] -= step
                        if not given[before][owner]:
                            del given[before][owner]
                free[last] -= step
                left -= step
        return cuts


def _reach(
    start: Cards, given: Mapping[str, Mapping[Cards, int]], free: Mapping[str, int]
) -> dict[str, tuple[Cards, str | None]]:
    """The cards to which amounts of a claim can move, up to the first with free quota, in order of distance.

    To each the claim that gets it, and the card that this claim releases for it: None for `start`.
    """
    reached: dict[str, tuple[Cards, str | None]] = {}
    frontier: list[tuple[Cards, str | None]] = [(start, None)]
    for claim, through in frontier:  # grows while it is read
        for card in sorted(claim - reached.keys()):
            reached[card] = claim, through
            if free[card]:
                return reached
            frontier += [(other, card) for other in given[card]]
    return reached


class QueueUsage:
    """Allocated and reserved amounts of a queue at one moment, beside its limits."""

    def __init__(self, queue: str, used: ChargeSum, limit: Callable[[str], int]) -> None:
        """`limit`: the limit of a key."""
        self.queue = queue
        self.used = used
        self.limit = limit
        self._has_claims = "|" in " ".join(used)

    @cached_property
    def content(self) -> tuple[object, ...]:
        return self.queue, *sorted(self.used.items())

    def shortage(self, need: ChargeSum, *, same_card: bool) -> QuotaShortage | None:
        """The first requested key, in sorted order, that does not fit together with all others of the queue.

        Alternatives of a claim add up, except with `same_card`.
        """
        limit, used = self.limit, self.used
        if not self._has_claims:  # most needs fit, key by key
            for key, amount in need.items():
                if "|" in key or (amount > 0 and used.get(key, 0) + amount > limit(key)):
                    break
            else:
                return None
        requests = {key: amount for key, amount in need.items() if amount > 0}
        joint = self._has_claims or any("|" in key for key in requests)
        admission: MultiCardAdmission | None = None
        for key in sorted(requests):
            requested, alternatives = requests[key], alternatives_of(key)
            total = used[key] + requested
            if len(alternatives) == 1:
                if total > limit(key):
                    return self._short(Figures(key, requested, total, limit(key)))
                if not joint:
                    continue
            elif same_card:
                options = tuple(
                    Figures(card, requested, used[card] + requests.get(card, 0) + requested, limit(card))
                    for card in alternatives
                )
                if all(option.total > option.limit for option in options):  # reported with the figures of the last one
                    return self._short(Figures(key, requested, options[-1].total, options[-1].limit), options)
            if admission is None:
                admission = MultiCardAdmission((*used.items(), *requests.items()), limit)
            found = admission.overdraft(alternatives)
            if found is not None:
                options = tuple(
                    Figures(card, requested, used[card] + requests.get(card, 0), limit(card))
                    for card in sorted(found.cards)
                )
                return self._short(Figures(key, requested, found.total, found.limit), options)
        return None

    def _short(self, figures: Figures, alternatives: tuple[Figures, ...] = ()) -> QuotaShortage:
        return QuotaShortage([figures.resource], figures, self.queue, alternatives)
