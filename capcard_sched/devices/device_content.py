"""The attributes and capacities of a device, shared by all devices with equal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.cel.values import EvaluationError
from capcard_sched.devices.capacities import Capacities, parse_capacities
from capcard_sched.devices.selectors import device_value, qualified

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from capcard_sched.cel.program import Program
    from capcard_sched.devices.selector_work import SelectorMeter
    from capcard_sched.model.card_devices import CardDevice
    from capcard_sched.model.device_objects import SliceDevice


#: Results of selectors that a device keeps: tenants write selectors.
_MOST_RESULTS: Final = 256
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class DeviceContent:
    """What selectors read of a device, and their results."""

    __slots__ = ("_capacity", "_part", "_results", "attributes", "capacities", "cards", "name", "value")

    def __init__(self, device: SliceDevice, driver: str, cards: Mapping[str, CardDevice]) -> None:
        """`cards`: the rules of drivers, which may change."""
        self.attributes = device.attributes or {}
        self.cards = cards
        self.capacities: Capacities | str = parse_capacities(device.capacity or {})
        try:
            self.value: dict[str, Any] | EvaluationError = device_value(device, driver)
        except EvaluationError as error:
            self.value = error
        self._capacity = device.capacity
        self._part: tuple[frozenset[str], Hashable] | None = None
        #: What others call such a device, once they know it.
        self.name: str | None = None
        #: Result and steps.
        self._results: dict[Program, tuple[bool | EvaluationError, int]] = {}

    def part(self, names: frozenset[str] | None) -> Hashable:
        """Equal for contents that differ in other attributes than these, by their names without domains; None: in none.

        Contents with an invalid attribute or capacity equal themselves alone.
        """
        if names is None or isinstance(self.value, EvaluationError) or isinstance(self.capacities, str):
            return self
        if self._part is None or self._part[0] is not names:
            driver = self.value["driver"]
            kept = [each for each in self.attributes.items() if qualified(each[0], driver)[1] in names]
            self._part = names, _encode((driver, self.value["allowMultipleAllocations"], self._capacity, kept))
        return self._part[1]

    def matches(self, program: Program, meter: SelectorMeter | None = None, selectors: int = 0) -> bool:
        """The result of a selector; evaluated once. Raises EvaluationError, and what the meter raises.

        `selectors`: the number of those of its claim, as of `SelectorMeter.judge`; 0 for one that no tenant wrote.
        """
        known = self._results.get(program)
        if known is None:
            if isinstance(self.value, EvaluationError):
                known = self.value, 0
            else:
                if meter is not None:
                    meter.admit()
                known = program.measured(self.value)
                if meter is not None:
                    meter.evaluated(known[1])
            if len(self._results) >= _MOST_RESULTS:
                self._results.clear()
            self._results[program] = known
        found, steps = known
        if meter is not None and selectors:
            meter.judge(steps, selectors)
        if isinstance(found, EvaluationError):
            raise found.with_traceback(None)  # each raise would keep its frames
        return found
