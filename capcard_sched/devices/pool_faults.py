"""Finds faults between the slices of a pool, and devices whose attributes cannot name a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.devices.device_card import card_of, card_problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from capcard_sched.devices.inventory import DeviceSlice


class PoolFault(NamedTuple):
    """One fault of a slice."""

    slice: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def pool_faults(slices: Collection[DeviceSlice]) -> Iterator[PoolFault]:
    """The faults between the slices of the newest generation of a pool, once all of them are there. O(devices).

    They make the pool invalid. What one slice has twice is a fault of its own.
    """
    newest = max((each.spec.pool.generation for each in slices), default=0)
    found = sorted(
        (each for each in slices if each.spec.pool.generation == newest and not each.unsupported),
        key=lambda each: each.name,
    )
    if any(each.spec.pool.resource_slice_count != len(found) for each in found):
        return
    sets: dict[str, str] = {}
    names: dict[str, str] = {}
    counters = {counter for each in found for counter in each.counters}
    for each in found:
        for index, shared in enumerate(each.spec.shared_counters or ()):
            if sets.setdefault(shared.name, each.name) != each.name:
                message = f'counter set "{shared.name}" is also in ResourceSlice {sets[shared.name]} of the pool'
                yield PoolFault(each.name, f"spec.sharedCounters[{index}].name", message)
    for each in found:
        for index, device in enumerate(each.devices):
            if names.setdefault(device.spec.name, each.name) != each.name:
                message = f'device "{device.spec.name}" is also in ResourceSlice {names[device.spec.name]} of the pool'
                yield PoolFault(each.name, f"spec.devices[{index}].name", message)
            for place, use in enumerate(device.spec.consumes_counters or ()):
                at = f"spec.devices[{index}].consumesCounters[{place}]"
                if use.counter_set not in sets:
                    message = f'counter set "{use.counter_set}" is in no ResourceSlice of the pool'
                    yield PoolFault(each.name, f"{at}.counterSet", message)
                    continue
                for counter in use.counters or ():
                    if (use.counter_set, counter) not in counters:
                        message = f'counter "{counter}" is not in counter set "{use.counter_set}" of the pool'
                        yield PoolFault(each.name, f"{at}.counters", message)


def card_faults(found: DeviceSlice) -> Iterator[PoolFault]:
    """The devices of a slice that cost no card quota because their attributes cannot name a card."""
    for index, device in enumerate(found.devices):
        attribute, message = ("", "") if card_of(device) else card_problem(device)
        if attribute:
            yield PoolFault(found.name, f"spec.devices[{index}].attributes.{attribute}", message)
