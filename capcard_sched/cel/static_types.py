"""What is known of the types of expressions before evaluation: enough to refuse what cel-go refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from capcard_sched.cel.syntax import CompileError
from capcard_sched.cel.values import (
    Address,
    Duration,
    Link,
    Maybe,
    Network,
    Quantity,
    Semver,
    Timestamp,
    TypeName,
    UInt,
)
from capcard_sched.model.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: None for a dynamic type; a type of Python; ("list", static) and ("map", static) with the type of the elements;
#: ("object", fields) with the types by field.
Static: TypeAlias = Any
BOOL: Final = bool

_RESULTS: Final[dict[type, str]] = {
    bool: "bool matches startsWith endsWith contains isQuantity isSemver isIP isCIDR isURL isGreaterThan isLessThan "
    "isInteger hasValue isSorted containsIP containsCIDR isUnspecified isLoopback isLinkLocalUnicast "
    "isLinkLocalMulticast isGlobalUnicast sets.contains sets.intersects sets.equivalent ip.isCanonical",
    int: "int size indexOf lastIndexOf asInteger compareTo major minor patch family prefixLength "
    "getSeconds getMinutes getHours getMilliseconds",
    UInt: "uint",
    float: "double asApproximateFloat",
    str: "string charAt lowerAscii upperAscii replace substring trim join format find strings.quote getScheme getHost "
    "getHostname getPort getEscapedPath",
    bytes: "bytes",
    TypeName: "type",
    Quantity: "quantity add sub",
    Semver: "semver",
    Network: "cidr masked",
    Address: "ip",
    Link: "url",
    Duration: "duration",
    Timestamp: "timestamp",
    Maybe: "optional.of optional.none optional.ofNonZeroValue",
}
_BY_NAME: Final[dict[str, Static]] = {name: static for static, names in _RESULTS.items() for name in names.split()} | {
    "split": ("list", str),
    "findAll": ("list", str),
    "lists.range": ("list", int),
}


def result_of(name: str) -> Static:
    return _BY_NAME.get(name)


def base(static: Static) -> type | None:
    """The type without that of its elements; None for a dynamic one."""
    if isinstance(static, tuple):
        return list if static[0] == "list" else dict
    found: type | None = static
    return found


def element(static: Static) -> Static:
    """The type of the elements of a list or of the values of a map."""
    return static[1] if isinstance(static, tuple) and static[0] != "object" else None


def joined(found: Iterable[Static]) -> Static:
    """The common type; None when they differ."""
    types = list(found)
    return types[0] if types and all(each == types[0] for each in types) else None


def field_of(static: Static, field: str, position: int) -> Static:
    """The type of a field. Raises CompileError for a type without it."""
    if isinstance(static, tuple) and static[0] == "object":
        fields = dict(static[1])
        if field not in fields:
            raise CompileError(f"at {position}: undefined field {quoted(field)}")
        return fields[field]
    if base(static) not in (None, dict, Maybe):
        raise CompileError(f"at {position}: type does not support the selection of field {quoted(field)}")
    return element(static)


def accepts(types: Sequence[Any], statics: Sequence[Static]) -> bool:
    """Whether an overload may take arguments of these types."""
    if len(types) != len(statics):
        return False
    for expected, static in zip(types, statics, strict=True):
        known = base(static)
        if known is None or expected is None:
            continue
        if known not in expected if isinstance(expected, tuple) else known is not expected:
            return False
    return True


def no_overload(name: str, position: int) -> CompileError:
    return CompileError(f"at {position}: found no matching overload for {quoted(name)}")
