"""Durations: what is accepted and how it is shown."""

import pytest

from capcard_sched.simulation.duration import SpanError, format_duration, parse_duration

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
def test_durations_are_read_as_microseconds(raw: object, micros: int) -> None:
    assert parse_duration(raw) == micros


@pytest.mark.parametrize(
    "raw",
    ["", "s", "30", "5 s", "-5s", "1x", "1e3s", "soon", True, None, [], float("nan"), float("inf"), -1, "9999999d"],
)
def test_everything_else_is_refused(raw: object) -> None:
    with pytest.raises(SpanError):
        parse_duration(raw)


@pytest.mark.parametrize(
    "micros, text",
    [(0, "0s"), (500_000, "500ms"), (45 * SECOND, "45s"), (5400 * SECOND, "1h30m"), (90_061 * SECOND, "1d1h")],
)
def test_durations_are_shown_with_two_units_at_most(micros: int, text: str) -> None:
    assert format_duration(micros) == text
