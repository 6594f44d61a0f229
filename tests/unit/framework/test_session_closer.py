"""The end of a session: phases, conditions, queue statuses and events."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.close.podgroups import GRACE_SECONDS, MissingGroups, next_phase
from capcard_sched.model import deltas
from capcard_sched.model.intents import Bind, UpdatePodCondition, UpdatePodGroup
from capcard_sched.model.job import Job
from capcard_sched.model.resources import ResourceColumns
from capcard_sched.model.status import PodGroupPhase, TaskStatus
from tests.vectors.notation import VectorHarness

_CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{plugins: [{name: priority}, {name: gang}]}]
"""


def _job(minimum: int, phase: str, statuses: dict[str, int]) -> Job:
    columns = ResourceColumns()
    job = Job("default/g", columns.zeros(), columns.zeros(), columns.zeros())
    job.min_available, job.phase = minimum, PodGroupPhase(phase)
    for name, count in statuses.items():
        job.counts[TaskStatus[name.upper()]] = count
    job.tasks = {str(i): None for i in range(sum(statuses.values()))}  # type: ignore[misc]
    return job


@pytest.mark.parametrize(
    "minimum, before, statuses, unschedulable, after",
    [
        pytest.param(3, "Inqueue", {"binding": 3}, False, "Inqueue", id="bindings are not seen yet"),
        pytest.param(3, "Inqueue", {"running": 2, "bound": 1}, False, "Running", id="enough are scheduled"),
        pytest.param(3, "Inqueue", {"running": 2, "pending": 1}, True, "Unknown", id="degraded and without room"),
        pytest.param(3, "Inqueue", {"succeeded": 2, "failed": 1}, False, "Completed", id="all ended"),
        pytest.param(3, "Inqueue", {"running": 1, "succeeded": 2}, False, "Running", id="one still runs"),
        pytest.param(3, "Inqueue", {"bound": 2, "pending": 1}, False, "Inqueue", id="one is missing"),
        pytest.param(3, "Running", {"bound": 2, "pending": 1}, False, "Pending", id="one was lost"),
        pytest.param(0, "Inqueue", {}, False, "Completed", id="no minimum and no pods: nothing is left to do"),
        pytest.param(0, "Inqueue", {"pending": 1}, False, "Inqueue", id="no minimum, but a pod that waits"),
        pytest.param(1, "Running", {"succeeded": 1, "pending": 1}, False, "Running", id="a live member remains"),
        pytest.param(2, "Running", {"running": 1, "releasing": 1}, False, "Running", id="terminating counts"),
        pytest.param(2, "Unknown", {"pending": 2}, True, "Pending", id="nothing runs any more"),
    ],
)
def test_phase(minimum: int, before: str, statuses: dict[str, int], unschedulable: bool, after: str) -> None:
    assert next_phase(_job(minimum, before, statuses), unschedulable=unschedulable).value == after


def _cluster(**group: Any) -> VectorHarness:
    h = VectorHarness(_CONF, run=True)
    h.do("node n1 cpu=4; queue q")
    h.group("g", **group)
    return h


def _updates(intents: list[Any]) -> list[UpdatePodGroup]:
    return [intent for intent in intents if isinstance(intent, UpdatePodGroup)]


def _conditions(update: UpdatePodGroup) -> dict[str, tuple[str, str | None]]:
    return {one.type: (one.status, one.last_transition_time) for one in update.conditions}


def test_conditions_oppose_each_other_and_keep_the_time_of_their_last_change() -> None:
    h = _cluster(min_member=2)
    h.do("pod p0 cpu=3; pod p1 cpu=3")
    (first,) = _updates(h.step().intents)
    moment = "2026-01-01T00:00:01Z"
    assert _conditions(first) == {"Unschedulable": ("True", moment), "CanNeverStart": ("True", moment)}
    condition = first.conditions[0]
    assert (condition.reason, condition.transition_id) == ("NotEnoughResources", "session-1")
    assert condition.message.startswith("1/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAv")
    h.node("n1", cpu="4", labels={"new": "label"})
    assert not _updates(h.step().intents), "same status, reason and message: nothing to write"
    h.node("n2", cpu="4")
    (third,) = _updates(h.step().intents)
    assert _conditions(third) == {
        "Unschedulable": ("False", "2026-01-01T00:00:03Z"),
        "Scheduled": ("True", "2026-01-01T00:00:03Z"),
        "CanNeverStart": ("False", "2026-01-01T00:00:03Z"),
    }
    updates = _updates(h.step().intents)
    assert [_conditions(update) for update in updates] == [_conditions(third)] * len(updates)


