"""Binding conditions: devices that a driver prepares after their allocation and before their pod is bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capcard_sched.model.device_objects import ResourceClaimStatus
from capcard_sched.model.objects import ApiStruct
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from capcard_sched.model.device_objects import Allocation


class DeviceCondition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""


class DeviceStatus(ApiStruct, frozen=True):
    """What a driver reports of an allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    conditions: tuple[DeviceCondition, ...] | None = None


class PreparedClaimStatus(ResourceClaimStatus, frozen=True):
    """The status of a claim with the reports of drivers, which decisions do not read."""

    devices: tuple[DeviceStatus, ...] | None = None


class BindingState(NamedTuple):
    """Whether the devices of a claim are ready for the binding of its pods: they are if both texts are empty."""

    #: The first device that cannot be prepared, with its condition or the time that passed.
    failed: str = ""
    #: The first device that is not ready, with the condition that is missing.
    waiting: str = ""
    #: Seconds since the allocation; None for a claim whose pods wait for no device.
    waited: float | None = None


def has_binding_conditions(allocation: Allocation | None) -> bool:
    """Whether pods wait for a device of an allocation."""
    return allocation is not None and any(each.binding_conditions for each in allocation.devices.results or ())


def binding_state(status: PreparedClaimStatus, now: float, timeout: float) -> BindingState:
    """The state of an allocated claim at `now` (Unix seconds), `timeout` seconds after its allocation at most."""
    allocation = status.allocation
    if allocation is None or not has_binding_conditions(allocation):
        return BindingState()
    since = parse_time(allocation.allocation_timestamp)
    waited = max(0.0, now - since) if since else 0.0
    reported = {(each.driver, each.pool, each.device, each.share_id): each for each in status.devices or ()}
    waiting = ""
    for each in allocation.devices.results or ():
        if not each.binding_conditions:
            continue
        found = reported.get((each.driver, each.pool, each.device, each.share_id), DeviceStatus())
        true = {condition.type for condition in found.conditions or () if condition.status == "True"}
        name = f"device {each.driver}/{each.pool}/{each.device}"
        for condition in each.binding_failure_conditions or ():
            if condition in true:
                return BindingState(f"device binding failed: {name} has condition {condition}", waited=waited)
        missing = [condition for condition in each.binding_conditions if condition not in true]
        if missing and not waiting:
            waiting = f"{name} lacks condition {missing[0]}"
    if waiting and since and now >= since + timeout:
        return BindingState(f"device binding timeout: {waiting} after {timeout:g} s", waited=waited)
    return BindingState("", waiting, waited)
