"""The functions of CEL on strings, and the text of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from capcard_sched.cel.values import (
    MAPS,
    Duration,
    EvaluationError,
    TypeName,
    from_map_key,
    type_name,
)

#: Characters per step of functions that read or make strings.
_PER_STEP: Final = 10
#: Steps of a function that parses a text, and characters per further step.
_PARSING: Final = 10
_PARSED_PER_STEP: Final = 2
_UPPER: Final = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOWER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_QUOTED: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)
Charge = Callable[[int], None]


def sized(charge: Charge, length: int) -> None:
    """Charges the reading or making of a string of this length."""
    charge(1 + length // _PER_STEP)


def parses(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """An implementation that parses its first argument, a text or a URL: it charges that."""

    def call(charge: Charge, value: Any, *arguments: Any) -> Any:
        length = len(value) if type(value) is str else len(value.value.query)
        charge(_PARSING + length // _PARSED_PER_STEP)
        return implementation(charge, value, *arguments)

    return call


def quote(charge: Charge, text: str) -> str:
    sized(charge, len(text))
    return '"' + text.translate(_QUOTED) + '"'


def formatted(charge: Charge, value: Any) -> str:
    """The text of a value, as `string()` and `%s` write it. Raises EvaluationError for types without one."""
    kind = type(value)
    if kind is list:
        charge(len(value))
        return "[" + ", ".join([formatted(charge, each) for each in value]) + "]"
    if kind in MAPS:
        charge(len(value))
        pairs = sorted((formatted(charge, from_map_key(key)), formatted(charge, each)) for key, each in value.items())
        return "{" + ", ".join(f"{key}: {each}" for key, each in pairs) + "}"
    text = _scalar(kind, value)
    sized(charge, len(text))
    return text


def _scalar(kind: type, value: Any) -> str:
    if kind is bool:
        return "true" if value else "false"
    if kind is str:
        return str(value)
    if kind is float:
        return _double(value)
    if value is None:
        return "null"
    if kind is Duration:
        seconds, rest = divmod(abs(value.nanoseconds), 10**9)
        fraction = f".{rest:09d}".rstrip("0") if rest else ""
        return f"{'-' if value.nanoseconds < 0 else ''}{seconds}{fraction}s"
    if kind is bytes:
        return str(value.decode(errors="replace"))
    if kind is TypeName:
        return str(value.name)
    if not isinstance(value, int):
        raise EvaluationError(f"no such overload: string({type_name(value)})")
    return str(int(value))


def _double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    return text.removesuffix(".0") if "e" not in text else text


def _plain(charge: Charge, value: Any, clause: str, precision: int | None) -> str:
    """One argument of `format` by its clause."""
    kind, number = type(value), value
    if clause == "s":
        return formatted(charge, value)
    if clause == "d" and isinstance(number, int) and kind is not bool:
        return str(int(number))
    if clause in "fe" and isinstance(number, (int, float)) and kind is not bool:
        return f"{float(number):.{6 if precision is None else precision}{clause}}"
    if clause == "b" and isinstance(number, int):
        return f"{int(number):b}"
    if clause == "o" and isinstance(number, int) and kind is not bool:
        return f"{int(number):o}"
    if clause in "xX":
        if kind in (str, bytes):
            text: str = (number.encode() if kind is str else number).hex()
            return text.upper() if clause == "X" else text
        if isinstance(number, int) and kind is not bool:
            return f"{int(number):{clause}}"
    raise EvaluationError(f"format: %{clause} does not take {type_name(value)}")


def _format(charge: Charge, text: str, values: list[Any]) -> str:
    found: list[str] = []
    rest = list(values)
    place = 0
    while place < len(text):
        char = text[place]
        place += 1
        if char != "%":
            found.append(char)
            continue
        if text[place : place + 1] == "%":
            found.append("%")
            place += 1
            continue
        precision = None
        if text[place : place + 1] == ".":
            end = place + 1
            while text[end : end + 1].isdecimal() and end - place < 4:
                end += 1
            precision, place = int(text[place + 1 : end] or 0), end
        clause = text[place : place + 1]
        if clause not in ("s", "d", "f", "e", "b", "o", "x", "X") or (precision or 0) > 100:
            raise EvaluationError(f"format: unknown clause %{clause}")
        if not rest:
            raise EvaluationError("format: fewer arguments than clauses")
        found.append(_plain(charge, rest.pop(0), clause, precision))
        place += 1
    sized(charge, len(text))
    return "".join(found)


def _char_at(_: Charge, text: str, place: int) -> str:
    if not 0 <= place <= len(text):
        raise EvaluationError(f"index {place} is outside of a string of {len(text)} characters")
    return text[place : place + 1]


def _substring(charge: Charge, text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise EvaluationError(f"substring {start} to {end} is outside of a string of {len(text)} characters")
    sized(charge, end - start)
    return text[start:end]


def _index_of(charge: Charge, text: str, wanted: str, start: int = 0) -> int:
    if not 0 <= start <= len(text):
        raise EvaluationError(f"index {start} is outside of a string of {len(text)} characters")
    sized(charge, len(text))
    return text.find(wanted, start)


def _last_index_of(charge: Charge, text: str, wanted: str, last: int | None = None) -> int:
    if last is not None and not 0 <= last <= len(text):
        raise EvaluationError(f"index {last} is outside of a string of {len(text)} characters")
    sized(charge, len(text))
    return text.rfind(wanted) if last is None else text.rfind(wanted, 0, last + len(wanted))


def _replace(charge: Charge, text: str, old: str, new: str, count: int = -1) -> str:
    replaced = text.count(old) if count < 0 else min(count, text.count(old))
    sized(charge, len(text) + replaced * len(new))
    return text.replace(old, new, count)


def _split(charge: Charge, text: str, separator: str, limit: int = -1) -> list[str]:
    sized(charge, len(text))
    if limit == 0:
        return []
    if not separator:
        parts = list(text)
        charge(len(parts))
        return parts if limit < 0 or len(parts) <= limit else [*parts[: limit - 1], "".join(parts[limit - 1 :])]
    parts = text.split(separator, -1 if limit < 0 else limit - 1)
    charge(len(parts))
    return parts


def _join(charge: Charge, values: list[Any], separator: str = "") -> str:
    if any(type(value) is not str for value in values):
        raise EvaluationError("join: an element is not a string")
    sized(charge, sum(map(len, values)) + len(separator) * len(values))
    return separator.join(values)


def _starts(charge: Charge, text: str, prefix: str) -> bool:
    sized(charge, len(prefix))
    return text.startswith(prefix)


def _ends(charge: Charge, text: str, suffix: str) -> bool:
    sized(charge, len(suffix))
    return text.endswith(suffix)


def _has(charge: Charge, text: str, part: str) -> bool:
    sized(charge, len(text))
    return part in text


def _trimmed(charge: Charge, text: str) -> str:
    sized(charge, len(text))
    return text.strip()


def _translated(charge: Charge, text: str, table: dict[int, int]) -> str:
    sized(charge, len(text))
    return text.translate(table)


TEXT_METHODS: Final[dict[str, list[tuple[tuple[Any, ...], Callable[..., Any]]]]] = {
    "startsWith": [((str, str), _starts)],
    "endsWith": [((str, str), _ends)],
    "contains": [((str, str), _has)],
    "charAt": [((str, int), _char_at)],
    "indexOf": [((str, str), _index_of), ((str, str, int), _index_of)],
    "lastIndexOf": [((str, str), _last_index_of), ((str, str, int), _last_index_of)],
    "lowerAscii": [((str,), lambda charge, text: _translated(charge, text, _LOWER))],
    "upperAscii": [((str,), lambda charge, text: _translated(charge, text, _UPPER))],
    "replace": [((str, str, str), _replace), ((str, str, str, int), _replace)],
    "split": [((str, str), _split), ((str, str, int), _split)],
    "substring": [((str, int), _substring), ((str, int, int), _substring)],
    "trim": [((str,), _trimmed)],
    "join": [((list,), _join), ((list, str), _join)],
    "format": [((str, list), _format)],
}
