"""Cards, requests and ledgers for tests, written short."""

from __future__ import annotations

import re

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_registration import HAMI_CORE, MIG
from capcard_sched.model.task_class import ContainerAmounts
from capcard_sched.plugins.deviceshare.card_ledger import CardLedger
from capcard_sched.plugins.deviceshare.geometry import DEFAULT_GEOMETRIES, geometry_of
from capcard_sched.plugins.deviceshare.shared_card import CardModel, CardStates, CardUsage, SharedCard
from capcard_sched.plugins.deviceshare.vgpu_request import (
    DEFAULT_RESOURCES,
    VgpuRequest,
    vgpu_request,
)

L40S = "NVIDIA-NVIDIA L40S"
A100_40 = "NVIDIA-NVIDIA A100-SXM4-40GB"
A100_80 = "NVIDIA-NVIDIA A100-SXM4-80GB"

_CARD = re.compile(
    r"(?P<uuid>\w+):(?P<memory>\d+)(?: (?P<number>\d+)/(?P<used>\d+)/(?P<cores>\d+))?(?: slots=(?P<slots>\d+))?"
    r"(?P<mig> mig)?(?P<unhealthy> unhealthy)?(?: group=(?P<group>\w+):(?P<positions>[\d,]+))?(?: type=(?P<type>.+))?"
)
_CONTAINER = re.compile(
    r"(?:(?P<number>\d+)x)?(?P<memory>\d+)?(?P<whole>whole)?(?:\s*p(?P<percentage>\d+))?(?:\s*c(?P<cores>\d+))?"
)
_ANNOTATIONS = {
    "use": keys.USE_GPU_TYPE,
    "nouse": keys.NOUSE_GPU_TYPE,
    "mode": keys.VGPU_MODE,
    "uuids": keys.VGPU_USE_UUID,
    "nouuids": keys.VGPU_NOUSE_UUID,
    "policy": keys.VGPU_PODGROUP_POLICY,
}


def model(memory: int, *, slots: int = 10, type: str = L40S, mig: bool = False, healthy: bool = True) -> CardModel:
    """A card model with the default geometry of its type."""
    geometry = geometry_of(type, DEFAULT_GEOMETRIES) if mig else None
    return CardModel(slots, memory, type, healthy, MIG if mig else HAMI_CORE, geometry)


def card(text: str, states: CardStates) -> tuple[str, SharedCard]:
    """uuid and state of `A:10000 1/3000/20 slots=2 mig unhealthy group=group2:0 type=...`."""
    match = _CARD.fullmatch(text)
    assert match is not None, text
    use = CardUsage(
        int(match["number"] or 0),
        int(match["used"] or 0),
        int(match["cores"] or 0),
        tuple((match["group"], int(each)) for each in (match["positions"] or "").split(",") if each),
    )
    kind = model(
        int(match["memory"]),
        slots=int(match["slots"] or 10),
        type=match["type"] or L40S,
        mig=bool(match["mig"]),
        healthy=not match["unhealthy"],
    )
    return match["uuid"], states.card(kind, use)


def ledger(*texts: str, states: CardStates | None = None) -> CardLedger:
    """The cards of a node."""
    states = CardStates() if states is None else states
    cards = [card(text, states) for text in texts]
    return CardLedger([uuid for uuid, _ in cards], tuple(state for _, state in cards))


def amounts(text: str, name: str = "c") -> ContainerAmounts:
    """A container as `2x1000 p50 c10`, `1xwhole`, or `-` for one without a request."""
    if text == "-":
        return ContainerAmounts(name, (), ())
    match = _CONTAINER.fullmatch(text)
    assert match is not None, text
    limits = {}
    for resource, value in (
        (DEFAULT_RESOURCES.number, match["number"]),
        (DEFAULT_RESOURCES.memory, match["memory"]),
        (DEFAULT_RESOURCES.percentage, match["percentage"]),
        (DEFAULT_RESOURCES.cores, match["cores"]),
    ):
        if value is not None:
            limits[resource] = int(value) * 1000
    return ContainerAmounts(name, tuple(limits.items()), ())


def request(*texts: str, **annotations: str) -> VgpuRequest:
    """The request of a pod with these containers; annotations by their short names (`use`, `mode`, ...)."""
    containers = [amounts(text, f"c{index}") for index, text in enumerate(texts)]
    found = vgpu_request(containers, {_ANNOTATIONS[key]: value for key, value in annotations.items()})
    assert found is not None
    return found
