"""The binary operators of CEL."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from capcard_sched.cel.static_types import BOOL, Static, base, element, no_overload
from capcard_sched.cel.text_library import sized
from capcard_sched.cel.values import (
    Duration,
    EvaluationError,
    Timestamp,
    UInt,
    checked_int,
    checked_uint,
    compare,
    contains,
    equal,
    type_name,
)

Charge = Callable[[int], None]
_COMPARISONS: Final = ("<", "<=", ">", ">=")
_ARITHMETIC: Final[dict[str, set[Any]]] = {
    "+": {int, UInt, float, str, bytes, list, Duration},
    "-": {int, UInt, float, Duration},
    "*": {int, UInt, float},
    "/": {int, UInt, float},
    "%": {int, UInt},
}
_ORDERED: Final[set[Any]] = {int, UInt, float, str, bytes, bool, Duration, Timestamp}
_NUMBERS: Final[set[Any]] = {int, UInt, float}


def check_binary(operator: str, left: Static, right: Static, position: int) -> Static:
    """The type of the result. Raises CompileError for types that the operator does not take."""
    first, second = base(left), base(right)
    known = first is not None and second is not None
    if operator == "in":
        inner = element(right)
        wrong = second not in (None, list, dict) or (
            second is list and first is not None and base(inner) is not None and base(inner) is not first
        )
        result: Static = BOOL
    elif operator in ("==", "!="):
        nullable = type(None) in (first, second) and not {first, second} & _ORDERED
        wrong, result = known and first is not second and not nullable, BOOL
    elif operator in _COMPARISONS:
        mixed = known and first is not second and not {first, second} <= _NUMBERS
        wrong, result = mixed or not {first, second} <= {None, *_ORDERED}, BOOL
    else:
        wrong = (known and first is not second) or not {first, second} <= {None, *_ARITHMETIC[operator]}
        result = left if left == right else first if known else None
    if wrong:
        raise no_overload(f"_{operator}_", position)
    return result


def _wrong(operator: str, left: Any, right: Any) -> EvaluationError:
    return EvaluationError(f"no such overload: {type_name(left)} {operator} {type_name(right)}")


def _number(like: type, value: int) -> int:
    return checked_int(value) if like is int else checked_uint(value)


def _add(charge: Charge, left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is not type(right) or kind not in _ARITHMETIC["+"]:
        raise _wrong("+", left, right)
    if kind in (str, bytes):
        sized(charge, len(left) + len(right))
        return left + right
    if kind is list:
        charge(len(left) + len(right))
        return left + right
    if kind is Duration:
        return Duration(checked_int(left.nanoseconds + right.nanoseconds))
    return left + right if kind is float else _number(kind, left + right)


def _subtract(_: Charge, left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is not type(right) or kind not in _ARITHMETIC["-"]:
        raise _wrong("-", left, right)
    if kind is Duration:
        return Duration(checked_int(left.nanoseconds - right.nanoseconds))
    return left - right if kind is float else _number(kind, left - right)


def _multiply(_: Charge, left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is not type(right) or kind not in _NUMBERS:
        raise _wrong("*", left, right)
    return left * right if kind is float else _number(kind, left * right)


def _divide(_: Charge, left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is not type(right) or kind not in _NUMBERS:
        raise _wrong("/", left, right)
    if kind is float:
        if right:
            return left / right
        return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
    if not right:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return _number(kind, quotient if (left < 0) == (right < 0) else -quotient)


def _modulo(_: Charge, left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is not type(right) or kind not in _ARITHMETIC["%"]:
        raise _wrong("%", left, right)
    if not right:
        raise EvaluationError("modulus by zero")
    rest = abs(left) % abs(right)
    return _number(kind, -rest if left < 0 else rest)


def _charged(charge: Charge, value: Any) -> None:
    """Charges the comparison of a value with another one."""
    if type(value) in (str, bytes):
        sized(charge, len(value))
    elif type(value) in (list, dict):
        charge(_elements(charge, value))


def _elements(charge: Charge, value: Any) -> int:
    """The number of values inside of a list or map, at all levels; charged while it is counted."""
    total = 0
    for each in value if type(value) is list else value.values():
        charge(1)
        total += 1 + (_elements(charge, each) if type(each) in (list, dict) else 0)
    return total


def _equal(charge: Charge, left: Any, right: Any) -> bool:
    _charged(charge, left)
    return equal(left, right)


def _in(charge: Charge, left: Any, right: Any) -> bool:
    if type(right) is list:
        _charged(charge, right)
    return contains(right, left)


BINARY: Final[dict[str, Callable[[Charge, Any, Any], Any]]] = {
    "==": _equal,
    "!=": lambda charge, left, right: not _equal(charge, left, right),
    "<": lambda _, left, right: compare(left, right) < 0,
    "<=": lambda _, left, right: compare(left, right) <= 0,
    ">": lambda _, left, right: compare(left, right) > 0,
    ">=": lambda _, left, right: compare(left, right) >= 0,
    "in": _in,
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "%": _modulo,
}
