"""Cards of the devices of ResourceSlices: names, totals, free devices and the claims that hold the others."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from capcard_sched.cel.values import EvaluationError
from capcard_sched.devices.capacities import CapacityError, consumption
from capcard_sched.devices.claims import AllocationError, Claim, content_of
from capcard_sched.devices.device_card import card_of, charge_of, has_cards, share_charge
from capcard_sched.devices.inventory import selects
from capcard_sched.devices.totals import device_pools, fitting_devices, usable_slices
from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CARD, CardSyntaxError, parse_card_name

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence
    from fractions import Fraction

    from capcard_sched.cel.program import Program
    from capcard_sched.devices.claims import ClaimPlan, RequestPlan
    from capcard_sched.devices.inventory import DeviceId, DeviceInventory, PoolDevice
    from capcard_sched.devices.ledger import DeviceLedger
    from capcard_sched.devices.pool_changes import PoolId
    from capcard_sched.devices.selector_work import SelectorMeter
    from capcard_sched.framework.api.plugin import UsableCards
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.device_objects import AllocatedDevice, ResourceClaimTemplateSpec
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.pod_claims import PodClaim
    from capcard_sched.model.task_class import TaskClass

DeviceState: TypeAlias = Literal["used", "tainted", "blocked", "free"]
#: Sets of selectors whose cards are kept: tenants write them.
MOST_SELECTORS: Final = 4096
#: The selectors of a request, each with `Selector.among`, and the capacities that it requests.
_Wanted: TypeAlias = "tuple[tuple[tuple[Program, int], ...], tuple[tuple[str, Fraction], ...]]"
#: Effects of taints that keep claims without a toleration away.
_EXCLUDING: Final = frozenset({"NoSchedule", "NoExecute"})


def accepted_cards(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The cards that the annotation `card.name` of a pod accepts; () for all, and for a malformed one."""
    try:
        return parse_card_name(annotations.get(CARD_NAME) or annotations.get(CARD_NAME_ALIAS) or "")
    except CardSyntaxError:
        return ()


def is_accepted(device: PoolDevice, cards: Collection[str]) -> bool:
    """Whether a pod that accepts these cards may get a device: one of them, or a device of a driver without cards."""
    return not has_cards(device.id[0], device.content.cards) or card_of(device) in cards


def usable_cards(session: Session, task: Task) -> UsableCards | None:
    """The cards with quota, of which all devices of a pod's claims are one; None without a limit."""
    queue = session.queues.get(task.job.queue) if task.job is not None else None
    if queue is None:
        return None
    found: UsableCards | None = session.dispatch.first("claim_cards", queue, task)
    return found


def claim_of(
    namespace: str, each: PodClaim, claims: Mapping[str, Claim], templates: Mapping[str, ResourceClaimTemplateSpec]
) -> Claim | None:
    """A claim of a pod, or one as its template describes it while it does not exist; None without either.

    `claims` and `templates` by `namespace/name`.
    """
    claim = claims.get(f"{namespace}/{each.claim}") if each.claim else None
    template = templates.get(f"{namespace}/{each.template}") if each.template else None
    if claim is None and template is not None:
        spec = template.spec.devices
        claim = Claim(namespace, each.template, "", None, False, spec, None, frozenset(), "", content_of(spec))
    return claim


def plan_of(claim: Claim | None, inventory: DeviceInventory, meter: SelectorMeter | None = None) -> ClaimPlan | None:
    """The plan of a claim; None without a claim, and for one that predicates refuses. Raises what the meter raises."""
    if claim is None:
        return None
    try:
        return inventory.plans.of(claim) if meter is None else inventory.plans.of(claim, meter.compiles)
    except AllocationError as error:
        if error.result == "gave_up":
            raise
        return None


def may_match(request: RequestPlan, device: PoolDevice, meter: SelectorMeter | None = None) -> bool:
    """Whether a device passes the selectors; one for which they fail fails the pod if the allocator tries it.

    Raises what the meter raises.
    """
    try:
        return all(device.content.matches(selector.program, meter, selector.among) for selector in request.selectors)
    except EvaluationError:
        return False


