"""Joint feasibility of claims and single cards within the quotas of a queue.

A claim `A|B` may be met by A, by B or by a mix. By Hall's theorem all claims can be met together exactly when, for
every union T of claim sets, the claims confined to T fit the free quota of T. Only connected unions (each set shares a
card with the rest) that touch the requested card can refuse it, so only these are examined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.plugins.capacity_card.charge import alternatives_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Cards = frozenset[str]

#: Unions of claim sets to enumerate. Beyond, a flow finds a violated union, which may not be the smallest.
MAX_UNIONS = 512


class Overdraft(NamedTuple):
    """A set of cards whose requests exceed its quota."""

    cards: frozenset[str]
    total: int
    limit: int


class MultiCardAdmission:
    """Used amounts of single cards, and claims, of one queue: allocated, reserved and requested.

    `limit` returns the quota of a card. Amounts are in thousandths.
    """

    def __init__(
        self,
        used: Mapping[str, int],
        claims: Iterable[tuple[Iterable[str], int]],
        limit: Callable[[str], int],
        *,
        base: MultiCardAdmission | None = None,
    ) -> None:
        self._used = used
        self._limit = limit
        merged: dict[Cards, int] = {}
        for alternatives, amount in claims:
            if amount > 0:
                cards = frozenset(alternatives)
                merged[cards] = merged.get(cards, 0) + amount
        #: Sorted: messages must not depend on the order of events.
        self._claims = {cards: merged[cards] for cards in sorted(merged, key=sorted)}
        self._base = base
        #: The set of cards of the single claim added to `base`.
        self._only: Cards = frozenset()
        self._greedy: bool | None = None

    @classmethod
    def of(cls, used: Mapping[str, int], limit: Callable[[str], int]) -> MultiCardAdmission:
        """From amounts by key, cards and claims together."""
        keys = {key: alternatives_of(key) for key in used}
        return cls(
            {key: amount for key, amount in used.items() if len(keys[key]) == 1},
            [(alternatives, used[key]) for key, alternatives in keys.items() if len(alternatives) > 1],
            limit,
        )

    @property
    def has_claims(self) -> bool:
        """Whether any claim names several cards."""
        return bool(self._claims)

    def with_more(self, requested: Mapping[str, int]) -> MultiCardAdmission:
        """These amounts plus the request of a job, by key."""
        used, claims = dict(self._used), list(self._claims.items())
        for key, amount in requested.items():
            alternatives = alternatives_of(key)
            if len(alternatives) == 1:
                used[key] = used.get(key, 0) + amount
            else:
                claims.append((frozenset(alternatives), amount))
        more = MultiCardAdmission(used, claims, self._limit, base=self)
        if len(requested) == 1 and len(claims) > len(self._claims):
            more._only = claims[-1][0]
        return more

    def overdraft(self, touching: Iterable[str]) -> Overdraft | None:
        """The smallest set of cards touching one of `touching` whose requests exceed its quota, or None."""
        if self.fits_greedily:
            return None
        requested = frozenset(touching)
        if self._base is not None and self._base.fits_greedily:
            # Without the job all claims can be met: an exceeded set contains the one claim of the job.
            found = self._weigh(requested)
            if found.total > found.limit and requested == self._only:
                return found
        unions = self._unions(requested)
        for cards in sorted(unions, key=lambda cards: (len(cards), sorted(cards))):
            found = self._weigh(cards)
            if found.total > found.limit:
                return found
        if len(unions) >= MAX_UNIONS:
            return self._overdraft_by_flow(requested)
        return None

    @property
    def fits_greedily(self) -> bool:
        """Whether a greedy assignment meets all claims. False proves nothing."""
        if self._greedy is None:
            self._greedy = self._fits_greedily()
        return self._greedy

    def _fits_greedily(self) -> bool:
        """Assign each claim to its cards, most free quota first. O(claims x cards)."""
        free: dict[str, int] = {}
        for cards, amount in self._claims.items():
            for card in cards:
                if card not in free:
                    free[card] = max(0, self._limit(card) - self._used.get(card, 0))
            left = amount
            for card in sorted(cards, key=lambda card: (-free[card], card)):
                taken = min(left, free[card])
                free[card] -= taken
                left -= taken
            if left:
                return False
        return True

    def _weigh(self, cards: Cards) -> Overdraft:
        # min(): a card above its quota must not reduce the free quota of other cards.
        used = sum(min(self._used.get(card, 0), self._limit(card)) for card in cards)
        claimed = sum(amount for alternatives, amount in self._claims.items() if alternatives <= cards)
        return Overdraft(cards, used + claimed, sum(self._limit(card) for card in cards))

    def _unions(self, touching: Cards) -> set[Cards]:
        """Connected unions of claim sets around `touching`, at most MAX_UNIONS."""
        queue = [cards for cards in self._claims if cards & touching]
        found = set(queue)
        for union in queue:  # grows while it is read
            for cards in self._claims:
                wider = union | cards
                if cards & union and wider not in found:
                    if len(found) >= MAX_UNIONS:
                        return found
                    found.add(wider)
                    queue.append(wider)
        return found

    def _overdraft_by_flow(self, touching: Cards) -> Overdraft | None:
        """A violated set by assigning claims to free cards along augmenting paths. Polynomial in sets and cards."""
        component = self._component(touching)
        claims = {cards: amount for cards, amount in self._claims.items() if cards <= component}
        free = {card: max(0, self._limit(card) - self._used.get(card, 0)) for card in component}
        given: dict[tuple[Cards, str], int] = {}
        for cards, amount in claims.items():
            left = amount
            while left:
                path, reached = _augmenting_path(cards, claims, given, free)
                if not path and touching & reached:
                    return self._weigh(frozenset(reached))
                if not path:
                    break  # the violated union does not touch the requested card
                step = min(left, free[path[-1][1]], *(given[moved] for moved in _moved_along(path)))
                for taken in path:
                    given[taken] = given.get(taken, 0) + step
                for moved in _moved_along(path):
                    given[moved] -= step
                free[path[-1][1]] -= step
                left -= step
        return None

    def _component(self, touching: Cards) -> Cards:
        reached = touching
        while True:
            wider = reached.union(*(cards for cards in self._claims if cards & reached))
            if wider == reached:
                return reached
            reached = wider


def _moved_along(path: list[tuple[Cards, str]]) -> list[tuple[Cards, str]]:
    """The assignments that move along a path: each later claim releases the card that the one before it gets."""
    return [(path[i + 1][0], path[i][1]) for i in range(len(path) - 1)]


def _augmenting_path(
    start: Cards, claims: Mapping[Cards, int], given: Mapping[tuple[Cards, str], int], free: Mapping[str, int]
) -> tuple[list[tuple[Cards, str]], set[str]]:
    """(claim, card) steps from `start` to a card with free quota, or none; and the cards reached."""
    predecessors: dict[str, tuple[Cards, str | None]] = {}
    frontier: list[tuple[Cards, str | None]] = [(start, None)]
    seen = {start}
    for claim, through in frontier:  # grows while it is read
        for card in sorted(claim):
            if card in predecessors:
                continue
            predecessors[card] = (claim, through)
            if free[card]:
                path = []
                step: str | None = card
                while step is not None:
                    owner, previous = predecessors[step]
                    path.append((owner, step))
                    step = previous
                return path[::-1], set(predecessors)
            for other in claims:
                if other not in seen and given.get((other, card), 0):
                    seen.add(other)
                    frontier.append((other, card))
    return [], set(predecessors)
