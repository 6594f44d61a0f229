"""CEL selectors of devices: the variable `device` and its types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.cel.program import compiled
from capcard_sched.cel.values import DefaultMap, EvaluationError, Quantity, parse_semver
from capcard_sched.model.quantity import QuantityError, parse_quantity

if TYPE_CHECKING:
    from capcard_sched.cel.program import Program
    from capcard_sched.cel.syntax import CompileError
    from capcard_sched.model.device_objects import SliceDevice

_DEVICE: Final = (
    "object",
    (
        ("driver", str),
        ("allowMultipleAllocations", bool),
        ("attributes", ("map", ("map", None))),
        ("capacity", ("map", ("map", Quantity))),
    ),
)
_VARIABLES: Final = (("device", _DEVICE),)


def compile_selector(expression: str) -> Program | CompileError:
    """The program of a selector, or why it does not compile; kept for further uses."""
    return compiled(expression, _VARIABLES)


def device_value(device: SliceDevice, driver: str) -> dict[str, Any]:
    """The variable `device`. Raises EvaluationError for an attribute without one valid value."""
    attributes: DefaultMap = DefaultMap()
    for name, attribute in (device.attributes or {}).items():
        domain, item = qualified(name, driver)
        attributes.setdefault(domain, {})[item] = _attribute_value(name, attribute)
    capacity: DefaultMap = DefaultMap()
    for name, entry in (device.capacity or {}).items():
        domain, item = qualified(name, driver)
        try:
            capacity.setdefault(domain, {})[item] = Quantity(parse_quantity(entry.value))
        except QuantityError as error:
            raise EvaluationError(f"capacity {name}: {error}") from None
    return {
        "driver": driver,
        "allowMultipleAllocations": bool(device.allow_multiple_allocations),
        "attributes": attributes,
        "capacity": capacity,
    }


def qualified(name: str, driver: str) -> tuple[str, str]:
    """Domain and identifier of a name; a name without a domain belongs to the driver."""
    domain, slash, item = name.partition("/")
    return (domain, item) if slash else (driver, name)


def _attribute_value(name: str, attribute: Any) -> Any:
    if attribute.int is not None:
        return attribute.int
    if attribute.bool is not None:
        return attribute.bool
    if attribute.string is not None:
        return attribute.string
    if attribute.version is not None:
        return parse_semver(attribute.version)
    raise EvaluationError(f"attribute {name}: unsupported attribute value")
