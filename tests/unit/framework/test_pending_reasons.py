"""Texts of pending reasons of jobs and pods: golden values."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.framework.placement.engine import fit_text
from capcard_sched.framework.session.pending_reasons import job_fit_text, task_scheduling_reason
from capcard_sched.model import reasons
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.job import Task
from capcard_sched.testing import Harness

_CONF = 'actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]'


def _key(task: Task) -> tuple[Any, ...]:
    return task.index, task.created, task.uid


@pytest.mark.parametrize(
    "nodes, reasons, text",
    [
        pytest.param(0, {}, "0/0 nodes are unavailable", id="no nodes"),
        pytest.param(
            12,
            {"Insufficient cpu": 10, "node(s) had untolerated taint {a: b}": 2},
            "0/12 nodes are unavailable: 2 node(s) had untolerated taint {a: b}, 10 Insufficient cpu.",
            id="by number, not by digit",
        ),
        pytest.param(
            3,
            {"Insufficient memory": 1, "Insufficient cpu": 1, "node(s) were unschedulable": 1},
            "0/3 nodes are unavailable: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) were unschedulable.",
            id="then by text",
        ),
    ],
)
def test_fit_text(nodes: int, reasons: dict[str, int], text: str) -> None:
    assert fit_text(nodes, reasons) == text


def _gang(size: int, minimum: int) -> Harness:
    h = Harness(_CONF)
    h.node("n1")
    h.queue("q")
    h.group("g", min_member=minimum)
    for i in range(size):
        h.pod(f"g-w-{i}")
    h.session()
    return h


def _unfit(text: str) -> TaskOutcome:
    return TaskOutcome("unfit", text)


_ROOM = TaskOutcome("schedulable", "", "n1")


@pytest.mark.parametrize(
    "size, minimum, outcomes, text",
    [
        pytest.param(
            6, 6, {i: _ROOM if i < 3 else _unfit("full.") for i in range(6)},
            "6 Pending, 6 minAvailable; Pending: 3 Schedulable, 3 Unschedulable. Origin reason is g-w-3: full.",
            id="half of the gang had room",
        ),
        pytest.param(2, 3, {}, "2 Pending, 3 minAvailable; Pending: 2 Unschedulable", id="untried"),
        pytest.param(
            12, 2, {i: _unfit("rare." if i == 1 else "common.") for i in range(12)},
            "2 minAvailable, 12 Pending; Pending: 12 Unschedulable. Origin reason is g-w-0: common.",
            id="the most frequent reason, counts by number",
        ),
        pytest.param(
            12, 12, {i: _unfit("same.") for i in (9, 10, 2)},
            "12 Pending, 12 minAvailable; Pending: 12 Unschedulable. Origin reason is g-w-2: same.",
            id="the message names its first task in task order",
        ),
        pytest.param(
            1, 1, {0: TaskOutcome("pipelined", "", "n1")}, "1 Pending, 1 minAvailable; Pending: 1 Unschedulable",
            id="promised room is not schedulable yet",
        ),
        pytest.param(0, 2, {}, "2 minAvailable", id="no pods"),
    ],
)  # fmt: skip
def test_job_text(size: int, minimum: int, outcomes: dict[int, TaskOutcome], text: str) -> None:
    h = _gang(size, minimum)
    by_uid = {h.task(f"g-w-{i}").uid: outcome for i, outcome in outcomes.items()}
    assert job_fit_text(h.job("g"), by_uid.get, _key) == f"pod group is not ready, {text}"


def test_job_text_counts_every_status() -> None:
    h = _gang(1, 5)
    h.pod("r0", node="n1")
    h.pod("r1", node="n1")
    h.pod("done", node="n1", phase="Succeeded")
    h.session()
    assert job_fit_text(h.job("g"), lambda uid: None, _key) == (
        "pod group is not ready, 1 Pending, 1 Succeeded, 2 Running, 5 minAvailable; Pending: 1 Unschedulable"
    )


def test_job_text_comes_even_when_a_plugin_cannot_order_the_tasks() -> None:
    h = _gang(2, 2)

    def broken(task: Task) -> tuple[Any, ...]:
        raise HookFailed("moody", "task_order", RuntimeError("no"))

    outcomes = {uid: _unfit("full.") for uid in h.job("g").tasks}
    assert job_fit_text(h.job("g"), outcomes.get, broken).endswith("Origin reason is g-w-0: full.")


@pytest.mark.parametrize(
    "outcome, reason, message",
    [
        pytest.param(None, "Unschedulable", "the job text", id="not tried: the job's text"),
        pytest.param(_unfit("0/1 nodes are unavailable: 1 Insufficient cpu."), "Unschedulable",
                     "0/1 nodes are unavailable: 1 Insufficient cpu.", id="no node"),
        pytest.param(TaskOutcome("refused", "over quota"), "Unschedulable", "over quota", id="a quota"),
        pytest.param(_ROOM, "Schedulable",
                     "Pod default/g-w-0 can possibly be assigned to n1, once minAvailable is satisfied", id="had room"),
        pytest.param(TaskOutcome("pipelined", "", "n1"), "Unschedulable",
                     "Pod default/g-w-0 can possibly be assigned to n1, "
                     "once resource is released and minAvailable is satisfied", id="promised room"),
    ],
)  # fmt: skip
def test_pod_text(outcome: TaskOutcome | None, reason: str, message: str) -> None:
    h = _gang(1, 1)
    assert task_scheduling_reason(h.task("g-w-0"), outcome, "the job text") == (reason, message, "")


def test_an_error_without_hook_is_one_of_the_session() -> None:
    h = _gang(1, 1)
    session = h.session()
    session.results.record_hook_error(h.job("g"), ValueError("no"))
    ((_, refusal),) = session.results.report.refusals
    assert (refusal.hook, refusal.plugin) == ("session", "")
    assert refusal.message == "Plugin framework failed in session: ValueError: no"


def test_a_notice_without_component_is_one_of_the_scheduler_itself() -> None:
    session = _gang(1, 1).session()
    session.results.notice_about(ObjectRef("ConfigMap", "kube-system", "c"), reasons.PLUGIN_FAILED, "text")
    assert [(notice.object.name, notice.component) for notice in session.results.notices] == [("c", "")]