#: Nodes that a selector is compared with, and names that an amount is added for, in the time of one device.
_NODES_OF_ONE: Final = 16
_NAMES_OF_ONE: Final = 64


class DeviceCards:
    """The cards of all devices, and of those that requests match, whether in use or not."""

    def __init__(self) -> None:
        self._inventory: DeviceInventory | None = None
        self._version = -1
        #: Every device with its card, "" for none.
        self.all: list[tuple[str, PoolDevice]] = []
        #: The first device of each content, by the attributes that selectors read.
        self._different: tuple[frozenset[str] | None, list[tuple[str, PoolDevice]]] | None = None
        #: Selectors and capacities to the cards of the devices that serve them, and the charges of one device: claims
        #: of one template have equal ones.
        self._matching: dict[_Wanted, dict[str, set[int]]] = {}
        #: Devices that selectors were compared with since the start.
        self.compared = 0
        #: Whether a result of `of_nodes` follows from labels of nodes.
        self.reads_nodes = False
        self._nodes: Sequence[Node] = ()
        #: The names of the nodes that reach a slice by a selector, or a device of a slice whose devices select.
        self._near: dict[int, list[str]] = {}

    def use_nodes(self, nodes: Sequence[Node]) -> None:
        """The nodes of `of_nodes`, after a change of their names or labels."""
        self._nodes = nodes
        self._near.clear()

    def read(self, inventory: DeviceInventory) -> bool:
        """Uses these devices. True if devices or classes changed; O(devices) then."""
        if inventory is self._inventory and inventory.version == self._version:
            return False
        self._inventory, self._version = inventory, inventory.version
        self._matching.clear()
        self._near.clear()
        self.reads_nodes = False
        self.all = [(card_of(device), device) for device in inventory.all_devices()]
        self._different = None
        return True

    def matching(self, request: RequestPlan, meter: SelectorMeter | None = None) -> Mapping[str, set[int]]:
        """The cards of the devices that serve a request, with the thousandths that it is charged for one of them.

        They differ for shares of devices of different capacity. Raises what the meter raises.
        """
        selectors = tuple([(selector.program, selector.among) for selector in request.selectors])
        key = selectors, tuple(sorted(request.capacity.items()))
        cards = self._matching.get(key)
        if cards is None:
            cards = {}
            for card, device in self._compare():
                if may_match(request, device, meter) and (charge := request_charge(request, device)):
                    cards.setdefault(card, set()).add(charge)
            if len(self._matching) >= MOST_SELECTORS:
                self._matching.clear()
            self._matching[key] = cards
        return cards

    def of_nodes(self, request: RequestPlan, meter: SelectorMeter | None = None) -> Mapping[str, tuple[int, int]]:
        """The cards of the devices that serve a request, with the least and the most thousandths that a node has.

        Devices that nodes reach by a selector count for these nodes; if none reaches them, they add up in the most.
        O(devices, and nodes per slice that has a selector). Raises what the meter raises.
        """
        found: dict[str, Counter[str]] = {}
        chosen: dict[str, Counter[PoolId]] = {}
        selected: dict[int, tuple[list[str], Counter[str]]] = {}
        self.compared += len(self.all)
        for card, device in self.all:
            if card and may_match(request, device, meter) and (charge := request_charge(request, device)):
                node = device.slice.node or device.spec.node_name or ""
                if not node and not (device.slice.spec.all_nodes or device.spec.all_nodes):
                    chosen.setdefault(card, Counter())[device.id[:2]] += charge
                    key, names = self._reach(device)
                    selected.setdefault(key, (names, Counter()))[1][card] += charge
                else:
                    found.setdefault(card, Counter())[node] += charge
        self.reads_nodes = self.reads_nodes or bool(selected)
        for names, charged in selected.values():
            self.compared += len(names) // _NAMES_OF_ONE
            for card, amount in charged.items() if names else ():
                found.setdefault(card, Counter()).update(dict.fromkeys(names, amount))
                chosen.pop(card, None)
        sums: dict[str, tuple[int, int]] = {}
        for card in sorted(found.keys() | chosen.keys()):
            amounts, pools = found.get(card, Counter()), chosen.get(card, Counter())
            everywhere = amounts.pop("", 0)
            least = min((*amounts.values(), *pools.values()), default=0)
            most = max(amounts.values(), default=0) + sum(pools.values())
            sums[card] = least + everywhere, most + everywhere
        return sums

    def _reach(self, device: PoolDevice) -> tuple[int, list[str]]:
        """The names of the nodes that reach a device by a selector, and a key that devices of equal nodes share."""
        one, spec = device.slice, device.spec
        of_device = bool(one.spec.per_device_node_selection)
        key = id(device) if of_device else id(one)
        if key not in self._near:
            self.compared += len(self._nodes) // _NODES_OF_ONE
            self._near[key] = [
                node.name
                for node in self._nodes
                if (
                    selects(spec.node_name, spec.all_nodes, spec.node_selector, node.name, node.labels)
                    if of_device
                    else one.reaches(node.name, node.labels)
                )
            ]
        return key, self._near[key]

    def others_match(self, request: RequestPlan, meter: SelectorMeter | None = None) -> bool:
        """Whether devices of drivers without cards pass the selectors. Raises what the meter raises."""
        found = self._compare()
        devices = [device for _, device in found if not has_cards(device.id[0], device.content.cards)]
        return any(may_match(request, device, meter) for device in devices)

    def claimable(self, session: Session, cls: TaskClass) -> set[str]:
        """The cards that pods of a class may get by their claims; the annotation `card.name` restricts them.

        Raises EvaluationsPostponedError, and AllocationError for claims that used all their steps.
        """
        snapshot, found = session.snapshot, set[str]()
        self.read(snapshot.devices)
        for each in cls.claims:
            claim = claim_of(cls.namespace, each, snapshot.claims.claims, snapshot.claim_templates)
            meter = session.namespace_work.meter(cls.namespace, claim.content if claim is not None else b"")
            plan = plan_of(claim, snapshot.devices, meter)
            requests = [one for alternatives in plan.requests for one in alternatives] if plan is not None else []
            found.update(*[self.matching(request, meter) for request in requests if not request.admin_access])
        named = accepted_cards(cls.annotations)
        return found.intersection(named) if named else found - {""}

    def _compare(self) -> list[tuple[str, PoolDevice]]:
        """A card and a device of each that differ for selectors. O(devices) only after a change of what they read."""
        assert self._inventory is not None
        read = self._inventory.read_attributes()
        if self._different is None or self._different[0] != read:
            different: dict[tuple[str, Hashable], tuple[str, PoolDevice]] = {}
            for card, device in self.all:
                different.setdefault((card, device.content.part(read)), (card, device))
            self._different = read, list(different.values())
        self.compared += len(self._different[1])
        return self._different[1]


