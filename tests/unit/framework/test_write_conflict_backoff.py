"""Two writers of one status: each writes, then both back off (several schedulers on one cluster)."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.close.write_conflict_backoff import BACKOFF_SECONDS, WriteConflictBackoff
from capcard_sched.model.intents import AnnotateQueue, UpdatePodGroup, UpdateQueueStatus
from tests.vectors.notation import VectorHarness

_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: capacity-card, arguments: {publishCardUsage: true}}]
"""
_THEIRS = [{"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "as they see it"}]


def _cluster() -> VectorHarness:
    h = VectorHarness(_CONF)
    h.do("node n1 cpu=4; queue q capability=cpu:64,memory:256Gi; group g min=2; pod p0 cpu=3; pod p1 cpu=3")
    h.do("group other; pod other/held @n1")
    return h


def _overwrite(h: VectorHarness, kind: str) -> None:
    """Another writer writes."""
    if kind == "PodGroup":
        h.group("g", min_member=2, phase="Inqueue", conditions=_THEIRS)
    elif kind == "QueueStatus":
        h.queue("q", capability={"cpu": "64", "memory": "256Gi"})  # nothing allocated
    else:
        h.queue("q", capability={"cpu": "64", "memory": "256Gi"}, annotations={"volcano.sh/card.allocated": '{"A":9}'})


def _writes(intents: list[Any]) -> set[str]:
    names: dict[Any, str] = {
        UpdatePodGroup: "PodGroup",
        UpdateQueueStatus: "QueueStatus",
        AnnotateQueue: "QueueAnnotations",
    }
    return {names[type(intent)] for intent in intents if type(intent) in names}


@pytest.mark.parametrize("kind", ["PodGroup", "QueueStatus", "QueueAnnotations"])
def test_a_status_that_another_writer_keeps_overwriting_is_left_to_it_during_backoff(kind: str) -> None:
    h = _cluster()
    h.step(now=1000.0)
    written = []
    for second in range(1, 100):
        _overwrite(h, kind)
        if kind in _writes(h.step(now=1000.0 + second).intents):
            written.append(second)
    assert 2 <= len(written) <= 4, written
    assert written[-1] >= BACKOFF_SECONDS, "it is tried again"


def test_backoff_ends_by_itself_without_a_change() -> None:
    h = _cluster()
    h.step(now=1000.0)
    for second in (1, 2, 3):
        _overwrite(h, "PodGroup")
        last = h.step(now=1000.0 + second)
    assert "PodGroup" not in _writes(last.intents)
    h.settle()
    assert last.next_wakeup == 1000.0 + BACKOFF_SECONDS
    assert h.step(now=1000.0 + BACKOFF_SECONDS - 0.5).idle
    assert "PodGroup" in _writes(h.step(now=1000.0 + BACKOFF_SECONDS).intents)


def test_a_new_status_is_written_at_once() -> None:
    h = _cluster()
    h.step(now=1000.0)
    for second in (1, 2, 3):
        _overwrite(h, "PodGroup")
        h.step(now=1000.0 + second)
    h.node("n2", cpu="4")
    assert "PodGroup" in _writes(h.step(now=1004.0).intents), "the gang has room now"
    assert set(h.binds) == {"p0", "p1"}


def test_entries_of_deleted_objects_are_removed() -> None:
    words = WriteConflictBackoff()
    assert [words.may_write("a", "x", 0.0) for _ in range(3)] == [True, True, False]
    assert words.pop_expired(BACKOFF_SECONDS - 1) == []
    assert words.pop_expired(BACKOFF_SECONDS) == ["a"]
    assert words.next_wakeup is None
    words.prune(BACKOFF_SECONDS - 1)
    assert words._written
    words.prune(BACKOFF_SECONDS)
    assert not words._written
    assert not words._equal


def test_an_object_with_the_wanted_status_needs_no_retry() -> None:
    words = WriteConflictBackoff()
    assert [words.may_write("a", "x", 0.0) for _ in range(3)] == [True, True, False]
    words.confirm("a")
    assert words.next_wakeup is None
    assert words.may_write("a", "y", 1.0)


def test_a_clock_that_is_set_back_suppresses_no_write() -> None:
    words = WriteConflictBackoff()
    assert [words.may_write("a", "x", 1000.0) for _ in range(3)] == [True, True, False]
    assert words.may_write("a", "x", 10.0)


def test_another_object_of_the_same_key_has_writes_of_its_own() -> None:
    words = WriteConflictBackoff()
    assert [words.may_write("a", "x", 0.0, "first") for _ in range(3)] == [True, True, False]
    assert words.may_write("a", "x", 0.0, "second")
    assert words.pop_expired(BACKOFF_SECONDS) == [], "the write ended the backoff of the key"


def test_objects_with_equal_content_share_its_record() -> None:
    words = WriteConflictBackoff()
    assert all(words.may_write(key, ("Running", 1), 5.0) for key in ("a", "b", "a"))
    assert words.may_write("b", ("Running", 1), 65.0)
    assert words._written == {"a": (("Running", 1), 5.0, 2), "b": (("Running", 1), 65.0, 1)}
