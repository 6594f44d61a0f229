"""Writes of progress: at once while there are few, in turn while there are many, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.controllers.objects import Key
from capcard_sched.kube.writes.progress_pace import BURST, LONGEST, RATE, ProgressPace
from capcard_sched.kube.writes.status_rate_limiter import RatePolicy

#: A status of these tests is its phase, "" where it shows counts only.
POLICY = RatePolicy[str](lambda phase: phase, longest=5.0)


class Clock(ProgressPace[Key, str]):
    """A pace whose clock is moved by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(POLICY, lambda key: key.namespace, 0.0)

    def wants(self, number: int | Key, phase: str = "") -> bool:
        """A pass over an object wants to write; whether it does."""
        key = number if isinstance(number, Key) else Key("Job", "ns", str(number))
        taken = self.take(key, phase, self.now)
        if taken:
            self.record(key, phase, self.now)
        self.end(key)
        return taken

    def served(self, seconds: float, phase: str = "") -> list[tuple[float, str]]:
        """Times and names of the objects that are released in steps of 100 ms, and written."""
        found = []
        for _ in range(round(seconds * 10)):
            self.now = round(self.now + 0.1, 1)
            for key in self.release(self.now):
                assert self.take(key, phase, self.now)
                self.record(key, phase, self.now)
                self.end(key)
                found.append((self.now, key.name))
        return found

    @contextmanager
    def creations(self) -> Iterator[None]:
        """A pass that creates pods."""
        with self.other_writes(lambda: self.now):
            yield


@pytest.fixture
def pace() -> Clock:
    return Clock()


def test_a_few_objects_are_written_at_once(pace: Clock) -> None:
    assert all(pace.wants(number) for number in range(10))
    assert not pace.wants(10)


def test_counts_of_one_object_are_a_second_apart_and_five_while_they_go_on_changing(pace: Clock) -> None:
    written = []
    for _ in range(300):
        pace.now = round(pace.now + 0.1, 1)
        for key in pace.release(pace.now):
            assert pace.wants(key)
            written.append(pace.now)
        if pace.wants(1):
            written.append(pace.now)
    assert [round(b - a, 1) for a, b in pairwise(written)][:6] == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_a_new_phase_does_not_wait_for_the_counts_before_it(pace: Clock) -> None:
    assert pace.wants(1)
    assert not pace.wants(1)
    assert pace.wants(1, "Running")
    assert not pace.wants(1, "Running")
    assert pace.served(2.0, "Running") == [(1.0, "1")]


def test_another_write_of_the_object_ends_the_wait(pace: Clock) -> None:
    pace.wants(1)
    assert not pace.wants(1)
    pace.record(Key("Job", "ns", "1"), "", 0.6)
    assert pace.served(5.0) == []


def test_an_unused_grant_expires(pace: Clock) -> None:
    key = Key("Job", "ns", "1")
    pace.wants(1)
    assert not pace.wants(1)
    assert list(pace.release(1.0)) == [key]
    pace.end(key)
    pace.record(key, "", 1.1)
    assert not pace.take(key, "", 1.2)


def test_every_one_of_many_objects_is_written_in_time(pace: Clock) -> None:
    allowed = [number for number in range(3000) if pace.wants(number)]
    later = pace.served(60.0)
    assert len(allowed) == BURST
    assert len({name for _, name in later}) == len(later) == 3000 - BURST
    assert later[-1][0] <= LONGEST + 0.1
    early = [at for at, _ in later if at < LONGEST - 0.1]
    assert len(early) == RATE * LONGEST - 1, "the others wait for the changes of that time"


def test_progress_waits_while_a_controller_creates_and_no_longer_than_else(pace: Clock) -> None:
    with pace.creations():
        early = sum(pace.wants(number) for number in range(1000))
        assert early == BURST
        assert pace.served(LONGEST - 0.2) == []
        assert len(pace.served(0.3)) == 1000 - BURST


def test_between_the_passes_that_create_progress_is_written(pace: Clock) -> None:
    for number in range(100):
        pace.wants(number)
    written = 0
    for _ in range(10):
        with pace.creations():
            pace.now += 0.6
        written += len(pace.served(0.4))
    assert written == pytest.approx(10 * 0.4 * RATE, abs=1)


def test_a_new_phase_is_written_before_new_counts(pace: Clock) -> None:
    for number in range(100):
        pace.wants(number)
    for number in range(100, 200):
        assert not pace.wants(number, "Running")
    found = [int(name) for _, name in pace.served(40.0, "Running")]
    assert found == [*range(100, 200), *range(10, 100)]


def test_an_object_whose_counts_wait_moves_ahead_with_its_new_phase(pace: Clock) -> None:
    for number in range(20):
        pace.wants(number)
    assert not pace.wants(19, "Running")
    assert pace.served(0.5)[0][1] == "19"


def test_jobs_that_follow_each_other_are_not_delayed(pace: Clock) -> None:
    for number in range(100):  # a Job every five seconds, whose creations take two
        pace.now = number * 5.0
        with pace.creations():
            pace.now += 2.0
        assert all(pace.wants(3 * number + step) for step in range(3))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0.0, 3.0)), max_size=60))
def test_no_object_that_was_refused_is_forgotten(calls: list[tuple[int, bool, float]]) -> None:
    pace = Clock()
    waiting: set[str] = set()
    for number, phase, pause in calls:
        pace.now += pause
        if pace.wants(number, "Running" if phase else ""):
            waiting.discard(str(number))
        else:
            waiting.add(str(number))
    assert {name for _, name in pace.served(20.0)} == waiting


def test_a_namespace_with_many_objects_does_not_delay_the_others(pace: Clock) -> None:
    others = [Key("Job", "other", name) for name in "abc"]
    for number in range(1000):
        pace.wants(number, "Running")
    assert not any(pace.wants(each, "Running") for each in others)
    first = [name for _, name in pace.served(2.0, "Running")][:6]
    assert [name for name in first if name in "abc"] == ["a", "b", "c"]
