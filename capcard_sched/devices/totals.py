"""The number of devices that empty pools can give, by a name of the caller: a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from fractions import Fraction

    from capcard_sched.devices.inventory import CounterId, DeviceInventory, DeviceSlice, PoolDevice, PoolId


def device_totals(inventory: DeviceInventory, name_of: Callable[[PoolDevice], str]) -> dict[str, dict[str, int]]:
    """Name to node to devices; node "" for devices of several nodes. Devices with the name "" are left out.

    Partitions of one device exclude each other: the numbers of two names may overlap, each is what the pool can give
    of it alone. Incomplete and invalid pools give none.
    """
    pools: dict[PoolId, list[DeviceSlice]] = {}
    for each in inventory.slices.values():
        pools.setdefault(each.pool, []).append(each)
    found: dict[str, dict[str, int]] = {}
    for pool in sorted(pools):
        newest = max(each.spec.pool.generation for each in pools[pool])
        slices = [each for each in pools[pool] if each.spec.pool.generation == newest and not each.unsupported]
        if len(slices) != slices[0].spec.pool.resource_slice_count if slices else True:
            continue
        if any(each.problem for each in slices):
            continue
        _count(sorted(slices, key=lambda each: each.name), name_of, found)
    return found


def _count(
    slices: Iterable[DeviceSlice], name_of: Callable[[PoolDevice], str], found: dict[str, dict[str, int]]
) -> None:
    available: dict[CounterId, Fraction] = {}
    for each in slices:
        available.update(each.counters)
    used: dict[str, dict[CounterId, Fraction]] = {}
    for each in slices:
        for device in each.devices:
            name = name_of(device)
            if not name:
                continue
            taken = used.setdefault(name, {})
            after = {counter: taken.get(counter, 0) + amount for counter, amount in device.counters.items()}
            if all(amount <= available.get(counter, 0) for counter, amount in after.items()):
                taken.update(after)
                node = each.node or device.spec.node_name or ""
                nodes = found.setdefault(name, {})
                nodes[node] = nodes.get(node, 0) + 1
