"""The scheduler thread: what it does with facts, calls and mistakes, and what it hands over."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.daemon.diagnosis.recording import Recording, RecordingReader
from capcard_sched.daemon.diagnosis.replay import replay
from capcard_sched.daemon.scheduler_thread import SchedulerThread
from capcard_sched.framework.conf.scheduler_conf import default_conf
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.model.deltas import Delta, ObjectChanged, Takeover
from capcard_sched.model.intents import Bind, Intent
from capcard_sched.model.objects import PodObject
from capcard_sched.testing import registry
from tests.objects import group, node, pod, queue


class Outside:
    """The view of the thread that the rest of the daemon has."""

    def __init__(self) -> None:
        self.intents: list[Intent] = []
        self.seen: list[Delta] = []
        self.steps: list[StepResult] = []
        self.failures: list[tuple[str, str]] = []
        #: Of each step: taking facts in, and the session.
        self.times: list[tuple[float, float]] = []
        self.recording: Recording | None = None
        self.changed = threading.Condition()

    def handover(self, intents: Sequence[Intent]) -> None:
        with self._change():
            self.intents += intents

    def applied(self, deltas: Sequence[Delta]) -> None:
        with self._change():
            self.seen += deltas
            if self.recording is not None:
                self.recording.applied(deltas)

    def stepped(
        self, core: Core, result: StepResult, deltas: Sequence[Delta], now: float, *, intake: float, seconds: float
    ) -> None:
        with self._change():
            self.seen += deltas
            self.steps.append(result)
            self.times.append((intake, seconds))
            if self.recording is not None:
                self.recording.stepped(result, deltas, now)

    def failed(self, what: str, error: Exception) -> None:
        with self._change():
            self.failures.append((what, str(error)))

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self.changed:
            yield
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=10)

    @property
    def binds(self) -> dict[str, str]:
        return {intent.name: intent.node for intent in self.intents if isinstance(intent, Bind)}


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def core() -> Core:
    return Core(default_conf(registry()), registry())


@pytest.fixture
def thread(core: Core, outside: Outside) -> Iterator[SchedulerThread]:
    thread = SchedulerThread(core, handover=outside.handover, listener=outside, period=0.05)
    thread.start()
    yield thread
    thread.stop()
    assert thread.join(10)


def _gang(name: str, members: int) -> list[Delta]:
    return [group(name, min_member=members), *(pod(f"{name}-{i}", group=name) for i in range(members))]


_CLUSTER: list[Delta] = [node("n1"), node("n2"), queue("default"), queue("q")]


def _query(thread: SchedulerThread, question: Callable[[Core], object]) -> object:
    answer: Future[object] = Future()
    thread.call(question, answer)
    return answer.result(10)


def test_a_standby_keeps_the_state_and_decides_nothing(thread: SchedulerThread, outside: Outside) -> None:
    thread.deliver(_CLUSTER)
    thread.deliver(_gang("g", 2))
    assert _query(thread, lambda core: sorted(core.snapshot().state.nodes.by_name)) == ["n1", "n2"]
    time.sleep(0.2)  # four periods
    assert (outside.intents, outside.steps) == ([], [])
    assert len(outside.seen) == len(_CLUSTER) + 3
    assert thread.last_cycle is None


def test_a_new_leader_has_applied_everything_delivered_before(thread: SchedulerThread, outside: Outside) -> None:
    thread.deliver(_CLUSTER)
    thread.deliver(_gang("g", 2))
    thread.lead()
    outside.wait(lambda: set(outside.binds) == {"g-0", "g-1"})
    assert Takeover() in outside.seen
    _query(thread, lambda _: None)  # runs after the cycle, which hands over binds
    assert thread.last_cycle is not None


class _Page(list[Delta]):
    """Of a list; a plain list has no weak references."""


def test_the_pages_of_lists_are_freed_before_the_first_session(core: Core, outside: Outside) -> None:
    page = _Page(_CLUSTER)
    kept, at_handover = weakref.ref(page), []

    def handover(intents: Sequence[Intent]) -> None:
        at_handover.append(kept())
        outside.handover(intents)

    thread = SchedulerThread(core, handover=handover, listener=outside, period=0.05)
    thread.deliver(page)
    thread.deliver(_gang("g", 2))
    thread.lead()
    del page
    thread.start()  # all of it arrives at once
    outside.wait(lambda: set(outside.binds) == {"g-0", "g-1"})
    thread.stop()
    assert thread.join(10)
    assert at_handover[0] is None


def test_a_deposed_leader_goes_on_applying_facts_and_stops_deciding(thread: SchedulerThread, outside: Outside) -> None:
    thread.deliver(_CLUSTER)
    thread.lead()
    outside.wait(lambda: bool(outside.steps))
    thread.stand_by()
    thread.deliver(_gang("g", 1))
    assert _query(thread, lambda core: len(core.snapshot().state.tasks)) == 1
    assert outside.binds == {}


def test_taking_facts_in_and_the_session_are_timed_apart(core: Core, outside: Outside) -> None:
    apply_all, step = core.apply_all, core.step

    def slow_apply_all(*arguments: Any) -> None:
        time.sleep(0.1)
        apply_all(*arguments)

    def slow_step(*arguments: Any) -> StepResult:
        time.sleep(0.3)
        return step(*arguments)

    core.apply_all, core.step = slow_apply_all, slow_step  # type: ignore[method-assign,assignment]
    thread = SchedulerThread(core, handover=outside.handover, listener=outside, period=30)
    thread.start()
    thread.lead()
    thread.deliver([node("n1")])
    outside.wait(lambda: bool(outside.times))
    thread.stop()
    assert thread.join(10)
    intake, session = outside.times[0]
    assert 0.1 <= intake < 0.3, "what was delivered, not the session"
    assert 0.3 <= session < 0.4 + intake, "the session, not what was taken in before it"


def test_a_query_cancelled_before_it_starts_does_not_run(thread: SchedulerThread, outside: Outside) -> None:
    calls: list[str] = []
    turn = threading.Event()
    thread.call(lambda _: turn.wait(10), Future())
    given_up: Future[None] = Future()
    thread.call(lambda _: calls.append("given up"), given_up)
    assert given_up.cancel()
    turn.set()
    _query(thread, lambda _: calls.append("waited for"))
    assert (calls, outside.failures) == (["waited for"], [])


def test_a_burst_of_facts_makes_one_session(thread: SchedulerThread, outside: Outside) -> None:
    thread.deliver(_CLUSTER)
    thread.lead()
    outside.wait(lambda: bool(outside.steps))
    before = len(outside.steps)
    for index in range(12):
        thread.deliver(_gang(f"g{index}", 1))
    outside.wait(lambda: len(outside.binds) == 12)
    sessions = [step for step in outside.steps[before:] if not step.idle]
    assert len([step for step in sessions if step.report.bound]) <= 4


def test_without_anything_new_the_thread_still_wakes_once_a_period(thread: SchedulerThread, outside: Outside) -> None:
    thread.deliver(_CLUSTER)
    thread.lead()
    outside.wait(lambda: len(outside.steps) >= 5)
    assert outside.steps[-1].idle


def test_a_failing_delta_is_reported_and_the_others_are_applied(thread: SchedulerThread, outside: Outside) -> None:
    broken = ObjectChanged(PodObject(metadata=None))  # type: ignore[arg-type]
    thread.deliver([*_CLUSTER, broken, *_gang("g", 1)])
    thread.lead()
    outside.wait(lambda: set(outside.binds) == {"g-0"})
    assert [what for what, _ in outside.failures] == ["applying ObjectChanged"]


def test_a_failing_session_is_reported_and_the_next_one_runs(
    thread: SchedulerThread, core: Core, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, tries = core.step, iter([True, True])

    def step(*arguments: object) -> StepResult:
        if next(tries, False):
            raise RuntimeError("a bug")
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(core, "step", step)
    thread.deliver([*_CLUSTER, *_gang("g", 1)])
    thread.lead()
    outside.wait(lambda: set(outside.binds) == {"g-0"})
    assert outside.failures == [("session", "a bug")] * 2


def test_an_exception_of_a_query_is_its_result(thread: SchedulerThread) -> None:
    def query(core: Core) -> object:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        _query(thread, query)
    assert _query(thread, lambda core: 1) == 1


def test_big_sessions_hand_over_bindings_while_they_go_on(core: Core) -> None:
    lots: list[int] = []
    outside = Outside()
    thread = SchedulerThread(core, handover=lambda lot: lots.append(len(lot)), listener=outside, period=5.0)
    thread.start()
    pods = [delta for index in range(40) for delta in _gang(f"g{index}", 4)]
    thread.deliver([*(node(f"n{index}") for index in range(60)), queue("default"), queue("q"), *pods])
    thread.lead()
    outside.wait(lambda: any(step.report.bound for step in outside.steps))
    thread.stop()
    assert thread.join(10)
    assert len(lots) > 2
    assert all(64 <= size < 128 for size in lots[:-1])


def test_a_replay_repeats_the_decisions_of_the_thread(
    thread: SchedulerThread, core: Core, outside: Outside, tmp_path: Path
) -> None:
    start = core.snapshot()
    recording = Recording(
        tmp_path / "day.jsonl.gz",
        start.conf,
        scheduler_names=start.state.scheduler_names,
        default_queue=start.state.default_queue,
    )
    outside.recording = recording

    def reload(core: Core) -> None:
        core.reconfigure(default_conf(registry()))
        recording.conf(default_conf(registry()))

    thread.deliver(_CLUSTER)  # while standing by
    thread.lead()
    for number in range(8):
        thread.deliver(_gang(f"g{number}", 4))
        time.sleep(0.02)
    outside.wait(lambda: len(outside.binds) >= 12)
    _query(thread, reload)
    thread.deliver([node("n3"), node("n4"), *_gang("late", 4)])
    outside.wait(lambda: len(outside.binds) == 32)
    thread.stop()
    assert thread.join(10)
    recording.close(10)
    found = replay(RecordingReader(tmp_path / "day.jsonl.gz"), registry())
    assert (found.differences, outside.failures) == ([], [])
    assert sum(queue.same for queue in found.queues.values()) == len(outside.binds)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_by_an_exception_fails_liveness_and_a_long_session_does_not(
    core: Core, outside: Outside
) -> None:
    def slow_step(*arguments: Any) -> StepResult:
        time.sleep(0.3)
        raise SystemExit

    core.step = slow_step  # type: ignore[method-assign,assignment]
    thread = SchedulerThread(core, handover=outside.handover, listener=outside, period=0.05)
    assert not thread.is_alive(), "not started"
    thread.start()
    thread.lead()
    time.sleep(0.15)
    assert thread.is_alive(), "within a session"
    assert thread.join(10)
    assert not thread.is_alive()
    thread.stop()
    assert thread.is_alive(), "a stop on purpose is not a death"
