"""States of nodes as numbers, and the result of every request on a node of a state.

The state of a node is the states of its cards, one tuple per kind of devices. Equal states are one number, so that a
request is evaluated once for all nodes that are alike, whichever pods brought them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from capcard_sched.plugins.deviceshare.card_columns import CardColumns, CardModels
from capcard_sched.plugins.deviceshare.device_choice import NoChoice
from capcard_sched.plugins.deviceshare.share_choice import one_of_each
from capcard_sched.plugins.deviceshare.shared_card import Cause

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from capcard_sched.plugins.deviceshare.card_columns import CardBatch
    from capcard_sched.plugins.deviceshare.card_ledger import Cards, Shares
    from capcard_sched.plugins.deviceshare.device_type import DeviceType
    from capcard_sched.plugins.deviceshare.share_choice import ShareChooser

    #: By kind of devices; None if the node has none of the kind.
    NodeCards: TypeAlias = tuple[Cards | None, ...]
    #: By kind of devices; None if the pod requests none.
    Requests: TypeAlias = tuple[Any | None, ...]

#: The state of no node: a pod did not fit.
NO_STATE: Final = -1
_FIRST_ROOM = 1024
#: Entries of scores that take as much memory as one result.
_SCORES_PER_RESULT = 64
#: States at once from which arrays are faster; below it, single results are kept for placements.
_MANY = 16
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
        self._models = CardModels()
        #: By kind of devices.
        self._columns: dict[int, CardColumns] = {}

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

    def columns(self, kind: int) -> CardColumns:
        """The cards of one kind of devices; its places are numbers less `first`."""
        found = self._columns.get(kind)
        if found is None:
            found = self._columns[kind] = CardColumns(self._cards, kind, self._models)
        return found


class CardChanges(NamedTuple):
    """The card of each node that one more pod changes."""

    #: Index of the kind of devices.
    kind: int
    #: Whether the node takes the pod; the cards of the others do not count: bool [k].
    fits: npt.NDArray[np.bool_]
    before: CardBatch
    after: CardBatch


class RequestResults:
    """Results of the requests of one class of pods, by state; computed on first use."""

    def __init__(self, types: Sequence[DeviceType], requests: Requests, states: DeviceStates) -> None:
        self._types = types
        self.requests = requests
        asked = [(kind, request) for kind, request in zip(types, requests, strict=True) if request is not None]
        #: Whether nodes of equal cards may have different results, and whether other pods of the PodGroup decide.
        self.is_bound_to_cards = any(kind.is_bound_to_cards(request) for kind, request in asked)
        self.spreads_group = any(kind.spreads_group(request) for kind, request in asked)
        #: The kind of devices that alone is requested, if it chooses for many nodes at once.
        self._only: tuple[int, ShareChooser] | None = None
        if len(asked) == 1 and (chooser := asked[0][0].chooser(asked[0][1])) is not None:
            self._only = types.index(asked[0][0]), chooser
        self._states = states
        self._results: dict[int, DeviceResult] = {}
        #: Scores by state from `first` on, NaN where not known; the last entry is that of NO_STATE.
        self._scores: npt.NDArray[np.float64] = np.full(_FIRST_ROOM, np.nan)
        self._scores[NO_STATE] = _NEVER
        #: Reasons of refusals by state, as places in `_texts`; -1 where not known: int64 [states].
        self._reasons: npt.NDArray[np.int64] = np.full(0, -1, dtype=np.int64)
        self._texts: dict[str, int] = {}
        #: Whether they were read since results were dropped.
        self.is_used = True

    def __len__(self) -> int:
        """What they keep, in results."""
        return len(self._results) + (len(self._scores) + len(self._reasons)) // _SCORES_PER_RESULT

    def scores(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Scores of states, -inf where the pod does not fit: float64 [k]."""
        if len(self._states) >= len(self._scores):
            grown = np.full(2 * len(self._states) + 1, np.nan)
            grown[: len(self._scores) - 1] = self._scores[:-1]
            grown[NO_STATE] = _NEVER
            self._scores = grown
        places = np.maximum(numbers - self._states.first, NO_STATE)
        found = self._scores.take(places)
        unknown = np.isnan(found)
        if unknown.any():
            self._score(np.bincount(places[unknown]).nonzero()[0])
            found = self._scores.take(places)
        return found

    def _score(self, places: npt.NDArray[np.int64]) -> None:
        first = self._states.first
        if self._only is not None and len(places) >= _MANY:
            index, chooser = self._only
            plain, cards = self._states.columns(index).of(places)
            self._scores[places[plain]] = self._types[index].weighted_many(chooser.choose(cards).scores[plain])
            places = places[~plain]
        for place in places.tolist():
            self._scores[place] = self.in_state(place + first).score

    def reasons(self, numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], list[str]]:
        """Why the pod does not fit in these states: indexes of texts, int64 [k], and the texts. It fits in none."""
        if len(self._reasons) < len(self._states):
            more = 2 * len(self._states) - len(self._reasons)
            self._reasons = np.concatenate([self._reasons, np.full(more, -1, dtype=np.int64)])
        places = numbers - self._states.first
        unknown = places[self._reasons.take(places) < 0]
        if len(unknown):
            self._explain(np.bincount(unknown).nonzero()[0])
        return self._reasons.take(places), list(self._texts)

    def _explain(self, places: npt.NDArray[np.int64]) -> None:
        first, texts = self._states.first, self._texts
        if self._only is not None and len(places) >= _MANY:
            index, chooser = self._only
            plain, cards = self._states.columns(index).of(places)
            causes, kind = chooser.causes(cards)[plain], self._types[index]
            of_cause = [texts.setdefault(kind.refusal(NoChoice(cause, {})), len(texts)) for cause in Cause]
            self._reasons[places[plain]] = np.array(of_cause, dtype=np.int64).take(causes)
            places = places[~plain]
        for place in places.tolist():
            reason = self.in_state(place + first).reason
            self._reasons[place] = texts.setdefault(reason, len(texts))

    def changes(self, numbers: npt.NDArray[np.int64]) -> CardChanges | None:
        """The card of each state that the pod gets; None where it may get several, or a part cut by MIG."""
        if self._only is None:
            return None
        index, chooser = self._only
        known = numbers >= self._states.first
        plain, cards = self._states.columns(index).of(numbers[known] - self._states.first)
        if not known.all() or not plain.all():
            return None
        choice = chooser.choose(cards)
        before = one_of_each(cards, choice.card)
        return CardChanges(index, choice.fits, before, chooser.after(before))

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
