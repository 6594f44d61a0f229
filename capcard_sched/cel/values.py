"""Values of CEL that Python has no type for, and equality and order of all values.

bool, int (64 bits), double, string, bytes, list, map and null are bool, int, float, str, bytes, list, dict and None.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.model.quantity import QuantityError, parse_quantity
from capcard_sched.model.quoting import quoted

if TYPE_CHECKING:
    from fractions import Fraction
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
    from urllib.parse import SplitResult

_INT_LIMIT: Final = 2**63
_UINT_LIMIT: Final = 2**64


class EvaluationError(Exception):
    """An expression failed for the given values."""


class CostError(EvaluationError):
    """An expression exceeded its number of steps. `&&` and `||` do not absorb it."""


class UInt(int):
    """An unsigned 64-bit integer."""

    __slots__ = ()


class Quantity(NamedTuple):
    """A quantity of Kubernetes, exact."""

    value: Fraction


class Duration(NamedTuple):
    """A span of time."""

    nanoseconds: int


class Timestamp(NamedTuple):
    """A point in time."""

    #: Since 1970, UTC.
    nanoseconds: int


class Address(NamedTuple):
    """An IP address."""

    value: IPv4Address | IPv6Address


class Network(NamedTuple):
    """A CIDR."""

    #: As written, with host bits.
    address: IPv4Address | IPv6Address
    value: IPv4Network | IPv6Network


class Link(NamedTuple):
    """A URL, or an absolute path."""

    value: SplitResult


class TypeName(NamedTuple):
    """A type as a value: `type(1) == int`."""

    name: str


class Maybe:
    """An optional value."""

    __slots__ = ("present", "value")

    def __init__(self, value: Any = None, *, present: bool = True) -> None:
        self.value = value
        self.present = present


ABSENT: Final = Maybe(present=False)


class DefaultMap(dict[str, Any]):
    """A map whose missing keys read as an empty map; `in` still returns false for them."""

    __slots__ = ()

    def __missing__(self, key: str) -> dict[str, Any]:
        return {}


_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?", re.ASCII
)
_MAX_PART: Final = 2**64


class Semver(NamedTuple):
    """A semantic version. Compares without its build metadata."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key by precedence: a version without a prerelease comes after those with one."""
        parts = tuple((0, len(part), part) if part.isdigit() else (1, 0, part) for part in self.prerelease)
        return self.major, self.minor, self.patch, not self.prerelease, parts


def parse_semver(text: str, *, normalize: bool = False) -> Semver:
    """A semantic version. `normalize`: accepts a leading v, one or two numbers, and leading zeros.

    Raises EvaluationError.
    """
    if normalize:
        text = _normalized(text)
    match = _SEMVER.fullmatch(text)
    if match is not None:
        prerelease = tuple(match[4].split(".")) if match[4] else ()
        build = match[5].split(".") if match[5] else ()
        numbers = [int(match[place]) if len(match[place]) <= 20 else _MAX_PART for place in (1, 2, 3)]
        wrong = [part for part in prerelease if not part or (part.isdigit() and len(part) > 1 and part[0] == "0")]
        if max(numbers) < _MAX_PART and not wrong and all(build):
            return Semver(numbers[0], numbers[1], numbers[2], prerelease)
    raise EvaluationError(f"{quoted(text)} is not a semantic version")


def _normalized(text: str) -> str:
    text = text.removeprefix("v")
    numbers, mark, rest = re.fullmatch(r"([^-+]*)([-+]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    parts = [part.lstrip("0") or part[:1] for part in numbers.split(".")]
    if len(parts) < 3 and not mark:
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts) + mark + rest


def to_quantity(text: str) -> Quantity:
    """The quantity of a text. Raises EvaluationError."""
    try:
        return Quantity(parse_quantity(text))
    except QuantityError as error:
        raise EvaluationError(str(error)) from None


_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    DefaultMap: "map",
    type(None): "null_type",
    Maybe: "optional_type",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    TypeName: "type",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Address: "net.IP",
    Network: "net.CIDR",
    Link: "kubernetes.URL",
}
NUMBERS: Final = frozenset({int, UInt, float})
_MAPS: tuple[type, ...] = (dict, DefaultMap)
MAPS: Final = frozenset(_MAPS)


