"""Whole sessions on random small clusters: what must hold after every step, whatever comes in between.

Expectations are counted from the plain descriptions below, not from the scheduler's own sums, except where the test is
about these sums.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import accumulate, cycle
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import assume, given

from capcard_sched.framework.core import StepResult
from capcard_sched.model.job import Job, Task
from capcard_sched.model.status import PodGroupPhase, TaskStatus
from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded

_GPU = "nvidia.com/gpu"


def _conf(*plugins: str, actions: str = "enqueue, allocate, backfill") -> str:
    listed = ", ".join(f"{{name: {name}}}" for name in plugins)
    return f'actions: "{actions}"\ntiers: [{{plugins: [{listed}]}}]'


_CONFS = {
    "plain": _conf("priority", "gang", "drf", "binpack"),
    "bare": _conf("gang", actions="allocate, backfill"),
    "spread": _conf("priority", "gang", "predicates", "nodeorder"),
    "cards": _conf("priority", "gang", "conformance", "drf", "predicates", "capacity-card", "nodeorder", "binpack"),
    "shares": _conf("priority", "gang", "drf", "predicates", "proportion", "nodeorder", "binpack", "overcommit"),
}


class _Node(NamedTuple):
    cpu: int
    card: str
    cards: int
    slots: int


class _Pod(NamedTuple):
    cpu: int
    #: Names of cards it may use, "" for none; it requests one card if it names any.
    card: str


class _Gang(NamedTuple):
    queue: str
    minimum: int
    pods: tuple[_Pod, ...]
    priority: str


class _Event(NamedTuple):
    """Something that happens between two steps, to the n-th of what there is."""

    what: str
    which: int


_nodes = st.lists(
    st.builds(
        _Node,
        cpu=st.integers(1, 8),
        card=st.sampled_from(["A", "B"]),
        cards=st.integers(0, 4),
        slots=st.sampled_from([3, 110]),
    ),
    min_size=1,
    max_size=5,
)
_pods = st.builds(_Pod, cpu=st.integers(0, 4), card=st.sampled_from(["", "", "A", "B", "A|B"]))
_gangs = st.builds(
    _Gang,
    queue=st.sampled_from(["q", "r"]),
    minimum=st.integers(0, 4),
    pods=st.one_of(
        st.lists(_pods, min_size=1, max_size=5).map(tuple),
        st.builds(lambda pod, count: (pod,) * count, _pods, st.integers(1, 8)),
    ),
    priority=st.sampled_from(["", "", "high"]),
)
_events = st.builds(
    _Event,
    what=st.sampled_from(["finish", "delete pod", "terminate", "add node", "drop node", "foreign", "add gang"]),
    which=st.integers(0, 30),
)


class _World(NamedTuple):
    nodes: list[_Node]
    quotas: dict[str, dict[str, int]]
    gangs: list[_Gang]
    later: list[_Gang]
    events: list[_Event]


_quotas = st.fixed_dictionaries({"A": st.integers(0, 4), "B": st.integers(0, 4)})
_worlds = st.builds(
    _World,
    nodes=_nodes,
    quotas=st.fixed_dictionaries({"q": _quotas, "r": _quotas}),
    gangs=st.lists(_gangs, min_size=1, max_size=5),
    later=st.lists(_gangs, min_size=2, max_size=2),
    events=st.lists(_events, max_size=5),
)


class _Run:
    """A harness and the descriptions of everything put into it."""

    def __init__(self, conf: str, world: _World, **options: Any) -> None:
        self.h = Harness(conf, run=True, **options)
        self.world = world
        self.nodes: dict[str, _Node] = {}
        self.pods: dict[str, tuple[_Pod, _Gang]] = {}
        self.gangs: dict[str, _Gang] = {}
        self._later = iter(world.later)
        self.last: StepResult
        self.h.priority_class("high", 100)
        for name, quota in world.quotas.items():
            self.h.queue(name, cards=quota, capability={"cpu": "1000", "memory": "1000Gi"})
        for node in world.nodes:
            self.add_node(node)
        for gang in world.gangs:
            self.add_gang(gang)

    def add_node(self, node: _Node) -> None:
        name = f"n{len(self.nodes)}"
        self.nodes[name] = node
        self.h.gpu_node(name, card=node.card, count=node.cards, cpu=str(node.cpu), memory="64Gi", pods=node.slots)

    def add_gang(self, gang: _Gang, **pod_fields: Any) -> None:
        """`pod_fields`: further arguments of the pods."""
        name = f"g{len(self.gangs)}"
        self.gangs[name] = gang
        self.h.group(name, queue=gang.queue, min_member=gang.minimum, phase="Pending", priority_class=gang.priority)
        for i, pod in enumerate(gang.pods):
            self.pods[f"{name}-w-{i}"] = pod, gang
            requests = {"cpu": str(pod.cpu)} if pod.cpu else {}
            card, cards = (pod.card, 1) if pod.card else (None, 0)
            self.h.pod(f"{name}-w-{i}", group=name, requests=requests, card=card, cards=cards, **pod_fields)

    def happen(self, event: _Event) -> None:
        """One event, if there is anything for it to happen to."""
        h = self.h
        alive = sorted(self.pods)
        placed = sorted(name for name in alive if name in h.binds)
        match event.what:
            case "finish" if placed:
                name = placed[event.which % len(placed)]
                h.set_phase(name, "Succeeded")
            case "terminate" if placed:
                h.terminate(placed[event.which % len(placed)])
            case "delete pod" if alive:
                name = alive[event.which % len(alive)]
                del self.pods[name]
                h.delete_pod(name)
            case "add node":
                self.add_node(self.world.nodes[event.which % len(self.world.nodes)])
            case "drop node":
                name = sorted(self.nodes)[event.which % len(self.nodes)]
                self.nodes[name] = self.nodes[name]._replace(cpu=0, cards=0, slots=0)
                h.delete_node(name)
            case "foreign":
                name = sorted(self.nodes)[event.which % len(self.nodes)]
                h.pod(f"foreign-{event.which}", group=None, scheduler="other", node=name)
            case "add gang":
                gang = next(self._later, None)
                if gang is not None:
                    self.add_gang(gang)

    def step(self) -> bool:
        """One step and everything that must hold after it. Returns whether it was idle."""
        h = self.h
        before = dict(h.binds)
        result = self.last = h.step()
        assert not result.report.errors
        fresh = {name: node for name, node in h.binds.items() if before.get(name) != node}
        self._check_room(fresh)
        self._check_gangs(set(fresh))
        assert recorded(h.state) == rebuilt(h.state)
        for job in h.state.jobs.values():
            assert not job.counts[TaskStatus.ALLOCATED]
            assert not job.counts[TaskStatus.PIPELINED]
        assert not h.state.nodes.pipelined.any()
        return result.idle

    def _check_room(self, fresh: dict[str, str]) -> None:
        """A node that got a pod in this step fits all its pods."""
        for pod, name in fresh.items():
            for resource, left in self.free(name).items():
                if self.h.task(pod).cls.requests.get(resource):
                    assert left >= 0, (name, resource)

    def _check_gangs(self, bound: set[str]) -> None:
        """A gang of which a pod was bound in this step has its minimum, pods that request nothing included."""
        for job in {self.h.task(name).job for name in bound}:
            assert job is not None
            gang = self.gangs[job.name]
            placed = sum(
                task.status in (TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.SUCCEEDED)
                or not any(amount for name, amount in task.cls.requests.items() if name != "pods")
                for task in job.tasks.values()
            )
            assert placed >= gang.minimum, job.name

    def check_quotas(self) -> None:
        """No queue holds more of a card than its quota; a claim counts as the card of the node it is on."""
        held: dict[tuple[str, str], int] = {}
        for task in self.h.state.tasks.values():
            if task.node is None or task.name not in self.pods or not self.pods[task.name][0].card:
                continue
            if task.status in (TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING):
                key = self.pods[task.name][1].queue, self.nodes[task.node.name].card
                held[key] = held.get(key, 0) + 1
        for (queue, card), count in held.items():
            assert count <= self.world.quotas[queue][card], (queue, card)

    def release_idle_capacity(self) -> None:
        """Finish the deletion of terminating pods; until then their capacity, nominated or not, is reserved."""
        for task in list(self.h.state.tasks.values()):
            if task.deleting:
                self.pods.pop(task.name, None)
                self.h.delete_pod(task.name)

    def settle(self) -> None:
        """Steps until nothing happens any more."""
        for _ in range(30):
            if self.step():
                return
        raise AssertionError("never comes to rest")

    # --- feasible pods ------------------------------------------------------------------------------------------------

    def free(self, name: str) -> dict[str, int]:
        """Free amounts of a node, counted from the tasks on it."""
        node = self.nodes[name]
        left = {"cpu": 1000 * node.cpu, _GPU: 1000 * node.cards, "pods": node.slots}
        for task in self.h.state.tasks.values():
            if task.node is not None and task.node.name == name:
                for resource in left:
                    left[resource] -= task.cls.requests.get(resource, 0)
        return left

    def could_go(self, name: str, *, cards: bool) -> list[str]:
        """Nodes that fit a pending pod; with `cards`, only nodes with a card it names."""
        pod, _ = self.pods[name]
        wanted = {"cpu": 1000 * pod.cpu, _GPU: 1000 if pod.card else 0, "pods": 1}
        found = []
        for node in self.nodes:
            left = self.free(node)
            if all(amount <= left[resource] for resource, amount in wanted.items() if amount) and (
                not cards or not pod.card or self.nodes[node].card in pod.card.split("|")
            ):
                found.append(node)
        return found


def _may_go_alone(job: Job, task: Task) -> bool:
    """Whether this pod may be placed alone: the gang has its minimum, or reaches it with the pod."""
    if job.phase is PodGroupPhase.PENDING or job.valid_tasks < job.min_available:
        return False
    brings = 0 if task.cls.best_effort else 1  # one that requests nothing is counted while it waits
    return job.ready_tasks + job.pending_best_effort + brings >= job.min_available


@pytest.mark.parametrize("conf", sorted(_CONFS))
@given(world=_worlds)
def test_every_step_keeps_the_guarantees(conf: str, world: _World) -> None:
    run = _Run(_CONFS[conf], world)
    for event in [None, *world.events]:
        if event is not None:
            run.happen(event)
        for _ in range(2):
            run.step()
            if conf == "cards":
                run.check_quotas()


@pytest.mark.parametrize("conf", ["plain", "bare", "spread"])
@given(world=_worlds)
def test_nothing_that_could_go_waits_for_ever(conf: str, world: _World) -> None:
    run = _Run(_CONFS[conf], world)
    run.settle()
    for event in world.events:
        run.happen(event)
    run.settle()
    run.release_idle_capacity()
    run.settle()
    for job in run.h.state.schedulable.values():
        for task in job.pending.values():
            if _may_go_alone(job, task):
                assert not run.could_go(task.name, cards=False), task.name


@given(world=_worlds)
def test_nothing_that_could_go_within_its_quota_waits_for_ever(world: _World) -> None:
    run = _Run(_CONFS["cards"], world)
    run.settle()
    left = {queue: dict(quota) for queue, quota in world.quotas.items()}
    for task in run.h.state.tasks.values():
        pod, gang = run.pods[task.name]
        if task.node is not None and pod.card:
            left[gang.queue][run.nodes[task.node.name].card] -= 1
    for job in run.h.state.schedulable.values():
        for task in job.pending.values():
            if not _may_go_alone(job, task):
                continue
            pod, gang = run.pods[task.name]
            nodes = run.could_go(task.name, cards=True)
            allowed = [node for node in nodes if not pod.card or left[gang.queue][run.nodes[node].card] > 0]
            assert not allowed, (task.name, allowed)


@pytest.mark.parametrize("conf", sorted(_CONFS))
@given(world=_worlds, data=st.data())
def test_the_order_of_deltas_does_not_change_the_result(conf: str, world: _World, data: st.DataObject) -> None:
    runs = [_Run(_CONFS[conf], world), _Run(_CONFS[conf], world)]
    listed = runs[1].h._deltas
    runs[1].h._deltas = data.draw(st.permutations(listed))
    assume(runs[1].h._deltas != listed)
    for _ in range(3):
        first, second = (msgspec.json.encode(run.h.step().intents) for run in runs)
        assert first == second


# --- one big example under different hash seeds -----------------------------------------------------------------------

_SCRIPT = """
import hashlib, msgspec
from tests.properties.test_scheduling import big_example
print(hashlib.sha256(big_example()).hexdigest())
"""


def big_example() -> bytes:
    """The intents of a few sessions over 40 nodes and 60 gangs, encoded."""
    nodes = [_Node(8 + i % 5, "AB"[i % 2], i % 5, 110) for i in range(40)]
    gangs = [
        _Gang("qr"[i % 2], i % 4, tuple(_Pod(1 + (i + j) % 4, ["", "A", "A|B"][(i + j) % 3]) for j in range(5)), "")
        for i in range(60)
    ]
    quotas = {"q": {"A": 20, "B": 9}, "r": {"A": 7, "B": 30}}
    events = [_Event(what, which) for which, what in enumerate(["finish", "drop node", "terminate", "foreign"])]
    run = _Run(_CONFS["cards"], _World(nodes, quotas, gangs, [], events))
    answers = []
    for event in [None, *events]:
        if event is not None:
            run.happen(event)
        answers.append(msgspec.json.encode(run.h.step().intents))
    assert len(run.h.binds) > 50
    return b"|".join(answers)


def test_hash_seeds_do_not_matter() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "2")
    ]
    answers = [process.communicate() for process in running]
    assert len({out for out, _ in answers}) == 1, answers
    assert len(answers[0][0]) == 65, answers


@pytest.mark.parametrize("conf", sorted(_CONFS))
@given(
    world=_worlds,
    ticks=st.lists(st.sampled_from([0.0, 0.0, 0.1, 1.0, 5.0]), min_size=1, max_size=50),
    deadline=st.sampled_from([0.5, 2.0, 10.0]),
)
def test_a_session_deadline_keeps_the_guarantees_and_is_replayed(
    conf: str, world: _World, ticks: list[float], deadline: float
) -> None:
    """Wherever the deadline strikes; its cuts repeat every session without a clock."""
    elapsed = accumulate(cycle(ticks))
    run = _Run(_CONFS[conf], world, timer=lambda: next(elapsed), session_deadline=deadline)
    again = _Run(_CONFS[conf], world)
    for event in [None, *world.events]:
        if event is not None:
            run.happen(event)
            again.happen(event)
        for _ in range(2):
            run.step()
            if conf == "cards":
                run.check_quotas()
            last = run.last
            repeated = again.h.step(cuts=last.report.cuts)
            assert msgspec.json.encode(repeated.intents) == msgspec.json.encode(last.intents)
            assert repeated.report.cuts == last.report.cuts
