"""States of nodes as numbers, and the result of every request on a node of a state.

The state of a node is the states of its cards, one tuple per kind of devices. Equal states are one number, so that a
request is evaluated once for all nodes that are alike, whichever pods brought them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from capcard_sched.plugins.deviceshare.device_choice import NoChoice

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from capcard_sched.plugins.deviceshare.card_ledger import Cards, Shares
    from capcard_sched.plugins.deviceshare.device_type import DeviceType

    #: By kind of devices; None if the node has none of the kind.
    NodeCards: TypeAlias = tuple[Cards | None, ...]
    #: By kind of devices; None if the pod requests none.
    Requests: TypeAlias = tuple[Any | None, ...]

#: The state of no node: a pod did not fit.
NO_STATE: Final = -1
_FIRST_ROOM = 1024
#: Entries of scores that take as much memory as one result.
_SCORES_PER_RESULT = 64
_NEVER = float("-inf")


class DeviceResult(NamedTuple):
    """What a request gets on a node of one state."""

    #: Shares by kind of devices; empty where the pod requests none.
    shares: tuple[Shares, ...]
    #: -inf when the node does not take the pod.
    score: float
    #: Why not, "" when it does.
    reason: str
    #: The cards afterwards, None when the node does not take the pod.
    after: NodeCards | None


class DeviceStates:
    """Numbers of the states that were met."""

    def __init__(self, first: int = 0) -> None:
        """`first`: the lowest number. Numbers of earlier states stay unused: node classes remember them."""
        self.first = first
        self._numbers: dict[NodeCards, int] = {}
        self._cards: list[NodeCards] = []

    def __len__(self) -> int:
        return len(self._cards)

    def number(self, cards: NodeCards) -> int:
        """The number of a state."""
        following = self.first + len(self._cards)
        found = self._numbers.setdefault(cards, following)
        if found == following:
            self._cards.append(cards)
        return found

    def cards_of(self, number: int) -> NodeCards | None:
        """The state of a number; None for NO_STATE and for a number from before `first`."""
        return self._cards[number - self.first] if number >= self.first else None


class RequestResults:
    """Results of the requests of one class of pods, by state; computed on first use."""

    def __init__(self, types: Sequence[DeviceType], requests: Requests, states: DeviceStates) -> None:
        self._types = types
        self.requests = requests
        asked = [(kind, request) for kind, request in zip(types, requests, strict=True) if request is not None]
        #: Whether nodes of equal cards may have different results, and whether other pods of the PodGroup decide.
        self.is_bound_to_cards = any(kind.is_bound_to_cards(request) for kind, request in asked)
        self.spreads_group = any(kind.spreads_group(request) for kind, request in asked)
        self._states = states
        self._results: dict[int, DeviceResult] = {}
        #: Scores by state from `first` on, NaN where not known; the last entry is that of NO_STATE.
        self._scores: npt.NDArray[np.float64] = np.full(_FIRST_ROOM, np.nan)
        self._scores[NO_STATE] = _NEVER
        #: Whether they were read since results were dropped.
        self.is_used = True

    def __len__(self) -> int:
        """What they keep, in results."""
        return len(self._results) + len(self._scores) // _SCORES_PER_RESULT

    def scores(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Scores of states, -inf where the pod does not fit: float64 [k]."""
        if len(self._states) >= len(self._scores):
            grown = np.full(2 * len(self._states) + 1, np.nan)
            grown[: len(self._scores) - 1] = self._scores[:-1]
            grown[NO_STATE] = _NEVER
            self._scores = grown
        places = np.maximum(numbers - self._states.first, NO_STATE)
        found = self._scores.take(places)
        if np.isnan(found).any():
            for place in set(places[np.isnan(found)].tolist()):
                self._scores[place] = self.in_state(place + self._states.first).score
            found = self._scores.take(places)
        return found

    def in_state(self, number: int) -> DeviceResult:
        """The result in a state."""
        found = self._results.get(number)
        if found is None:
            cards = self._states.cards_of(number)
            if cards is None:
                return _NO_RESULT
            found = self._results[number] = evaluate(self._types, self.requests, cards)
        return found

    def after(self, number: int) -> int:
        """The state after one more pod, NO_STATE when the node does not take it."""
        cards = self.in_state(number).after
        return NO_STATE if cards is None else self._states.number(cards)

    def after_many(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`after` of each: int64 [k]."""
        listed = numbers.tolist()
        found = {number: self.after(number) for number in set(listed)}
        return np.array([found[number] for number in listed], dtype=np.int64)

    def keep(self, numbers: Collection[int]) -> None:
        """Drop the results about all other states."""
        self._results = {number: self._results[number] for number in numbers if number in self._results}
        self.is_used = False


def evaluate(
    types: Sequence[DeviceType],
    requests: Requests,
    cards: NodeCards,
    closed: Sequence[Any] = (),
) -> DeviceResult:
    """What the requests get on a node with these cards. `closed`: by kind, the cards closed to this very pod."""
    after = list(cards)
    shares: list[Shares] = [()] * len(types)
    score = 0.0
    for index, (kind, request) in enumerate(zip(types, requests, strict=True)):
        if request is None:
            continue
        own = cards[index]
        if own is None:
            return DeviceResult((), _NEVER, kind.missing, None)
        found = kind.choose(own, request, closed[index] if closed else {})
        if isinstance(found, NoChoice):
            return DeviceResult((), _NEVER, kind.refusal(found), None)
        after[index], shares[index] = found.after, found.shares
        score += kind.weighted(found.score)
    return DeviceResult(tuple(shares), score, "", tuple(after))


_NO_RESULT: Final = DeviceResult((), _NEVER, "", None)
