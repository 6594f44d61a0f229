"""Kubernetes timestamps (RFC 3339) and Go durations as seconds, and back; human-readable durations."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache

from capcard_sched.model.quoting import quoted, shown
from capcard_sched.model.text_cache import text_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h|d)")
_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86_400 * 10**9,
}
_MAX_NANOSECONDS = 2**63 - 1
_MAX_TEXT = 128
#: Accepted by `parse_span`.
SPAN_FORM = "a duration such as 30s, 1h30m, 500ms or 2d"
#: Microseconds of a thousand years: beyond it a timestamp cannot be written.
_MAX_SPAN = 1000 * 365 * 86_400 * 10**6


class TimestampError(ValueError):
    """Text that is not an RFC 3339 timestamp."""


class DurationError(ValueError):
    """A value that is not a duration, or exceeds its range."""


# Computed 2.1 us, kept 0.5 (benchmarks/caches.py).
@text_cache(8192)
def parse_timestamp(text: str) -> float:
    """`2026-01-01T00:00:00Z`, with an optional fraction and offset, as unix seconds. Raises TimestampError."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise TimestampError(f"{quoted(text)} is not a timestamp such as 2026-01-01T00:00:00Z")
    year, month, day, hour, minute, second, fraction, sign, offset_hours, offset_minutes = match.groups()
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        raise TimestampError(f"{quoted(text)} is not a timestamp: no such date or time") from None
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    if sign:
        if int(offset_hours) > 23 or int(offset_minutes) > 59:
            raise TimestampError(f"{quoted(text)} is not a timestamp: offset must be within 23:59")
        offset = int(offset_hours) * 3600 + int(offset_minutes) * 60
        seconds += offset if sign == "-" else -offset
    return seconds + int(fraction) / 10 ** len(fraction) if fraction else float(seconds)


def parse_time(text: str | None) -> float:
    """Like `parse_timestamp` for times set by the API server: 0.0 for an absent or invalid one. Never raises."""
    if not text:
        return 0.0
    try:
        return parse_timestamp(text)
    except TimestampError:
        return 0.0


def format_timestamp(seconds: float) -> str:
    """Unix seconds in Kubernetes' format: UTC, fractions cut off. Raises TimestampError outside years 1 to 9999."""
    try:
        return _format_seconds(seconds // 1)
    except (OverflowError, ValueError):
        raise TimestampError(f"{seconds} seconds are outside the years 1 to 9999") from None


# Computed 1.8 us, kept 0.04 (benchmarks/caches.py).
@lru_cache(maxsize=64)  # a session formats its time repeatedly, each event two times within a second
def _format_seconds(seconds: float) -> str:
    moment = _EPOCH + timedelta(seconds=seconds)
    # strftime does not pad years below 1000 on every platform.
    return f"{moment.year:04}-{moment.month:02}-{moment.day:02}T{moment.hour:02}:{moment.minute:02}:{moment.second:02}Z"


def parse_duration(text: str) -> float:
    """A Go duration (`1h30m`, `500ms`, `-1.5s`, `0`) in seconds. Raises DurationError."""
    nanoseconds = _nanoseconds(text, days=False)
    if abs(nanoseconds) > _MAX_NANOSECONDS:
        raise DurationError(f"{quoted(text)} is not a duration: beyond about 292 years")
    return float(nanoseconds / 10**9)


def parse_span(raw: object) -> int:
    """Microseconds of a duration in a scenario or flag, rounded to the nearest.

    Accepts Go durations, days (`d`), and bare numbers as seconds; never negative ones. Raises DurationError.
    """
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise DurationError(f"{shown(raw)} is not a duration")
    if isinstance(raw, str):
        try:
            micros = _nanoseconds(raw.strip(), days=True) / 1000
        except DurationError:  # callers append SPAN_FORM instead of the form of Go
            raise DurationError(f"{quoted(raw)} is not a duration") from None
    elif not math.isfinite(raw):
        raise DurationError(f"{raw!r} is not a duration")
    else:
        micros = Fraction(raw) * 10**6
    if micros < 0:
        raise DurationError(f"{raw!r} is negative")
    if micros > _MAX_SPAN:
        raise DurationError(f"{raw!r} is longer than a thousand years")
    return round(micros)


def _nanoseconds(text: str, *, days: bool) -> Fraction:
    body = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if body == "0":
        return Fraction(0)
    if not body:
        raise DurationError(f"{quoted(text)} is not a duration such as 30s, 5m or 1h30m")
    if len(body) > _MAX_TEXT:
        raise DurationError(f"{quoted(text)} is not a duration: longer than {_MAX_TEXT} characters")
    total = Fraction(0)
    position = 0
    while position < len(body):
        match = _PART.match(body, position)
        if match is None or not (match[1] or match[2]) or (match[3] == "d" and not days):
            hint = "missing unit; use 30s, 5m or 1h30m" if body[-1].isdigit() else "use 30s, 5m or 1h30m"
            raise DurationError(f"{quoted(text)} is not a duration: {hint}")
        whole, fraction, unit = match[1], match[2] or "", match[3]
        total += Fraction(int(whole + fraction or "0"), 10 ** len(fraction)) * _NANOSECONDS[unit]
        position = match.end()
    return -total if text.startswith("-") else total


def format_duration(seconds: float) -> str:
    """Seconds in Go's format of a duration, to the millisecond: 90 is `1m30s`, 0.5 is `500ms`, 0 is `0s`."""
    sign = "-" if seconds < 0 else ""
    milliseconds = round(abs(seconds) * 1000)
    if milliseconds < 1000:
        return f"{sign}{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h"] if hours else []
    if minutes or hours:
        parts.append(f"{minutes}m")
    whole, fraction = divmod(rest, 1000)
    parts.append(f"{whole}.{fraction:03}".rstrip("0") + "s" if fraction else f"{whole}s")
    return sign + "".join(parts)


def span(seconds: float) -> str:
    """Seconds in human-readable form, at most two units: `0s`, `1m30s`, `12d4h`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount}{unit}")
        elif parts:
            break
    return "".join(parts[:2]) or "0s"


def format_span(micros: int) -> str:
    """Microseconds like `span`, and below a second in milliseconds: `500ms`, `45s`, `1h30m`."""
    return f"{micros // 1_000}ms" if 1_000 <= micros < 10**6 else span(micros // 10**6)
