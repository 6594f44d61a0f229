"""The devices of nodes without pods: where equal pods get devices for their ResourceClaims, and how many of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.cel.values import EvaluationError
from capcard_sched.devices.allocator import Allocator, NodeError
from capcard_sched.devices.claims import AllocationError
from capcard_sched.devices.device_card import card_of
from capcard_sched.devices.usage import DeviceUsage
from capcard_sched.framework.api.place_limits import PlaceLimit
from capcard_sched.framework.toolkit.device_cards import is_accepted
from capcard_sched.model.objects import Toleration

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from capcard_sched.devices.claims import ClaimPlan, RequestPlan
    from capcard_sched.devices.constraints import Constraint
    from capcard_sched.devices.inventory import DeviceInventory, DevicePool, PoolDevice
    from capcard_sched.devices.selector_work import SelectorMeter
    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node
    from capcard_sched.model.resources import Vector

#: Kinds of nodes, by their devices, on which devices are searched for each content of claims; others hold any number.
_MOST_SHAPES: Final = 64
#: Contents of claims whose results are kept, by digests.
_MOST_CONTENTS = 1024
#: Devices that are compared for the claims of one namespace in one session; further jobs follow in the next ones.
MOST_DEVICES: Final = 20_000
#: More pods than there are.
UNLIMITED: Final = 1 << 40
_NONE: Final = np.zeros(0, dtype=np.int64)
#: Taints of devices may end, as those of nodes.
_EVERY_TAINT: Final = (Toleration(operator="Exists"),)


class UnservedClaims(NamedTuple):
    """The claims of equal pods."""

    #: Of the claims.
    contents: tuple[bytes, ...]
    plans: Sequence[ClaimPlan]
    #: Whether each pod has claims of its own.
    is_own: bool
    #: The cards that the pods accept; () for all.
    cards: tuple[str, ...]
    #: Refuses other devices during a search.
    restrict: Callable[[], Constraint]


class EmptyNodes:
    """Results are kept until slices, classes or the nodes of slices change."""

    def __init__(self) -> None:
        self._version: tuple[int, frozenset[str] | None] = -1, None
        self._generation = -1
        #: By name of a node: its pools, and the number of its shape.
        self._known: dict[str, tuple[tuple[DevicePool, ...], int]] = {}
        self._numbers: dict[Hashable, int] = {}
        #: By shape: a node.
        self._samples: list[Node] = []
        #: intp [nodes]: the shape of each.
        self._shapes: Rows = np.zeros(0, dtype=np.intp)
        #: Whether there are devices, and no slice of a pool is missing: drivers publish them.
        self._is_complete = False
        #: By digest of the content: the pods that a node of each shape holds, int64 [shapes].
        self._places: dict[bytes, Vector] = {}
        #: Uid of the session, and the devices that it compared for each namespace.
        self._session, self._compared = "", Counter[str]()

    def place_limits(self, session: Session, job: Job, claims: UnservedClaims) -> Iterator[PlaceLimit]:
        """Nothing beyond the bound of the namespace: the next session counts the places of the job.

        Raises EvaluationsPostponedError.
        """
        inventory = session.snapshot.devices
        self._renew(session, inventory)
        if not self._is_complete:
            return
        content = repr((claims.contents, claims.cards, claims.is_own))
        key = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
        most = self._places.get(key, _NONE)
        if len(most) < len(self._samples):
            if session.uid != self._session:
                self._session, self._compared = session.uid, Counter()
            if self._compared[job.namespace] >= MOST_DEVICES:
                session.carry_over.node_places.postponed.add(job.key)
                return
            if len(self._places) >= _MOST_CONTENTS:
                self._places.clear()
            samples = self._samples[len(most) : _MOST_SHAPES]
            self._compared[job.namespace] += sum(map(partial(_work_of, inventory, claims), samples))
            places = np.full(len(self._samples) - len(most), UNLIMITED, dtype=np.int64)
            meter = session.namespace_work.meter(job.namespace, *claims.contents)
            places[: len(samples)] = [_places(inventory, sample, claims, meter) for sample in samples]
            most = self._places[key] = np.concatenate([most, places])
        text = "the devices that match their ResourceClaims have space for {limit}"
        yield PlaceLimit(text, most=most.take(self._shapes), key=(key, *self._version))

    def _renew(self, session: Session, inventory: DeviceInventory) -> None:
        """O(nodes) after a change of nodes or devices, and O(devices of the changed ones)."""
        version = inventory.version, inventory.read_attributes()
        if version == self._version and session.nodes.generation == self._generation:
            return
        if version != self._version:
            self._known, self._numbers, self._samples, self._places = {}, {}, [], {}
        self._version, self._generation = version, session.nodes.generation
        before, self._known, self._is_complete = self._known, {}, True
        for node in session.nodes.nodes:
            pools = inventory.pools(node.name, node.labels)
            known = before.get(node.name)
            number = known[1] if known is not None and known[0] is pools else self._number(node, pools)
            self._known[node.name] = pools, number
            self._is_complete &= not any(pool.incomplete for pool in pools)
        self._is_complete &= any(pools for pools, _ in self._known.values())
        self._shapes = np.array([number for _, number in self._known.values()], dtype=np.intp)

    def _number(self, node: Node, pools: tuple[DevicePool, ...]) -> int:
        read = self._version[1]
        shape = tuple(
            (
                pool.id[0],
                bool(pool.invalid),
                tuple(pool.counters.items()),
                tuple([
                    (each.content.part(read), card_of(each), each.is_shared, tuple(each.counters.items()))
                    for each in pool.devices
                ]),
            )
            for pool in pools
        )  # fmt: skip
        found = self._numbers.setdefault(shape, len(self._samples))
        if found == len(self._samples):
            self._samples.append(node)
        return found


def _places(inventory: DeviceInventory, node: Node, claims: UnservedClaims, meter: SelectorMeter) -> int:
    """An upper bound on the pods that get devices on a node together, whichever of its devices have taints."""
    plans = [
        plan._replace(requests=tuple(tuple(map(_tolerant, each)) for each in plan.requests)) for plan in claims.plans
    ]
    usage, constraints = DeviceUsage(inventory), (claims.restrict(),)
    allocator = Allocator(inventory, usage, node.name, node.labels, constraints=constraints, meter=meter)
    try:
        allocator.allocate(plans)
    except NodeError as error:
        if error.result == "no_devices":
            return 0
    except AllocationError:
        pass  # another device in use may spare the selector or the capacity that fails
    if not claims.is_own:
        return UNLIMITED
    devices = [device for pool in inventory.pools(node.name, node.labels) for device in pool.devices]
    return most_by_devices(devices, claims.plans, claims.cards, meter)


def _work_of(inventory: DeviceInventory, claims: UnservedClaims, node: Node) -> int:
    """The devices of a node times the requests of claims, and one for the search."""
    devices = sum(len(pool.devices) for pool in inventory.pools(node.name, node.labels))
    return 1 + devices * sum(len(alternatives) for plan in claims.plans for alternatives in plan.requests)


def _tolerant(request: RequestPlan) -> RequestPlan:
    return request._replace(tolerations=_EVERY_TAINT)


def most_by_devices(
    devices: Iterable[PoolDevice], plans: Iterable[ClaimPlan], cards: tuple[str, ...], meter: SelectorMeter | None
) -> int:
    """An upper bound on pods: the devices that some requests match, over those that a pod needs of them.

    `cards`: those that the pods accept; () for all. Raises EvaluationsPostponedError.
    """
    requests = [alternatives for plan in plans for alternatives in plan.requests]
    devices = [device for device in devices if not cards or is_accepted(device, cards)]
    found = UNLIMITED
    for some in (requests, *([one] for one in requests)):
        needed = sum(min(map(_size, alternatives)) for alternatives in some)
        if not needed:
            continue
        matching = [
            device for device in devices if any(_may_match(one, device, meter) for each in some for one in each)
        ]
        if not any(device.is_shared for device in matching):
            found = min(found, len(matching) // needed)
    return found


def _size(request: RequestPlan) -> int:
    """The devices that a request takes from others, at least."""
    return 0 if request.admin_access else 1 if request.all_devices else request.devices


def _may_match(request: RequestPlan, device: PoolDevice, meter: SelectorMeter | None) -> bool:
    try:
        return all(device.content.matches(selector.program, meter, selector.among) for selector in request.selectors)
    except (EvaluationError, AllocationError):
        return True
