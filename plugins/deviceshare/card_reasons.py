"""Figures per card behind a refusal, for `explain`: their form, and those of vGPU requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.card_registration import MIG
from capcard_sched.model.quoting import plural
from capcard_sched.plugins.deviceshare.shared_card import ALL_CORES, Cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.plugins.deviceshare.device_choice import NoChoice
    from capcard_sched.plugins.deviceshare.shared_card import SharedCard
    from capcard_sched.plugins.deviceshare.vgpu_request import ContainerRequest, VgpuRequest


class CardReasons(NamedTuple):
    """Why a node does not take a request: one sentence per card, or one for the node."""

    #: Smaller is nearer to fitting: missing cards, then memory and compute that the best card lacks.
    distance: tuple[int, int, int]
    texts: tuple[str, ...]


#: Distance of nodes where no single card decides.
_FAR = 1 << 40


def node_reason(text: str) -> CardReasons:
    """A reason that no single card decides."""
    return CardReasons((_FAR, 0, 0), (text,))


def free_text(free: int, total: int, requested: int) -> str:
    """`2,000 of 4,914 free, 3,000 requested`."""
    return f"{max(0, free):,} of {total:,} free, {requested:,} requested"


def card_reasons(
    request: VgpuRequest, refused: NoChoice, uuids: Sequence[str], containers: Sequence[str]
) -> CardReasons:
    """The figures of a refusal. `containers`: names of the regular containers."""
    if refused.cause is Cause.REQUEST:
        return node_reason(request.problem)
    if refused.cause is Cause.MODE:
        return node_reason(f"no card works in mode {request.mode}")
    wanted = request.containers[refused.container]
    assert wanted is not None
    place = f"container {containers[refused.container]}: " if len(containers) > 1 else ""
    if refused.cause is Cause.CARDS:
        return node_reason(place + _too_few(request, wanted, refused.now))
    texts, short = [], []
    for index, card in enumerate(refused.now):
        if request.mode and card.model.mode != request.mode:
            continue
        cause = refused.cards.get(index)
        if cause is None:
            texts.append(f"{place}{uuids[index]}: fits")
            continue
        texts.append(f"{place}{uuids[index]}: {_text(cause, card, wanted)}")
        need = wanted.share.memory_on(card.model.memory)
        free = card.model.memory - card.used_memory
        short.append((max(0, need - free), max(0, wanted.share.cores - (ALL_CORES - card.use.cores))))
    missing = wanted.number - (len(texts) - len(short))
    return CardReasons((missing, *min(short, default=(0, 0))), tuple(texts))


def _too_few(request: VgpuRequest, wanted: ContainerRequest, cards: Sequence[SharedCard]) -> str:
    usable = [card for card in cards if not request.mode or card.model.mode == request.mode]
    healthy = sum(card.model.healthy for card in usable)
    unhealthy = f", {len(usable) - healthy} of them unhealthy" if healthy < len(usable) else ""
    return f"{_cards(wanted.number)} requested, {len(usable)} registered{unhealthy}"


def _cards(number: int) -> str:
    return plural(number, "card")


def _text(cause: Cause, card: SharedCard, wanted: ContainerRequest) -> str:
    model, use, share = card.model, card.use, wanted.share
    need = share.memory_on(model.memory)
    match cause:
        case Cause.UNHEALTHY:
            return "unhealthy"
        case Cause.SLOTS:
            return f"{use.number:,} of {model.slots:,} slots in use"
        case Cause.MEMORY:
            return free_text(model.memory - card.used_memory, model.memory, need)
        case Cause.CORES:
            free = f"{max(0, ALL_CORES - use.cores)} of {ALL_CORES} cores free"
            return f"{free}, {share.cores} requested" if share.cores else free
        case Cause.EXCLUSIVE:
            pods = f"{plural(use.number, 'share')} in use"
            return f"{pods}, {ALL_CORES} cores need an unused card"
        case Cause.TYPE:
            return f"type {model.type} or uuid excluded by the pod's annotations"
        case Cause.GROUP:
            return "has a pod of the same PodGroup"
        case Cause.RULE:
            return "has a pod of the same rule of exclusive cards"
        case _:
            assert model.mode == MIG
            groups = sorted({group for group, _ in use.slices})
            cut = f", the card is cut as {', '.join(groups)}" if groups else ""
            return f"no free slice of {need:,} or more{cut}"
