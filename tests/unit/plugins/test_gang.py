"""Gang: validity, readiness, victims, conditions and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.framework.api.plugin import Sample, VictimDecision
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.intents import UpdatePodGroup
from capcard_sched.model.job import Task
from capcard_sched.model.objects import PodGroupCondition
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import TaskStatus, Vote
from capcard_sched.plugins.gang import Gang
from capcard_sched.testing import Harness

_CONF = """
actions: "allocate"
tiers: [{plugins: [{name: gang}]}]
"""


def _cluster(**group: Any) -> Harness:
    h = Harness(_CONF)
    h.node("n1")
    h.queue("q")
    h.group("g", **group)
    return h


def _conditions(intents: list[Any]) -> list[PodGroupCondition]:
    updates = [intent for intent in intents if isinstance(intent, UpdatePodGroup)]
    return list(updates[-1].conditions) if updates else []


# --- victims ----------------------------------------------------------------------------------------------------------


def victims_of(h: Harness, candidates: list[Task]) -> list[str]:
    found = Gang().preemptable(h.task("preemptor"), candidates)
    return [task.name for task in (found.victims or () if isinstance(found, VictimDecision) else found)]


@pytest.mark.parametrize("hook", ["preemptable", "reclaimable"])
@pytest.mark.parametrize(
    "minimum, victims",
    [
        pytest.param(3, ["p0", "p1"], id="what is beyond the minimum, in the order given"),
        pytest.param(5, [], id="none of a gang that is just whole"),
        pytest.param(0, ["p0", "p1", "p2", "p3", "p4"], id="all without a minimum"),
    ],
)
def test_only_pods_of_a_gang_beyond_its_minimum_are_victims(hook: str, minimum: int, victims: list[str]) -> None:
    h = _cluster(min_member=minimum)
    for i in range(5):
        h.pod(f"p{i}", node="n1")
    h.pod("preemptor", group="other")
    h.session()
    candidates = [h.task(f"p{i}") for i in range(5)]
    answer = getattr(Gang(), hook)(h.task("preemptor"), candidates)
    assert [task.name for task in answer] == victims


def test_each_gang_keeps_its_own_minimum_and_pods_without_one_are_skipped() -> None:
    h = _cluster(min_member=1)
    h.group("g2", min_member=1)
    h.pod("a0", node="n1")
    h.pod("b0", group="g2", node="n1")
    h.pod("a1", node="n1")
    h.pod("b1", group="g2", node="n1")
    h.pod("foreign", group=None, node="n1", scheduler="default-scheduler")
    h.pod("preemptor", group="other")
    h.session()
    candidates = [h.task(name) for name in ("a0", "b0", "a1", "foreign", "b1")]
    assert victims_of(h, candidates) == ["a0", "b0"]


@pytest.mark.parametrize(
    "minimum, victims",
    [
        pytest.param(3, ["w3", "w2"], id="the server is the last of its role"),
        pytest.param(2, ["s0", "w3", "w2"], id="roles that add up to more than the minimum do not count"),
    ],
)
def test_a_role_keeps_its_minimum_too(minimum: int, victims: list[str]) -> None:
    h = _cluster(min_member=minimum, min_task_member={"server": 1, "worker": 2})
    h.pod("s0", role="server", node="n1")
    for i in range(4):
        h.pod(f"w{i}", role="worker", node="n1")
    h.pod("preemptor", group="other")
    h.session()
    candidates = [h.task(name) for name in ("s0", "w3", "w2", "w1", "w0")]
    assert victims_of(h, candidates) == victims


def test_members_that_have_succeeded_count_for_the_minimum() -> None:
    h = _cluster(min_member=2)
    h.pod("done", node="n1", phase="Succeeded")
    h.pod("r0", node="n1")
    h.pod("r1", node="n1")
    h.pod("preemptor", group="other")
    h.session()
    candidates = [h.task("r0"), h.task("r1")]
    assert victims_of(h, candidates) == ["r0"]


def test_victims_of_a_statement_are_gone_for_the_next_question() -> None:
    h = _cluster(min_member=1)
    for i in range(3):
        h.pod(f"p{i}", node="n1")
    h.pod("preemptor", group="other")
    session = h.session()
    statement = Statement(session)
    statement.evict(h.task("p0"), "preempt")
    candidates = [h.task("p1"), h.task("p2")]
    assert victims_of(h, candidates) == ["p1"]
    statement.discard()
    assert victims_of(h, candidates) == ["p1", "p2"]


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_pending_best_effort_members_count_as_ready_but_do_not_end_starving() -> None:
    h = _cluster(min_member=3)
    h.pod("r0", node="n1")
    h.pod("r1", node="n1")
    h.pod("b0", requests={})
    h.session()
    job, gang = h.job("g"), Gang()
    assert gang.job_ready(job)
    assert gang.job_pipelined(job) is Vote.PERMIT
    assert gang.job_starving(job)


def test_nominated_members_make_a_gang_pipelined_from_its_minimum_on() -> None:
    h = _cluster(min_member=4)
    h.pod("r0", node="n1")
    h.pod("r1", node="n1")
    h.pod("w0")
    h.pod("w1")
    session = h.session()
    job, gang = h.job("g"), Gang()
    statement = Statement(session)
    statement.pipeline(job, [h.task("w0")], [session.nodes.by_name["n1"]])
    assert gang.job_pipelined(job) is Vote.REJECT
    statement.pipeline(job, [h.task("w1")], [session.nodes.by_name["n1"]])
    assert gang.job_pipelined(job) is Vote.PERMIT
    assert not gang.job_ready(job)
    assert not gang.job_starving(job)


@pytest.mark.parametrize(
    "minimum, roles, live, refusal",
    [
        pytest.param(
            4,
            {"a": 2, "b": 2},
            {"a": 3, "b": 1},
            ("NotEnoughPodsOfTask", "Not enough valid pods of each task for gang-scheduling"),
            id="a role is short",
        ),
        pytest.param(3, {"a": 2, "b": 2}, {"a": 3}, None, id="roles that add up to more than the minimum"),
        pytest.param(2, {"a": 2, "b": 0}, {"a": 2}, None, id="a role that needs no pod"),
        pytest.param(
            4,
            None,
            {"a": 3},
            ("NotEnoughTasks", "Not enough valid tasks for gang-scheduling, valid: 3, min: 4"),
            id="too few in all",
        ),
    ],
)
def test_validity(
    minimum: int, roles: dict[str, int] | None, live: dict[str, int], refusal: tuple[str, str] | None
) -> None:
    h = _cluster(min_member=minimum, min_task_member=roles)
    for role, count in live.items():
        for i in range(count):
            h.pod(f"{role}{i}", role=role)
    h.session()
    answer = Gang().job_valid(h.job("g"))
    expected = None if refusal is None else Refusal("job_valid", "gang", *refusal, queue="q")
    assert answer == expected


def test_ended_and_leaving_members_are_not_valid() -> None:
    h = _cluster(min_member=2)
    h.pod("failed", node="n1", phase="Failed")
    h.pod("pending")
    h.session()
    refusal = Gang().job_valid(h.job("g"))
    assert refusal is not None
    assert refusal.message == "Not enough valid tasks for gang-scheduling, valid: 1, min: 2"


def test_order_is_degraded_gangs_then_waiting_ones_then_ready_ones() -> None:
    h = _cluster(min_member=1)
    h.pod("ready", node="n1")
    h.group("waiting", min_member=2)
    h.pod("w0", group="waiting")
    h.pod("w1", group="waiting")
    h.group("degraded", min_member=2)
    h.pod("d0", group="degraded", node="n1")
    h.pod("d1", group="degraded")
    h.session()
    names = sorted(("g", "waiting", "degraded"), key=lambda name: Gang().job_order(h.job(name)))
    assert names == ["degraded", "waiting", "g"]


def test_a_degraded_gang_is_filled_up_before_a_new_job_of_the_same_priority() -> None:
    h = Harness("""
