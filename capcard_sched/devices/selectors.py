"""CEL selectors of devices: the variable `device` and its types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.cel.program import compiled
from capcard_sched.cel.syntax import SyntaxNode, parse
from capcard_sched.cel.values import DefaultMap, EvaluationError, Quantity, parse_semver
from capcard_sched.model.quantity import QuantityError, parse_quantity
from capcard_sched.model.text_cache import text_cache

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


# Computed 22 us, kept 0.5 (benchmarks/caches.py).
@text_cache(1024)
def read_attributes(expression: str) -> frozenset[str] | None:
    """The names, without domains, of the attributes that a valid selector may read; None if that is not known."""
    found: set[str] = set()
    waiting: list[object] = [parse(expression)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, SyntaxNode):
            name = _attribute_of(each)
            if name is None:
                return None
            if name:
                found.add(name)
            elif not _is_other_field(each):
                waiting += each.parts
        elif isinstance(each, tuple):
            waiting += each
    return frozenset(found)


def _attribute_of(node: SyntaxNode) -> str | None:
    """The attribute that a node reads, "" for none, None for any."""
    if node.kind == "name":
        return None if node.parts[0] == "device" else ""
    operand, key = (node.parts[1], node.parts[0]) if node.kind == "in" else (*node.parts, None, None)[:2]
    if node.kind not in ("in", "select", "index") or not _is_domain(operand):
        return ""
    return _text(key)


def _is_domain(node: object) -> bool:
    """Whether it is `device.attributes["domain"]`."""
    if not isinstance(node, SyntaxNode) or node.kind not in ("select", "index") or _text(node.parts[1]) is None:
        return False
    operand = node.parts[0]
    return _field_of_device(operand) == "attributes"


def _is_other_field(node: SyntaxNode) -> bool:
    return _field_of_device(node) in ("driver", "allowMultipleAllocations", "capacity")


def _field_of_device(node: object) -> object:
    if isinstance(node, SyntaxNode) and node.kind == "select" and isinstance(operand := node.parts[0], SyntaxNode):
        return node.parts[1] if operand.kind == "name" and operand.parts[0] == "device" else None
    return None


def _text(key: object) -> str | None:
    """A field, or an index that is a literal text."""
    if isinstance(key, SyntaxNode):
        return _text(key.parts[0]) if key.kind == "literal" else None
    return key if isinstance(key, str) else None


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
