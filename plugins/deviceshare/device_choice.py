"""Filter, score and choice of cards: one function, so that a node that passes always allocates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.plugins.deviceshare.shared_card import Booking, Cause, SharedCard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.plugins.deviceshare.vgpu_request import ContainerRequest, VgpuRequest

BINPACK: Final = "binpack"
SPREAD: Final = "spread"

#: The score of a card that is full.
FULL: Final = 100.0
_NO_CARDS_CLOSED: Mapping[int, Cause] = {}
_CAUSES = tuple(Cause)


class ChosenShare(NamedTuple):
    """A share of one card for one container."""

    container: int
    #: Index on the node.
    card: int
    #: Requested units on that card.
    memory: int
    booking: Booking


class DeviceChoice(NamedTuple):
    """The cards a pod gets on a node."""

    shares: tuple[ChosenShare, ...]
    #: Sum over the cards taken, before rounding.
    score: float
    #: The cards of the node afterwards.
    after: tuple[SharedCard, ...]


class NoChoice(NamedTuple):
    """Why a node does not take a pod."""

    cause: Cause
    #: Causes by card index, where single cards were compared.
    cards: Mapping[int, Cause]
    #: Container that does not fit, -1 when the whole pod does not.
    container: int = -1
    #: The cards with the shares of the containers before it.
    now: tuple[SharedCard, ...] = ()


def choose_cards(
    cards: tuple[SharedCard, ...],
    request: VgpuRequest,
    policy: str,
    closed: Mapping[int, Cause] = _NO_CARDS_CLOSED,
) -> DeviceChoice | NoChoice:
    """The cards of a node that a pod gets, or why it gets none.

    Containers are served in order, each seeing what the ones before took. `policy`: BINPACK, SPREAD or anything else;
    `closed`: indexes of cards that are closed to this very pod.
    """
    if request.problem:
        return NoChoice(Cause.REQUEST, {})
    usable: Sequence[int] = range(len(cards))
    if request.mode:
        usable = [index for index in usable if cards[index].model.mode == request.mode]
        if not usable:
            return NoChoice(Cause.MODE, {})
    now = list(cards)
    shares: list[ChosenShare] = []
    score = 0.0
    for container, wanted in enumerate(request.containers):
        if wanted is None:
            continue
        refused = _serve(now, usable, container, wanted, policy, closed, shares)
        if refused is not None:
            return refused
        for share in shares[len(shares) - wanted.number :]:
            score += card_score(now[share.card], policy)
    return DeviceChoice(tuple(shares), score, tuple(now))


def _serve(
    now: list[SharedCard],
    usable: Sequence[int],
    container: int,
    wanted: ContainerRequest,
    policy: str,
    closed: Mapping[int, Cause],
    shares: list[ChosenShare],
) -> NoChoice | None:
    """Take cards for one container: `now` and `shares` grow by them; why not, when there are too few."""
    left, share = wanted.number, wanted.share
    if left > sum([now[index].model.healthy for index in usable]):
        return NoChoice(Cause.CARDS, {}, container, tuple(now))
    refused: dict[int, Cause] = {}
    for index in _in_order(now, usable, policy):
        taken = closed.get(index) or now[index].try_take(share)
        if isinstance(taken, Cause):
            refused[index] = taken
            continue
        now[index] = taken.after
        shares.append(ChosenShare(container, index, taken.memory, taken.booking))
        left -= 1
        if not left:
            return None
    return NoChoice(most_frequent(refused.values()), refused, container, tuple(now))


def _in_order(now: Sequence[SharedCard], usable: Sequence[int], policy: str) -> Iterable[int]:
    """`usable`, ascending, in the order in which cards are tried: ties go to the highest."""
    last_first = usable[::-1]
    if policy == BINPACK:
        return sorted(last_first, key=[-card.used_memory for card in now].__getitem__)
    if policy == SPREAD:
        return sorted(last_first, key=[card.use.number for card in now].__getitem__)
    return last_first


def most_frequent(causes: Iterable[Cause]) -> Cause:
    """The cause that refused most cards; of equals the one that is checked first."""
    return max(_CAUSES, key=list(causes).count)


def card_score(card: SharedCard, policy: str) -> float:
    """The score of a card that was just taken: 0 to 100."""
    if policy == BINPACK:
        return FULL * card.used_memory / card.model.memory
    return FULL if policy == SPREAD and card.use.number == 1 else 0.0


def node_score(score: float, weight: int) -> float:
    """The score of a node: rounded to the nearest integer, halves up, times the weight; 0 without one."""
    return float(math.floor(score + 0.5) * weight) if weight > 0 else 0.0
