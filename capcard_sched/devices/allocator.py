"""Chooses devices for claims on one node, as the structured allocator of kube-scheduler does.

Exhaustive search with the first solution: claim by claim, request by request, device by device in the order of the
pools; combinations inside of a request, not permutations. A request with alternatives takes the first that leads to a
solution of everything after it. Knows claims, devices and constraints; neither pods, queues nor cards.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.cel.values import EvaluationError
from capcard_sched.devices.capacities import CapacityError, consumption, quantity_text
from capcard_sched.devices.claims import AllocationError, allocation_config
from capcard_sched.devices.constraints import AttributeConstraint
from capcard_sched.devices.results import node_selector, share_id
from capcard_sched.model.device_objects import MAX_RESULTS, AllocatedDevice, AllocatedDevices, Allocation
from capcard_sched.model.selectors import untolerated_taint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from capcard_sched.devices.claims import ClaimPlan, RequestPlan
    from capcard_sched.devices.constraints import Constraint
    from capcard_sched.devices.inventory import CounterId, DeviceId, DeviceInventory, DevicePool, PoolDevice
    from capcard_sched.devices.pool_changes import PoolId
    from capcard_sched.devices.searches import Result
    from capcard_sched.devices.selector_work import SelectorMeter
    from capcard_sched.devices.usage import DeviceUsage

#: Trials of devices for one pod on one node.
MAX_TRIALS: Final = 10_000
#: Devices of all claims of one pod: the search has one level per device.
MAX_DEVICES: Final = 8 * MAX_RESULTS
CANNOT_ALLOCATE: Final = "cannot allocate all claims"


class NodeError(Exception):
    """The claims cannot be allocated on this node; the text is the reason."""

    def __init__(self, text: str, result: Result = "no_devices") -> None:
        super().__init__(text)
        self.result = result


class Chosen(NamedTuple):
    """A device for a request."""

    request: RequestPlan
    device: PoolDevice
    #: Of a shared device; None for a dedicated one.
    share: Mapping[str, Fraction] | None


class Solution(NamedTuple):
    """The devices of a search by position: those of another node with equal devices, in use alike, as well."""

    #: By claim: requests with the numbers of their devices on the node, over all its pools.
    chosen: tuple[tuple[tuple[RequestPlan, int], ...], ...]
    #: By claim: the alternative of each request.
    picked: tuple[tuple[RequestPlan, ...], ...]


class Allocator:
    """One search: the claims of one pod on one node."""

    def __init__(
        self,
        inventory: DeviceInventory,
        usage: DeviceUsage,
        node: str,
        labels: Mapping[str, str],
        *,
        constraints: Sequence[Constraint] = (),
        meter: SelectorMeter | None = None,
    ) -> None:
        """`constraints`: apply to the devices of all claims, besides those of the claims.

        `meter`: counts evaluations. Searches raise what it raises.
        """
        self._inventory = inventory
        self._usage = usage
        self._node = node
        self._pools = inventory.pools(node, labels)
        self._more, self._meter = constraints, meter
        #: Trials of devices so far.
        self.trials = 0

    def allocate(self, plans: Sequence[ClaimPlan]) -> list[Allocation]:
        """One allocation per claim. Raises NodeError if they do not fit the node, AllocationError if no node may help.

        Leaves inventory, ledger and constraints as they were.
        """
        self._plans = plans
        self._chosen: list[list[Chosen]] = [[] for _ in plans]
        #: The alternative of each request so far, by claim.
        self._picked: list[list[RequestPlan]] = [[] for _ in plans]
        self._constraints: list[list[Constraint]] = [
            [*map(AttributeConstraint, plan.constraints), *self._more] for plan in plans
        ]
        #: Devices of this search, with the numbers of their claims.
        self._taken: dict[DeviceId, list[int]] = {}
        self._shared: dict[DeviceId, list[Mapping[str, Fraction]]] = {}
        self._counters: dict[PoolId, dict[CounterId, Fraction]] = {}
        self._all: dict[tuple[int, int], list[tuple[DevicePool, PoolDevice]]] = {}
        self._check_sizes()
        self._check_free()
        try:
            if not self._claim(0):
                if any(pool.invalid for pool in self._pools):
                    raise NodeError("invalid resource pools were encountered", "invalid_pool")
                raise NodeError(CANNOT_ALLOCATE)
            return [self._result(index) for index in range(len(plans))]
        finally:
            self._release_constraints()

    def may_fail(self, plans: Sequence[ClaimPlan]) -> bool:
        """Whether `allocate` may raise AllocationError, whichever devices are in use."""
        self._plans = plans
        devices = self._devices_in_order()
        try:
            for index, plan in enumerate(plans):
                for request in chain.from_iterable(plan.requests):
                    if request.all_devices or request.capacity:
                        return True  # for the number of devices, or for a capacity
                    for device in devices:
                        self._matches(index, request, device)
        except AllocationError:
            return True
        return False

    def solution(self) -> Solution | None:
        """Where the latest allocation is; None if it has shares."""
        if any(each.share is not None for chosen in self._chosen for each in chosen):
            return None
        places = {device.id: place for place, device in enumerate(self._devices_in_order())}
        chosen = tuple([tuple([(each.request, places[each.device.id]) for each in found]) for found in self._chosen])
        return Solution(chosen, tuple(map(tuple, self._picked)))

    def repeat(self, plans: Sequence[ClaimPlan], solution: Solution) -> list[Allocation]:
        """The allocation that `allocate` finds, by the solution for a node with equal devices, in use alike."""
        devices = self._devices_in_order()
        self._plans = plans
        self._chosen = [
            [Chosen(request, devices[place], None) for request, place in found] for found in solution.chosen
        ]
        self._picked = [*map(list, solution.picked)]
        return [self._result(index) for index in range(len(plans))]

    def _devices_in_order(self) -> list[PoolDevice]:
        return [device for pool in self._pools for device in pool.devices]

    def _release_constraints(self) -> None:
        """Removes the chosen devices: constraints from outside are used again."""
        for index, chosen in reversed(list(enumerate(self._chosen))):
            for each in reversed(chosen):
                for constraint in reversed(self._constraints[index]):
                    constraint.remove(each.request, each.device)

    # --- before the search ------------------------------------------------------------------------------------------

    def _check_sizes(self) -> None:
        """Resolves requests for all devices. Raises as `allocate`."""
        most = 0
        for index, plan in enumerate(self._plans):
            total = 0
            for alternatives in plan.requests:
                sizes = [self._size(index, request) for request in alternatives]
                if min(sizes) > MAX_RESULTS - total:
                    raise AllocationError(
                        f"claim {plan.key}, request {alternatives[0].parent}: adding {min(sizes)} devices exceeds "
                        f"the claim limit of {MAX_RESULTS}, with {total} already accounted for"
                    )
                total += min(sizes)
                most += max(size for size in sizes if size <= MAX_RESULTS)
        if most > MAX_DEVICES:
            text = f"the claims of a pod with more than {MAX_DEVICES} devices are not supported"
            raise AllocationError(text, "unsupported")

    def _size(self, index: int, request: RequestPlan) -> int:
        if not request.all_devices:
            return request.devices
        found: list[tuple[DevicePool, PoolDevice]] = []
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                state = "being updated" if pool.incomplete else "invalid"
                raise NodeError(
                    f"claim {self._plans[index].key}, request {request.name}: asks for all devices, but resource pool "
                    f"{pool.name} is currently {state}",
                    "incomplete_pool" if pool.incomplete else "invalid_pool",
                )
            found += [
                (pool, device)
                for device in pool.devices
                if self._matches(index, request, device) and self._share_of(request, device) is not None
            ]
        self._all[index, request.number] = found
        return len(found)

    def _check_free(self) -> None:
        """Refuses a node with fewer free matching devices than a request needs, without a search."""
        for index, plan in enumerate(self._plans):
            for alternatives in plan.requests:
                texts = [self._shortage(index, request) for request in alternatives]
                if all(texts):
                    raise NodeError(f"{CANNOT_ALLOCATE}: {texts[0]}")

    def _shortage(self, index: int, request: RequestPlan) -> str:
        """Why too few devices are free for a request, whatever the others take; "" if there may be enough."""
        if request.all_devices:
            return ""
        matching = free = 0
        for pool in self._pools:
            for device in pool.devices:
                try:
                    if not self._matches(index, request, device):
                        continue
                except AllocationError:
                    return ""  # the search decides whether it tries the device
                matching += 1
                if device.is_shared:
                    return ""  # serves several requests
                free += request.admin_access or not self._usage.is_in_use(device.id)
                if free >= request.devices:
                    return ""
        if any(pool.invalid for pool in self._pools):
            return ""
        noun = "device" if request.devices == 1 else "devices"
        return f"request {request.name} needs {request.devices} {noun}, {free} of {matching} free"

    # --- the search -------------------------------------------------------------------------------------------------

    def _claim(self, index: int) -> bool:
        """Solves a claim and everything after it."""
        if index == len(self._plans):
            return True
        try:
            return self._request(index, 0)
        except _TooManyError:
            return False  # with other alternatives of the claims before it may fit

    def _request(self, index: int, position: int) -> bool:
        """Solves a request and everything after it. Raises _TooManyError if every alternative exceeds the claim."""
        plan = self._plans[index]
        if position == len(plan.requests):
            return self._claim(index + 1)
        exceeded = True
        picked = self._picked[index]
        for request in plan.requests[position]:
            picked.append(request)
            try:
                if self._devices(index, position, request, 0, 0):
                    return True
                exceeded = False
            except _TooManyError:
                pass
            picked.pop()
        if exceeded:
            raise _TooManyError
        return False

    def _devices(self, index: int, position: int, request: RequestPlan, number: int, start: int) -> bool:
        """Solves the devices of a request from one number on, and everything after the request.

        `start`: the first candidate for the device, as number of the device on the node.
        """
        everything = self._all.get((index, request.number))
        size = len(everything) if everything is not None else request.devices
        if request.all_devices and not size:
            return False
        if number >= size:
            return self._request(index, position + 1)
        if size - number > MAX_RESULTS - len(self._chosen[index]):
            raise _TooManyError
        if everything is not None:
            pool, device = everything[number]
            if not self._take(index, request, pool, device):
                return False
            return self._continue(index, position, request, number + 1, 0, pool)
        place = -1
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                continue
            for device in pool.devices:
                place += 1
                if (
                    place >= start
                    and self._is_available(index, request, device)
                    and self._matches(index, request, device)
                    and self._take(index, request, pool, device)
                    and self._continue(index, position, request, number + 1, place + 1, pool)
                ):
                    return True
        return False

    def _continue(
        self, index: int, position: int, request: RequestPlan, number: int, start: int, pool: DevicePool
    ) -> bool:
        """Solves everything after a device that was taken from a pool; gives it back if there is no solution."""
        try:
            if self._devices(index, position, request, number, start):
                return True
        except _TooManyError:
            self._give_back(index, pool)
            raise
        self._give_back(index, pool)
        return False

    def _matches(self, index: int, request: RequestPlan, device: PoolDevice) -> bool:
        """Whether a device passes all selectors. Raises AllocationError if one of them fails."""
        for selector in request.selectors:
            try:
                if not device.content.matches(selector.program, self._meter, selector.among):
                    return False
            except EvaluationError as error:
                source = selector.source(self._plans[index].key)
                raise AllocationError(
                    f"{source} on device {'/'.join(device.id)}: CEL runtime error: {error}", "selector_error"
                ) from None
        return True

    def _share_of(self, request: RequestPlan, device: PoolDevice) -> dict[str, Fraction] | None:
        """What the request consumes of the capacities; None if it does not fit the device at all."""
        capacities = device.content.capacities
        if isinstance(capacities, str):
            return None
        try:
            return consumption(capacities, request.capacity)
        except CapacityError as error:
            raise AllocationError(f"request {request.name}, device {'/'.join(device.id)}: {error}") from None

    def _take(self, index: int, request: RequestPlan, pool: DevicePool, device: PoolDevice) -> bool:
        """Takes a device for a request; False, without effect, if it is not available or refused."""
        self.trials += 1
        if self.trials > MAX_TRIALS:
            raise NodeError(f"gave up after {MAX_TRIALS} trials to allocate devices", "gave_up")
        if not self._is_available(index, request, device):
            return False
        share = self._share_of(request, device)
        if share is None or not self._has_capacity(device, share) or not self._has_counters(pool, device):
            return False
        if untolerated_taint(device.taints, request.tolerations) is not None:
            return False
        for place, constraint in enumerate(self._constraints[index]):
            if not constraint.add(request, device):
                for added in reversed(self._constraints[index][:place]):
                    added.remove(request, device)
                return False
        self._count_counters(pool, device, +1)
        if device.is_shared:
            self._shared.setdefault(device.id, []).append(share)
        else:
            self._taken.setdefault(device.id, []).append(index)
        self._chosen[index].append(Chosen(request, device, share if device.is_shared else None))
        return True

    def _give_back(self, index: int, pool: DevicePool) -> None:
        """Undoes the latest `_take` for a claim."""
        request, device, share = self._chosen[index].pop()
        held: list[int] | list[Mapping[str, Fraction]]
        holders = self._shared if share is not None else self._taken
        held = holders[device.id]
        held.pop()
        if not held:
            del holders[device.id]
        self._count_counters(pool, device, -1)
        for constraint in reversed(self._constraints[index]):
            constraint.remove(request, device)

    def _is_available(self, index: int, request: RequestPlan, device: PoolDevice) -> bool:
        if device.is_shared:
            return request.admin_access or not self._usage.is_in_use(device.id)
        if request.admin_access:
            return index not in self._taken.get(device.id, ())
        return device.id not in self._taken and not self._usage.is_in_use(device.id)

    def _has_capacity(self, device: PoolDevice, share: Mapping[str, Fraction]) -> bool:
        if not device.is_shared:
            return True
        capacities = device.content.capacities
        assert not isinstance(capacities, str)
        used, others = self._usage.consumed(device.id), self._shared.get(device.id, ())
        return all(
            used.get(name, 0) + amount + sum(other.get(name, 0) for other in others) <= capacities[name].value
            for name, amount in share.items()
        )

    def _is_counted(self, device: PoolDevice) -> bool:
        """Whether a shared device has its counters already."""
        return device.is_shared and (self._usage.is_shared(device.id) or device.id in self._shared)

    def _has_counters(self, pool: DevicePool, device: PoolDevice) -> bool:
        if not device.counters or self._is_counted(device):
            return True
        used, more = self._usage.used_counters(pool.id), self._counters.get(pool.id, {})
        # a set that is overdrawn gives nothing
        sets = {name for name, _ in device.counters}
        return all(
            used.get(key, 0) + more.get(key, 0) + device.counters.get(key, 0) <= available
            for key, available in pool.counters.items()
            if key[0] in sets
        )

    def _count_counters(self, pool: DevicePool, device: PoolDevice, sign: int) -> None:
        if not device.counters or self._is_counted(device):
            return
        more = self._counters.setdefault(pool.id, {})
        for key, amount in device.counters.items():
            more[key] = more.get(key, 0 * amount) + sign * amount

    # --- the result -------------------------------------------------------------------------------------------------

    def _result(self, index: int) -> Allocation:
        plan, chosen = self._plans[index], self._chosen[index]
        results = tuple(
            AllocatedDevice(
                request=each.request.name,
                driver=each.device.id[0],
                pool=each.device.id[1],
                device=each.device.id[2],
                admin_access=True if each.request.admin_access else None,
                tolerations=each.request.tolerations or None,
                binding_conditions=each.device.spec.binding_conditions,
                binding_failure_conditions=each.device.spec.binding_failure_conditions,
                share_id=share_id(plan.uid, number) if each.share is not None else None,
                consumed_capacity={name: quantity_text(amount) for name, amount in each.share.items()}
                if each.share
                else None,
            )
            for number, each in enumerate(chosen)
        )
        config = allocation_config(plan, tuple(self._picked[index]), self._inventory.classes)
        return Allocation(
            AllocatedDevices(results, config or None), node_selector([each.device for each in chosen], self._node)
        )


class _TooManyError(Exception):
    """More devices than a claim may have."""
