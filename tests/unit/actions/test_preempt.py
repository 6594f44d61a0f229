"""preempt: between jobs of one queue, then inside a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from capcard_sched.actions.preempt import PreemptArguments
from capcard_sched.framework.api.plugin import Placement, Plugin
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.model.job import Task
from capcard_sched.model.queue import Queue
from capcard_sched.model.refusal import Refusal
from capcard_sched.testing import Harness, registry
from tests.accounting import rebuilt, recorded
from tests.evictions import evicted, terminate


class _Cap(Plugin):
    """At most so much cpu per queue."""

    name: ClassVar[str] = "cap"
    limit: ClassVar[int] = 1 << 60

    def open(self, session: Any) -> None:
        self.used = {name: int(queue.allocated[0]) for name, queue in session.queues.items()}

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        if self.used[queue.name] + int(task.cls.request[0]) <= self.limit:
            return None
        return Refusal("allocatable", self.name, "Full", "full")

    def on_allocate(self, placement: Placement) -> None:
        self.used[placement.job.queue] += int(placement.cls.request[0]) * len(placement.tasks)

    def on_deallocate(self, placement: Placement) -> None:
        self.used[placement.job.queue] -= int(placement.cls.request[0]) * len(placement.tasks)


def _conf(actions: str = "enqueue, allocate, backfill, preempt", *more: str, arguments: str = "{}") -> str:
    later = ", ".join(f"{{name: {name}}}" for name in ("predicates", "nodeorder", *more))
    return f"""
actions: "{actions}"
tiers:
- plugins:
  - {{name: priority}}
  - {{name: gang, enablePreemptable: false, enableJobStarving: false}}
  - {{name: conformance}}
- plugins: [{later}]
configurations: [{{name: preempt, arguments: {arguments}}}]
"""


class _World:
    def __init__(
        self, conf: str | None = None, *, nodes: int = 1, cpu: int = 4, plugins: tuple[type[Plugin], ...] = ()
    ):
        self.h = Harness(conf or _conf(), run=True, plugins=plugins)
        for value in (10, 50, 100):
            self.h.priority_class(f"p{value}", value)
        for i in range(nodes):
            self.h.node(f"n{i + 1}", cpu=str(cpu))
        self.h.queue("q")

    def run(self, name: str, cpu: str, *nodes: str, least: int = 1, priority: int = 10, **more: Any) -> _World:
        queue = more.pop("queue", "q")
        self.h.group(name, queue=queue, min_member=least, phase="Running", priority_class=f"p{priority}")
        for i, node in enumerate(nodes):
            self.h.pod(f"{name}-w-{i}", group=name, requests={"cpu": cpu}, node=node, **more)
        return self

    def want(self, name: str, cpu: str, pods: int = 1, least: int = 1, priority: int = 100, **more: Any) -> _World:
        self.h.group(name, min_member=least, priority_class=f"p{priority}")
        for i in range(pods):
            self.h.pod(f"{name}-w-{i}", group=name, requests={"cpu": cpu}, **more)
        return self

    def step(self) -> list[str]:
        result = self.h.step()
        assert not result.report.errors
        assert recorded(self.h.state) == rebuilt(self.h.state)
        return evicted(result)


@pytest.mark.parametrize(
    "setting, victims",
    [
        pytest.param(lambda w: w.run("a", "2", "n1").run("b", "2", "n1"), ["b-w-0"], id="the newest goes"),
        pytest.param(lambda w: w.run("a", "2", "n1").run("b", "2", "n1", priority=50), ["a-w-0"], id="the lowest goes"),
        pytest.param(lambda w: w.run("a", "4", "n1", priority=100), [], id="no victim of equal priority"),
        pytest.param(
            lambda w: (w.h.queue("other"), w.run("a", "4", "n1", queue="other")), [], id="no victim of another queue"
        ),
        pytest.param(
            lambda w: w.run("a", "4", "n1", annotations={"volcano.sh/preemptable": "false"}), [], id="protected: stays"
        ),
        pytest.param(lambda w: w.run("a", "1", "n1").run("b", "1", "n1").run("c", "2", "n1", priority=50),
                     ["a-w-0", "b-w-0"], id="two of low priority before one of a higher"),
        pytest.param(lambda w: w.run("a", "4", "n1", namespace="default", priorityClassName="system-node-critical"), [],
                     id="critical pods stay"),
    ],
)  # fmt: skip
def test_victims_of_preemption(setting: Callable[[_World], object], victims: list[str]) -> None:
    w = _World()
    setting(w)
    w.want("hi", "2")
    assert w.step() == victims


@pytest.mark.parametrize("pods, least, victims", [(2, 2, []), (2, 1, ["a-w-0"])])
def test_w05_victims_cover_the_whole_minimum_or_none_is_evicted(pods: int, least: int, victims: list[str]) -> None:
    w = _World(nodes=2)
    w.run("a", "4", "n1").run("b", "4", "n2", priority=100).want("hi", "4", pods=pods, least=least)
    assert w.step() == victims


def test_w09_evictions_of_a_node_that_does_not_work_out_are_undone() -> None:
    """n1 has more to give and yet not enough: nothing of it is touched."""
    w = _World(nodes=2)
    w.run("a", "1", "n1", "n1").run("x", "2", "n1", priority=100).run("b", "4", "n2", priority=50).want("hi", "4")
    assert w.step() == ["b-w-0"]


def test_victims_free_quota_of_their_queue() -> None:
    """The node has room; the queue has none until one of its pods leaves."""

    class Cap(_Cap):
        limit = 4000

    w = _World(_conf("allocate, preempt", "cap"), cpu=16, plugins=(Cap,))
    w.run("a", "2", "n1").run("b", "2", "n1").want("hi", "2")
    assert w.step() == ["b-w-0"]


def test_quota_that_no_eviction_frees_causes_no_eviction() -> None:
    class Cap(_Cap):
        limit = 3000

    w = _World(_conf("allocate, preempt", "cap"), cpu=16, plugins=(Cap,))
    w.run("a", "2", "n1").want("hi", "4")
    assert w.step() == []


def test_no_second_victim_is_evicted_for_the_same_pod() -> None:
    w = _World()
    w.run("a", "2", "n1").run("b", "2", "n1").want("hi", "2")
    result = w.h.step()
    terminate(w.h, result)
    for _ in range(3):
        assert w.step() == []
        w.run("noise", "1")  # something changes: a session runs


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written, problems",
    [
        ("{minCandidateNodesPercentage: 10, topologyAwarePreemptWorkerNum: 16, predicateErrorCacheEnable: false}", 0),
        ("{minCandidateNodesPercentage: 101}", 1),
        ("{minCandidateNodesAbsolute: 0}", 1),
        ("{enableTopologyAwarePreemption: true, minCandidateNodesAbsolute: 200}", 1),
        ("{minCandidateNodes: 3}", 1),
    ],
)
def test_arguments_are_checked(written: str, problems: int) -> None:
    result = parse_conf(_conf(arguments=written), registry=registry())
    assert result.conf is not None
    found = [problem for problem in result.problems if "configurations" in str(problem.path)]
    assert len(found) == problems, found
    assert isinstance(result.conf.action_arguments["preempt"], PreemptArguments)