actions: "allocate"
tiers: [{plugins: [{name: priority}, {name: gang}]}, {plugins: [{name: drf}]}]
""")
    h.node("n1", cpu="4")
    h.queue("q")
    h.group("fresh", min_member=1)
    h.pod("new", group="fresh")
    h.group("degraded", min_member=4)
    for i in range(3):
        h.pod(f"left{i}", group="degraded", node="n1")
    h.pod("lost", group="degraded")
    h.step()
    assert h.binds == {"lost": "n1"}


# --- close ------------------------------------------------------------------------------------------------------------


def test_the_condition_counts_members_that_fit_as_schedulable() -> None:
    h = Harness(_CONF)
    h.node("n1", cpu="2")
    h.queue("q")
    h.group("g", min_member=4)
    h.pod("running", node="n1")
    for i in range(5):
        h.pod(f"p{i}")
    conditions = _conditions(h.step().intents)
    assert [(c.type, c.status, c.reason) for c in conditions] == [("Unschedulable", "True", "NotEnoughResources")]
    assert conditions[0].message.startswith("2/6 tasks in gang unschedulable: pod group is not ready, ")
    assert h.binds == {}


def test_the_condition_of_a_ready_gang_has_no_message() -> None:
    h = _cluster(min_member=1)
    h.pod("p0")
    conditions = _conditions(h.step().intents)
    assert [(c.type, c.status, c.reason, c.message) for c in conditions] == [
        ("Scheduled", "True", "tasks in gang are ready to be scheduled", "")
    ]


def test_a_group_without_pods_has_no_condition() -> None:
    h = _cluster(min_member=1)
    assert _conditions(h.step().intents) == []


def test_a_gang_whose_members_only_terminate_is_not_unschedulable() -> None:
    h = _cluster(min_member=2)
    h.pod("p0", node="n1")
    h.pod("p1", node="n1")
    h.step()
    h.terminate("p0")
    conditions = _conditions(h.step().intents)
    assert h.job("g").counts[TaskStatus.RELEASING] == 1
    assert "Unschedulable" not in [c.type for c in conditions]
    assert Sample("unschedule_job_count", {}, 0) in list(h.plugin("gang").metrics())


def _one_short() -> Harness:
    """A gang of two that had its first session, on a node that takes one pod."""
    h = Harness(_CONF)
    h.node("n1", cpu="1")
    h.queue("q")
    h.group("g", min_member=2)
    h.pod("p0")
    h.pod("p1")
    h.step()
    return h


def test_a_session_that_skips_an_unchanged_refusal_counts_as_a_retry() -> None:
    h = _one_short()
    gang: Gang = h.plugin("gang")

    def retries() -> list[float]:
        return [sample.value for sample in gang.metrics() if sample.name == "job_retry_counts"]

    for _ in range(2):
        session = h.session()
        session._touched_jobs.clear()
        gang.close(session)
    assert retries() == [3]
    h.node("n2", cpu="1")
    h.settle()
    assert retries() == [3], "it is whole now"


def test_series_follow_the_job_and_go_with_it() -> None:
    h = _one_short()
    labels = {"job_id": "g", "job_ns": "default"}
    gang: Gang = h.plugin("gang")
    assert list(gang.metrics()) == [
        Sample("unschedule_task_count", labels, 1),
        Sample("job_retry_counts", labels, 1),
        Sample("unschedule_job_count", {}, 1),
    ]
    h.node("n2", cpu="1")
    h.step()
    assert list(gang.metrics()) == [
        Sample("unschedule_task_count", labels, 0),
        Sample("job_retry_counts", labels, 1),
        Sample("unschedule_job_count", {}, 0),
    ]
    h.delete_pod("p0")
    h.delete_pod("p1")
    h.delete_group("g")
    h.step()
    assert list(gang.metrics()) == [Sample("unschedule_job_count", {}, 0)]


@pytest.mark.parametrize(("switch", "noted"), [("false", True), ("true", False)])
def test_validate_states_how_unprotected_gangs_are_evicted_in_volcano(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], switch: str, noted: bool
) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(f"actions: allocate\ntiers: [{{plugins: [{{name: gang, enablePreemptable: {switch}}}]}}]\n")
    assert run(["validate", "--scheduler-conf", str(conf)]) == 0
    assert ("Volcano evicts only the pods that it needs" in " ".join(capsys.readouterr().out.split())) == noted
