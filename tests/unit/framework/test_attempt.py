"""Allocation of one job, and the order in which allocate and backfill take jobs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from capcard_sched.framework.api.node_view import PodSignature
from capcard_sched.framework.api.plugin import Grant, Placement, Plugin
from capcard_sched.framework.session.gang_allocator import need_continue_allocating
from capcard_sched.model.job import Task
from capcard_sched.model.queue import Queue
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import TaskStatus
from tests.accounting import rebuilt, recorded
from tests.vectors.notation import VectorHarness

_CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{plugins: [{name: priority}, {name: gang}, {name: drf}, {name: binpack}]}]
"""


def _cluster(*nodes: int, conf: str = _CONF, plugins: tuple[type[Plugin], ...] = ()) -> VectorHarness:
    h = VectorHarness(conf, plugins=plugins)
    for i, cpu in enumerate(nodes):
        h.node(f"n{i}", cpu=str(cpu))
    h.queue("q")
    return h


def _gang(h: VectorHarness, name: str, minimum: int, *cpus: int, queue: str = "q", **more: Any) -> None:
    h.group(name, min_member=minimum, queue=queue)
    for i, cpu in enumerate(cpus):
        h.pod(f"{name}-w-{i}", group=name, requests={"cpu": str(cpu)} if cpu else {}, **more)


# --- gangs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nodes, minimum, cpus, bound",
    [
        pytest.param((4,), 4, (1, 1, 1, 1), 4, id="a gang that just fits"),
        pytest.param((3,), 4, (1, 1, 1, 1), 0, id="one short: nothing"),
        pytest.param((3,), 3, (1, 1, 1, 1), 3, id="one more than the minimum: the minimum"),
        pytest.param((2, 2), 2, (2, 2), 2, id="spread over nodes"),
        pytest.param((2, 2), 2, (3, 1), 0, id="fragments do not add up"),
        pytest.param((2,), 3, (1, 1, 0), 3, id="a member that requests nothing counts, and follows"),
        pytest.param((1,), 3, (1, 1, 0), 0, id="but does not make up for others"),
        pytest.param((4,), 2, (3, 3, 1), 2, id="a later, smaller task makes up for one that does not fit"),
        pytest.param((4,), 0, (3, 3), 1, id="without a minimum each on its own"),
        pytest.param((), 1, (1,), 0, id="no nodes at all"),
    ],
)
def test_all_of_the_minimum_or_nothing(nodes: tuple[int, ...], minimum: int, cpus: tuple[int, ...], bound: int) -> None:
    h = _cluster(*nodes)
    _gang(h, "g", minimum, *cpus)
    h.settle()
    assert len(h.binds) == bound
    assert recorded(h.state) == rebuilt(h.state)
    job = h.job("g")
    assert job.counts[TaskStatus.ALLOCATED] == job.counts[TaskStatus.PIPELINED] == 0


# --- continuing after a misfit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "minimum, roles, placed, failed, rest, goes_on",
    [
        pytest.param(4, "ps:1,worker:3", {"worker": 3}, "worker", {"ps": 1}, True, id="enough workers"),
        pytest.param(4, "ps:1,worker:3", {"worker": 2}, "worker", {"ps": 3}, False, id="too few workers"),
        pytest.param(3, "ps:1,worker:3", {"ps": 1}, "worker", {"ps": 2}, True, id="below the sum, 1 + 2"),
        pytest.param(3, "ps:1,worker:3", {"ps": 1}, "worker", {"ps": 1}, False, id="below the sum, 1 + 1"),
        pytest.param(6, "", {}, "", {"": 5}, False, id="everyone is needed"),
        pytest.param(2, "", {}, "", {"": 5}, True, id="no roles"),
        pytest.param(4, "", {"": 1}, "", {"": 2}, False, id="not enough left to reach the minimum"),
    ],
)
def test_whether_to_go_on_after_a_misfit_in_a_gang_of_six(
    minimum: int, roles: str, placed: dict[str, int], failed: str, rest: dict[str, int], goes_on: bool
) -> None:
    h = _cluster(64)
    h.do(f"group g min={minimum} {roles and f'roles={roles}'}")
    h.do("; ".join(f"pod placed-{role}-0..{count - 1} role={role} @n0" for role, count in placed.items()))
    h.do("; ".join(f"pod rest-{role}-0..{count - 1} role={role}" for role, count in rest.items()))
    for i in range(6 - sum(placed.values()) - sum(rest.values())):
        h.pod(f"failed-{i}", role=failed)
    h.session()
    tasks = [h.task(f"rest-{role}-{i}") for role, count in rest.items() for i in range(count)]
    assert need_continue_allocating(h.job("g"), {failed}, tasks) is goes_on


