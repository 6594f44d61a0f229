"""The tdm plugin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.plugins.tdm import Window, most_evictions, parse_window
from capcard_sched.testing import Harness

ZONE = "volcano.sh/revocable-zone"
CONF = "actions: allocate\ntiers: [{plugins: [{name: tdm, arguments: {tdm.revocable-zone.night: 22:00-06:00}}]}]\n"


def at(time: str, day: int = 2) -> float:
    """A time of a day in January 2026, UTC."""
    hour, minute, second = map(int, time.split(":"))
    return datetime(2026, 1, day, hour, minute, second, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("window", "time", "active"),
    [
        pytest.param("10:00-21:00", "10:00:00", True, id="17.1 its first second"),
        pytest.param("10:00-21:00", "21:00:00", True, id="its last second"),
        pytest.param("10:00-21:00", "21:00:01", False, id="17.1 a second after"),
        pytest.param("10:00-21:00", "09:59:59", False, id="a second before"),
        pytest.param("22:00-06:00", "23:00:00", True, id="before midnight"),
        pytest.param("22:00-06:00", "03:00:00", True, id="17.2 after midnight (Better)"),
        pytest.param("22:00-06:00", "06:00:01", False, id="over midnight, after the end"),
        pytest.param("22:00-06:00", "12:00:00", False, id="over midnight, at noon"),
        pytest.param("08:00-08:00", "07:00:00", True, id="a whole day"),
        pytest.param("9:30 - 10:00", "09:45:00", True, id="written loosely"),
    ],
)
def test_windows(window: str, time: str, active: bool) -> None:
    parsed = parse_window(window)
    assert parsed is not None
    assert parsed.around(at(time), UTC)[0] is active


@pytest.mark.parametrize("text", ["", "10:00", "24:00-06:00", "10:60-11:00", "10-11", "a:b-c:d", "10:00-21:00-22:00"])
def test_an_invalid_window_parses_to_none(text: str) -> None:
    assert parse_window(text) is None


@given(
    start=st.integers(0, 1439),
    end=st.integers(0, 1439),
    second=st.integers(0, 3 * 86400),
    ahead=st.integers(1, 3 * 86400),
)
def test_nothing_changes_before_the_announced_time(start: int, end: int, second: int, ahead: int) -> None:
    window, now = Window(start, end), at("00:00:00") + second
    active, until = window.around(now, UTC)
    assert until > now
    later = now + ahead
    if later < until:
        assert window.around(later, UTC)[0] is active
    # The plain rule: some day's window holds the time.
    moment = datetime.fromtimestamp(now, UTC)
    midnight = moment.replace(hour=0, minute=0, second=0)
    plain = any(
        midnight + timedelta(days=day, minutes=start)
        <= moment
        <= midnight + timedelta(days=day + int(end <= start), minutes=end)
        for day in (-1, 0)
    )
    assert active is plain


def test_without_labelled_nodes_pods_of_one_class_share_a_profile() -> None:
    h = Harness(CONF)
    h.queue("q")
    h.node("own")
    h.group("g")
    h.group("star", annotations={ZONE: "*"})
    h.pod("p")
    h.pod("s", group="star")
    session = h.session()
    profiles = {session.engine.signature(session.queues["q"], h.task(name)) for name in ("p", "s")}
    assert len(profiles) == 1
    h.node("lent", labels={ZONE: "night"})
    session = h.session()
    profiles = {session.engine.signature(session.queues["q"], h.task(name)) for name in ("p", "s")}
    assert len(profiles) == 2


@pytest.mark.parametrize(
    ("budget", "running", "succeeded", "other", "evictions"),
    [
        pytest.param({"jdb-max-unavailable": "4"}, 7, 1, 2, 2, id="17.3"),
        pytest.param({"jdb-min-available": "50%"}, 5, 0, 0, 2, id="17.4 rounded up"),
        pytest.param({"jdb-min-available": "3"}, 2, 0, 3, 1, id="17.5 below its minimum: one"),
        pytest.param({}, 9, 0, 0, 1, id="none: one"),
        pytest.param({"jdb-max-unavailable": "2"}, 3, 0, 2, 0, id="as many are missing already"),
        pytest.param({"jdb-max-unavailable": "25%"}, 5, 0, 0, 2, id="percent rounded up"),
        pytest.param({"jdb-min-available": "5", "jdb-max-unavailable": "5"}, 5, 0, 0, 0, id="the minimum wins"),
        pytest.param({"jdb-min-available": "many"}, 5, 0, 0, 1, id="unreadable: one"),
        pytest.param({"jdb-max-unavailable": "-1"}, 5, 0, 0, 1, id="negative: one"),
    ],
)
def test_most_evictions(budget: dict[str, str], running: int, succeeded: int, other: int, evictions: int) -> None:
    h = Harness(CONF)
    h.queue("q")
    h.node("own")
    h.group("g", annotations={f"volcano.sh/{key}": value for key, value in budget.items()})
    for index in range(running):
        h.pod(f"r{index}", node="own")
    for index in range(succeeded):
        h.pod(f"s{index}", phase="Succeeded")
    for index in range(other):
        h.pod(f"p{index}")
    h.session()
    assert most_evictions(h.job("g")) == evictions
