"""vGPU: cards that the volcano-vgpu-device-plugin registers, shared under HAMi-core or cut by MIG."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_registration import (
    HAMI_CORE,
    MIG,
    RegisteredCard,
    RegisteredUuids,
    decode_registration,
    handshake_deadline,
    handshake_state,
    handshake_text,
    ignores_health,
)
from capcard_sched.model.pod_devices import decode_devices, encode_devices
from capcard_sched.model.quantity import MAX_POD_AMOUNT
from capcard_sched.plugins.deviceshare.card_ledger import LeastShares
from capcard_sched.plugins.deviceshare.card_reasons import card_reasons
from capcard_sched.plugins.deviceshare.device_choice import choose_cards, node_score
from capcard_sched.plugins.deviceshare.device_config import DEFAULT_CONFIG
from capcard_sched.plugins.deviceshare.device_type import WHOLE, DeviceType, NodeOffer
from capcard_sched.plugins.deviceshare.geometry import geometry_of
from capcard_sched.plugins.deviceshare.share_choice import ShareChooser
from capcard_sched.plugins.deviceshare.share_table import ShareTable
from capcard_sched.plugins.deviceshare.shared_card import ALL_CORES, CardModel, CardStates, Cause
from capcard_sched.plugins.deviceshare.vgpu_request import vgpu_request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.card_columns import CardBatch
    from capcard_sched.plugins.deviceshare.card_ledger import BookedDevices, CardLedger, Cards, Shares
    from capcard_sched.plugins.deviceshare.card_reasons import CardReasons
    from capcard_sched.plugins.deviceshare.device_choice import DeviceChoice, NoChoice
    from capcard_sched.plugins.deviceshare.device_config import DeviceConfig
    from capcard_sched.plugins.deviceshare.shared_card import SharedCard
    from capcard_sched.plugins.deviceshare.vgpu_request import VgpuRequest

#: Seconds between two writes of the handshake of one node.
HANDSHAKE_PERIOD: Final = 30.0
#: States of a handshake that get a request for the next report.
_REPORTED: Final = frozenset({"alive", "unreadable"})
#: Value of bind-phase that a pod is bound with.
ALLOCATING: Final = "allocating"

_UNIT = 1000
#: Classes whose requests are kept.
_MOST_CLASSES = 4096
#: Order numbers above are marks of a device plugin: the pod is served.
_MOST_TIME = 1 << 62
_TIME = re.compile(r"[0-9]{1,20}")


class VgpuDevices(DeviceType):
    """See the module docstring."""

    name: ClassVar[str] = "hamivgpu"
    lock: ClassVar[str] = "hamivgpu"
    shares_cards: ClassVar[bool] = True
    note_key: ClassVar[str] = keys.VGPU_IDS

    def __init__(self, policy: str, weight: int, states: CardStates) -> None:
        self._policy = policy
        self._weight = weight
        self._states = states
        self.config = DEFAULT_CONFIG
        self._requests: dict[TaskClass, VgpuRequest | None] = {}

    def use(self, config: DeviceConfig) -> None:
        self.config = config
        self._requests.clear()

    @property
    def own_resources(self) -> frozenset[str]:
        resources = self.config.resources
        return frozenset({resources.memory, resources.percentage, resources.cores})

    @property
    def uncounted_resources(self) -> frozenset[str]:
        return frozenset({self.config.resources.percentage})

    @property
    def shares(self) -> frozenset[str]:
        resources = self.config.resources
        return frozenset({resources.number, resources.memory, resources.cores})

    @property
    def accounting_version(self) -> Hashable:
        return self.name, self.config.resources

    def charge(self, cls: TaskClass, smallest: int) -> Mapping[str, int]:
        """Number, memory and cores of all shares together. A part of a card counts as that of the smallest one."""
        request = self.request_of(cls)
        if request is None:
            return {}
        number = memory = cores = 0
        for wanted in request.containers:
            if wanted is not None:
                number += wanted.number
                memory += wanted.number * wanted.share.memory_on(smallest)
                cores += wanted.number * wanted.share.cores
        names = self.config.resources
        amounts = ((names.number, number), (names.memory, memory), (names.cores, cores))
        return {name: min(amount * _UNIT, MAX_POD_AMOUNT) for name, amount in amounts}

    def placed_charge(self, cls: TaskClass, notes: Mapping[str, str]) -> Mapping[str, int]:
        """The memory on the cards that were chosen, of pods that request parts of cards."""
        request = self.request_of(cls)
        if request is None or all(wanted is None or wanted.share.memory for wanted in request.containers):
            return {}
        devices = [device for each in decode_devices(notes.get(keys.VGPU_IDS, "")).containers for device in each]
        memory = sum(device.memory for device in devices) * _UNIT
        return {self.config.resources.memory: min(memory, MAX_POD_AMOUNT)} if devices else {}

    def totals(self, memory: int, cards: int) -> Mapping[str, int]:
        names = self.config.resources
        return {names.memory: memory * _UNIT, names.cores: cards * ALL_CORES * _UNIT}

    # --- requests ---------------------------------------------------------------------------------------------------

    def request_of(self, cls: TaskClass) -> VgpuRequest | None:
        if not cls.device_containers:
            return None
        if cls not in self._requests:
            if len(self._requests) == _MOST_CLASSES:  # most of the classes are gone by then
                self._requests.clear()
            self._requests[cls] = vgpu_request(cls.device_containers, cls.annotations, self.config.resources)
        return self._requests[cls]

    def problem_of(self, cls: TaskClass) -> str:
        request = self.request_of(cls)
        if request is not None and request.problem:
            return request.problem
        resources = self.config.resources
        for container in cls.device_containers:
            if (
                container.init
                and not container.sidecar
                and any(name in (resources.number, resources.memory) for name, _ in container.limits)
            ):
                return f"init container {container.name} asks for vGPUs: it gets none, only other containers do"
        return ""

    def is_bound_to_cards(self, request: VgpuRequest) -> bool:
        return request.is_bound_to_cards

    def spreads_group(self, request: VgpuRequest) -> bool:
        return request.spreads

    def closed_cards(self, request: VgpuRequest, ledger: CardLedger, group: Collection[str]) -> Mapping[int, Cause]:
        closed = {
            index: Cause.TYPE
            for index, uuid in enumerate(ledger.uuids)
            if uuid in request.avoid_uuids or (request.use_uuids and uuid not in request.use_uuids)
        }
        if request.spreads:
            for uid in group:
                for share in ledger.held.get(uid, ()):
                    if share.memory or share.booking.cores:
                        closed.setdefault(share.card, Cause.GROUP)
        return closed

    # --- nodes ------------------------------------------------------------------------------------------------------

    def offer_of(self, node: Node, now: float) -> NodeOffer | None:
        text = node.annotations.get(keys.NODE_VGPU_REGISTER)
        if text is None:
            return None
        offered = node.allocatable.get(self.config.resources.number, 0) // _UNIT
        handshake = node.annotations.get(keys.NODE_VGPU_HANDSHAKE)
        until = None
        if handshake is None:
            if offered <= 0:
                return None
        else:
            if handshake_state(handshake, now) in ("overdue", "deleted"):
                return None
            until = handshake_deadline(handshake)
        registration = decode_registration(text)
        warnings = [f"Invalid annotation {keys.NODE_VGPU_REGISTER}: {problem}" for problem in registration.problems]
        cards = registration.cards
        if ignores_health(cards, offered):
            warnings.append(f"{keys.NODE_VGPU_REGISTER}: every card is unhealthy and yet offered; health is ignored")
            cards = tuple(card._replace(healthy=True) for card in cards)
        memory = self.config.resources.memory
        if cards and node.allocatable.get(memory) == 0:
            warnings.append(
                f"{memory} is 0 in allocatable although cards are registered: the kubelet gets more units than it "
                "accepts; raise --gpu-memory-factor of the device plugin"
            )
        idle = []
        for card in cards:
            model = self._model(card)
            if card.mode == MIG and model.mode != MIG:
                warnings.append(
                    f"{keys.NODE_VGPU_REGISTER}: no MIG geometry for {card.type}; the card is shared as {HAMI_CORE}"
                )
            idle.append(self._states.card(model))
        return NodeOffer(RegisteredUuids(text), tuple(idle), tuple(dict.fromkeys(warnings)), until)

    def node_write(self, node: Node, now: float, written: float, last: Mapping[str, str]) -> dict[str, str] | None:
        """Request a report of a device plugin that takes part in handshakes, or note that none came in time."""
        text = node.annotations.get(keys.NODE_VGPU_HANDSHAKE)
        if text is None or keys.NODE_VGPU_REGISTER not in node.annotations:
            return None
        state = handshake_state(text, now)
        if now - written < HANDSHAKE_PERIOD and (state != "overdue" or "Deleted" in last[keys.NODE_VGPU_HANDSHAKE]):
            return None  # a request of an earlier leader may be overdue already: only a second such note waits
        if state == "overdue":
            return {keys.NODE_VGPU_HANDSHAKE: handshake_text("Deleted", now)}
        return {keys.NODE_VGPU_HANDSHAKE: handshake_text("Requesting", now)} if state in _REPORTED else None

    def _model(self, card: RegisteredCard) -> CardModel:
        geometry = geometry_of(card.type, self.config.geometries) if card.mode == MIG else None
        mode = MIG if geometry is not None else HAMI_CORE
        factor = self.config.factor if geometry is not None else 1
        return CardModel(card.slots, card.memory, card.type, card.healthy, mode, geometry, factor)

    # --- choice -----------------------------------------------------------------------------------------------------

    def choose(self, cards: Cards, request: VgpuRequest, closed: Mapping[int, Cause]) -> DeviceChoice | NoChoice:
        return choose_cards(cards, request, self._policy, closed)

    def chooser(self, request: VgpuRequest) -> ShareChooser | None:
        return ShareChooser.of(request, self._policy)

    def fits(self, card: SharedCard, request: VgpuRequest) -> bool:
        return any(
            wanted is not None and not isinstance(card.try_take(wanted.share), Cause) for wanted in request.containers
        )

    def fitting(self, requests: Sequence[VgpuRequest | None]) -> Callable[[SharedCard], npt.NDArray[np.bool_]]:
        return ShareTable(requests).fits

    def fitting_cards(self, requests: Sequence[VgpuRequest | None]) -> Callable[[CardBatch], npt.NDArray[np.bool_]]:
        return ShareTable(requests).fit_many

    def number(self, request: VgpuRequest) -> int:
        return max([0 if wanted is None else wanted.number for wanted in request.containers], default=0)

    def free_part(self, card: SharedCard) -> int:
        model, use = card.model, card.use
        if not model.healthy or use.number >= model.slots:
            return 0
        return max(0, min(super().free_part(card), (ALL_CORES - use.cores) * WHOLE // ALL_CORES))

    def free_parts(self, cards: CardBatch) -> npt.NDArray[np.int64]:
        memory = cards.models.memory.take(cards.model)
        parts = (memory - cards.used).clip(0) * WHOLE // memory.clip(1)
        found: npt.NDArray[np.int64] = np.minimum(parts, (ALL_CORES - cards.cores) * WHOLE // ALL_CORES).clip(0)
        return found * cards.takes_any

    def weighted(self, score: float) -> float:
        return node_score(score, self._weight)

    def weighted_many(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        never = np.isneginf(scores)
        found: npt.NDArray[np.float64] = np.floor(np.where(never, 0.0, scores) + 0.5) * max(0, self._weight)
        return np.where(never, scores, found)

    def refusal(self, refused: NoChoice) -> str:
        return f"hami-vgpuDeviceSharing error ({refused.cause.value})"

    def reasons_of(self, cls: TaskClass, refused: NoChoice, uuids: Sequence[str]) -> CardReasons | None:
        request = self.request_of(cls)
        names = [container.name for container in cls.device_containers if not container.init]
        return None if request is None else card_reasons(request, refused, uuids, names)

    # --- pods -------------------------------------------------------------------------------------------------------

    def takes_devices(self, cls: TaskClass) -> bool:
        request = self.request_of(cls)
        return request is not None and any(wanted is not None and wanted.number for wanted in request.containers)

    def booked(self, task: Task, ledger: CardLedger) -> BookedDevices:
        devices = decode_devices(self.note_of(task))
        found = ledger.shares_of(devices.containers)
        problems = [*devices.problems]
        problems += [
            f"slice {slice} cannot be had on its card: the requested memory counts" for slice in found.without_slice
        ]
        problems += [f"card {uuid} is not on the node of the pod" for uuid in found.unknown]
        named = task.device_notes.get(keys.VGPU_NODE)
        if named and task.node is not None and named != task.node.name:
            problems.append(f"{keys.VGPU_NODE} is {named}, but the pod is on {task.node.name}")
        return found._replace(problems=tuple(problems))

    def least(self, cls: TaskClass) -> Iterator[LeastShares]:
        request = self.request_of(cls)
        for container, wanted in enumerate(() if request is None else request.containers):
            if wanted is not None:
                yield LeastShares(container, wanted.number, wanted.share.amounts_on)

    def annotations(
        self, task: Task, shares: Shares, ledger: CardLedger, node: Node, moment: float, last: int
    ) -> dict[str, str]:
        containers = sum(1 for container in task.cls.device_containers if not container.init)
        devices = encode_devices(ledger.devices_of(shares, containers))
        return {
            keys.VGPU_NODE: node.name,
            keys.VGPU_TIME: str(max(int(moment), last + 1)),
            keys.VGPU_IDS: devices,
            keys.VGPU_DEVICES_TO_ALLOCATE: devices,
            keys.BIND_PHASE: ALLOCATING,
            keys.BIND_TIME: str(int(moment)),
        }

    def order_in(self, notes: Mapping[str, str]) -> int:
        text = notes.get(keys.VGPU_TIME, "")
        number = int(text) if _TIME.fullmatch(text) else 0
        return number if number < _MOST_TIME else 0
