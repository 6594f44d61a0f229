"""The devices in use: whole ones, shares and counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.devices.pool_changes import PoolChanges
from capcard_sched.model.quantity import QuantityError, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from capcard_sched.devices.inventory import CounterId, DeviceId, DeviceInventory
    from capcard_sched.devices.pool_changes import PoolId
    from capcard_sched.model.device_objects import AllocatedDevice, Allocation


class DeviceUsage:
    """Counts of the devices of some allocations. Adding and subtracting an allocation leaves nothing behind."""

    def __init__(self, inventory: DeviceInventory) -> None:
        self._inventory = inventory
        #: Number of allocations of each device that is not shared.
        self._dedicated: dict[DeviceId, int] = {}
        #: Number of shares of each device, and their sums by capacity.
        self._shares: dict[DeviceId, int] = {}
        self._consumed: dict[DeviceId, dict[str, Fraction]] = {}
        #: Names of the devices in use, with the number of their allocations, by pool.
        self._in_pool: dict[PoolId, dict[str, int]] = {}
        #: Of the devices in use.
        self.changes = PoolChanges()
        self._counters: dict[PoolId, tuple[int, dict[CounterId, Fraction]]] = {}

    def use(self, allocation: Allocation | None, sign: int) -> None:
        """Adds an allocation (1) or subtracts it (-1)."""
        if allocation is None:
            return
        for each in allocation.devices.results or ():
            if not each.admin_access:
                self._use_device(each, sign)

    def _use_device(self, each: AllocatedDevice, sign: int) -> None:
        device = each.driver, each.pool, each.device
        shares = shares_of(each)
        if shares is None:
            _count(self._dedicated, device, sign)
        else:
            _count(self._shares, device, sign)
            consumed = self._consumed.setdefault(device, {})
            for name, amount in shares.items():
                consumed[name] = consumed.get(name, 0 * amount) + sign * amount
            if device not in self._shares:
                del self._consumed[device]
        names = self._in_pool.setdefault(device[:2], {})
        _count(names, each.device, sign)
        if not names:
            del self._in_pool[device[:2]]
        self._counters.pop(device[:2], None)
        self.changes.note(device[:2])

    def is_in_use(self, device: DeviceId) -> bool:
        """Whether an allocation has the whole device."""
        return device in self._dedicated

    def is_shared(self, device: DeviceId) -> bool:
        return device in self._shares

    def consumed(self, device: DeviceId) -> Mapping[str, Fraction]:
        """The sums of the shares of a device by capacity."""
        return self._consumed.get(device, {})

    def used_counters(self, pool: PoolId) -> Mapping[CounterId, Fraction]:
        """What the devices in use take of the counters of their pool, wherever they are."""
        names = self._in_pool.get(pool)
        if not names:
            return {}
        known = self._counters.get(pool)
        if known is not None and known[0] == self._inventory.version:
            return known[1]
        found: dict[CounterId, Fraction] = {}
        for name in names:
            device = self._inventory.device((*pool, name))
            for counter, amount in device.counters.items() if device is not None else ():
                found[counter] = found.get(counter, 0 * amount) + amount
        self._counters[pool] = self._inventory.version, found
        return found

    def snapshot(self) -> tuple[object, ...]:
        """Everything that the allocator reads, for comparisons."""
        consumed = {device: {name: amount for name, amount in found.items() if amount}
                    for device, found in self._consumed.items()}  # fmt: skip
        pools = {pool: dict(sorted(names.items())) for pool, names in sorted(self._in_pool.items())}
        return dict(sorted(self._dedicated.items())), dict(sorted(self._shares.items())), consumed, pools


def _count(counts: dict[object, int] | dict[str, int] | dict[DeviceId, int], key: object, sign: int) -> None:
    counted: dict[object, int] = counts  # type: ignore[assignment]
    now = counted.get(key, 0) + sign
    if now:
        counted[key] = now
    else:
        counted.pop(key, None)


def shares_of(each: AllocatedDevice) -> dict[str, Fraction] | None:
    """The share of a device by capacity; None, the whole device, without one, and for an invalid one."""
    if not each.share_id:
        return None
    try:
        return {name: parse_quantity(amount) for name, amount in (each.consumed_capacity or {}).items()}
    except QuantityError:
        return None
