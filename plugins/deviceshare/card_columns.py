"""Cards in columns: those of many states of nodes, and many single ones.

A pod of a size of its own has no result in any state. Its result in all of them is a few operations on arrays here,
where `choose_cards` and `SharedCard.try_take` work out one state and one card after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.model.card_registration import MIG
from capcard_sched.plugins.deviceshare.shared_card import CardModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from capcard_sched.plugins.deviceshare.card_ledger import Cards

    Integers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

#: The model in place of a card where a node has fewer than the others. It takes no share.
NO_CARD: Final = 0
_ABSENT: Final = CardModel(0, 0, "", healthy=False)
_FIRST_ROOM: Final = 256
#: Above every amount of a card, with space for sums in a column.
_MOST_USED: Final = 1 << 60


class CardModels:
    """Models of cards by number, in columns; numbers stay as models are added."""

    def __init__(self) -> None:
        #: By number.
        self.known: list[CardModel] = []
        self._numbers: dict[CardModel, int] = {}
        #: int64, bool [models].
        self.slots: Integers
        self.memory: Integers
        self.healthy: Flags
        self.is_mig: Flags
        self.number(_ABSENT)

    def number(self, model: CardModel) -> int:
        found = self._numbers.setdefault(model, len(self.known))
        if found == len(self.known):
            self.known.append(model)
            self.slots = np.array([each.slots for each in self.known], dtype=np.int64)
            self.memory = np.array([each.memory for each in self.known], dtype=np.int64)
            self.healthy = np.array([each.healthy for each in self.known], dtype=bool)
            self.is_mig = np.array([each.mode == MIG for each in self.known], dtype=bool)
        return found


class CardBatch(NamedTuple):
    """Many cards: arrays of one shape."""

    models: CardModels
    #: Number of the model.
    model: Integers
    #: As in `CardUsage`, but for `used`: `SharedCard.used_memory`.
    number: Integers
    used: Integers
    cores: Integers

    @property
    def takes_any(self) -> Flags:
        """Whether the card is healthy and has a slot left."""
        models = self.models
        found: Flags = models.healthy.take(self.model) & (self.number < models.slots.take(self.model))
        return found


class CardColumns:
    """The cards of one kind of devices by state, one row per state; filled on first use."""

    def __init__(self, states: Sequence[tuple[Cards | None, ...]], kind: int, models: CardModels) -> None:
        """`states`: by place, the cards of each kind; it may grow."""
        self._states = states
        self._kind = kind
        self._models = models
        self._is_known: Flags = np.zeros(_FIRST_ROOM, dtype=bool)
        #: Whether a state has cards of the kind, and none that is cut by MIG: bool [states].
        self._is_plain: Flags = np.zeros(_FIRST_ROOM, dtype=bool)
        #: Model, number, used memory and cores of every card: int64 [states, 4, cards].
        self._cards: Integers = np.zeros((_FIRST_ROOM, 4, 1), dtype=np.int64)

    def of(self, places: Integers) -> tuple[Flags, CardBatch]:
        """Which of these states have cards, none of them cut by MIG; the cards of the others do not count.

        bool [k]; arrays of the batch are [k, cards], with NO_CARD where a node has fewer.
        """
        if len(self._states) > len(self._is_known):
            self._grow(2 * len(self._states))
        for place in places[~self._is_known.take(places)].tolist():
            self._fill(place)
        model, number, used, cores = self._cards.take(places, axis=0).transpose(1, 0, 2)
        return self._is_plain.take(places), CardBatch(self._models, model, number, used, cores)

    def _grow(self, size: int) -> None:
        more = size - len(self._is_known)
        self._is_known = np.concatenate([self._is_known, np.zeros(more, dtype=bool)])
        self._is_plain = np.concatenate([self._is_plain, np.zeros(more, dtype=bool)])
        self._cards = np.concatenate([self._cards, np.zeros((more, *self._cards.shape[1:]), dtype=np.int64)])

    def _fill(self, place: int) -> None:
        cards: Cards | None = self._states[place][self._kind]
        self._is_known[place] = True
        if not cards:
            return
        missing = len(cards) - self._cards.shape[2]
        if missing > 0:
            self._cards = np.pad(self._cards, ((0, 0), (0, 0), (0, missing)))
        models: list[int] = []
        for last, card in zip((None, *cards), cards, strict=False):  # most nodes have cards of one model
            is_same = last is not None and card.model is last.model
            models.append(models[-1] if is_same else self._models.number(card.model))
        uses = [(card.use.number, card.used_memory, card.use.cores) for card in cards]
        if max(map(max, uses)) > _MOST_USED:  # by annotations of bound pods: the card is full anyway
            uses = [
                (min(number, _MOST_USED), min(used, _MOST_USED), min(cores, _MOST_USED)) for number, used, cores in uses
            ]
        self._cards[place, 0, : len(cards)] = models
        self._cards[place, 1:, : len(cards)] = np.array(uses, dtype=np.int64).T
        self._is_plain[place] = not self._models.is_mig.take(models).any()