def test_an_admission_is_written_before_bindings_only_while_the_gang_waits_for_pods() -> None:
    h = _cluster(min_member=1, phase="Pending")
    h.do("group present min=1 phase=Pending; pod present/p0 cpu=1")
    found = {each.name: (each.phase, each.admitted) for each in _updates(h.step().intents)}
    assert found == {"g": ("Inqueue", True), "present": ("Inqueue", False)}


def test_memories_are_dropped_once_they_decide_nothing() -> None:
    h = _cluster(min_member=1)
    h.queue("broken", cards="no quota at all")
    h.do("group nowhere/lost; pod p0 cpu=1000; pod -/lone cpu=1000; group few min=2; pod few/f0")
    h.step(now=1000.0)
    closer = h.core._closer
    assert closer._pod_conditions._written.keys() == {h.task(name).uid for name in ("p0", "lone", "f0")}
    assert {kind for kind, _ in closer._events._last} >= {"Pod", "PodGroup"}
    assert closer._events._repeat_at
    assert closer._incomplete_gangs._ends.keys() == {"default/few"}
    h.do("delete_pod p0; delete_pod lone; delete_pod f0; delete_group g; delete_group few")
    h.step(now=1001.0)
    closer.prune(h.state.tasks, h.state.jobs, 1001.0)
    assert closer._pod_conditions._written == {}
    assert closer._events._last, "the same event within five minutes is still one too many"
    closer.prune(h.state.tasks, h.state.jobs, 1301.0)
    assert (closer._events._last, closer._events._repeat_at) == ({}, {})
    assert (closer._incomplete_gangs._ends, closer._incomplete_gangs.next_wakeup) == ({}, None)


def test_a_new_term_emits_again_reports_that_the_last_may_have_lost() -> None:
    h = VectorHarness()
    h.do("node n1 cpu=1; queue q; group g min=1; pod p cpu=4")
    h.step()
    first = sorted((event.object.kind, event.reason) for event in h.events)
    assert ("Pod", "InsufficientCPUQuota") in first
    h.pod("foreign", group=None, requests={}, node="n1", scheduler="other")
    h.step()
    assert h.events == [], "reported already"
    h.apply(deltas.Takeover())
    h.node("n2", cpu="1")
    result = h.step()
    assert sorted((event.object.kind, event.reason) for event in h.events) == first
    assert [each.name for each in result.intents if isinstance(each, UpdatePodCondition)] == ["p"]


@pytest.mark.parametrize(
    "before, requested, annotations",
    [
        pytest.param("Inqueue", {"cpu": 1000}, {}, id="minResources"),
        pytest.param("Inqueue", None, {"volcano.sh/card.request": '{"A": 1}'}, id="cards"),
        pytest.param("Pending", None, {}, id="not admitted"),
    ],
)
def test_a_group_without_a_minimum_waits_for_the_pods_of_its_reservation(
    before: str, requested: dict[str, int] | None, annotations: dict[str, str]
) -> None:
    job = _job(0, before, {})
    job.min_resources, job.annotations = requested, annotations
    assert next_phase(job, unschedulable=False).value == before


def test_a_silent_core_decides_the_same_and_makes_no_texts() -> None:
    phases, binds = [], []
    for is_silent in (False, True):
        h = VectorHarness()
        h.do("node n1 cpu=2; queue q")
        for name, cpu in (("fits", "1"), ("waits", "2")):
            h.group(name, queue="q", min_member=1)
            h.pod(f"{name}-0", group=name, requests={"cpu": cpu})
        if is_silent:
            h.core.keep_silent()
        result = h.step()
        texts = [each for each in result.intents if isinstance(each, UpdatePodCondition | UpdatePodGroup)]
        assert bool(texts) is not is_silent
        phases.append({key: job.phase for key, job in h.core.snapshot().state.jobs.items()})
        binds.append([each.name for each in result.intents if isinstance(each, Bind)])
        assert [job.key for job in h.core.snapshot().failed_attempts] == ["default/waits"], "skipped from now on"
    assert phases[0] == phases[1]
    assert binds == [["fits-0"], ["fits-0"]]


def test_a_clock_that_is_set_back_prolongs_no_grace_period() -> None:
    h = VectorHarness(_CONF)
    h.pod("p", group="late")
    h.step(now=100.0)
    missing, jobs = MissingGroups(), h.state.groups_missing
    assert not missing.update(jobs, 1000.0)
    assert not missing.update(jobs, 500.0)
    assert missing.next_wakeup == 500.0 + GRACE_SECONDS
    assert list(missing.update(jobs, 500.0 + GRACE_SECONDS)) == ["default/late"]
