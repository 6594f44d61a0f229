"""Timestamps and durations, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.timestamps import (
    DurationError,
    TimestampError,
    format_duration,
    format_span,
    format_timestamp,
    parse_duration,
    parse_span,
    parse_time,
    parse_timestamp,
)


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T00:00:00.5Z", 1767225600.5),
        ("2026-01-01T00:00:00.123456Z", 1767225600.123456),
        ("2026-01-01T08:00:00+08:00", 1767225600.0),
        ("2025-12-31T18:30:00-05:30", 1767225600.0),
        ("2026-01-01t00:00:00z", 1767225600.0),
        ("2024-02-29T23:59:59Z", 1709251199.0),
        ("0001-01-01T00:00:00Z", -62135596800.0),
        ("9999-12-31T23:59:59Z", 253402300799.0),
    ],
)
def test_timestamps_are_read(text: str, seconds: float) -> None:
    assert parse_timestamp(text) == seconds


SHAPE = "is not a timestamp such as 2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "text, words",
    [
        ("", f"'' {SHAPE}"),
        ("now", f"'now' {SHAPE}"),
        ("2026-01-01", f"'2026-01-01' {SHAPE}"),
        ("2026-01-01 00:00:00Z", SHAPE),
        ("2026-01-01T00:00:00", SHAPE),
        ("20260101T000000Z", SHAPE),
        ("1767225600", SHAPE),
        ("2026-01-01T00:00:00+0800", SHAPE),
        ("2026-01-01T00:00:00Z\n", SHAPE),
        ("2026-01-01T00:00:00.Z", SHAPE),
        ("\uff19026-01-01T00:00:00Z", SHAPE),
        ("x" * 10**6, f"{'x' * 64}...' {SHAPE}"),
        ("2026-13-01T00:00:00Z", "'2026-13-01T00:00:00Z' is not a timestamp: no such date or time"),
        ("2026-02-29T00:00:00Z", "is not a timestamp: no such date or time"),
        ("2026-01-01T24:00:00Z", "is not a timestamp: no such date or time"),
        ("0000-01-01T00:00:00Z", "is not a timestamp: no such date or time"),
        ("2026-01-01T00:00:00+24:00", "is not a timestamp: offset must be within 23:59"),
    ],
)
def test_other_text_is_no_timestamp(text: str, words: str) -> None:
    with pytest.raises(TimestampError) as caught:
        parse_timestamp(text)
    assert words in str(caught.value)
    assert parse_time(text) == 0.0


def test_an_absent_time_reads_as_zero() -> None:
    assert parse_time(None) == 0.0
    assert parse_time("2026-01-01T00:00:00Z") == 1767225600.0


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "1970-01-01T00:00:00Z"),
        (1767225600.999, "2026-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (-62135596800, "0001-01-01T00:00:00Z"),
    ],
)
def test_timestamps_are_written_in_whole_seconds(seconds: float, text: str) -> None:
    assert format_timestamp(seconds) == text


@pytest.mark.parametrize("seconds", [1e12, -1e12, 1e300, float("inf"), float("nan")])
def test_times_outside_the_calendar_are_refused(seconds: float) -> None:
    with pytest.raises(TimestampError, match="seconds are outside the years 1 to 9999"):
        format_timestamp(seconds)


@given(st.integers(-62135596800, 253402300799))
def test_whole_seconds_survive_writing_and_reading(seconds: int) -> None:
    assert parse_timestamp(format_timestamp(seconds)) == seconds


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("30s", 30.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("1h1m1s1ms1us1ns", 3661.001001001),
        ("2µs", 2e-06),
        ("2μs", 2e-06),
        ("-1m", -60.0),
        ("+1m", 60.0),
        ("0", 0.0),
        ("0s", 0.0),
        ("-0", 0.0),
        ("1m1m", 120.0),
        ("2562047h", 9223369200.0),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "'' is not a duration such as 30s, 5m or 1h30m"),
        ("-", "'-' is not a duration such as 30s, 5m or 1h30m"),
        ("30", "'30' is not a duration: missing unit; use 30s, 5m or 1h30m"),
        ("1h30", "'1h30' is not a duration: missing unit; use 30s, 5m or 1h30m"),
        ("s", "'s' is not a duration: use 30s, 5m or 1h30m"),
        (".s", "'.s' is not a duration: use 30s, 5m or 1h30m"),
        ("2d", "'2d' is not a duration: use 30s, 5m or 1h30m"),
        ("1 h", "'1 h' is not a duration: use 30s, 5m or 1h30m"),
        ("1h-5m", "'1h-5m' is not a duration: use 30s, 5m or 1h30m"),
        ("--1h", "'--1h' is not a duration: use 30s, 5m or 1h30m"),
        ("1e3s", "'1e3s' is not a duration: use 30s, 5m or 1h30m"),
        ("1H", "'1H' is not a duration: use 30s, 5m or 1h30m"),
        ("٣s", "'٣s' is not a duration: use 30s, 5m or 1h30m"),
        ("soon", "'soon' is not a duration: use 30s, 5m or 1h30m"),
        ("2562048h", "'2562048h' is not a duration: beyond about 292 years"),
        ("9" * 120 + "h", "is not a duration: beyond about 292 years"),
        ("9" * 10**6 + "h", "is not a duration: longer than 128 characters"),
    ],
)
def test_other_text_is_no_duration(text: str, words: str) -> None:
    with pytest.raises(DurationError) as caught:
        parse_duration(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0s"),
        (0.0001, "0s"),
        (0.5, "500ms"),
        (1, "1s"),
        (1.25, "1.25s"),
        (90, "1m30s"),
        (60, "1m0s"),
        (3600, "1h0m0s"),
        (5400.5, "1h30m0.5s"),
        (-90, "-1m30s"),
        (59.9999, "1m0s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(-(10**12), 10**12))
def test_milliseconds_survive_writing_and_reading(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


SECOND = 1_000_000


@pytest.mark.parametrize(
    "raw, micros",
    [
        ("0", 0),
        ("30s", 30 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("2d", 172_800 * SECOND),
        ("500ms", SECOND // 2),
        ("1.5s", SECOND * 3 // 2),
        (".5m", 30 * SECOND),
        ("+7us", 7),
        ("3µs", 3),
        (5, 5 * SECOND),
        (0.25, SECOND // 4),
    ],
)
def test_spans_are_read_as_microseconds(raw: object, micros: int) -> None:
    assert parse_span(raw) == micros


@pytest.mark.parametrize(
    "raw",
    ["", "s", "30", "5 s", "-5s", "1x", "1e3s", "soon", True, None, [], float("nan"), float("inf"), -1, "9999999d"],
)
def test_other_values_are_no_spans(raw: object) -> None:
    with pytest.raises(DurationError):
        parse_span(raw)


@pytest.mark.parametrize(
    "micros, text",
    [(0, "0s"), (500_000, "500ms"), (45 * SECOND, "45s"), (5400 * SECOND, "1h30m"), (90_061 * SECOND, "1d1h")],
)
def test_spans_are_written_with_two_units_at_most(micros: int, text: str) -> None:
    assert format_span(micros) == text
