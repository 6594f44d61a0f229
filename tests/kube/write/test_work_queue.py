"""The bookkeeping under the lanes: queues that coalesce, waits, rates, verdicts, memories. Pure."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.kube.errors import ApiError, RetryClass, StatusCause, StatusDetails, Unreachable
from capcard_sched.kube.writes.events import EventNames
from capcard_sched.kube.writes.leadership_gate import LeadershipGate, LeadershipLost
from capcard_sched.kube.writes.lru import Lru
from capcard_sched.kube.writes.status_rate_limiter import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    StatusRateLimiter,
    scheduler_policy,
)
from capcard_sched.kube.writes.statuses import StatusIntent, key_of
from capcard_sched.kube.writes.work_queue import WorkItem, WorkQueue
from capcard_sched.kube.writes.write_backoff import RefusedWrites, WriteBackoff
from capcard_sched.model.intents import UpdatePodCondition, UpdatePodGroup, UpdateQueueStatus
from capcard_sched.model.objects import PodGroupCondition


def last(old: int, new: int) -> int:
    return new


# --- coalescing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param("add a 1, add b 2, add a 3, get a=13, get b=2, get -, open 2", id="once per key, in order"),
        pytest.param("add a 1, get a=1, add a 2, get -, done a, get a=2", id="one write of a key at a time"),
        pytest.param(
            "add a 1, get a=1, add a 2, requeue a, add a 3, wait 4.9, get -, open 0, wait 0.1, get a=123",
            id="a repeated write waits its time and takes newer values along",
        ),
        pytest.param(
            "add a 1, get a=1, requeue a, add b 2, get b=2, requeue-first b, wait 6, add c 3, get b=2, get c=3",
            id="a repeated write precedes ready ones",
        ),
        pytest.param(
            "add a 1, get a=1, requeue a, add b 2, advance a, get a=1, get b=2",
            id="a delayed write can be the next one",
        ),
        pytest.param(
            "add a 1, get a=1, discard a, requeue a, wait 9, get -, add a 2, get a=2, add b 1, discard b, get -",
            id="a discarded write is not repeated and not lost when it returns",
        ),
        pytest.param(
            "add a 1, urge b 2, hurry b=2, urge b 3, hurry -, get a=1, get -, done b, hurry b=3, hurry -, get -",
            id="urgent entries are taken first and once",
        ),
        pytest.param(
            "urge a 1, hurry a=1, urge a 2, requeue a, hurry -, wait 4, get -, wait 1, get a=12",
            id="an urgent entry that failed waits its time",
        ),
    ],
)
def test_a_queue_gives_out_the_merged_value_of_a_key_in_turn(steps: str) -> None:
    """Values are texts, merged by appending; a write is repeated five seconds after it failed."""
    queue: WorkQueue[str, str] = WorkQueue(lambda old, new: old + new)
    flying: dict[str, WorkItem[str, str]] = {}
    now = 0.0
    for step in steps.split(", "):
        verb, subject, *value = step.split(" ")
        match verb:
            case "add" | "urge":
                queue.add(subject, value[0], now, urgent=verb == "urge")
            case "get" | "hurry":
                item = queue.get(now) if verb == "get" else queue.get_urgent()
                assert ("-" if item is None else f"{item.key}={item.value}") == subject, step
                if item is not None:
                    flying[item.key] = item
            case "done":
                queue.done(subject)
            case "requeue" | "requeue-first":
                queue.requeue(flying[subject], now + 5.0, first=verb == "requeue-first")
            case "discard":
                queue.discard(subject)
            case "advance":
                queue.advance(subject, first=True)
            case "wait":
                now += float(subject)
            case "open":
                assert queue.open == int(subject), step


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            "a1 a2 a3 b1 get=a1 get=b1 b2 get=a2 get=b2 get=a3 get=-", id="groups are served in turn, each in order"
        ),
        pytest.param("a1 a2 a3 get=a1 b1 get=a2 get=b1 get=a3", id="a group that comes later does not wait for all"),
        pytest.param("a1 a2 a3 a4 get=a1 get=a2 get=a3 get=- b1 get=b1", id="a group does not take every worker"),
        pytest.param("a1 a2 a3 a4 get=a1 get=a2 get=a3 get=- end=a2 get=a4", id="an entry that ended makes room"),
        pytest.param("a1 a2 a3 a4 get=a1 get=a2 get=a3 again=a1 get=a4 get=-", id="so does one that is repeated"),
        pytest.param("a1 get=a1 a1 a2 b1 end=a1 get=a2 get=b1 get=a1", id="an entry that changed is the last one"),
    ],
)
def test_groups_are_served_in_turn(steps: str) -> None:
    """The group of a key is its letter; three entries of a group are in flight at most."""
    queue: WorkQueue[str, int] = WorkQueue(last, group_of=lambda key: key[0], most_per_group=3)
    flying: dict[str, WorkItem[str, int]] = {}
    for step in steps.split():
        verb, _, subject = step.partition("=")
        if verb == "get":
            item = queue.get(0.0)
            assert (item.key if item is not None else "-") == subject, step
            if item is not None:
                flying[item.key] = item
        elif verb == "end":
            queue.done(subject)
        elif verb == "again":
            queue.requeue(flying[subject], 9.0)
        else:
            queue.add(verb, 0, 0.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans()), max_size=40))
def test_a_key_waits_for_one_key_of_each_other_group_at_most(steps: list[tuple[str, int, bool]]) -> None:
    queue: WorkQueue[tuple[str, int], int] = WorkQueue(last, group_of=lambda key: key[0])
    waiting: dict[str, list[int]] = {}
    overtaken: dict[str, dict[str, int]] = {}
    for group, number, gets in steps:
        if not gets:
            if number not in waiting.setdefault(group, []):
                waiting[group].append(number)
            queue.add((group, number), 0, 0.0)
            continue
        item = queue.get(0.0)
        if item is None:
            assert not any(waiting.values())
            continue
        served, first = item.key
        assert waiting[served].pop(0) == first
        queue.done(item.key)
        overtaken.pop(served, None)
        for other, keys in waiting.items():
            if keys and other != served:
                counts = overtaken.setdefault(other, {})
                counts[served] = counts.get(served, 0) + 1
                assert counts[served] <= 1, (other, served)


def test_an_entry_has_the_time_at_which_it_was_added() -> None:
    lane = WorkQueue[str, int](last)
    lane.add("a", 1, 10.0)
    lane.add("a", 3, 11.0)
    assert lane.get(12.0) == WorkItem("a", 3, 10.0)
    lane.add("a", 2, 13.0)
    assert (lane.oldest(), len(lane)) == (None, 2), "it is in flight"


def test_beyond_the_capacity_the_oldest_go() -> None:
    lane = WorkQueue[int, int](last, capacity=3)
    assert sum(lane.add(key, key, 0.0) for key in range(10)) == 7
    found = [lane.get(0.0) for _ in range(4)]
    assert [each.key if each else None for each in found] == [7, 8, 9, None]


def test_the_line_itself_is_bounded() -> None:
    lane = WorkQueue[int, int](last, capacity=10)
    for key in range(5000):
        lane.add(key, key, 0.0)
    assert len(lane._ready) < 300


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "urge", "take", "hurry", "done", "retry", "discard", "tick"]), st.integers(0, 4)
        )
    )
)
def test_every_value_is_written_in_the_end_unless_a_later_one_was_or_it_was_discarded(
    happened: list[tuple[str, int]],
) -> None:
    lane = WorkQueue[int, int](last)
    expected: dict[int, int] = {}
    written: dict[int, int] = {}
    flying: dict[int, WorkItem[int, int]] = {}
    now = 0.0
    for number, (what, key) in enumerate(happened):
        if what in ("put", "urge"):
            lane.add(key, number, now, urgent=what == "urge")
            expected[key] = number
        elif what in ("take", "hurry"):
            taken = lane.get(now) if what == "take" else lane.get_urgent()
            if taken is None:
                continue
            assert taken.key not in flying, "one write per object at a time"
            flying[taken.key] = taken
        elif what == "done" and key in flying:
            written[key] = flying.pop(key).value
            lane.done(key)
        elif what == "retry" and key in flying:
            lane.requeue(flying.pop(key), now + 1.0)
        elif what == "discard":
            lane.discard(key)
            expected.pop(key, None)
        elif what == "tick":
            now += 0.4
    for key in list(flying):
        written[key] = flying.pop(key).value
        lane.done(key)
    now += 100.0
    while (taken := lane.get(now)) is not None:
        written[taken.key] = taken.value
        lane.done(taken.key)
    assert len(lane) == 0
    for key, value in expected.items():
        assert written[key] == value


# --- waits ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1000))
def test_backoff_doubles_up_to_the_maximum_and_never_undercuts_retry_after(
    attempt: int, draw: float, requested: float
) -> None:
    backoff = WriteBackoff(1.0, 300.0, lambda: draw)
    wait = backoff.wait(attempt, requested)
    full = min(300.0, 2.0 ** min(attempt - 1, 60))
    assert max(requested, 0.75 * full) <= wait <= max(requested, full)


def test_a_pod_is_left_alone_longer_each_time_and_begins_anew_when_it_was_bound() -> None:
    now = 0.0
    refusals = RefusedWrites(WriteBackoff(1.0, 300.0, lambda: 0.0), lambda: now)
    waits = []
    for _ in range(11):
        waits.append(refusals.refused("u"))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    refusals.forget("u")
    assert refusals.refused("u") == 1.0


def test_refusals_long_ago_do_not_count_and_memory_is_bounded() -> None:
    now = 0.0
    refusals = RefusedWrites(WriteBackoff(1.0, 300.0, lambda: 0.0), lambda: now, capacity=100)
    assert [refusals.refused("u") for _ in range(3)] == [1.0, 2.0, 4.0]
    now = 4.0 + 601.0
    assert "u" not in refusals
    assert refusals.refused("u") == 1.0
    for number in range(1000):
        refusals.refused(f"u{number}")
    assert len(refusals) == 100


def test_a_text_is_new_once() -> None:
    refusals = RefusedWrites(WriteBackoff(1.0, 300.0), lambda: 0.0)
    refusals.refused("u")
    assert [refusals.is_new("u", text) for text in ("a", "a", "b", "a")] == [True, False, True, True]
    refusals.forget("u")
    assert refusals.is_new("u", "a")


# --- the rate of statuses that differ only in numbers -----------------------------------------------------------------


def pod(message: str, node: str | None = None, reason: str = "Unschedulable") -> UpdatePodCondition:
    return UpdatePodCondition("ns", "p", "uid", reason, message, node)


def group(message: str, phase: str = "Pending", running: int = 0, session: str = "s1") -> UpdatePodGroup:
    row = PodGroupCondition("Unschedulable", "True", session, "2026-01-01T00:00:00Z", "NotEnoughResources", message)
    return UpdatePodGroup("ns", "g", "uid", phase, running, 0, 0, (row,))


@pytest.mark.parametrize(
    "first, second, held",
    [
        pytest.param(pod("0/11 nodes"), pod("0/12 nodes"), 30.0, id="numbers of a pod's message"),
        pytest.param(pod("0/11 nodes"), pod("0/11 nodes: cpu"), 30.0, id="words of a pod's message"),
        pytest.param(pod("0/1 nodes"), pod("0/2 nodes", "n1"), 0.0, id="a nominated node"),
        pytest.param(pod("0/1 nodes"), pod("0/1 nodes", reason="QuotaPending"), 0.0, id="a reason"),
        pytest.param(group("2/2 tasks"), group("1/2 tasks", session="s2"), 1.0, id="numbers of a group's message"),
        pytest.param(group("2/2 tasks"), group("2/2 tasks", phase="Inqueue"), 0.0, id="a phase"),
        pytest.param(group("2/2 tasks"), group("2/2 tasks", running=1), 0.0, id="a count"),
        pytest.param(UpdateQueueStatus("q", {"cpu": "1"}), UpdateQueueStatus("q", {"cpu": "2"}), 0.0, id="a queue"),
    ],
)
def test_only_a_change_of_messages_waits(first: StatusIntent, second: StatusIntent, held: float) -> None:
    pace, key = StatusRateLimiter(scheduler_policy), key_of(first)
    assert pace.delay_until(key, first, 100.0) is None
    pace.record(key, first, 100.0)
    assert pace.delay_until(key, second, 100.2) == (100.0 + held if held else None)
    assert pace.delay_until(key, second, 100.0 + held) is None, "long enough"


def test_the_longer_numbers_go_on_changing_the_less_often_they_are_written() -> None:
    pace, now, gaps = StatusRateLimiter(scheduler_policy), 100.0, []
    for count in range(9):
        intent = group(f"{count}/9 tasks")
        pace.record(key_of(intent), intent, now)
        until = pace.delay_until(key_of(intent), group("9/9 tasks"), now)
        assert until is not None
        gaps.append(until - now)
        now = until
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    intent = group("7/9 tasks")
    now += 2 * LONGEST_SECONDS + 1
    pace.record(key_of(intent), intent, now)
    assert pace.delay_until(key_of(intent), group("8/9 tasks"), now) == now + FIRST_SECONDS, (
        "quiet for long: from the start"
    )


def test_a_delayed_status_is_written_when_its_reason_changes() -> None:
    pace, key = StatusRateLimiter(scheduler_policy), key_of(pod(""))
    over = pod("over quota", reason="QuotaPending")
    assert not pace.may_advance(key, pod("0/1 nodes"), 100.0), "nothing is held back"
    pace.record(key, pod("0/1 nodes"), 100.0)
    pace.delay_until(key, pod("0/2 nodes"), 100.1)
    assert not pace.may_advance(key, pod("0/3 nodes"), 100.2)
    assert pace.may_advance(key, over, 100.2)
    assert not pace.may_advance(key, over, 100.2), "once"
    pace.delay_until(key, pod("0/2 nodes"), 100.3)
    pace.forget(key)
    assert not pace.may_advance(key, over, 100.4)


def test_a_write_is_forgotten_when_it_delays_no_other() -> None:
    pace = StatusRateLimiter(scheduler_policy)
    for second in range(1000):
        intent = UpdatePodCondition("ns", f"p{second}", f"uid-{second}", "Unschedulable", "0/1 nodes")
        pace.record(key_of(intent), intent, float(second))
    assert len(pace) <= 2 * LONGEST_SECONDS + 1


# --- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unreachable("refused", sent=False), RetryClass.LATER),
        (Unreachable("reset", sent=True), RetryClass.UNKNOWN),
        *((ApiError(status, "", ""), RetryClass.LATER) for status in (401, 429)),
        *((ApiError(status, "", ""), RetryClass.UNKNOWN) for status in (200, 408, 500, 502, 503, 504)),
        *((ApiError(status, "", ""), RetryClass.REFUSED) for status in (400, 403, 405, 410, 413, 422)),
        (ApiError(404, "", ""), RetryClass.ABSENT),
        (ApiError(409, "", ""), RetryClass.CONFLICT),
    ],
    ids=str,
)
def test_errors_map_to_retry_classes(error: ApiError | Unreachable, expected: RetryClass) -> None:
    assert error.retry_class is expected


def test_a_patch_for_another_uid_is_distinguished_from_other_invalid_ones() -> None:
    def invalid(field: str) -> ApiError:
        return ApiError(422, "Invalid", "", details=StatusDetails(causes=(StatusCause("x", "y", field),)))

    assert invalid("metadata.uid").is_uid_mismatch
    assert not invalid("status.phase").is_uid_mismatch
    assert not ApiError(422, "Invalid", "").is_uid_mismatch
    assert not Unreachable("", sent=True).is_uid_mismatch


# --- the rest -------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    kept = Lru[str, int](2)
    assert kept.put("a", 1) is None
    assert kept.put("b", 2) is None
    assert kept.get("a") == 1
    assert kept.put("c", 3) == 2
    assert (kept.get("b"), kept.get("a"), len(kept)) == (None, 1, 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.text("abc-.", min_size=1, max_size=253)), max_size=50))
def test_names_of_events_are_unique_and_short_enough(objects: list[tuple[int, str]]) -> None:
    clock = 0

    def now_ns() -> int:
        return clock

    names = EventNames(now_ns)
    made = []
    for step, name in objects:
        clock += step
        made.append(names(name))
    assert len(set(made)) == len(made)
    assert all(len(name) <= 253 for name in made)


async def test_a_writer_waits_for_the_lease_and_ends_with_its_term() -> None:
    leads = False
    permit = LeadershipGate(lambda: leads)
    waiting = asyncio.create_task(permit.wait(permit.term))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    leads = True
    async with asyncio.timeout(1.0):
        await waiting
    leads = False
    term = permit.term
    waiting = asyncio.create_task(permit.wait(term))
    await asyncio.sleep(0)
    permit.revoke()
    leads = True
    with pytest.raises(LeadershipLost):
        async with asyncio.timeout(1.0):
            await waiting
    with pytest.raises(LeadershipLost):
        await permit.wait(term)
    await permit.wait(permit.term)
