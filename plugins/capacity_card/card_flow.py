"""Sums over cards within quotas of cards and of groups of cards, and flows of amounts through them.

Groups are nested or disjoint: with the cards they form a tree.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from capcard_sched.plugins.capacity_card.charge import alternatives_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.cards import QuotaGroup

    Cards = frozenset[str]
    #: A card, or a group of cards.
    _Node: TypeAlias = str | QuotaGroup
    #: Beside them a claim.
    _Source: TypeAlias = str | QuotaGroup | Cards


def sum_of(amounts: Mapping[str, int], group: QuotaGroup) -> int:
    """The sum of the keys whose alternatives are all cards of a group."""
    return sum(amount for key, amount in amounts.items() if group.cards.issuperset(alternatives_of(key)))


def reachable_sum(cards: Mapping[str, int], groups: Iterable[tuple[QuotaGroup, int]]) -> int:
    """The largest sum over cards with these limits, within those of groups (nested or disjoint, smaller first)."""
    parts: dict[frozenset[str], int] = {frozenset((card,)): limit for card, limit in cards.items()}
    for group, limit in groups:
        inside = [part for part in parts if part <= group.cards]
        if inside:
            total = sum([parts.pop(part) for part in inside])
            parts[frozenset().union(*inside)] = min(total, limit)
    return sum(parts.values())


class CardFlow:
    """Amounts that flow from claims through cards and the groups above them."""

    def __init__(self, cards: Mapping[str, int], groups: Mapping[QuotaGroup, int]) -> None:
        """The free quota of cards, and of groups, smaller ones first."""
        #: To a card the smallest group with it, to a group the next larger one; None at the top.
        self._above: dict[_Node, QuotaGroup | None] = {
            **{card: next((group for group in groups if card in group.cards), None) for card in cards},
            **{one: next((group for group in groups if one.cards < group.cards), None) for one in groups},
        }
        self._free: dict[_Node, int] = {}
        for free in (cards.items(), groups.items()):
            self._free.update(free)
        #: To a card the claims that hold some of it, to a group the cards and groups below it: with the amounts.
        self._held: dict[_Node, dict[_Source, int]] = {node: {} for node in self._above}

    def send(self, claim: Cards, amount: int) -> Cards | None:
        """Meets a claim; None, or the cards that it still reaches when some of it is left."""
        while amount:
            came: dict[_Source, _Source | None] = {claim: None}
            last = self._reach(claim, came)
            if last is None:
                return frozenset([node for node in came if isinstance(node, str)])
            path: list[_Source] = [last]
            while (before := came[path[-1]]) is not None:
                path.append(before)
            steps = list(pairwise(reversed(path)))
            step = min([amount, self._free[last], *(self._most(source, target) for source, target in steps)])
            for source, target in steps:
                self._move(source, target, step)
            self._free[last] -= step
            amount -= step
        return None

    def _reach(self, claim: Cards, came: dict[_Source, _Source | None]) -> _Node | None:
        """The first node with free quota at the top, in order of distance; `came` gets the node before each."""
        frontier: list[_Source] = [claim]
        for node in frontier:  # grows while it is read
            onward: list[_Source] = []
            if isinstance(node, frozenset):
                onward += sorted(node)
            else:
                if self._free[node]:
                    above = self._above[node]
                    if above is None:
                        return node
                    onward.append(above)
                onward += self._held[node]
            for other in onward:
                if other not in came:
                    came[other] = node
                    frontier.append(other)
        return None

    def _is_forward(self, source: _Source, target: _Source) -> bool:
        return isinstance(source, frozenset) or self._above[source] == target

    def _most(self, source: _Source, target: _Source) -> int:
        """What can move along one step: to a card or group above, or back from it."""
        if self._is_forward(source, target):
            return 2**63 if isinstance(source, frozenset) else self._free[source]
        assert not isinstance(source, frozenset)
        return self._held[source][target]

    def _move(self, source: _Source, target: _Source, amount: int) -> None:
        if self._is_forward(source, target):
            assert not isinstance(target, frozenset)
            self._held[target][source] = self._held[target].get(source, 0) + amount
            if not isinstance(source, frozenset):
                self._free[source] -= amount
            return
        assert not isinstance(source, frozenset)
        self._held[source][target] -= amount
        if not self._held[source][target]:
            del self._held[source][target]
        if not isinstance(target, frozenset):
            self._free[target] += amount
