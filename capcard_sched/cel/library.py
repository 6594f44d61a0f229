"""The functions of CEL and of Kubernetes' libraries: their names, numbers of arguments, and implementations.

An implementation gets the charge function and the arguments, a method its operand first. It raises EvaluationError for
arguments of other types.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final, TypeAlias

from capcard_sched.cel import regex
from capcard_sched.cel.network_library import NETWORK_FUNCTIONS, NETWORK_METHODS
from capcard_sched.cel.text_library import TEXT_METHODS, formatted, parses, quote
from capcard_sched.cel.values import (
    ABSENT,
    MAPS,
    NUMBERS,
    Address,
    Duration,
    EvaluationError,
    Maybe,
    Network,
    Quantity,
    Semver,
    Timestamp,
    TypeName,
    UInt,
    checked_int,
    checked_uint,
    compare,
    contains,
    equal,
    from_map_key,
    parse_semver,
    to_quantity,
    type_name,
)
from capcard_sched.model.quoting import quoted

#: Counts steps; raises CostError beyond the limit.
Charge: TypeAlias = Callable[[int], None]
#: One overload: the types of the arguments (a type, several, or None for any), and the implementation.
Overload: TypeAlias = tuple[tuple[Any, ...], Callable[..., Any]]

_DURATION = re.compile(r"(-?)((?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:h|m|s|ms|us|µs|ns))+|0)")
_DURATION_PART = re.compile(r"([0-9.]+)(h|ms|us|µs|ns|m|s)")
_NANOSECONDS: Final = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ANY = None


def _duration(_: Charge, text: str) -> Duration:
    match = _DURATION.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise EvaluationError(f"{quoted(text)} is not a duration")
    total = sum(
        (Fraction(number) * _NANOSECONDS[unit] for number, unit in _DURATION_PART.findall(match[2])), Fraction()
    )
    return Duration(checked_int(-int(total) if match[1] else int(total)))


def _timestamp(_: Charge, text: str) -> Timestamp:
    match = _TIMESTAMP.fullmatch(text)
    try:
        moment = datetime.fromisoformat(f"{match[1]}{match[3]}") if match is not None else None
    except ValueError:
        moment = None
    if match is None or moment is None:
        raise EvaluationError(f"{quoted(text)} is not a timestamp")
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return Timestamp(seconds * 10**9 + int((match[2] or ".0")[1:].ljust(9, "0")))


def _to_int(_: Charge, value: Any) -> int:
    if type(value) is str:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", value) is None:
            raise EvaluationError(f"cannot convert {quoted(value)} to int")
        return checked_int(int(value))
    if type(value) is float and not abs(value) < 2**63:
        raise EvaluationError("integer overflow")
    return checked_int(int(value))


def _to_uint(_: Charge, value: Any) -> UInt:
    if type(value) is str and re.fullmatch(r"[0-9]{1,20}", value) is None:
        raise EvaluationError(f"cannot convert {quoted(value)} to uint")
    if type(value) is float and not 0 <= value < 2**64:
        raise EvaluationError("unsigned integer overflow")
    return checked_uint(int(value))


def _to_double(_: Charge, value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise EvaluationError(f"cannot convert {quoted(value)} to double") from None


def _to_bool(_: Charge, value: Any) -> bool:
    known = {"true": True, "True": True, "TRUE": True, "t": True, "1": True,
             "false": False, "False": False, "FALSE": False, "f": False, "0": False}  # fmt: skip
    if type(value) is bool:
        return value
    if value not in known:
        raise EvaluationError(f"cannot convert {quoted(value)} to bool")
    return known[value]


def _to_string(charge: Charge, value: Any) -> str:
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise EvaluationError("invalid UTF-8 in bytes") from None
    if type(value) in (Address, Network):
        return str(value.value)
    return formatted(charge, value)


def _as_integer(_: Charge, quantity: Quantity) -> int:
    if quantity.value.denominator != 1:
        raise EvaluationError("cannot convert value to integer")
    return checked_int(quantity.value.numerator)


def _term(value: Any) -> Fraction:
    return value.value if type(value) is Quantity else Fraction(value)


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def _order(left: Semver, right: Semver) -> int:
    return (left.order > right.order) - (left.order < right.order)


def _is_valid(parse: Callable[[], Any]) -> bool:
    try:
        return parse() is not None
    except EvaluationError:
        return False


def _total(charge: Charge, values: list[Any]) -> Any:
    charge(len(values))
    if any(type(value) not in NUMBERS and type(value) is not Duration for value in values):
        raise EvaluationError("no such overload: sum")
    if not values:
        return 0
    if type(values[0]) is Duration:
        return Duration(checked_int(sum(value.nanoseconds for value in values)))
    total = sum(values)
    return total if type(values[0]) is float else (checked_uint if type(values[0]) is UInt else checked_int)(total)


def _extreme(charge: Charge, values: list[Any], sign: int) -> Any:
    charge(len(values))
    if not values:
        raise EvaluationError("min and max need elements")
    best = values[0]
    for value in values[1:]:
        if compare(value, best) * sign > 0:
            best = value
    return best


def _is_sorted(charge: Charge, values: list[Any]) -> bool:
    charge(len(values))
    return all(compare(left, right) <= 0 for left, right in itertools.pairwise(values))


def _place(charge: Charge, values: Sequence[Any], wanted: Any) -> int:
    charge(len(values))
    return next((place for place, value in enumerate(values) if equal(value, wanted)), -1)


def _last_place(charge: Charge, values: Sequence[Any], wanted: Any) -> int:
    charge(len(values))
    return max((place for place, value in enumerate(values) if equal(value, wanted)), default=-1)


def _range(charge: Charge, count: int) -> list[int]:
    charge(max(0, count))
    return list(range(count))


def _includes(charge: Charge, left: list[Any], right: list[Any]) -> bool:
    charge(len(left) * len(right) + 1)
    return all(contains(left, value) for value in right)


def _intersects(charge: Charge, left: list[Any], right: list[Any]) -> bool:
    charge(len(left) * len(right) + 1)
    return any(contains(left, value) for value in right)


def _flattened(charge: Charge, values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += value if type(value) is list else [value]
    charge(len(found))
    return found


def _slice(charge: Charge, values: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(values):
        raise EvaluationError(f"cannot slice({start}, {end}) of {len(values)} elements")
    charge(end - start)
    return values[start:end]


def _distinct(charge: Charge, values: list[Any]) -> list[Any]:
    charge(len(values) ** 2)
    found: list[Any] = []
    for value in values:
        if not contains(found, value):
            found.append(value)
    return found


def _size(_: Charge, value: Any) -> int:
    return len(value)


def _matches(charge: Charge, text: str, pattern: str) -> bool:
    return regex.compiled(pattern).find(text, 0, charge) is not None


def _find(charge: Charge, text: str, pattern: str) -> str:
    found = regex.compiled(pattern).find(text, 0, charge)
    return text[slice(*found)] if found is not None else ""


def _find_all(charge: Charge, text: str, pattern: str, limit: int = -1) -> list[str]:
    found: list[str] = []
    place, known = 0, regex.compiled(pattern)
    while place <= len(text) and (limit < 0 or len(found) < limit):
        match = known.find(text, place, charge)
        if match is None:
            break
        found.append(text[slice(*match)])
        place = match[1] + (match[0] == match[1])
    return found


def _value(_: Charge, maybe: Maybe) -> Any:
    if not maybe.present:
        raise EvaluationError("optional.none() dereference")
    return maybe.value


def _non_zero(_: Charge, value: Any) -> Maybe:
    empty = value is None or (type(value) in {*NUMBERS, bool, str, bytes, list, *MAPS} and not value)
    return ABSENT if empty else Maybe(value)


_QUANTITY, _SEMVER = Quantity, Semver
_SIZED = (str, bytes, list, *MAPS)
_NUMBER = tuple(NUMBERS)

FUNCTIONS: Final[dict[str, list[Overload]]] = {
    **NETWORK_FUNCTIONS,
    "size": [((_SIZED,), _size)],
    "int": [(((*_NUMBER, str),), _to_int)],
    "uint": [(((*_NUMBER, str),), _to_uint)],
    "double": [(((*_NUMBER, str),), _to_double)],
    "bool": [(((bool, str),), _to_bool)],
    "string": [(((*_NUMBER, str, bytes, bool, Duration, Address, Network),), _to_string)],
    "bytes": [(((str, bytes),), lambda _, value: value.encode() if type(value) is str else value)],
    "type": [((_ANY,), lambda _, value: TypeName(type_name(value)))],
    "dyn": [((_ANY,), lambda _, value: value)],
    "duration": [((str,), parses(_duration))],
    "timestamp": [((str,), parses(_timestamp))],
    "matches": [((str, str), _matches)],
    "quantity": [((str,), parses(lambda _, text: to_quantity(text)))],
    "isQuantity": [((str,), parses(lambda _, text: _is_valid(lambda: to_quantity(text))))],
    "semver": [
        ((str,), parses(lambda _, text: parse_semver(text))),
        ((str, bool), parses(lambda _, text, normalize: parse_semver(text, normalize=normalize))),
    ],
    "isSemver": [
        ((str,), parses(lambda _, text: _is_valid(lambda: parse_semver(text)))),
        ((str, bool), parses(lambda _, text, normalize: _is_valid(lambda: parse_semver(text, normalize=normalize)))),
    ],
    "optional.of": [((_ANY,), lambda _, value: Maybe(value))],
    "optional.none": [((), lambda _: ABSENT)],
    "optional.ofNonZeroValue": [((_ANY,), _non_zero)],
    "sets.contains": [((list, list), _includes)],
    "sets.intersects": [((list, list), _intersects)],
    "sets.equivalent": [
        ((list, list), lambda charge, left, right: _includes(charge, left, right) and _includes(charge, right, left))
    ],
    "lists.range": [((int,), _range)],
    "strings.quote": [((str,), quote)],
}

METHODS: Final[dict[str, list[Overload]]] = {
    **TEXT_METHODS,
    **NETWORK_METHODS,
    "size": [((_SIZED,), _size)],
    "matches": [((str, str), _matches)],
    "find": [((str, str), _find)],
    "findAll": [((str, str), _find_all), ((str, str, int), _find_all)],
    "isInteger": [((_QUANTITY,), lambda _, value: _is_valid(lambda: _as_integer(_, value)))],
    "asInteger": [((_QUANTITY,), _as_integer)],
    "asApproximateFloat": [((_QUANTITY,), lambda _, value: float(value.value))],
    "add": [((_QUANTITY, (_QUANTITY, int)), lambda _, left, right: Quantity(left.value + _term(right)))],
    "sub": [((_QUANTITY, (_QUANTITY, int)), lambda _, left, right: Quantity(left.value - _term(right)))],
    "isGreaterThan": [
        ((_QUANTITY, _QUANTITY), lambda _, left, right: left.value > right.value),
        ((_SEMVER, _SEMVER), lambda _, left, right: left.order > right.order),
    ],
    "isLessThan": [
        ((_QUANTITY, _QUANTITY), lambda _, left, right: left.value < right.value),
        ((_SEMVER, _SEMVER), lambda _, left, right: left.order < right.order),
    ],
    "compareTo": [
        ((_QUANTITY, _QUANTITY), lambda _, left, right: _sign(left.value - right.value)),
        ((_SEMVER, _SEMVER), lambda _, left, right: _order(left, right)),
    ],
    "major": [((_SEMVER,), lambda _, value: value.major)],
    "minor": [((_SEMVER,), lambda _, value: value.minor)],
    "patch": [((_SEMVER,), lambda _, value: value.patch)],
    "hasValue": [((Maybe,), lambda _, value: value.present)],
    "value": [((Maybe,), _value)],
    "isSorted": [((list,), _is_sorted)],
    "sum": [((list,), _total)],
    "min": [((list,), lambda charge, values: _extreme(charge, values, -1))],
    "max": [((list,), lambda charge, values: _extreme(charge, values, +1))],
    "flatten": [((list,), _flattened)],
    "slice": [((list, int, int), _slice)],
    "distinct": [((list,), _distinct)],
    "getSeconds": [((Duration,), lambda _, value: int(value.nanoseconds / 10**9))],
    "getMinutes": [((Duration,), lambda _, value: int(value.nanoseconds / (60 * 10**9)))],
    "getHours": [((Duration,), lambda _, value: int(value.nanoseconds / (3600 * 10**9)))],
    "getMilliseconds": [((Duration,), lambda _, value: math.trunc(value.nanoseconds / 10**6) % 1000)],
}
METHODS["indexOf"] = [*METHODS["indexOf"], ((list, _ANY), _place)]
METHODS["lastIndexOf"] = [*METHODS["lastIndexOf"], ((list, _ANY), _last_place)]


def call(name: str, overloads: Sequence[Overload], charge: Charge, arguments: Sequence[Any]) -> Any:
    """Calls the overload that takes the arguments. Raises EvaluationError without one."""
    for types, implementation in overloads:
        if len(types) == len(arguments) and all(
            expected is None or (type(value) in expected if type(expected) is tuple else type(value) is expected)
            for expected, value in zip(types, arguments, strict=True)
        ):
            return implementation(charge, *arguments)
    shown = ", ".join(type_name(from_map_key(value)) for value in arguments)
    raise EvaluationError(f"no such overload: {name}({shown})")
