"""States of nodes as numbers, and what every request gets on a node of a state.

The state of a node is the states of its cards, one tuple per kind of devices. Equal states are one number, so that a
request is answered once for all nodes that are alike, whichever pods brought them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from capcard_sched.plugins.deviceshare.device_choice import NoChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from capcard_sched.plugins.deviceshare.card_ledger import Cards, Shares
    from capcard_sched.plugins.deviceshare.device_type import DeviceType

    #: By kind of devices; None where the node has none of the kind.
    NodeCards: TypeAlias = tuple[Cards | None, ...]
    #: By kind of devices; None where nothing is asked of it.
    Requests: TypeAlias = tuple[Any | None, ...]

#: The state of no node: a pod did not fit.
NO_STATE: Final = -1
_FIRST_ROOM = 1024
_NEVER = float("-inf")


class DeviceResult(NamedTuple):
    """What a request gets on a node of one state."""

    #: Shares by kind of devices; empty where nothing is asked.
    shares: tuple[Shares, ...]
    #: -inf when the node does not take the pod.
    score: float
    #: Why not, "" when it does.
    reason: str
    #: The state afterwards, NO_STATE when the node does not take the pod.
    after: int


class DeviceStates:
    """Numbers of the states that were met."""

    def __init__(self) -> None:
        self._numbers: dict[NodeCards, int] = {}
        self.cards: list[NodeCards] = []

    def __len__(self) -> int:
        return len(self.cards)

    def number(self, cards: NodeCards) -> int:
        """The number of a state."""
        found = self._numbers.setdefault(cards, len(self.cards))
        if found == len(self.cards):
            self.cards.append(cards)
        return found


class RequestAnswers:
    """Answers to the requests of one class of pods, by state; worked out when first asked for."""

    def __init__(self, types: Sequence[DeviceType], requests: Requests, states: DeviceStates) -> None:
        self._types = types
        self.requests = requests
        self._states = states
        self._answers: dict[int, DeviceResult] = {}
        #: Scores by state, NaN where not known; the last entry is that of NO_STATE.
        self._scores: npt.NDArray[np.float64] = np.full(_FIRST_ROOM, np.nan)
        self._scores[NO_STATE] = _NEVER

    def scores(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Scores of states, -inf where the pod does not fit: float64 [k]."""
        if len(self._states) >= len(self._scores):
            grown = np.full(2 * len(self._states) + 1, np.nan)
            grown[: len(self._scores) - 1] = self._scores[:-1]
            grown[NO_STATE] = _NEVER
            self._scores = grown
        found = self._scores.take(numbers)
        if np.isnan(found).any():
            for number in set(numbers[np.isnan(found)].tolist()):
                self._scores[number] = self.answer(number).score
            found = self._scores.take(numbers)
        return found

    def answer(self, number: int) -> DeviceResult:
        """The answer in a state."""
        found = self._answers.get(number)
        if found is None:
            found = self._answers[number] = answer(self._types, self.requests, self._states.cards[number], self._states)
        return found


def answer(
    types: Sequence[DeviceType],
    requests: Requests,
    cards: NodeCards,
    states: DeviceStates,
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
            return DeviceResult((), _NEVER, kind.missing, NO_STATE)
        found = kind.choose(own, request, closed[index] if closed else {})
        if isinstance(found, NoChoice):
            return DeviceResult((), _NEVER, kind.refusal(found), NO_STATE)
        after[index], shares[index] = found.after, found.shares
        score += kind.weighted(found.score)
    return DeviceResult(tuple(shares), score, "", states.number(tuple(after)))
