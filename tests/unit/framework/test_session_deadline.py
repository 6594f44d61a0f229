"""The session deadline: a queue beyond its share of a session leaves it to the others, and continues afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.eviction.group_evictor import GroupEvictor
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.session.session_deadline import QueueCut, SessionDeadline
from capcard_sched.model.job import Task
from capcard_sched.model.queue import Queue
from capcard_sched.testing import Harness


class _Clock:
    """A timer that only costs of attempts advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class _World:
    """Queue `hostile` with jobs that do not fit and cost `cost` seconds per pod, and queue `other`."""

    def __init__(self, actions: str = "allocate", *, cost: float = 1.0, deadline: float = 4.0) -> None:
        clock = self.clock = _Clock()
        tried: list[tuple[str, str]] = []
        self._tried = tried
        world = self

        class Costly(Plugin):
            name = "costly"

            def allocatable(self, queue: Queue, task: Task) -> None:
                if queue.name == "hostile" and task.job is not None:
                    clock.now += cost
                    tried.append((world.action, task.job.name))

            def open(self, session: Any) -> None:
                begin = session.deadline.begin_action
                actions = iter(session.actions)

                def begin_action() -> None:
                    world.action = next(actions)
                    begin()

                session.deadline.begin_action = begin_action

        self.action = ""
        plugins = "{name: priority}, {name: gang}, {name: costly}, {name: predicates}"
        self.h = Harness(
            f'actions: "{actions}"\ntiers: [{{plugins: [{plugins}]}}]',
            run=True,
            plugins=[Costly],
            timer=clock,
            session_deadline=deadline,
        )
        self.h.queue("hostile")
        self.h.queue("other")
        self.h.node("n", cpu="8")

    def jobs(self, count: int, cpu: str = "100") -> None:
        for i in range(count):
            self.job(f"h{i}", "hostile", cpu)

    def job(self, name: str, queue: str, cpu: str = "1", *, pods: int = 1, minimum: int | None = None) -> None:
        self.h.group(name, queue=queue, min_member=pods if minimum is None else minimum)
        for i in range(pods):
            self.h.pod(f"{name}-{i}", group=name, requests={"cpu": cpu})

    def step(self) -> list[str]:
        """The hostile jobs that were tried in the next session, once per pod."""
        return [name for _, name in self.attempts()]

    def attempts(self) -> list[tuple[str, str]]:
        self._tried.clear()
        self.h.step()
        return list(self._tried)


@pytest.mark.parametrize(
    ("deadline", "healthy", "tried"),
    [
        pytest.param(4.0, True, 3, id="two queues: 2 s each, the last attempt begins within them"),
        pytest.param(4.0, False, 5, id="a queue alone has the whole deadline"),
        pytest.param(0.0, True, 10, id="no deadline"),
        pytest.param(1000.0, True, 10, id="within the deadline nothing is deferred"),
    ],
)
def test_a_queue_beyond_its_share_leaves_the_session_to_the_others(deadline: float, healthy: bool, tried: int) -> None:
    world = _World(deadline=deadline)
    world.jobs(10)
    if healthy:
        world.job("healthy", "other")

    assert world.step() == [f"h{i}" for i in range(tried)]
    assert world.h.binds == ({"healthy-0": "n"} if healthy else {})
    assert bool(world.h.last_session.results.report.cuts) is (tried < 10)


def test_the_next_sessions_continue_where_the_queue_stopped_and_end_when_all_jobs_were_tried() -> None:
    world = _World()
    world.jobs(12)

    sessions = [world.step() for _ in range(7)]
    assert [name for tried in sessions[:3] for name in tried][:12] == [f"h{i}" for i in range(12)]
    assert sessions[6] == [], "jobs that the nodes cannot hold are tried once more: their reservation has ended"
    assert world.h.step().idle


def test_after_a_change_the_jobs_tried_longest_ago_come_first() -> None:
    world = _World()
    world.jobs(8)
    assert world.step() == ["h0", "h1", "h2", "h3", "h4"]
    world.h.node("late", cpu="1")
    assert world.step() == ["h5", "h6", "h7", "h0", "h1"]
    world.h.node("later", cpu="1")
    assert world.step() == ["h2", "h3", "h4", "h5", "h6"]


def test_a_job_of_the_tail_that_fits_is_bound() -> None:
    world = _World()
    world.jobs(9)
    world.job("small", "hostile")

    for _ in range(3):
        world.step()
    assert world.h.binds == {"small-0": "n"}


def test_every_action_attempts_one_job_of_a_queue_beyond_its_share() -> None:
    world = _World("allocate, preempt, reclaim")
    world.jobs(10)

    for _ in range(3):
        world.h.state.changes.force_resync = True  # unchanged jobs without possible victims search none
        attempts = world.attempts()
        assert {action for action, _ in attempts} == {"allocate", "preempt", "reclaim"}
        assert sum(action == "preempt" for action, _ in attempts) == 1


