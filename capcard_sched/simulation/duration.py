"""Durations as users write them: `30s`, `1h30m`, `500ms`, `2d`."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from capcard_sched.model.timestamps import span

ACCEPTED = "a duration such as 30s, 1h30m, 500ms or 2d"

_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|us|µs|d|h|m|s)")
#: Microseconds per unit.
_UNITS = {
    "us": 1,
    "µs": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
#: Microseconds of a thousand years: beyond it a timestamp cannot be written.
_LONGEST = 1000 * 365 * _UNITS["d"]


class SpanError(ValueError):
    """Not a duration; the text quotes the value."""


def parse_duration(raw: object) -> int:
    """Microseconds, rounded to the nearest.

    Accepts what Go's durations accept, days (`d`), and bare numbers as seconds; never negative ones.
    Raises DurationError.
    """
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise SpanError("not a duration")
    if isinstance(raw, str):
        micros = _parse_text(raw.strip())
    elif not math.isfinite(raw):
        raise SpanError(f"{raw!r} is not a duration")
    else:
        micros = Fraction(raw) * _UNITS["s"]
    if micros < 0:
        raise SpanError(f"{raw!r} is negative")
    if micros > _LONGEST:
        raise SpanError(f"{raw!r} is longer than a thousand years")
    return round(micros)


def _parse_text(text: str) -> Fraction:
    if text == "0":
        return Fraction(0)
    body = text[1:] if text[:1] in ("+", "-") else text
    total, position = Fraction(0), 0
    while position < len(body):
        part = _PART.match(body, position)
        if part is None:
            raise SpanError(f"{text!r} is not a duration")
        total += Fraction("0" + part[1] if part[1].startswith(".") else part[1].rstrip(".")) * _UNITS[part[2]]
        position = part.end()
    if not body:
        raise SpanError(f"{text!r} is not a duration")
    return -total if text.startswith("-") else total


def format_duration(micros: int) -> str:
    """The shortest plain form, at most two units: `0s`, `45s`, `1h30m`, `12d4h`."""
    return f"{micros // 1_000}ms" if 1_000 <= micros < _UNITS["s"] else span(micros // _UNITS["s"])
