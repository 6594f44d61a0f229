"""One malformed or hostile object in a healthy cluster: it has an event, and all other jobs are scheduled."""

from __future__ import annotations

import pytest

from tests.accounting import rebuilt, recorded
from tests.malformed import group_cases, node_cases, pod_cases, queue_cases
from tests.malformed.case import BOUND, UNSEEN, Case
from tests.malformed.world import HEALTHY, WarningEvent, World

CASES = [*queue_cases.CASES, *node_cases.CASES, *pod_cases.CASES, *group_cases.CASES]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_it_has_its_events_and_the_rest_of_the_cluster_is_scheduled(case: Case) -> None:
    world = World(case.conf)
    case.setup(world.h)
    world.run()
    assert world.errors == []
    assert world.running() == HEALTHY - case.held
    assert world.events(about=case.held) == sorted(case.events)
    for gang in sorted(case.held):
        assert {world.h.pod_message(f"{gang}-{index}") for index in range(2)} == {case.held_by}
    assert_bad_pod(world, case)
    assert case.check is None or case.check(world)
    assert recorded(world.h.state) == rebuilt(world.h.state)


ALONE = [case for case in CASES if any(events.reason == "InvalidObject" for events in case.events)]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in ALONE[::3]])
def test_its_event_is_emitted_once_without_any_other_change(case: Case) -> None:
    world = World(case.conf)
    world.h.settle()
    case.setup(world.h)
    events = {event for event in case.events if event.reason == "InvalidObject"}
    world.h.step()
    assert events == {WarningEvent(e.object.kind, e.object.name, e.reason, e.message) for e in world.h.events} & events
    assert len(events) == 1
    world.h.settle()
    assert [event.reason for event in world.h.all_events].count("InvalidObject") == 1


def test_a_fixed_object_is_scheduled_and_a_new_problem_is_a_new_event() -> None:
    world = World()
    for cpu, events, bound in (("lots", 1, False), ("lots", 1, False), ("many", 2, False), ("1", 2, True)):
        world.h.pod("bad", group=None, requests={"cpu": cpu}, annotations={"volcano.sh/queue-name": "q"})
        world.h.settle()
        assert [events.reason for events in world.events()] == ["InvalidObject"] * events
        assert ("bad" in world.h.binds) == bound
    world.h.queue("q", capability={"cpu": "lots"})
    world.h.settle()
    world.h.queue("q", capability={"cpu": "8"})
    world.h.settle()
    world.h.queue("q", capability={"cpu": "lots"})
    world.h.settle()
    assert [events.kind for events in world.events()].count("Queue") == 2


def assert_bad_pod(world: World, case: Case) -> None:
    """The pod `bad` and the condition of its PodGroup match the case."""
    if case.condition:
        found = [(status, text) for type, status, text in world.conditions["bad"] if type == "Unschedulable"]
        assert found == [("True", case.condition)]
    if case.bad is None:
        return
    placed = any(task.name == "bad" and task.node is not None for task in world.h.state.tasks.values())
    assert placed == (case.bad == BOUND)
    if case.bad not in (BOUND, UNSEEN):
        assert world.h.pod_message("bad") == case.bad
        if not case.condition and "bad" in world.conditions:
            (condition,) = [c for c in world.conditions["bad"] if c[0] == "Unschedulable"]
            assert condition[1] == "True"
            assert condition[2].endswith(f"Origin reason is bad: {case.bad}")