def test_an_untried_job_has_the_deadline_as_its_reason_until_it_is_tried() -> None:
    world = _World()
    world.jobs(7)
    world.step()
    text = "not tried in this session: Queue <hostile> used its share of the session deadline (--session-deadline)"

    assert world.h.pod_message("h6-0") == text
    assert world.h.pod_message("h0-0") == "0/1 nodes are unavailable: 1 Insufficient cpu."
    found = diagnose_job(world.h.core.snapshot(), world.h.job("h6"))
    assert (found.stage, found.pending[0].message) == ("CannotStart", text), "its pods need more cpu than the node has"
    deferrals = world.h.core._memory.deferrals["allocate"]
    assert {name: deferral.refusal.queue for name, deferral in deferrals.items()} == {"hostile": "hostile"}
    world.step()
    assert world.h.pod_message("h6-0") == "0/1 nodes are unavailable: 1 Insufficient cpu."


def test_a_tried_job_keeps_its_reason_while_it_is_deferred() -> None:
    world = _World()
    world.jobs(8)
    for i in range(6):
        world.h.node(f"late-{i}", cpu="1")
        world.step()
        assert all(event.reason != "SessionDeadline" for event in world.h.events)
        if i:
            assert "not tried" not in world.h.pod_message("h0-0")


def test_a_gang_that_takes_the_whole_deadline_is_undone_and_others_are_not_delayed_further() -> None:
    world = _World(deadline=6.0)
    world.job("huge", "hostile", cpu="0.1", pods=30)
    world.job("healthy", "other")

    assert len(world.step()) == 7
    assert world.h.binds == {"healthy-0": "n"}
    assert world.h.pod_message("huge-29") == (
        "attempt ended: it takes longer than the session deadline (--session-deadline)"
    )


def test_a_job_with_its_minimum_keeps_its_placements_within_the_share() -> None:
    world = _World(deadline=6.0)
    world.job("elastic", "hostile", cpu="0.1", pods=30, minimum=1)
    world.step()
    first = len(world.h.binds)

    assert 1 <= first <= 8
    for _ in range(10):
        world.step()
    assert len(world.h.binds) == 30


def test_a_strict_fifo_queue_keeps_its_order() -> None:
    world = _World()
    world.h.queue("hostile", dequeue="fifo")
    world.jobs(8, cpu="1")
    for _ in range(4):
        world.step()

    assert [name for name in world.h.binds if name.startswith("h")] == [f"h{i}-0" for i in range(8)]


def test_a_recorded_cut_repeats_the_session_without_a_timer() -> None:
    measured, repeated = _World("allocate, preempt"), _World("allocate, preempt", deadline=0.0)
    for world in (measured, repeated):
        world.jobs(9)
        world.job("healthy", "other")
    for _ in range(5):
        result = measured.h.step()
        again = repeated.h.step(cuts=result.report.cuts)
        assert again.intents == result.intents
        assert again.idle is result.idle
        assert repeated._tried == measured._tried


def _deadline(clock: Callable[[], float], queues: int = 2) -> SessionDeadline:
    return SessionDeadline(4.0, clock, queues=queues, waiting=lambda: queues)


def test_time_between_actions_is_charged_to_no_queue() -> None:
    clock = _Clock()
    deadline = _deadline(clock)
    deadline.begin_action()
    assert deadline.allows_attempt("q")
    clock.now += 1
    deadline.begin_action()
    clock.now += 100
    assert deadline.allows_attempt("q")
    assert deadline.allows_attempt("q")
    assert deadline.cuts == {}


def test_a_cut_names_the_check_at_which_it_was_found() -> None:
    clock = _Clock()
    deadline = _deadline(clock)
    deadline.begin_action()
    allowed = []
    for _ in range(5):
        allowed.append(deadline.allows_attempt("q"))
        clock.now += 1.5
    assert allowed == [True, True, False, False, False]
    assert deadline.cuts == {"q": QueueCut(share=3)}


def test_jobs_of_a_deleted_queue_leave_no_deferral() -> None:
    world = _World()
    world.jobs(9)
    world.step()
    world.h.delete_queue("hostile")
    world.step()

    assert world.h.core._memory.deferrals == {}


def test_the_comparison_of_hyper_nodes_for_a_subgroup_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tried = _Clock(), list[int]()
    place = GroupEvictor._place_in

    def costly(evictor: Any, statement: Any, queue: Any, job: Any, unit: Any, domain: Any) -> bool:
        clock.now += 3.0
        tried.append(domain.number)
        return place(evictor, statement, queue, job, unit, domain)

    monkeypatch.setattr(GroupEvictor, "_place_in", costly)
    plugins = "{name: priority}, {name: gang, enablePreemptable: false}, {name: predicates}"
    h = Harness(f'actions: "allocate, preempt"\ntiers: [{{plugins: [{plugins}]}}]', timer=clock, session_deadline=4.0)
    h.queue("q")
    h.priority_class("urgent", 1000)
    for number in range(8):
        h.node(f"n{number}", cpu="2")
        h.hyper_node(f"s{number}", 1, nodes=[f"n{number}"])
        h.group(f"runs-{number}", queue="q", phase="Running")
        h.pod(f"runs-{number}", group=f"runs-{number}", requests={"cpu": "2"}, node=f"n{number}", phase="Running")
    topology = {"mode": "hard", "highestTierAllowed": 1}
    policy = {"name": "s", "subGroupSize": 2, "matchLabelKeys": ["part"], "networkTopology": topology}
    h.group("g", queue="q", min_member=2, priority_class="urgent", policies=[policy])
    for index in range(2):
        h.pod(f"g-{index}", group="g", requests={"cpu": "1"}, priority=1000, labels={"part": "0"})
    h.step()
    assert 2 <= len(tried) <= 3, "two within the deadline, and the best of them at last"
