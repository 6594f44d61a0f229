"""One vGPU request for one share beside the cards of many nodes, in columns: `choose_cards` for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.plugins.deviceshare.card_columns import NO_CARD, CardBatch
from capcard_sched.plugins.deviceshare.device_choice import BINPACK, FULL, SPREAD
from capcard_sched.plugins.deviceshare.shared_card import ALL_CORES, Cause

if TYPE_CHECKING:
    import numpy.typing as npt

    from capcard_sched.plugins.deviceshare.vgpu_request import Share, VgpuRequest

    Integers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_CAUSES: Final = {cause: number for number, cause in enumerate(Cause)}
_NEVER: Final = float("-inf")
_LEAST: Final = np.iinfo(np.int64).min


class ShareChoice(NamedTuple):
    """The card that each node gives, if any."""

    #: bool [k].
    fits: Flags
    #: Of the card on its node; of a node that does not take the pod, any: int64 [k].
    card: Integers
    #: Before rounding, -inf where the pod does not fit: float64 [k].
    scores: npt.NDArray[np.float64]


class ShareChooser:
    """The results to a request on cards that are not cut by MIG."""

    def __init__(self, request: VgpuRequest, share: Share, policy: str) -> None:
        self._share = share
        self._mode = request.mode
        self._policy = policy

    @classmethod
    def of(cls, request: VgpuRequest, policy: str) -> ShareChooser | None:
        """None for a request that names no amounts, or more than one card."""
        wanted = [each for each in request.containers if each is not None]
        if request.problem or len(wanted) != 1 or wanted[0].number != 1:
            return None
        return cls(request, wanted[0].share, policy)

    def choose(self, cards: CardBatch) -> ShareChoice:
        """The choice of every node. `cards`: [k, cards]."""
        given = self._causes(cards) < 0
        fits: Flags = np.logical_or.reduce(given, axis=1)
        reverse = given[:, ::-1]  # ties go to the highest index
        order = {BINPACK: cards.used, SPREAD: -cards.number}.get(self._policy, np.zeros_like(cards.used))
        key = np.where(reverse, order[:, ::-1], _LEAST)
        card: Integers = given.shape[1] - 1 - key.argmax(axis=1)
        after = self.after(one_of_each(cards, card))
        scores = np.zeros(len(fits))
        if self._policy == BINPACK:
            memory = cards.models.memory.take(after.model)
            scores = FULL * after.used / np.where(memory > 0, memory, 1)
        elif self._policy == SPREAD:
            scores = np.where(after.number == 1, FULL, 0.0)
        return ShareChoice(fits, card, np.where(fits, scores, _NEVER))

    def causes(self, cards: CardBatch) -> Integers:
        """Why nodes refuse the pod, as indexes in `Cause`: int64 [k]; only for nodes that do not take it."""
        causes, usable = self._causes(cards), self._usable(cards)
        counts = np.stack([(usable & (causes == number)).sum(axis=1) for number in range(len(_CAUSES))], axis=1)
        found: Integers = counts.argmax(axis=1)
        healthy = (usable & cards.models.healthy.take(cards.model)).any(axis=1)
        found[~healthy] = _CAUSES[Cause.CARDS]
        if self._mode:
            found[~usable.any(axis=1)] = _CAUSES[Cause.MODE]
        return found

    def after(self, cards: CardBatch) -> CardBatch:
        """Single cards with the share: [k]."""
        share = self._share
        number, used, cores = cards.number + 1, cards.used + self._need(cards), cards.cores + share.cores
        return CardBatch(cards.models, cards.model, number, used, cores)

    def _need(self, cards: CardBatch) -> Integers:
        """Units by card."""
        share = self._share
        return np.array([share.memory_on(memory) for memory in cards.models.memory.tolist()]).take(cards.model)

    def _usable(self, cards: CardBatch) -> Flags:
        """The cards of the requested mode."""
        models, mode = cards.models.known, self._mode
        of_mode = [number != NO_CARD and (not mode or model.mode == mode) for number, model in enumerate(models)]
        found: Flags = np.array(of_mode).take(cards.model)
        return found

    def _causes(self, cards: CardBatch) -> Integers:
        """The first condition that a card does not meet, as index in `Cause`, -1 for none: the shape of `cards`."""
        share, models = self._share, cards.models
        accepts = np.array([share.accepts(model.type) for model in models.known]).take(cards.model)
        left = models.memory.take(cards.model) - cards.used
        conditions = [
            (Cause.UNHEALTHY, ~models.healthy.take(cards.model)),
            (Cause.SLOTS, cards.number >= models.slots.take(cards.model)),
            (Cause.MEMORY, self._need(cards) > left),
            (Cause.CORES, cards.cores + share.cores > ALL_CORES),
        ]
        if share.cores == ALL_CORES:
            conditions.append((Cause.EXCLUSIVE, cards.number > 0))
        if not share.cores:
            conditions.append((Cause.CORES, cards.cores == ALL_CORES))
        conditions.append((Cause.TYPE, ~accepts))
        found: Integers = np.where(self._usable(cards), -1, _CAUSES[Cause.MODE])
        for cause, refused in reversed(conditions):
            found[refused] = _CAUSES[cause]
        return found


def one_of_each(cards: CardBatch, card: Integers) -> CardBatch:
    """One card of each node: [k]. `cards`: [k, cards]; `card`: int64 [k]."""
    rows = np.arange(len(card))
    return CardBatch(cards.models, *(column[rows, card] for column in cards[1:]))
