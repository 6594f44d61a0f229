"""gpushare (deprecated): cards that a node counts and a pod names by index, shared by memory or given by number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from capcard_sched.model import annotations as keys
from capcard_sched.model.quoting import plural
from capcard_sched.plugins.deviceshare.card_ledger import BookedDevices, LeastShares
from capcard_sched.plugins.deviceshare.card_reasons import CardReasons, free_text, node_reason
from capcard_sched.plugins.deviceshare.device_choice import ChosenShare, DeviceChoice, NoChoice
from capcard_sched.plugins.deviceshare.device_type import WHOLE, DeviceType, NodeOffer
from capcard_sched.plugins.deviceshare.shared_card import Booking, CardModel, CardStates, Cause, SharedCard
from capcard_sched.plugins.deviceshare.vgpu_request import listed_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.card_ledger import CardLedger, Cards, Shares

MEMORY: Final = "volcano.sh/gpu-memory"
NUMBER: Final = "volcano.sh/gpu-number"

_UNIT = 1000
_NANOSECONDS = 1_000_000_000
_INDEX = re.compile(r"[0-9]{1,4}")
#: Cards have no limit of shares.
_ANY_NUMBER = 1 << 31


class GpuRequest(NamedTuple):
    """A request: units of memory on one card, or a number of cards without any pod."""

    memory: int
    number: int


class GpuShareDevices(DeviceType):
    """See the module docstring. The index identifies a card; `by_number`: whole cards instead of memory."""

    name: ClassVar[str] = "GpuShare"
    lock: ClassVar[str] = "gpu"
    note_key: ClassVar[str] = keys.GPU_INDEX

    def __init__(self, states: CardStates, *, by_number: bool) -> None:
        self._states = states
        self._by_number = by_number

    def request_of(self, cls: TaskClass) -> GpuRequest | None:
        amount = cls.limits.get(NUMBER if self._by_number else MEMORY, 0)
        if amount <= 0:
            return None
        units = -(-amount // _UNIT)
        return GpuRequest(0, units) if self._by_number else GpuRequest(units, 0)

    def offer_of(self, node: Node, now: float) -> NodeOffer | None:
        cards = node.capacity.get(NUMBER, 0) // _UNIT
        if cards <= 0:
            return None
        model = CardModel(_ANY_NUMBER, node.capacity.get(MEMORY, 0) // _UNIT // cards, self.name)
        text = node.annotations.get(keys.GPU_UNHEALTHY_IDS, "")
        unhealthy = {int(part) for part in listed_parts(text) if _INDEX.fullmatch(part)}
        warnings = [
            f'{keys.GPU_UNHEALTHY_IDS}: "{part[:64]}" is no index of a card' for part in listed_parts(text)
            if not _INDEX.fullmatch(part)
        ]  # fmt: skip
        usable = [index for index in range(cards) if index not in unhealthy]
        return NodeOffer(
            tuple(str(index) for index in usable), tuple(self._states.card(model) for _ in usable), tuple(warnings)
        )

    def choose(self, cards: Cards, request: GpuRequest, closed: Mapping[int, Cause]) -> DeviceChoice | NoChoice:
        """The lowest indexes that do."""
        free = [index for index, card in enumerate(cards) if self.fits(card, request)]
        wanted = request.number or 1
        if len(free) < wanted:
            cause = Cause.CARDS if request.number else Cause.MEMORY
            return NoChoice(cause, dict.fromkeys({*range(len(cards))} - {*free}, cause), 0, cards)
        booking, after, shares = Booking(request.memory, 0), list(cards), []
        for index in free[:wanted]:
            shares.append(ChosenShare(0, index, request.memory, booking))
            after[index] = after[index].plus(booking)
        return DeviceChoice(tuple(shares), 0.0, tuple(after))

    def fits(self, card: SharedCard, request: GpuRequest) -> bool:
        return not card.use.number if request.number else card.model.memory - card.use.memory >= request.memory

    def number(self, request: GpuRequest) -> int:
        return request.number or 1

    def free_part(self, card: SharedCard) -> int:
        return (0 if card.use.number else WHOLE) if self._by_number else super().free_part(card)

    def weighted(self, score: float) -> float:
        return 0.0

    def refusal(self, refused: NoChoice) -> str:
        return "GpuNumber no enough gpu number" if self._by_number else "GpuShare no enough gpu memory"

    def reasons_of(self, cls: TaskClass, refused: NoChoice, uuids: Sequence[str]) -> CardReasons | None:
        request = self.request_of(cls)
        if request is None:
            return None
        if len(refused.now) < request.number:
            return node_reason(f"{request.number:,} cards requested, {len(refused.now):,} usable")
        texts, short = [], []
        for index, card in enumerate(refused.now):
            text = "fits"
            if index in refused.cards and request.number:
                pods = plural(card.use.number, "pod")
                text = f"{pods}, {plural(request.number, 'card')} without pods requested"
            elif index in refused.cards:
                free = card.model.memory - card.use.memory
                short.append(request.memory - free)
                text = free_text(free, card.model.memory, request.memory)
            texts.append(f"card {uuids[index]}: {text}")
        missing = (request.number or 1) - (len(refused.now) - len(refused.cards))
        return CardReasons((missing, min(short, default=0), 0), tuple(texts))

    def booked(self, task: Task, ledger: CardLedger) -> BookedDevices:
        request = self.request_of(task.cls) or GpuRequest(0, 0)
        index_of = {uuid: index for index, uuid in enumerate(ledger.uuids)}
        shares, unknown = [], []
        for part in dict.fromkeys(listed_parts(self.note_of(task))):
            if part in index_of:
                shares.append(ChosenShare(0, index_of[part], request.memory, Booking(request.memory, 0)))
            else:
                unknown.append(part)
        problems = tuple(f'{keys.GPU_INDEX}: "{part[:64]}" is no usable card of the node' for part in unknown)
        return BookedDevices(tuple(shares), tuple(unknown), (), problems)

    def least(self, cls: TaskClass) -> Iterator[LeastShares]:
        request = self.request_of(cls)
        if request is not None:
            yield LeastShares(0, request.number or 1, lambda _: (request.memory, 0))

    def annotations(
        self, task: Task, shares: Shares, ledger: CardLedger, node: Node, moment: float, last: int
    ) -> dict[str, str]:
        return {
            keys.PREDICATE_TIME: str(int(moment * _NANOSECONDS)),
            keys.GPU_INDEX: ",".join(ledger.uuids[share.card] for share in shares),
        }
