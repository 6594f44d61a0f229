"""Joint feasibility of claims and single cards within the quotas of a queue.

A claim `A|B` may be met by A, by B or by a mix. One maximum flow from claims to free quota decides: all claims can be
met together exactly when the flow meets each of them. Otherwise the cards that a claim still reaches are a minimum cut:
the claims confined to them exceed their free quota. Groups of cards, which are nested or disjoint, form a tree above
the cards: the flow of a card passes the quota of each group with it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.framework.quota.limits import QuotaShortage
from capcard_sched.model.refusal import Figures
from capcard_sched.plugins.capacity_card.card_flow import CardFlow, reachable_sum, sum_of
from capcard_sched.plugins.capacity_card.charge import alternatives_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from capcard_sched.model.cards import QuotaGroup
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

    def __init__(
        self, amounts: Iterable[tuple[str, int]], limit: Callable[[str], int], groups: Iterable[QuotaGroup] = ()
    ) -> None:
        """`amounts` by key, of single cards and of claims; a key may repeat. `groups`: as of `reachable_sum`."""
        self._limit = limit
        self._groups = tuple(groups)
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
        free = reachable_sum(
            {card: self._free(card) for card in cards}, [(one, self._room(one)) for one in self._groups]
        )
        return Overdraft(cards, used + claimed, used + free)

    def _free(self, card: str) -> int:
        return max(0, self._limit(card) - self._used.get(card, 0))

    def _room(self, group: QuotaGroup) -> int:
        return max(0, group.limit - sum([self._used.get(card, 0) for card in group.cards]))

    def _unmet(self) -> list[Cards]:
        """A maximum flow along shortest augmenting paths; the cards that each unmet claim reaches then."""
        flow = CardFlow(
            {card: self._free(card) for card in frozenset[str]().union(*self._claims)},
            {group: self._room(group) for group in self._groups},
        )
        cuts = []
        for claim, amount in self._claims.items():
            reached = flow.send(claim, amount)
            if reached is not None:
                cuts.append(reached)  # later flows never leave it
        return cuts


class QueueUsage:
    """Allocated and reserved amounts of a queue at one moment, beside its limits."""

    def __init__(
        self, queue: str, used: ChargeSum, limit: Callable[[str], int], groups: Sequence[QuotaGroup] = ()
    ) -> None:
        """`limit`: the limit of a key; `groups`: as of `reachable_sum`."""
        self.queue = queue
        self.used = used
        self.limit = limit
        self.groups = groups
        self._has_claims = "|" in " ".join(used)

    @cached_property
    def content(self) -> tuple[object, ...]:
        return self.queue, *sorted(self.used.items())

    def shortage(self, need: ChargeSum, *, same_card: bool) -> QuotaShortage | None:
        """The first requested key, in sorted order, that does not fit together with all others of the queue.

        Alternatives of a claim add up, except with `same_card`.
        """
        limit, used = self.limit, self.used
        if self._fits_by_key(need):
            return None
        requests = {key: amount for key, amount in need.items() if amount > 0}
        joint = self._has_claims or any("|" in key for key in requests)
        admission: MultiCardAdmission | None = None
        for key in sorted(requests):
            requested, alternatives = requests[key], alternatives_of(key)
            total = used[key] + requested
            if len(alternatives) == 1 and total > limit(key):
                return self._short(Figures(key, requested, total, limit(key)))
            beyond = self._beyond_groups(alternatives, requests)
            if beyond is not None:
                return self._short(beyond)
            if len(alternatives) == 1:
                if not joint:
                    continue
            elif same_card:
                options = tuple(
                    Figures(card, requested, used[card] + requests.get(card, 0) + requested, limit(card))
                    for card in alternatives
                )
                if all(
                    option.total > option.limit or self._fills_group(option.resource, key, requests)
                    for option in options
                ):  # reported with the figures of the last one
                    return self._short(Figures(key, requested, options[-1].total, options[-1].limit), options)
            if admission is None:
                admission = MultiCardAdmission((*used.items(), *requests.items()), limit, self.groups)
            found = admission.overdraft(alternatives)
            if found is not None:
                options = tuple(
                    Figures(card, requested, used[card] + requests.get(card, 0), limit(card))
                    for card in sorted(found.cards)
                )
                return self._short(Figures(key, requested, found.total, found.limit), options)
        return None

    def _fits_by_key(self, need: ChargeSum) -> bool:
        """Whether a need without claims fits beside usage without claims: most needs do."""
        if self._has_claims:
            return False
        limit, used = self.limit, self.used
        for key, amount in need.items():
            if "|" in key or (amount > 0 and used.get(key, 0) + amount > limit(key)):
                return False
        return all(self._beyond(group, need) is None for group in self.groups)

    def _beyond_groups(self, alternatives: Iterable[str], requests: Mapping[str, int]) -> Figures | None:
        """`_beyond` of the first group with all of some cards."""
        found = (self._beyond(group, requests) for group in self.groups if group.cards.issuperset(alternatives))
        return next(filter(None, found), None)

    def _beyond(self, group: QuotaGroup, requests: Mapping[str, int]) -> Figures | None:
        """The figures of a group whose limit the requests that only its cards meet exceed; None within it."""
        requested = sum_of(requests, group)
        total = sum_of(self.used, group) + requested
        return Figures(group.key, requested, total, group.limit) if requested > 0 and total > group.limit else None

    def _fills_group(self, card: str, key: str, requests: Mapping[str, int]) -> bool:
        """Whether a claim `key` that one card meets exceeds the limit of a group with the card."""
        others = {other: amount for other, amount in requests.items() if other != key}
        return any(
            sum_of(self.used, group) + sum_of(others, group) + requests[key] > group.limit
            for group in self.groups
            if card in group.cards
        )

    def _short(self, figures: Figures, alternatives: tuple[Figures, ...] = ()) -> QuotaShortage:
        return QuotaShortage([figures.resource], figures, self.queue, alternatives)