def request_charge(request: RequestPlan, device: PoolDevice) -> int:
    """Thousandths of the card of a device that a request is charged for it; 0 for a device that is too small."""
    capacities = device.content.capacities
    try:
        share = consumption(capacities, request.capacity) if not isinstance(capacities, str) else None
    except CapacityError:  # of the pod, if the allocator tries the device
        share = None
    if share is None:
        return 0
    return share_charge(device, share) if device.is_shared else CARD


class DeviceOffer(NamedTuple):
    """The devices of one card on one node, in thousandths."""

    #: "" for devices that several nodes reach.
    node: str
    card: str
    #: What the empty pools can give; partitions exclude each other.
    total: int
    #: What the pools can still give, without devices with a taint.
    free: int
    #: Key of each claim with devices of the card to what it has of them.
    claims: dict[str, int]


def device_offers(inventory: DeviceInventory, ledger: DeviceLedger) -> list[DeviceOffer]:
    """Every card of every node with devices, by node and card. O(devices and claims)."""
    holders: dict[DeviceId, list[tuple[str, AllocatedDevice]]] = {}
    for key in ledger.claims:
        allocation = ledger.allocation(key)
        for result in (allocation.devices.results or ()) if allocation is not None else ():
            if not result.admin_access:
                holders.setdefault((result.driver, result.pool, result.device), []).append((key, result))
    found: dict[tuple[str, str], DeviceOffer] = {}
    for pool, slices in device_pools(inventory):
        by_card: dict[tuple[str, str], list[PoolDevice]] = {}
        for each in slices:
            for device in each.devices:
                if card := card_of(device):
                    by_card.setdefault((each.node or device.spec.node_name or "", card), []).append(device)
        counters = {counter: amount for each in slices for counter, amount in each.counters.items()}
        used = ledger.used_counters(pool)
        for place, devices in by_card.items():
            before = found.get(place, DeviceOffer(*place, 0, 0, {}))
            for device in devices:
                for key, result in holders.get(device.id, ()):
                    before.claims[key] = before.claims.get(key, 0) + charge_of(device, result)
            usable = [each for each in devices if not any(taint.effect in _EXCLUDING for taint in each.taints)]
            idle = [device for device in usable if device.id not in holders]
            free = CARD * fitting_devices(idle, counters, used) + sum(_rest(device, ledger) for device in usable)
            total = CARD * fitting_devices(devices, counters, {})
            found[place] = before._replace(total=before.total + total, free=before.free + free)
    return [found[place] for place in sorted(found)]


