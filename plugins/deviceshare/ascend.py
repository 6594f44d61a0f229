"""Ascend 310P: chips cut into vNPUs by templates, requested as AI cores."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from capcard_sched.model import annotations as keys
from capcard_sched.plugins.deviceshare.card_ledger import BookedDevices, LeastShares
from capcard_sched.plugins.deviceshare.card_reasons import CardReasons, node_reason
from capcard_sched.plugins.deviceshare.device_choice import ChosenShare, DeviceChoice, NoChoice, node_score
from capcard_sched.plugins.deviceshare.device_type import DeviceType, NodeOffer
from capcard_sched.plugins.deviceshare.shared_card import Booking, CardModel, CardStates, Cause, SharedCard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.card_ledger import CardLedger, Cards, Shares

RESOURCE: Final = "huawei.com/npu-core"
#: Of one chip.
AI_CORES: Final = 8
AI_CPUS: Final = 7

_UNIT = 1000
_NOTE = re.compile(r"(?P<chip>[0-9]{1,4})(?:-(?P<template>\w+))?")
_FULL = 100.0


class NpuTemplate(NamedTuple):
    """One way to cut a vNPU out of a chip."""

    name: str
    cores: int
    cpus: int
    #: `yes` has the media engine, `no` is without, "" shares it.
    dvpp: str = ""


#: In order of preference among those of equal cores.
TEMPLATES: Final = (
    NpuTemplate("vir01", 1, 1),
    NpuTemplate("vir02", 2, 2),
    NpuTemplate("vir02_1c", 2, 1),
    NpuTemplate("vir04", 4, 4),
    NpuTemplate("vir04_3c", 4, 3),
    NpuTemplate("vir04_3c_ndvpp", 4, 3, "no"),
    NpuTemplate("vir04_4c_dvpp", 4, 4, "yes"),
)
_BY_NAME: Final = {template.name: template for template in TEMPLATES}
_WHOLE: Final = NpuTemplate("", AI_CORES, AI_CPUS)


class NpuRequest(NamedTuple):
    """AI cores of one chip, or whole chips."""

    templates: tuple[NpuTemplate, ...]
    chips: int = 1
    #: Cores that no template has.
    problem: str = ""


class AscendDevices(DeviceType):
    """See the module docstring. `memory` of a card counts its AI cores, `cores` its AI CPUs."""

    name: ClassVar[str] = "ascend310p-vNPU"
    note_key: ClassVar[str] = keys.NPU_CORE

    def __init__(self, states: CardStates, weight: int) -> None:
        self._states = states
        self._weight = weight

    def request_of(self, cls: TaskClass) -> NpuRequest | None:
        amount = cls.limits.get(RESOURCE, cls.requests.get(RESOURCE, 0))
        if amount <= 0:
            return None
        cores, rest = divmod(amount, _UNIT)
        if not rest and cores % AI_CORES == 0:
            return NpuRequest((_WHOLE,), cores // AI_CORES)
        dvpp = cls.annotations.get(keys.VNPU_DVPP, "")
        wanted = {"yes": "yes", "no": "no"}.get(dvpp, "") if cores == AI_CORES // 2 else ""
        found = tuple(each for each in TEMPLATES if each.cores == cores and each.dvpp == wanted and not rest)
        if cls.annotations.get(keys.VNPU_LEVEL) == "high":
            found = found[:1]
        if not found:
            return NpuRequest((), 1, f"{RESOURCE} is {amount / _UNIT:g}: expected 1, 2, 4 or a multiple of {AI_CORES}")
        return NpuRequest(found)

    def problem_of(self, cls: TaskClass) -> str:
        request = self.request_of(cls)
        return "" if request is None else request.problem

    def offer_of(self, node: Node, now: float) -> NodeOffer | None:
        chips = node.allocatable.get(RESOURCE, 0) // _UNIT // AI_CORES
        if chips <= 0:
            return None
        model = CardModel(AI_CORES, AI_CORES, self.name)
        return NodeOffer(tuple(map(str, range(chips))), tuple(self._states.card(model) for _ in range(chips)))

    def choose(self, cards: Cards, request: NpuRequest, closed: Mapping[int, Cause]) -> DeviceChoice | NoChoice:
        """The fullest chips that do, so that whole ones stay whole; of equals the lowest."""
        if request.problem:
            return NoChoice(Cause.REQUEST, {})
        after, shares, score = list(cards), [], 0.0
        for index in sorted(range(len(cards)), key=lambda index: (-cards[index].use.memory, index)):
            template = next((each for each in request.templates if _fits(cards[index], each)), None)
            if template is None:
                continue
            booking = Booking(template.cores, template.cpus)
            shares.append(ChosenShare(0, index, template.cores, booking))
            after[index] = after[index].plus(booking)
            score += _FULL * after[index].use.memory / AI_CORES
            if len(shares) == request.chips:
                return DeviceChoice(tuple(shares), score, tuple(after))
        return NoChoice(Cause.CARDS, {}, 0, cards)

    def fits(self, card: SharedCard, request: NpuRequest) -> bool:
        return any(_fits(card, each) for each in request.templates)

    def number(self, request: NpuRequest) -> int:
        return request.chips

    def weighted(self, score: float) -> float:
        return node_score(score, self._weight)

    def refusal(self, refused: NoChoice) -> str:
        return f"{self.name} no enough npu ({refused.cause.value})"

    def reasons_of(self, cls: TaskClass, refused: NoChoice, uuids: Sequence[str]) -> CardReasons | None:
        request = self.request_of(cls)
        if request is None:
            return None
        if request.problem:
            return node_reason(request.problem)
        if len(refused.now) < request.chips:
            return node_reason(f"{request.chips:,} chips requested, {len(refused.now):,} on the node")
        smallest = request.templates[-1]
        texts, short = [], []
        for uuid, card in zip(uuids, refused.now, strict=True):
            if any(_fits(card, each) for each in request.templates):
                texts.append(f"chip {uuid}: fits")
                continue
            cores, cpus = AI_CORES - card.use.memory, AI_CPUS - card.use.cores
            free = f"{max(0, cores)} of {AI_CORES} AI cores and {max(0, cpus)} of {AI_CPUS} AI CPUs free"
            texts.append(f"chip {uuid}: {free}, {smallest.cores} AI cores and {smallest.cpus} AI CPUs requested")
            short.append((max(0, smallest.cores - cores), max(0, smallest.cpus - cpus)))
        missing = request.chips - (len(texts) - len(short))
        return CardReasons((missing, *min(short)), tuple(texts))

    def booked(self, task: Task, ledger: CardLedger) -> BookedDevices:
        index_of = {uuid: index for index, uuid in enumerate(ledger.uuids)}
        shares, unknown, problems = [], [], []
        for part in filter(None, self.note_of(task).split(",")):
            match = _NOTE.fullmatch(part.strip())
            template = None if match is None else _BY_NAME.get(match["template"] or "", _WHOLE)
            if match is None or template is None or match["chip"] not in index_of:
                problems.append(f'{keys.NPU_CORE}: "{part[:64]}" is no vNPU of the node')
                unknown += [part] if match is not None and template is not None else []
                continue
            booking = Booking(template.cores, template.cpus)
            shares.append(ChosenShare(0, index_of[match["chip"]], template.cores, booking))
        return BookedDevices(tuple(shares), tuple(unknown), (), tuple(problems))

    def least(self, cls: TaskClass) -> Iterator[LeastShares]:
        request = self.request_of(cls)
        if request is not None and request.templates:
            smallest = min(request.templates, key=lambda each: (each.cores, each.cpus))
            yield LeastShares(0, request.chips, lambda _: (smallest.cores, smallest.cpus))

    def annotations(
        self, task: Task, shares: Shares, ledger: CardLedger, node: Node, moment: float, last: int
    ) -> dict[str, str]:
        request = self.request_of(task.cls)
        parts = []
        for share in shares:
            template = _template_of(share.booking, () if request is None else request.templates)
            parts.append(f"{ledger.uuids[share.card]}-{template}" if template else ledger.uuids[share.card])
        return {keys.PREDICATE_TIME: str(int(moment)), keys.NPU_CORE: ",".join(parts)}


def _fits(card: SharedCard, template: NpuTemplate) -> bool:
    return card.use.memory + template.cores <= AI_CORES and card.use.cores + template.cpus <= AI_CPUS


def _template_of(booking: Booking, templates: tuple[NpuTemplate, ...]) -> str:
    """The name of the template that was booked; a request never has two with equal amounts."""
    return next((each.name for each in templates if (each.cores, each.cpus) == (booking.memory, booking.cores)), "")
