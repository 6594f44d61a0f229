"""Many vGPU requests beside one card, in columns: which of them it has a share for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.model.card_registration import MIG
from capcard_sched.plugins.deviceshare.shared_card import ALL_CORES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from capcard_sched.plugins.deviceshare.card_columns import CardBatch
    from capcard_sched.plugins.deviceshare.shared_card import CardModel, SharedCard
    from capcard_sched.plugins.deviceshare.vgpu_request import Share, VgpuRequest

    Integers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


class ShareTable:
    """`SharedCard.try_take` for the shares of many requests at once, without the cards afterwards."""

    def __init__(self, requests: Sequence[VgpuRequest | None]) -> None:
        numbers: dict[Share, int] = {}
        pairs = [
            (entry, numbers.setdefault(wanted.share, len(numbers)))
            for entry, request in enumerate(requests)
            for wanted in (() if request is None else request.containers)
            if wanted is not None
        ]
        self._count = len(requests)
        self._shares = list(numbers)
        #: Entry of a request and number of one of its shares: intp [pairs].
        self._entries = np.array([entry for entry, _ in pairs], dtype=np.intp)
        self._places = np.array([number for _, number in pairs], dtype=np.intp)
        self._cores: Integers = np.array([share.cores for share in self._shares], dtype=np.int64)
        #: Units by share on a card of a model, and the shares that accept its type.
        self._by_model: dict[CardModel, tuple[Integers, Flags]] = {}

    def fits(self, card: SharedCard) -> Flags:
        """Whether the card has one of the shares of each request: bool [requests]."""
        found: Flags = np.zeros(self._count, dtype=bool)
        if card.model.healthy and card.use.number < card.model.slots:
            given = self._given(card)
            found[self._entries[given.take(self._places)]] = True
        return found

    def fit_many(self, cards: CardBatch) -> Flags:
        """The same for many cards that are not cut by MIG: bool [k, requests]."""
        models, used = cards.models, np.bincount(cards.model).nonzero()[0]
        need: Integers = np.zeros((len(models.known), len(self._shares)), dtype=np.int64)
        given: Flags = np.zeros(need.shape, dtype=bool)
        for number in used.tolist():
            need[number], given[number] = self._of_model(models.known[number])
        given = given.take(cards.model, axis=0)
        given &= cards.takes_any[:, None]
        given &= need.take(cards.model, axis=0) <= (models.memory.take(cards.model) - cards.used)[:, None]
        given &= self._cores <= (ALL_CORES - cards.cores)[:, None]
        given &= (self._cores != ALL_CORES) | (cards.number == 0)[:, None]
        given &= (self._cores != 0) | (cards.cores != ALL_CORES)[:, None]
        found: Flags = np.zeros((len(cards.model), self._count), dtype=bool)
        if len(self._entries):
            first = np.flatnonzero(np.diff(self._entries, prepend=-1))
            found[:, self._entries[first]] = np.logical_or.reduceat(given.take(self._places, axis=1), first, axis=1)
        return found

    def _given(self, card: SharedCard) -> Flags:
        model, use = card.model, card.use
        need, given = self._of_model(model)
        given = given & (need <= model.memory - card.used_memory)
        given &= self._cores <= ALL_CORES - use.cores
        if use.number:
            given &= self._cores != ALL_CORES
        if use.cores == ALL_CORES:
            given &= self._cores != 0
        if model.mode == MIG:
            for place in given.nonzero()[0].tolist():
                whole = self._shares[place].is_whole
                given[place] = card.find_slice(int(need[place]), whole=whole) is not None
        return given

    def _of_model(self, model: CardModel) -> tuple[Integers, Flags]:
        found = self._by_model.get(model)
        if found is None:
            need = np.array([share.memory_on(model.memory) for share in self._shares], dtype=np.int64)
            accepts = np.array([share.accepts(model.type) for share in self._shares], dtype=bool)
            found = self._by_model[model] = need, accepts
        return found
