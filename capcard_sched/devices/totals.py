"""The number of devices that pools can give, whatever their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from fractions import Fraction

    from capcard_sched.devices.inventory import CounterId, DeviceInventory, DeviceSlice, PoolDevice
    from capcard_sched.devices.pool_changes import PoolId


def device_pools(inventory: DeviceInventory) -> Iterator[tuple[PoolId, list[DeviceSlice]]]:
    """The slices of the highest generation of each complete and valid pool, by pool and name."""
    for pool in sorted({each.pool for each in inventory.slices.values()}):
        if slices := usable_slices(inventory, pool):
            yield pool, slices


def usable_slices(inventory: DeviceInventory, pool: PoolId) -> list[DeviceSlice]:
    """The slices of the highest generation of a pool, by name; none if it is incomplete or invalid."""
    everything = inventory.slices_of(pool)
    newest = max((each.spec.pool.generation for each in everything), default=0)
    slices = [each for each in everything if each.spec.pool.generation == newest and not each.unsupported]
    is_complete = bool(slices) and len(slices) == slices[0].spec.pool.resource_slice_count
    if not is_complete or any(each.problem for each in slices):
        return []
    return sorted(slices, key=lambda each: each.name)


def fitting_devices(
    devices: Iterable[PoolDevice], available: Mapping[CounterId, Fraction], used: Mapping[CounterId, Fraction]
) -> int:
    """How many of some devices of a pool fit its counters, one after the other, beside what is used of them."""
    count, taken = 0, dict(used)
    for device in devices:
        after = {counter: taken.get(counter, 0) + amount for counter, amount in device.counters.items()}
        if all(amount <= available.get(counter, 0) for counter, amount in after.items()):
            taken.update(after)
            count += 1
    return count
