"""The attributes and capacities of a device, shared by all devices with equal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.cel.values import EvaluationError
from capcard_sched.devices.capacities import Capacities, parse_capacities
from capcard_sched.devices.selectors import device_value

if TYPE_CHECKING:
    from capcard_sched.cel.program import Program
    from capcard_sched.model.device_objects import SliceDevice


class DeviceContent:
    """What selectors read of a device, and their results."""

    __slots__ = ("_results", "attributes", "capacities", "name", "value")

    def __init__(self, device: SliceDevice, driver: str) -> None:
        self.attributes = device.attributes or {}
        self.capacities: Capacities | str = parse_capacities(device.capacity or {})
        try:
            self.value: dict[str, Any] | EvaluationError = device_value(device, driver)
        except EvaluationError as error:
            self.value = error
        #: What others call such a device, once they know it.
        self.name: str | None = None
        self._results: dict[Program, bool | EvaluationError] = {}

    def matches(self, program: Program) -> bool:
        """The result of a selector; evaluated once. Raises EvaluationError."""
        found = self._results.get(program)
        if found is None:
            if isinstance(self.value, EvaluationError):
                found = self.value
            else:
                try:
                    found = program.evaluate(self.value)
                except EvaluationError as error:
                    found = error
            self._results[program] = found
        if isinstance(found, EvaluationError):
            raise found
        return found