# --- quotas -----------------------------------------------------------------------------------------------------------


class _Quota(Plugin):
    """So many pods per queue, with alternatives or not, charged in runs or one by one."""

    name: ClassVar[str] = "quota"
    limit: ClassVar[int] = 3
    calls: ClassVar[list[int]] = []

    def __init__(self, arguments: object = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self.used = 0

    def on_allocate(self, placement: Placement) -> None:
        self.used += len(placement.tasks)

    def on_deallocate(self, placement: Placement) -> None:
        self.used -= len(placement.tasks)

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        self.calls.append(1)
        return self._refusal() if self.used >= self.limit else None

    def _refusal(self) -> Refusal:
        return Refusal("allocatable", "quota", "OverQuota", "quota is used up", event=True)


class _RunQuota(_Quota):
    def allocatable_many(self, queue: Queue, signature: PodSignature, tasks: list[Task]) -> Grant:
        self.calls.append(len(tasks))
        count = min(len(tasks), self.limit - self.used)
        return Grant(count, None if count == len(tasks) else self._refusal())


@pytest.mark.parametrize("quota", [_Quota, _RunQuota])
@pytest.mark.parametrize("minimum, size, bound", [(1, 5, 3), (3, 3, 3), (4, 4, 0), (2, 9, 3)])
def test_a_quota_is_never_exceeded_in_runs_or_one_by_one(
    quota: type[_Quota], minimum: int, size: int, bound: int
) -> None:
    conf = _CONF.replace("{name: drf}", "{name: quota}")
    h = _cluster(64, conf=conf, plugins=(quota,))
    _gang(h, "g", minimum, *[1] * size)
    h.step()
    assert (len(h.binds), h.plugin("quota").used) == (bound, bound)
    refused = [f"g-w-{i}" for i in range(size) if h.pod_message(f"g-w-{i}") == "quota is used up"]
    assert len(refused) == (size - bound if bound else 1)
    assert ("OverQuota", "quota is used up") in h.event_messages("Pod", refused[0]) if refused else bound == size


def test_a_rejected_signature_does_not_block_later_tasks() -> None:
    class OnlySmall(Plugin):
        name = "quota"

        def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
            if task.cls.requests["cpu"] > 1000:
                return Refusal("allocatable", "quota", "TooBig", "too big")
            return None

    h = _cluster(64, conf=_CONF.replace("{name: drf}", "{name: quota}"), plugins=(OnlySmall,))
    _gang(h, "g", 1, 2, 1, 2, 1)
    h.step()
    assert set(h.binds) == {"g-w-1", "g-w-3"}


# --- backfill ---------------------------------------------------------------------------------------------------------


def test_a_second_plugin_orders_the_pods_that_are_equal_to_the_first() -> None:
    class LastFirst(Plugin):
        name = "last-first"

        def task_order(self, task: Task) -> int:
            return -task.index

    conf = "{actions: allocate, tiers: [{plugins: [{name: priority}, {name: gang}, {name: last-first}]}]}"
    h = _cluster(2, conf=conf, plugins=(LastFirst,))
    _gang(h, "g", 1, 1, 1, 1)
    h.pod("urgent-0", group="g", requests={"cpu": "1"}, priority=9)
    h.settle()
    assert sorted(h.binds) == ["g-w-2", "urgent-0"]


@pytest.mark.parametrize(("limit", "outcomes"), [(1, ["schedulable", "refused"]), (2, ["schedulable", "unfit"])])
def test_an_equal_gang_before_it_changes_no_outcome_of_a_gang_whose_quota_is_smaller(
    limit: int, outcomes: list[str]
) -> None:
    for first in (True, False):
        h = _cluster(1, conf=_CONF.replace("{name: drf}", "{name: capacity}"))
        h.do(f"node half,other-half cpu=500m; queue small capability=cpu:{limit}")
        if first:
            _gang(h, "a", 2, 1, 1)
        _gang(h, "b", 2, 1, 1, queue="small")
        h.step()
        h.step()
        found = h.last_session.results.outcomes
        assert [found[h.task(f"b-w-{i}").uid].kind for i in range(2)] == outcomes, first
