"""Constraints on the devices of a claim. They are monotonic: a refused device stays refused with more devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from capcard_sched.devices.claims import RequestPlan
    from capcard_sched.devices.inventory import PoolDevice
    from capcard_sched.model.device_objects import DeviceConstraint


class Constraint(Protocol):
    """`remove` undoes the latest successful `add` that is not undone yet, with the same arguments."""

    def add(self, request: RequestPlan, device: PoolDevice) -> bool:
        """Adds a device; False, without effect, if it violates the constraint."""

    def remove(self, request: RequestPlan, device: PoolDevice) -> None:
        """Removes a device."""


class AttributeConstraint:
    """`matchAttribute`: one value for all devices; `distinctAttribute`: pairwise different values."""

    def __init__(self, constraint: DeviceConstraint) -> None:
        self._requests = frozenset(constraint.requests or ())
        # Of both attributes the first counts, as for kube-scheduler.
        self._is_distinct = not constraint.match_attribute
        self._name = constraint.match_attribute or constraint.distinct_attribute or ""
        self._values: list[tuple[str, Any]] = []

    def _concerns(self, request: RequestPlan) -> bool:
        return not self._requests or request.name in self._requests or request.parent in self._requests

    def add(self, request: RequestPlan, device: PoolDevice) -> bool:
        """As `Constraint`."""
        if not self._concerns(request):
            return True
        value = attribute_value(device, self._name)
        if value is None:
            return False
        if self._values and (value in self._values if self._is_distinct else value != self._values[0]):
            return False
        self._values.append(value)
        return True

    def remove(self, request: RequestPlan, device: PoolDevice) -> None:  # noqa: ARG002
        if self._concerns(request):
            self._values.pop()


def attribute_value(device: PoolDevice, name: str) -> tuple[str, Any] | None:
    """Type and value of an attribute by its full name; a bare name of a device belongs to its driver."""
    attributes = device.content.attributes
    found = attributes.get(name)
    domain, slash, item = name.partition("/")
    if found is None and slash and domain == device.id[0]:
        found = attributes.get(item)
    if found is None:
        return None
    for kind in ("string", "int", "bool", "version"):
        value = getattr(found, kind)
        if value is not None:
            return kind, value
    return None
