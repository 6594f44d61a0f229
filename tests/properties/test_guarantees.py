"""Guarantees of queues hold whatever others do, under `capacity` (flat and as a tree) and `proportion`.

Expectations are counted from the plain descriptions below, not from the plugins' own sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from capcard_sched.framework.api.node_view import PodSignature
from capcard_sched.framework.api.plugin import VictimDecision
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.intents import Evict
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness

_GPU = "nvidia.com/gpu"
_PLUGINS = {
    "capacity": "{name: capacity}",
    "tree": "{name: capacity, enableHierarchy: true}",
    "proportion": "{name: proportion}",
}


class _Amounts(NamedTuple):
    cpu: int
    gpu: int

    @property
    def requests(self) -> dict[str, str]:
        """As a pod or a queue names them; zeros are not named."""
        return {name: str(amount) for name, amount in (("cpu", self.cpu), (_GPU, self.gpu)) if amount}


class _Queue(NamedTuple):
    #: Number of the queue above, among those before it; -1 is the root.
    parent: int
    guarantee: _Amounts
    deserved: _Amounts
    capability: _Amounts


class _Work(NamedTuple):
    """Pods of one group; a leaf is meant by its number among the leaves."""

    leaf: int
    pods: int
    each: _Amounts


class _World(NamedTuple):
    total: _Amounts
    queues: list[_Queue]
    runs: list[_Work]
    waits: list[_Work]


def _amounts(most: int) -> st.SearchStrategy[_Amounts]:
    return st.builds(_Amounts, cpu=st.integers(0, most), gpu=st.integers(0, most))


_each = st.sampled_from([_Amounts(1, 0), _Amounts(2, 0), _Amounts(1, 1), _Amounts(3, 1), _Amounts(0, 2)])
_works = st.lists(st.builds(_Work, leaf=st.integers(0, 7), pods=st.integers(1, 5), each=_each), min_size=1, max_size=6)


@st.composite
def _worlds(draw: st.DrawFn) -> _World:
    count = draw(st.integers(2, 6))
    some = st.one_of(st.just(_Amounts(0, 0)), _amounts(6))
    queues = [
        _Queue(draw(st.integers(-1, i - 1)), draw(st.one_of(st.just(_Amounts(0, 0)), _amounts(4))), draw(some),
               draw(st.one_of(st.just(_Amounts(0, 0)), _amounts(12))))
        for i in range(count)
    ]  # fmt: skip
    return _World(_Amounts(draw(st.integers(8, 20)), draw(st.integers(4, 20))), queues, draw(_works), draw(_works))


@st.composite
def _tides(draw: st.DrawFn) -> _World:
    """A full cluster of queues that deserve about all of it, and pods that come for their queues' part."""
    count = draw(st.integers(2, 4))
    total = _Amounts(12, 8)
    queues = []
    for i in range(count):
        deserved = _Amounts(draw(st.integers(1, 24 // count)), draw(st.integers(0, 16 // count)))
        guarantee = _Amounts(draw(st.integers(0, deserved.cpu // 2)), draw(st.integers(0, deserved.gpu // 2)))
        parent = draw(st.sampled_from([-1, -1, 0])) if i else -1
        queues.append(_Queue(parent, guarantee, deserved, _Amounts(0, 0)))
    small = st.builds(_Work, leaf=st.integers(0, 1), pods=st.integers(1, 4), each=_each)
    single = st.builds(_Work, leaf=st.integers(0, 3), pods=st.just(1), each=_each)
    return _World(
        total, queues, draw(st.lists(small, min_size=6, max_size=12)), draw(st.lists(single, min_size=4, max_size=10))
    )


class _Run:
    """A world in a harness."""

    def __init__(self, kind: str, world: _World, *, actions: str = "allocate", tiers: str = "") -> None:
        self.world = world
        self.nested = kind == "tree"
        self.h = h = Harness(f'actions: "{actions}"\ntiers: [{tiers}{{plugins: [{_PLUGINS[kind]}]}}]', run=True)
        h.node("n1", cpu=str(world.total.cpu), pods=10_000, resources={_GPU: world.total.gpu})
        for i, queue in enumerate(world.queues):
            h.queue(
                f"q{i}",
                parent=f"q{queue.parent}" if self.nested and queue.parent >= 0 else None,
                guarantee=queue.guarantee.requests or None,
                deserved=queue.deserved.requests or None,
                capability=queue.capability.requests or None,
            )
        above = {queue.parent for queue in world.queues} if self.nested else set()
        self.leaves = [i for i in range(len(world.queues)) if i not in above]
        self.plugin: Any = h.plugin("proportion" if kind == "proportion" else "capacity")

    def queue_of(self, work: _Work) -> str:
        return f"q{self.leaves[work.leaf % len(self.leaves)]}"

    def add(self, work: _Work, name: str, *, node: str | None, least: int = 1) -> list[str]:
        self.h.group(name, queue=self.queue_of(work), min_member=least)
        names = [f"{name}-w-{i}" for i in range(work.pods)]
        for pod in names:
            self.h.pod(pod, group=name, requests=work.each.requests, node=node)
        return names

    def held(self) -> list[dict[str, int]]:
        """Usage of the pods of each queue, without those on their way out; in a tree with all below it."""
        held = [{"cpu": 0, _GPU: 0} for _ in self.world.queues]
        for task in self.h.state.tasks.values():
            if task.job is None or task.status not in (
                TaskStatus.RUNNING, TaskStatus.BOUND, TaskStatus.BINDING, TaskStatus.ALLOCATED,
            ):  # fmt: skip
                continue
            for i in self._chain(int(task.job.queue[1:])):
                for resource in held[i]:
                    held[i][resource] += task.cls.requests.get(resource, 0)
        return held

    def room_for(self, each: _Amounts) -> int:
        """Number of pods that the node still takes."""
        placed = [task.cls.requests for task in self.h.state.tasks.values() if task.node is not None]
        used = _Amounts(*(sum(requests.get(name, 0) for requests in placed) // 1000 for name in ("cpu", _GPU)))
        return min((most - taken) // one for most, taken, one in zip(self.world.total, used, each, strict=True) if one)

    def _chain(self, i: int) -> Iterator[int]:
        while i >= 0:
            yield i
            i = self.world.queues[i].parent if self.nested else -1

    def above(self, name: str) -> set[int]:
        """The queue and those above it."""
        return set(self._chain(int(name[1:])))

    def guaranteed(self, i: int, resource: str) -> int:
        """Base units."""
        guarantee = self.world.queues[i].guarantee
        return 1000 * (guarantee.cpu if resource == "cpu" else guarantee.gpu)

    def owed(self, resource: str, held: list[dict[str, int]]) -> int:
        """Usage of all queues, and their unused guarantees: guarantees below a guarantee are part of it."""

        def need(i: int) -> int:
            below = [j for j, queue in enumerate(self.world.queues) if self.nested and queue.parent == i]
            own = held[i][resource] - sum(held[j][resource] for j in below)
            return max(self.guaranteed(i, resource), own + sum(need(j) for j in below))

        tops = [i for i, queue in enumerate(self.world.queues) if not self.nested or queue.parent < 0]
        return sum(need(i) for i in tops)


@pytest.mark.parametrize("kind", ["capacity", "tree", "proportion"])
@given(world=_worlds(), promised=st.booleans())
def test_placements_leave_capacity_for_every_guarantee(kind: str, world: _World, promised: bool) -> None:
    run = _Run(kind, world)
    pods = [run.add(work, f"g{i}", node=None) for i, work in enumerate(world.waits)]
    session = run.h.session()
    nothing = run.held()
    totals = {"cpu": 1000 * world.total.cpu, _GPU: 1000 * world.total.gpu}
    possible = {resource for resource in totals if run.owed(resource, nothing) <= totals[resource]}
    node = session.nodes.by_name["n1"]
    statement = Statement(session)
    for work, names in zip(world.waits, pods, strict=True):
        tasks = [run.h.task(name) for name in names]
        queue = session.queues[run.queue_of(work)]
        grant = run.plugin.allocatable_many(queue, PodSignature(tasks[0].cls, {}, 0), tasks)
        allowed = tasks[: grant.count]
        assert (run.plugin.allocatable(queue, tasks[0]) is None) is bool(allowed)
        fitting = allowed[: run.room_for(work.each)]
        if fitting:
            assert fitting[0].job is not None
            statement.allocate(fitting[0].job, fitting, [node] * len(fitting))
        if len(fitting) == len(allowed) < len(tasks):
            assert run.plugin.allocatable(queue, tasks[len(fitting)]) is not None
        held = run.held()
        for resource in possible:
            assert run.owed(resource, held) <= totals[resource]
        if promised and fitting:
            before = list(run.plugin.metrics())
            trial = Statement(session)
            rest = tasks[len(fitting) :]
            if rest:
                assert rest[0].job is not None
                trial.pipeline(rest[0].job, rest, [node] * len(rest))
                trial.discard()
            assert list(run.plugin.metrics()) == before
    statement.discard()
    anew = type(run.plugin)(hierarchy=run.nested)
    session.changed.everything = True
    anew.open(session)
    assert list(run.plugin.metrics()) == list(anew.metrics())


@pytest.mark.parametrize("kind", ["capacity", "tree", "proportion"])
@given(world=_worlds(), data=st.data())
def test_evictions_keep_every_guarantee_and_victims_cannot_return(
    kind: str, world: _World, data: st.DataObject
) -> None:
    run = _Run(kind, world)
    for i, work in enumerate(world.runs):
        run.add(work, f"r{i}", node="n1")
    pending_name = run.add(world.waits[0]._replace(pods=1), "asks", node=None)[0]
    session = run.h.session()
    task = run.h.task(pending_name)
    own = run.queue_of(world.waits[0])
    running = [one for one in run.h.state.tasks.values() if one.job is not None and one.job.queue != own and one.node]
    answer = run.plugin.reclaimable(task, data.draw(st.permutations(sorted(running, key=lambda one: one.name))))
    assert isinstance(answer, VictimDecision)
    assert answer.protected is not None
    assert answer.victims is not None
    assert {*answer.protected, *(victim.uid for victim in answer.victims)} == {one.uid for one in running}
    statement = Statement(session)
    gone = []
    for victim in answer.victims:
        before = run.held()
        assert victim.job is not None
        statement.evict(victim, "reclaim")
        after = run.held()
        for i in run.above(victim.job.queue) - run.above(own):
            for resource, amount in after[i].items():
                floor = run.guaranteed(i, resource)
                assert amount >= min(floor, before[i][resource]), (victim, i, resource)
        gone.append((session.queues[victim.job.queue], victim))
    for queue, victim in gone:
        assert run.plugin.preemptive(queue, victim) is not None, victim


@pytest.mark.parametrize("kind", ["capacity", "tree", "proportion"])
@given(world=_tides(), least=st.sampled_from([1, 2]))
def test_tides_end_and_never_take_a_queue_below_its_guarantee(kind: str, world: _World, least: int) -> None:
    gangs = "{plugins: [{name: priority}, {name: gang}, {name: conformance}]}, "
    run = _Run(kind, world, actions="enqueue, allocate, reclaim", tiers=gangs)
    free = world.total
    for i, work in enumerate(world.runs):
        free = _Amounts(free.cpu - work.pods * work.each.cpu, free.gpu - work.pods * work.each.gpu)
        if min(free) < 0:
            break
        run.add(work, f"r{i}", node="n1", least=min(least, work.pods))
    for i, work in enumerate(world.waits):
        run.add(work, f"w{i}", node=None)
    last = 0
    for step in range(1, 41):
        before = run.held()
        result = run.h.step()
        assert not result.report.errors
        gone = [run.h.state.tasks[intent.uid] for intent in result.intents if isinstance(intent, Evict)]
        after = run.held()
        for victim in gone:
            assert victim.job is not None
            own = int(victim.job.queue[1:])
            for resource, amount in after[own].items():
                assert amount >= min(run.guaranteed(own, resource), before[own][resource])
            last = step
        for victim in gone:  # its controller makes a new one
            requests = {name: str(amount // 1000) for name, amount in victim.cls.requests.items() if name != "pods"}
            assert victim.job is not None
            run.h.delete_pod(victim.name)
            run.h.pod(victim.name, group=victim.job.name, requests=requests)
    assert last <= 30, "evictions without end"
