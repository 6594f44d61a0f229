"""Devices that several claims have as a whole: the API server accepts that, as of two schedulers or two leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capcard_sched.devices.inventory import DeviceId
    from capcard_sched.model.device_objects import Allocation


class DoubleAllocations:
    """The written allocations by device. Shares of a device and administrative access exclude no other claim."""

    def __init__(self) -> None:
        self._holders: dict[DeviceId, set[str]] = {}
        #: The devices of several claims, with the keys of these.
        self.devices: dict[DeviceId, set[str]] = {}
        #: Number of allocations of a device that another claim had, since the start.
        self.total = 0

    def replace(self, key: str, old: Allocation | None, new: Allocation | None) -> None:
        """The allocation of a claim changes; None: it has none."""
        before, after = _whole_devices(old), _whole_devices(new)
        for device in before - after:
            holders = self._holders[device]
            holders.discard(key)
            if not holders:
                del self._holders[device]
            if len(holders) < 2:
                self.devices.pop(device, None)
        for device in after - before:
            holders = self._holders.setdefault(device, set())
            holders.add(key)
            if len(holders) > 1:
                self.devices[device] = holders
                self.total += 1

    def rivals(self, key: str) -> dict[str, DeviceId]:
        """The other claims that have devices of a claim, with one of the devices each."""
        found: dict[str, DeviceId] = {}
        for device, holders in self.devices.items():
            if key in holders:
                found.update(dict.fromkeys(sorted(holders - {key}), device))
        return found


def _whole_devices(allocation: Allocation | None) -> set[DeviceId]:
    results = (allocation.devices.results or ()) if allocation is not None else ()
    return {(each.driver, each.pool, each.device) for each in results if not each.admin_access and not each.share_id}