def _rest(device: PoolDevice, ledger: DeviceLedger) -> int:
    """Thousandths that others may still get of a device with shares in use."""
    if not ledger.is_shared(device.id) or ledger.is_in_use(device.id):
        return 0
    return CARD - share_charge(device, ledger.consumed(device.id))


class DeviceStateCounts:
    """The number of devices of complete pools by card ("" for none) and state.

    A device is blocked if other devices use the counters that it needs.
    """

    def __init__(self) -> None:
        self._inventory: DeviceInventory | None = None
        #: Serials of the slices and of the devices in use that are counted.
        self._serials = 0, 0
        self._by_pool: dict[PoolId, Counter[tuple[str, DeviceState]]] = {}
        self._sums: Counter[tuple[str, DeviceState]] = Counter()

    def update(self, inventory: DeviceInventory, ledger: DeviceLedger) -> Mapping[tuple[str, DeviceState], int]:
        """The numbers now, all above 0. O(devices of the pools that changed since the last call)."""
        if inventory is not self._inventory:
            self._inventory, self._serials = inventory, (0, 0)
            self._by_pool.clear()
            self._sums.clear()
        slices, used = self._serials
        changed = set(inventory.changes.since(slices, chain(self._by_pool, inventory.pool_ids)))
        changed.update(ledger.changes.since(used, self._by_pool))
        for pool in changed:
            self._sums.subtract(self._by_pool.pop(pool, {}))
            if counts := _pool_states(inventory, ledger, pool):
                self._by_pool[pool] = counts
                self._sums.update(counts)
        self._serials = inventory.changes.serial, ledger.changes.serial
        return {key: count for key, count in self._sums.items() if count}


def _pool_states(inventory: DeviceInventory, ledger: DeviceLedger, pool: PoolId) -> Counter[tuple[str, DeviceState]]:
    slices = usable_slices(inventory, pool)
    counters = {counter: amount for each in slices for counter, amount in each.counters.items()}
    used = ledger.used_counters(pool)
    found: Counter[tuple[str, DeviceState]] = Counter()
    for each in slices:
        for device in each.devices:
            state: DeviceState = "free"
            if ledger.is_in_use(device.id) or ledger.is_shared(device.id):
                state = "used"
            elif any(taint.effect in _EXCLUDING for taint in device.taints):
                state = "tainted"
            elif device.counters and not fitting_devices((device,), counters, used):
                state = "blocked"
            found[card_of(device), state] += 1
    return found
