"""Which events are written: rules by example, and what holds for every sequence of events."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.kube.writes.event_correlator import (
    BURST,
    CAPACITY,
    COMBINED,
    MAX_MESSAGE,
    MAX_SIMILAR,
    REFILL_SECONDS,
    SIMILAR_SECONDS,
    EventCorrelator,
    Series,
    cut,
)
from capcard_sched.model.intents import EmitEvent, ObjectRef

POD = ObjectRef("Pod", "ns", "p", "uid-p")


def correlator() -> EventCorrelator:
    numbers = itertools.count()
    return EventCorrelator("capcard-sched", lambda name: f"{name}.{next(numbers):04x}")


def event(
    message: str = "no free node", about: ObjectRef = POD, reason: str = "FailedScheduling", component: str = ""
) -> EmitEvent:
    return EmitEvent(about, "Warning", reason, message, component)


def test_the_same_event_again_is_the_same_object_counted_up() -> None:
    made = correlator()
    first = made.observe(event(), 100.0)
    assert first is not None
    first.created = True
    second = made.observe(event(), 130.0)
    assert second is first
    assert (first.count, first.first, first.last) == (2, 100.0, 130.0)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(event("no memory"), id="message"),
        pytest.param(event(about=ObjectRef("Pod", "ns", "q", "uid-q")), id="object"),
        pytest.param(event(about=ObjectRef("Pod", "ns", "p", "uid-of-its-successor")), id="successor"),
        pytest.param(event(reason="Scheduled"), id="reason"),
        pytest.param(event(component="volcano.gang"), id="component"),
    ],
)
def test_events_that_differ_are_objects_of_their_own(other: EmitEvent) -> None:
    made = correlator()
    first, second = made.observe(event(), 0.0), made.observe(other, 1.0)
    assert first is not None
    assert second is not None
    assert first.name != second.name
    assert second.component == (other.component or "capcard-sched")


def test_after_ten_similar_ones_the_rest_share_one_object_that_shows_the_last() -> None:
    made = correlator()
    alone = [made.observe(event(f"{number} nodes"), float(number)) for number in range(MAX_SIMILAR)]
    shared = [made.observe(event(f"{number} nodes"), float(number)) for number in range(MAX_SIMILAR, 15)]
    assert len(set(map(id, alone))) == MAX_SIMILAR
    (series,) = {id(each): each for each in shared}.values()
    assert series is not None
    assert series.message == f"{COMBINED}14 nodes"
    assert series.count == 5


def test_a_single_event_stays_separate_and_a_pause_starts_a_new_series() -> None:
    made = correlator()
    first = made.observe(event("0 nodes"), 0.0)
    for number in range(1, 14):
        made.observe(event(f"{number} nodes"), 1.0)
    assert made.observe(event("0 nodes"), 2.0) is first
    later = made.observe(event("99 nodes"), 2.0 + SIMILAR_SECONDS + 1)
    assert later is not None
    assert later.message == "99 nodes"


def test_when_the_budget_is_spent_the_last_one_is_written_as_soon_as_there_is_one_again() -> None:
    made = correlator()
    written = [made.observe(event(f"{number} nodes"), 0.0) for number in range(BURST)]
    assert None not in written
    assert made.observe(event("unlucky"), 1.0) is None
    assert made.observe(event("last word"), 2.0) is None
    assert made.pop_ready(REFILL_SECONDS - 1) == []
    (series,) = made.pop_ready(REFILL_SECONDS + 1)
    assert series.message == f"{COMBINED}last word"
    assert series.count == BURST - MAX_SIMILAR + 2
    assert made.pop_ready(10 * REFILL_SECONDS) == []


def test_the_budget_is_each_objects_own() -> None:
    made = correlator()
    for _ in range(BURST + 5):
        made.observe(event(), 0.0)
    assert made.observe(event(about=ObjectRef("Pod", "ns", "q", "uid-q")), 0.0) is not None
    assert made.observe(event(component="volcano.gang"), 0.0) is not None


def test_of_the_events_beyond_the_budget_one_is_kept_and_dropped_ones_are_counted() -> None:
    made = correlator()
    for _ in range(BURST):
        made.observe(event(), 0.0)
    for number, reason in enumerate("AB"):
        made.observe(event(reason, reason=reason), 1.0)
        assert made.drain_lost() == number, "a later one takes the place of the kept one"
    assert made.observe(event("C", reason="C"), 2 * REFILL_SECONDS) is not None
    assert made.drain_lost() == 1, "so does one that is written"
    assert made.drain_lost() == 0


def test_memory_is_bounded() -> None:
    made = correlator()
    for number in range(3 * CAPACITY):
        about = ObjectRef("Pod", "ns", f"p{number}", f"u{number}")
        made.observe(event(f"m{number}", about), 0.0)
    assert max(len(made._series), len(made._similar), len(made._budgets)) == CAPACITY


def test_an_event_that_expired_on_the_server_gets_a_new_name_and_keeps_its_count() -> None:
    made = correlator()
    series = made.observe(event(), 0.0)
    assert series is not None
    series.created, name = True, series.name
    made.observe(event(), 5.0)
    made.renew(series)
    assert (series.created, series.count) == (False, 2)
    assert series.name != name


@pytest.mark.parametrize(
    ("message", "length"),
    [("short", 5), ("x" * 1024, 1024), ("x" * 1025, 1024), ("é" * 512, 1024), ("é" * 513, 1023), ("€" * 400, 1023)],
)
def test_messages_are_cut_to_whole_characters(message: str, length: int) -> None:
    shown = cut(message)
    assert len(shown.encode()) == length
    assert shown == message or (shown.endswith("...") and message.startswith(shown[:-3]))


@given(st.text())
def test_a_message_never_exceeds_the_limit(message: str) -> None:
    assert len(cut(message * 40).encode(errors="replace")) <= MAX_MESSAGE


steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 30.0, 400.0, 900.0]),
        st.integers(0, 2),
        st.sampled_from(["FailedScheduling", "Unschedulable"]),
        st.integers(0, 30),
    ),
    max_size=300,
)


@given(steps)
def test_writes_stay_within_the_budget_and_the_last_status_is_always_written(
    happened: list[tuple[float, int, str, int]],
) -> None:
    made = correlator()
    now = 0.0
    writes: dict[ObjectRef, list[float]] = defaultdict(list)
    #: Objects of the server, by name of the Event object.
    server: dict[str, tuple[ObjectRef, str, int]] = {}
    last: dict[ObjectRef, str] = {}
    shown: dict[ObjectRef, str] = {}
    seen: Counter[ObjectRef] = Counter()

    def write(series: Series) -> None:
        series.created = True
        writes[series.object].append(now)
        server[series.name] = (series.object, series.message, series.count)
        shown[series.object] = series.message

    for pause, number, reason, figure in happened:
        now += pause
        about = ObjectRef("Pod", "ns", f"p{number}", f"u{number}")
        for series in made.pop_ready(now):
            write(series)
        message = f"{reason}: {figure} nodes"
        last[about] = message
        seen[about] += 1
        found = made.observe(event(message, about, reason), now)
        if found is not None:
            write(found)
    now += BURST * REFILL_SECONDS
    for series in made.pop_ready(now):
        write(series)
    for about, message in last.items():
        assert shown[about] in {message, COMBINED + message}
        moments = writes[about]
        for start, first in enumerate(moments):
            for end in range(start, len(moments)):
                assert end - start + 1 <= BURST + (moments[end] - first) / REFILL_SECONDS + 1
        counted = sum(count for owner, _, count in server.values() if owner == about)
        assert counted <= seen[about]
    assert made.pop_ready(now + 10 * REFILL_SECONDS) == []
