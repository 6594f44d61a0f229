"""Sums over jobs: kept equal to a sum made from scratch, whatever changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from capcard_sched.framework.quota.limits import QuotaShortage, admit, scaled
from capcard_sched.framework.quota.queue_sums import (
    QueueSums,
    admitted_reservation,
    reservation,
    unplaced_minimum,
)
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.job import Job
from capcard_sched.model.refusal import Figures
from capcard_sched.model.resources import ResourceColumns, Vector
from capcard_sched.testing import Harness

_CONF = """
actions: ""
tiers: []
"""
_QUEUES = ("q0", "q1", "q2")
#: Ancestors, nearest first.
_ABOVE = {"q0": ["q1", "q2"], "q1": ["q2"], "q2": [], "default": ["q2"], "root": []}
_GROUPS = ("g0", "g1", "g2", "g3")
_PHASES = ("Pending", "Inqueue", "Running")


def _allocated(job: Job, resources: ResourceColumns) -> Vector | None:
    return resources.fit(job.allocated).copy() if job.tasks else None


def _from_scratch(session: Session, contribution: Any) -> dict[str, list[int]]:
    sums: dict[str, Vector] = {name: session.resources.zeros() for name in (*session.queues, *_ABOVE, "")}
    below = {name: session.resources.zeros() for name in _ABOVE}
    for job in session.jobs.values():
        amounts = contribution(job, session.resources)
        if amounts is not None:
            sums[job.queue] += amounts
            sums[""] += amounts
            for name in (job.queue, *_ABOVE[job.queue]):
                below[name] += amounts
    subtrees = {f"{name} and below": vector.tolist() for name, vector in below.items()}
    return {**{name: vector.tolist() for name, vector in sums.items()}, **subtrees}


def _kept(session: Session, sums: QueueSums) -> dict[str, list[int]]:
    subtrees = {f"{name} and below": sums.subtree(name).tolist() for name in _ABOVE}
    return {**{name: sums.of(name).tolist() for name in _ABOVE}, "": sums.total.tolist(), **subtrees}


class Sums(RuleBasedStateMachine):
    """Random changes of a cluster; after any number of them a session refreshes the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.h = Harness(_CONF)
        self.h.node("n1", cpu="1000")
        self.sums = {contribution: QueueSums(contribution) for contribution in (_allocated, admitted_reservation)}
        self.session: Session | None = None
        self.connected = False
        self.pods = 0

    @rule(name=st.sampled_from(_QUEUES))
    def queue_comes(self, name: str) -> None:
        self.session = None
        self.h.queue(name)

    @rule(name=st.sampled_from(_QUEUES))
    def queue_goes(self, name: str) -> None:
        self.session = None
        self.h.delete_queue(name)

    @rule(
        name=st.sampled_from(_GROUPS),
        queue=st.sampled_from(_QUEUES),
        phase=st.sampled_from(_PHASES),
        cpu=st.none() | st.integers(0, 9),
        resource=st.sampled_from(("cpu", "nvidia.com/gpu", "example.com/a", "example.com/b")),
    )
    def group_comes(self, name: str, queue: str, phase: str, cpu: int | None, resource: str) -> None:
        self.session = None
        minimum = None if cpu is None else {resource: cpu}
        self.h.group(name, queue=queue, phase=phase, min_resources=minimum)

    @rule(name=st.sampled_from(_GROUPS))
    def group_goes(self, name: str) -> None:
        self.session = None
        self.h.delete_group(name)

    @rule(
        group=st.sampled_from(_GROUPS),
        cpu=st.integers(0, 5),
        runs=st.booleans(),
        gated=st.booleans(),
        resource=st.sampled_from(("cpu", "nvidia.com/gpu", "example.com/c", "example.com/d", "example.com/e")),
    )
    def pod_comes(self, group: str, cpu: int, runs: bool, gated: bool, resource: str) -> None:
        self.session = None
        self.pods += 1
        more: dict[str, Any] = {"schedulingGates": [{"name": "wait"}]} if gated and not runs else {}
        self.h.pod(f"p{self.pods}", group=group, requests={resource: cpu}, node="n1" if runs else None, **more)

    @rule(number=st.integers(1, 20))
    def pod_goes(self, number: int) -> None:
        self.session = None
        self.h.delete_pod(f"p{number}")

    @rule(connected=st.booleans())
    def session_opens(self, connected: bool) -> None:
        self.session = self.h.session()
        for sums in self.sums.values():
            sums.refresh(self.session)
            if connected or not self.connected:
                sums.connect(_ABOVE)
        self.connected = True

    @rule(number=st.integers(1, 20), last=st.booleans())
    def a_placement_is_tried(self, number: int, last: bool) -> None:
        if self.session is None:
            return
        tasks = [task for task in self.session.snapshot.tasks_by_uid.values() if task.name == f"p{number}"]
        if not tasks or tasks[0].job is None or tasks[0].uid not in tasks[0].job.pending:
            return
        job = tasks[0].job
        if job.key not in self.session.jobs:
            return
        statement = Statement(self.session)
        statement.allocate(job, tasks, [self.session.nodes.by_name["n1"]])
        for sums in self.sums.values():
            sums.touch(job)
        self.sums_are_exact()
        statement.discard()
        for sums in self.sums.values():
            sums.touch(job)
        if last:  # no code reads the sums again in this session
            self.session = None

    @invariant()
    def sums_are_exact(self) -> None:
        if self.session is not None:
            for contribution, sums in self.sums.items():
                assert _kept(self.session, sums) == _from_scratch(self.session, contribution)


Sums.TestCase.settings = settings(stateful_step_count=30)
TestSums = Sums.TestCase


