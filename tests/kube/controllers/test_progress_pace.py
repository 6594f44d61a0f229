"""Writes of progress: at once while there are few, in turn while there are many, and none is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.controllers.objects import Key
from capcard_sched.kube.controllers.controller_loop import ProgressPace

GAP = 1.0


def key(number: int) -> Key:
    return Key("Job", "ns", str(number))


def served(pace: ProgressPace, since: float, until: float) -> list[tuple[float, Key]]:
    """The objects that are released in steps of 100 ms, and written."""
    found = []
    for step in range(round((until - since) * 10) + 1):
        now = since + step / 10
        for each in pace.release(now):
            assert pace.take(each, now)
            pace.wrote(each, now)
            pace.end(each)
            found.append((now, each))
    return found


def test_a_few_objects_are_written_at_once() -> None:
    pace = ProgressPace(GAP, 0.0)
    assert all(pace.take(key(number), 5.0) for number in range(10))
    assert not pace.take(key(10), 5.0)


def test_two_writes_of_one_object_are_a_gap_apart() -> None:
    pace = ProgressPace(GAP, 0.0)
    assert pace.take(key(1), 0.0)
    pace.wrote(key(1), 0.0)
    assert not pace.take(key(1), 0.5)
    assert served(pace, 0.5, 2.0) == [(1.0, key(1))]


def test_another_write_of_the_object_ends_the_wait() -> None:
    pace = ProgressPace(GAP, 0.0)
    pace.wrote(key(1), 0.0)
    assert not pace.take(key(1), 0.5)
    pace.wrote(key(1), 0.6)
    assert served(pace, 0.6, 5.0) == []


def test_an_unused_grant_expires() -> None:
    pace = ProgressPace(GAP, 0.0)
    pace.wrote(key(1), 0.0)
    assert not pace.take(key(1), 0.5)
    assert list(pace.release(1.0)) == [key(1)]
    pace.end(key(1))
    pace.wrote(key(1), 1.1)
    assert not pace.take(key(1), 1.2)


def test_every_one_of_many_objects_is_written_within_thirty_seconds() -> None:
    pace = ProgressPace(GAP, 0.0)
    allowed = [number for number in range(3000) if pace.take(key(number), 0.0)]
    later = served(pace, 0.0, 60.0)
    assert len(allowed) == 10
    assert len({each for _, each in later}) == len(later) == 2990
    assert later[-1][0] <= 30.1
    early = [at for at, _ in later if at < 29.9]
    assert len(early) == 5 * 30 - 1, "the others wait for the changes of that time"


def test_beside_other_writes_progress_is_a_twelfth_of_them_and_little_more() -> None:
    pace = ProgressPace(GAP, 0.0)
    for number in range(1000):
        pace.take(key(number), 0.0)
    written = 0
    for step in range(100):  # a pass of eight writes ends every second, each after four seconds
        pace.note_pass(8, 4.0, float(step))
        written += len(served(pace, step, step + 0.9))
    assert 100 * 8 / 12 - 1 <= written <= 100 * 8 / 12 + 100 / 5


def test_beside_other_writes_every_object_is_written_within_two_minutes() -> None:
    pace = ProgressPace(GAP, 0.0)
    early = 0
    for number in range(1000):
        early += pace.take(key(number), 0.0)
    for step in range(120):
        pace.note_pass(1, 4.0, float(step))
        early += len(served(pace, step, step + 0.9))
    assert early < 150
    pace.note_pass(1, 4.0, 120.0)
    assert len(served(pace, 120.0, 120.1)) == 1000 - early


def test_a_new_phase_is_written_before_new_counts_and_within_twenty_seconds() -> None:
    pace = ProgressPace(GAP, 0.0)
    for number in range(100):
        pace.take(key(number), 0.0)
    for number in range(100, 200):
        assert not pace.take(key(number), 0.0, phase=True)
    found: list[tuple[float, Key]] = []
    for step in range(1, 40):
        pace.note_pass(1, 4.0, float(step))
        found += served(pace, step, step + 0.9)
    phases = [(at, each) for at, each in found if int(each.name) >= 100]
    assert [each for _, each in phases] == [key(number) for number in range(100, 200)]
    assert phases[-1][0] <= 20.1
    assert found[: phases.index(phases[-1]) + 1] == phases, "no count precedes a phase"


def test_an_object_whose_counts_wait_moves_ahead_with_its_new_phase() -> None:
    pace = ProgressPace(GAP, 0.0)
    for number in range(20):
        pace.take(key(number), 0.0)
    assert not pace.take(key(19), 0.1, phase=True)
    assert served(pace, 0.1, 0.5)[0][1] == key(19)


def test_jobs_that_follow_each_other_are_not_delayed() -> None:
    pace = ProgressPace(GAP, 0.0)
    for number in range(100):  # a Job every five seconds, whose creations take two
        now = number * 5.0
        pace.note_pass(9, 2.0, now)
        assert all(pace.take(key(3 * number + step), now + step) for step in range(3))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0.0, 3.0)), max_size=60))
def test_no_object_that_was_refused_is_forgotten(calls: list[tuple[int, bool, float]]) -> None:
    pace, now = ProgressPace(GAP, 0.0), 0.0
    waiting: set[Key] = set()
    for number, phase, pause in calls:
        now += pause
        if pace.take(key(number), now, phase=phase):
            pace.wrote(key(number), now)
            waiting.discard(key(number))
        else:
            waiting.add(key(number))
        pace.end(key(number))
    assert {each for _, each in served(pace, now, now + 10)} == waiting


def test_a_namespace_with_many_objects_does_not_delay_the_others() -> None:
    pace = ProgressPace(GAP, 0.0)
    others = [Key("Job", "other", str(number)) for number in range(3)]
    for number in range(1000):
        pace.take(key(number), 0.0, phase=True)
    assert not any(pace.take(each, 0.0, phase=True) for each in others)
    first = [each for _, each in served(pace, 0.0, 2.0)][:6]
    assert [each for each in first if each.namespace == "other"] == others