def type_name(value: object) -> str:
    return _NAMES.get(type(value), type(value).__name__)


def checked_int(value: int) -> int:
    """The value as an int. Raises EvaluationError beyond 64 bits."""
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        raise EvaluationError("integer overflow")
    return int(value)


def checked_uint(value: int) -> UInt:
    """The value as a uint. Raises EvaluationError beyond 64 bits."""
    if not 0 <= value < _UINT_LIMIT:
        raise EvaluationError("unsigned integer overflow")
    return UInt(value)


def equal(left: Any, right: Any) -> bool:
    """Equality as of CEL: numbers compare across their types, other values of different types are unequal."""
    kind, other = type(left), type(right)
    if kind is other and kind not in _DEEP:
        return bool(left == right)
    if kind in NUMBERS and other in NUMBERS:
        return bool(left == right)
    if kind is list and other is list:
        return len(left) == len(right) and all(map(equal, left, right))
    if kind in MAPS and other in MAPS:
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if kind is Maybe and other is Maybe:
        return left.present == right.present and (not left.present or equal(left.value, right.value))
    return kind is Semver and other is Semver and left.order == right.order


_DEEP: Final = frozenset({list, Maybe, Semver}) | MAPS
_ORDERED: Final = frozenset({str, bytes, bool, Duration, Timestamp})


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1 for values that CEL orders. Raises EvaluationError for others, and for a NaN."""
    kind, other = type(left), type(right)
    if not ((kind in NUMBERS and other in NUMBERS) or (kind is other and kind in _ORDERED)):
        raise EvaluationError(f"no such overload: {type_name(left)} < {type_name(right)}")
    if left == right:
        return 0
    return -1 if left < right else 1


def contains(container: Any, value: Any) -> bool:
    """The operator `in`. Raises EvaluationError for anything but lists and maps."""
    if type(container) is list:
        return any(equal(each, value) for each in container)
    if type(container) in MAPS:
        return type(value) in KEYS and _key(value) in container
    raise EvaluationError(f"no such overload: {type_name(value)} in {type_name(container)}")


KEYS: Final = frozenset({str, int, UInt, bool, float})


def _key(value: Any) -> Any:
    """A map key: bool keys are distinct from 0 and 1, and numbers of equal value are one key."""
    return ("bool", value) if type(value) is bool else value


def map_key(value: Any) -> Any:
    """The form in which a map keeps a key. Raises EvaluationError for a value that is no key."""
    if type(value) not in KEYS:
        raise EvaluationError(f"unsupported key type {type_name(value)}")
    return _key(value)


def from_map_key(key: Any) -> Any:
    return key[1] if type(key) is tuple else key


def look_up(container: Any, index: Any) -> Maybe:
    """The element of a list or map, ABSENT without one. Raises EvaluationError for other values."""
    if type(container) in MAPS:
        key = map_key(index)
        if key in container:
            return Maybe(container[key])
        return Maybe({}) if type(container) is DefaultMap else ABSENT
    if type(container) is list:
        if type(index) in NUMBERS and index == int(index):
            return Maybe(container[int(index)]) if 0 <= index < len(container) else ABSENT
        raise EvaluationError(f"unsupported index type {type_name(index)} in list")
    raise EvaluationError(f"no such overload: {type_name(container)}[{type_name(index)}]")


def maybe(value: Any) -> Maybe:
    """The value, which must be optional. Raises EvaluationError."""
    if type(value) is not Maybe:
        raise EvaluationError(f"no such overload: {type_name(value)} is not optional")
    return value


def member(value: Any, field: str) -> Maybe:
    """The field of a map. Raises EvaluationError for other values."""
    if type(value) not in MAPS:
        raise EvaluationError(f"no such overload: {type_name(value)}.{field}")
    return look_up(value, field)


def is_set(value: Any, field: str) -> bool:
    """`has`: whether a map has a field. Raises EvaluationError for other values."""
    if type(value) not in MAPS:
        raise EvaluationError(f"no such overload: has({type_name(value)}.{field})")
    return field in value or type(value) is DefaultMap