def _job(**group: Any) -> tuple[Harness, Session]:
    h = Harness(_CONF)
    h.node("n1", resources={"nvidia.com/gpu": 8})
    h.queue("q")
    h.group("g", **group)
    h.pod("runs", node="n1", requests={"cpu": "1", "nvidia.com/gpu": 2})
    h.pod("gated", requests={"cpu": "2"}, schedulingGates=[{"name": "wait"}])
    return h, h.session()


def test_the_unplaced_minimum_is_the_remainder_of_each_named_resource() -> None:
    h, session = _job(min_resources={"nvidia.com/gpu": "8", "memory": "1Gi", "cpu": "500m", "example.com/x": "1"})
    assert unplaced_minimum(h.job("g"), session.resources) == {
        "nvidia.com/gpu": 6000,
        "memory": 2**30,
        "cpu": 0,
        "example.com/x": 1000,
    }


def test_a_reservation_leaves_out_gated_tasks_and_never_goes_below_zero() -> None:
    h, session = _job(min_resources={"nvidia.com/gpu": "8", "cpu": "2500m"})
    assert session.resources.amounts(reservation(h.job("g"), session.resources)) == {"nvidia.com/gpu": 6000}


@pytest.mark.parametrize(
    "phase, min_member, reserved",
    [
        pytest.param("Pending", 1, None, id="not admitted"),
        pytest.param("Inqueue", 4, {"memory": 100}, id="admitted"),
        pytest.param("Running", 1, {"memory": 100}, id="running with its minimum"),
        pytest.param("Running", 2, None, id="running below its minimum"),
    ],
)
def test_jobs_that_hold_a_reservation(phase: str, min_member: int, reserved: dict[str, int] | None) -> None:
    h, session = _job(phase=phase, min_member=min_member, min_resources={"memory": "100"})
    amounts = admitted_reservation(h.job("g"), session.resources)
    assert (None if amounts is None else session.resources.amounts(amounts)) == reserved


@pytest.mark.parametrize("phase", ["Inqueue", "Running"])
def test_a_group_without_pods_to_place_holds_no_reservation(phase: str) -> None:
    h = Harness()
    h.queue("q")
    h.group("g", phase=phase, min_resources={"cpu": "4"})
    h.pod("done", phase="Succeeded")
    session = h.session()
    assert admitted_reservation(h.job("g"), session.resources) is None


def test_a_placement_that_was_counted_and_undone_leaves_no_trace() -> None:
    h, session = _job()
    h.pod("waits")
    session = h.session()
    sums = QueueSums(_allocated)
    sums.refresh(session)
    before = sums.of("q").tolist()
    statement = Statement(session)
    statement.allocate(h.job("g"), [h.task("waits")], [session.nodes.by_name["n1"]])
    sums.touch(h.job("g"))
    assert sums.of("q").tolist() != before
    statement.discard()
    sums.touch(h.job("g"))
    sums.refresh(h.session())
    assert sums.of("q").tolist() == sums.total.tolist() == before


def test_a_resource_that_becomes_known_counts_for_jobs_that_did_not_change() -> None:
    h, session = _job(min_resources={"example.com/new": "3"})
    sums = QueueSums(admitted_reservation)
    sums.refresh(session)
    assert not sums.total.any()
    h.node("n2", resources={"example.com/new": 4})
    session = h.session()
    sums.refresh(session)
    assert session.resources.amounts(sums.of("q")) == {"example.com/new": 3000}


def test_sums_follow_jobs_out_of_and_into_queues() -> None:
    h, session = _job()
    sums = QueueSums(_allocated)
    sums.refresh(session)
    h.delete_queue("q")
    sums.refresh(h.session())
    assert not sums.total.any()
    h.queue("q")
    h.queue("other")
    sums.refresh(h.session())
    assert sums.of("q")[0] == 1000
    h.group("g", queue="other")
    sums.refresh(h.session())
    assert (sums.of("q")[0], sums.of("other")[0], sums.total[0]) == (1000, 0, 1000), "bound pods keep their queue"


def test_a_contribution_put_by_hand_lasts_until_the_job_changes() -> None:
    h, session = _job(phase="Pending", min_resources={"memory": "100"})
    sums = QueueSums(admitted_reservation)
    sums.refresh(session)
    sums.put(h.job("g"), session.resources.vector({"memory": 100}))
    assert sums.of("q")[1] == sums.total[1] == 100
    h.pod("more", requests={})
    sums.refresh(h.session())
    assert not sums.of("q").any()


def test_admission_names_all_insufficient_resources_in_message_order() -> None:
    resources = ResourceColumns()
    taken = resources.vector({"cpu": 500, "memory": 10, "b": 5, "a": 5, "pods": 100})
    limit = resources.vector({"cpu": 1000, "memory": 10, "b": 5, "a": 5})
    need = {"b": 1, "a": 1, "memory": 1, "cpu": 500, "unknown": 1, "pods": 1, "zero": 0}
    found = admit(need, taken, resources.zeros(), limit, resources)
    assert found == QuotaShortage(["memory", "a", "b", "unknown"], Figures("memory", 1, 11, 10))
    unknown = QuotaShortage(["unknown"], Figures("unknown", 2, 2, 0))
    assert admit({"unknown": 2}, taken, resources.zeros(), limit, resources) == unknown
    assert admit({"cpu": 500}, taken, resources.zeros(), limit, resources) is None


@pytest.mark.parametrize(
    ("factor", "limit", "promised"),
    [(1.0, 7, 7), (2.0, 8000, 16000), (1.15, 100, 115), (1.1, 9, 9), (1.0, 2**60 + 1, 2**60 + 1)],
)
def test_the_factor_is_exact_and_rounds_down(factor: float, limit: int, promised: int) -> None:
    assert scaled(limit, factor) == promised
