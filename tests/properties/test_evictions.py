"""Random reclaim: every victim is evicted for a pod that then runs, gangs stay whole, and the evictions end."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from capcard_sched.framework.core import StepResult
from capcard_sched.framework.eviction.scope import AcrossQueues
from capcard_sched.framework.eviction.search import VictimSearch
from capcard_sched.framework.eviction.victim_index import VictimIndex
from capcard_sched.model.deltas import EvictFailed
from capcard_sched.model.intents import Evict
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded
from tests.evictions import Tide

_LIVE = (TaskStatus.RUNNING, TaskStatus.BOUND, TaskStatus.BINDING)


def _conf(actions: str, *later: str) -> str:
    listed = ", ".join(f"{{name: {name}}}" for name in later)
    return f"""
actions: "enqueue, allocate, backfill, {actions}"
tiers:
- plugins:
  - {{name: priority}}
  - {{name: gang, enablePreemptable: false, enableReclaimable: false, enableJobStarving: false}}
  - {{name: conformance, enableReclaimable: false}}
- plugins: [{listed}]
"""


_CONFS = {
    "preempt": _conf("preempt", "predicates", "nodeorder"),
    "tide": _conf("reclaim", "predicates", "tide", "binpack"),
    "both": _conf("preempt, reclaim", "predicates", "tide", "nodeorder"),
    "reclaim first": _conf("reclaim, preempt", "tide", "binpack"),
    "shares": _conf("preempt, reclaim", "predicates", "proportion", "nodeorder"),
}
#: With these, preemption between two jobs stays allowed or forbidden while the pods stay the same.
_STEADY = ["preempt", "tide", "both", "reclaim first"]


class _Gang(NamedTuple):
    queue: str
    minimum: int
    pods: tuple[int, ...]
    priority: str
    preemptable: bool


def _gangs_of(queues: list[str], priorities: list[str], least: int) -> st.SearchStrategy[_Gang]:
    return st.builds(
        lambda gang: gang._replace(minimum=min(gang.minimum, len(gang.pods))),
        st.builds(
            _Gang,
            queue=st.sampled_from(queues),
            minimum=st.integers(least, 4),
            pods=st.lists(st.sampled_from([1, 1, 2, 3, 0]), min_size=1, max_size=4).map(tuple),
            priority=st.sampled_from(priorities),
            preemptable=st.sampled_from([True, True, True, False]),
        ),
    )


class _World(NamedTuple):
    nodes: list[int]
    night: list[_Gang]
    day: list[_Gang]
    #: Steps until an evicted pod is gone, by the order of evictions.
    graces: list[int]
    #: Whether pods that were evicted come back as new ones.
    back: bool
    #: Which evictions are refused.
    refused: list[bool]


_worlds = st.builds(
    _World,
    nodes=st.lists(st.integers(2, 5), min_size=1, max_size=4),
    night=st.lists(_gangs_of(["qt", "qt", "qi"], ["low"], 0), min_size=3, max_size=6),
    day=st.lists(_gangs_of(["qi", "qt"], ["high", "high", "low"], 1), min_size=1, max_size=4),
    graces=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    back=st.booleans(),
    refused=st.lists(st.booleans(), min_size=1, max_size=3),
)


class _Run:
    """A harness whose victims leave, and what they left for."""

    def __init__(self, conf: str, world: _World, *, refuse: bool = False) -> None:
        self.h = Harness(_CONFS[conf], run=True, plugins=[Tide])
        self.world = world
        self.gangs: dict[str, _Gang] = {}
        self.sizes: dict[str, int] = {}
        #: Preemptor to the sessions with evictions for it.
        self.takers: dict[str, set[int]] = defaultdict(set)
        #: (job of the victim, job of the taker).
        self.taken: set[tuple[str, str]] = set()
        self.evictions = 0
        self.steps = 0
        self._refuse = refuse
        self._leaving: list[tuple[int, str]] = []
        self.h.priority_class("low", 10)
        self.h.priority_class("high", 100)
        self.h.queue("qi", priority=80000, reclaimable=False, weight=1)
        self.h.queue("qt", priority=20000, weight=3)
        for i, cpu in enumerate(world.nodes):
            self.h.node(f"n{i}", cpu=str(cpu))

    def arrive(self, gangs: list[_Gang]) -> None:
        for gang in gangs:
            name = f"g{len(self.gangs)}"
            self.gangs[name] = gang
            notes = {} if gang.preemptable else {"volcano.sh/preemptable": "false"}
            self.h.group(
                name, queue=gang.queue, min_member=gang.minimum, priority_class=gang.priority, annotations=notes
            )
            for i, cpu in enumerate(gang.pods):
                self._pod(name, f"{name}-w-{i}", cpu)

    def _pod(self, group: str, name: str, cpu: int) -> None:
        self.sizes[name] = cpu
        self.h.pod(name, group=group, requests={"cpu": str(cpu)} if cpu else {})

    def step(self) -> StepResult:
        """One step, and everything that must hold after it."""
        h = self.h
        self.steps += 1
        for next_wakeup, name in [entry for entry in self._leaving if entry[0] <= self.steps]:
            self._leaving.remove((next_wakeup, name))
            job = h.task(name).job
            assert job is not None
            h.delete_pod(name)
            if self.world.back:
                base, _, index = name.rpartition("-")
                self._pod(job.name, f"{base}-{int(index) + 10}", self.sizes[name])
        result = h.step()
        assert not result.report.errors
        assert recorded(h.state) == rebuilt(h.state)
        assert not h.state.nodes.pipelined.any()
        hit: set[str] = set()
        for intent in result.intents:
            if isinstance(intent, Evict):
                task = h.task(intent.name)
                assert task.job is not None
                hit.add(task.job.key)
                self._note(intent, task.job.name)
        for key in hit:
            gang = self.gangs[h.state.jobs[key].name]
            left = self._live(key)
            assert left == 0 or left >= gang.minimum or gang.minimum <= 1, key
        return result

    def _live(self, key: str) -> int:
        job = self.h.state.jobs[key]
        return sum(job.counts[status] for status in _LIVE)

    def _note(self, intent: Evict, victim: str) -> None:
        assert self.gangs[victim].preemptable, "a pod that is not preemptable is never a victim"
        assert intent.by
        refused = self.world.refused[self.evictions % len(self.world.refused)] if self._refuse else False
        self.evictions += 1
        taker = self.h.task(intent.by.removeprefix("default/"))
        assert taker.status is TaskStatus.PENDING
        assert taker.job is not None
        self.takers[taker.name].add(self.steps)
        self.taken.add((victim, taker.job.name))
        if refused:
            self.h.apply(EvictFailed(intent.namespace, intent.name, intent.uid, "not now"))
        else:
            self.h.terminate(intent.name)
            grace = self.world.graces[self.evictions % len(self.world.graces)]
            self._leaving.append((self.steps + 1 + grace, intent.name))

    def end_statement(self) -> None:
        """Steps until nothing changes and every victim is gone."""
        for _ in range(60):
            if self.step().idle and not self._leaving:
                return
        raise AssertionError("never comes to rest")

    def day(self) -> None:
        self.arrive(self.world.night)
        self.end_statement()
        self.arrive(self.world.day)
        self.end_statement()


@pytest.mark.parametrize("conf", _STEADY)
@given(world=_worlds)
def test_every_eviction_is_followed_by_the_bind_it_was_made_for(conf: str, world: _World) -> None:
    run = _Run(conf, world)
    run.day()
    for name, sessions in run.takers.items():
        assert len(sessions) == 1, "no pod preempts twice"
        assert name in run.h.binds, name


@pytest.mark.parametrize("conf", _STEADY)
@given(world=_worlds)
def test_a_preemptor_is_not_preempted_by_its_victim(conf: str, world: _World) -> None:
    run = _Run(conf, world._replace(back=True))
    run.day()
    assert not {(taker, victim) for victim, taker in run.taken if taker != victim} & run.taken
    assert run.evictions <= 4 * len(run.sizes)


@given(world=_worlds)
def test_tides_with_shares_come_to_rest(world: _World) -> None:
    run = _Run("shares", world._replace(back=True))
    run.day()
    for sessions in run.takers.values():
        assert len(sessions) == 1


@pytest.mark.parametrize("conf", sorted(_CONFS))
@given(world=_worlds)
def test_refused_evictions_break_nothing(conf: str, world: _World) -> None:
    run = _Run(conf, world, refuse=True)
    run.arrive(world.night)
    for _ in range(4):
        run.step()
    run.arrive(world.day)
    for _ in range(12):
        run.step()


@given(world=_worlds, cpu=st.integers(1, 4))
def test_w03_the_cheapest_node_is_found_without_evaluating_all(world: _World, cpu: int) -> None:
    run = _Run("tide", world)
    run.arrive([gang._replace(queue="qt", priority=["low", "high"][i % 2]) for i, gang in enumerate(world.night)])
    run.end_statement()
    run.h.group("taker", queue="qi", priority_class="high")
    run.h.pod("taker-w-0", group="taker", requests={"cpu": str(cpu)})
    session = run.h.session()
    task, queue = run.h.task("taker-w-0"), session.queues["qi"]
    scope = AcrossQueues("reclaim")
    search = VictimSearch(session, scope, session.engine.signature(queue, task), queue, task)
    plans = [search.plans.plan(row, task) for row in range(len(session.nodes))]
    table = session.once(VictimIndex).units
    bounds = table.bounds(scope.mask(table, run.h.job("taker")), task.cls.request, search.feasible)
    for row, plan in enumerate(plans):
        if plan is not None and plan.units:
            assert bounds[row] <= plan.cost, "a node is looked at only while it may be the cheapest"
    cheapest = min((plan.cost for plan in plans if plan is not None), default=None)
    found = search.next(task)
    assert (found.cost if found is not None else None) == cheapest


@pytest.mark.parametrize("conf", ["both"])
@given(world=_worlds, data=st.data())
def test_the_order_of_deltas_does_not_change_the_victims(conf: str, world: _World, data: st.DataObject) -> None:
    runs = [_Run(conf, world), _Run(conf, world)]
    for run in runs:
        run.arrive(world.night)
    runs[1].h._deltas = data.draw(st.permutations(runs[1].h._deltas))
    for run in runs:
        run.end_statement()
        run.arrive(world.day)
    for _ in range(4):
        first, second = (msgspec.json.encode(run.step().intents) for run in runs)
        assert first == second
