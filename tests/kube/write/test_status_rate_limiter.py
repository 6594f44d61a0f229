"""The rate of status writes that differ only in numbers: pure bookkeeping, without an API server."""

from __future__ import annotations

import pytest

from capcard_sched.kube.writes.status_rate_limiter import FIRST_SECONDS, LONGEST_SECONDS, StatusRateLimiter
from capcard_sched.kube.writes.statuses import StatusIntent, key_of
from capcard_sched.model.intents import UpdatePodCondition, UpdatePodGroup, UpdateQueueStatus
from capcard_sched.model.objects import PodGroupCondition


def pod(message: str, node: str | None = None, reason: str = "Unschedulable") -> UpdatePodCondition:
    return UpdatePodCondition("ns", "p", "uid", reason, message, node)


def group(message: str, phase: str = "Pending", running: int = 0, session: str = "s1") -> UpdatePodGroup:
    row = PodGroupCondition("Unschedulable", "True", session, "2026-01-01T00:00:00Z", "NotEnoughResources", message)
    return UpdatePodGroup("ns", "g", "uid", phase, running, 0, 0, (row,))


@pytest.mark.parametrize(
    "first, second, held",
    [
        pytest.param(pod("0/11 nodes"), pod("0/12 nodes"), True, id="numbers of a pod's message"),
        pytest.param(pod("0/11 nodes"), pod("0/11 nodes: cpu"), False, id="words of a pod's message"),
        pytest.param(pod("0/1 nodes"), pod("0/2 nodes", "n1"), False, id="a nominated node"),
        pytest.param(pod("0/1 nodes"), pod("0/1 nodes", reason="Schedulable"), False, id="a reason"),
        pytest.param(group("2/2 tasks"), group("1/2 tasks", session="s2"), True, id="numbers of a group's message"),
        pytest.param(group("2/2 tasks"), group("2/2 tasks", phase="Inqueue"), False, id="a phase"),
        pytest.param(group("2/2 tasks"), group("2/2 tasks", running=1), False, id="a count"),
        pytest.param(UpdateQueueStatus("q", {"cpu": "1"}), UpdateQueueStatus("q", {"cpu": "2"}), False, id="a queue"),
    ],
)
def test_only_a_change_of_numbers_in_messages_waits(first: StatusIntent, second: StatusIntent, held: bool) -> None:
    pace, key = StatusRateLimiter(), key_of(first)
    assert pace.delay_until(key, first, 100.0) is None
    pace.record(key, first, 100.0)
    assert pace.delay_until(key, second, 100.2) == (101.0 if held else None)
    assert pace.delay_until(key, second, 101.0) is None, "long enough"


def test_the_longer_numbers_go_on_changing_the_less_often_they_are_written() -> None:
    pace, now, gaps = StatusRateLimiter(), 100.0, []
    for count in range(9):
        intent = pod(f"0/{count} nodes")
        pace.record(key_of(intent), intent, now)
        until = pace.delay_until(key_of(intent), pod("0/99 nodes"), now)
        assert until is not None
        gaps.append(until - now)
        now = until
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    intent = pod("0/100 nodes")
    now += 2 * LONGEST_SECONDS + 1
    pace.record(key_of(intent), intent, now)
    assert pace.delay_until(key_of(intent), pod("0/101 nodes"), now) == now + FIRST_SECONDS, (
        "quiet for long: from the start"
    )


def test_a_delayed_status_is_written_when_its_text_changes() -> None:
    pace, key = StatusRateLimiter(), key_of(pod(""))
    assert not pace.may_advance(key, pod("0/1 nodes"), 100.0), "nothing is held back"
    pace.record(key, pod("0/1 nodes"), 100.0)
    pace.delay_until(key, pod("0/2 nodes"), 100.1)
    assert not pace.may_advance(key, pod("0/3 nodes"), 100.2)
    assert pace.may_advance(key, pod("no volume"), 100.2)
    assert not pace.may_advance(key, pod("no volume"), 100.2), "once"
    pace.delay_until(key, pod("0/2 nodes"), 100.3)
    pace.forget(key)
    assert not pace.may_advance(key, pod("no volume"), 100.4)


def test_a_write_is_forgotten_when_it_delays_no_other() -> None:
    pace = StatusRateLimiter()
    for second in range(1000):
        intent = UpdatePodCondition("ns", f"p{second}", f"uid-{second}", "Unschedulable", "0/1 nodes")
        pace.record(key_of(intent), intent, float(second))
    assert len(pace) <= 2 * LONGEST_SECONDS + 1
