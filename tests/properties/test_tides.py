"""Thousands of random tides under the conf of the tidal example: inference comes and goes, training gives way.

Training whose pods are evicted makes them anew at once, as its controller would; circular evictions have every
chance to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from importlib import resources
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given, settings

from capcard_sched.model.intents import Evict
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded

_CONF = (
    resources.files("capcard_sched.config").joinpath("examples/tidal/conf/scheduler.yaml").read_text(encoding="utf-8")
)
_LIVE = (TaskStatus.RUNNING, TaskStatus.BOUND, TaskStatus.BINDING)
_CARD = "NVIDIA-H200"


class _Job(NamedTuple):
    pods: int
    cards: int
    #: All of them are needed, or one.
    gang: bool
    priority: int


class _World(NamedTuple):
    #: Cards of each node.
    nodes: list[int]
    training: list[_Job]
    #: Cards of a replica of each service.
    services: list[int]
    #: Replicas of each service, tide by tide.
    tides: list[tuple[int, ...]]
    #: Steps until an evicted pod is gone.
    grace: int
    whole: bool


_worlds = st.builds(
    _World,
    nodes=st.lists(st.sampled_from([4, 8]), min_size=1, max_size=3),
    training=st.lists(
        st.builds(
            _Job,
            pods=st.integers(1, 4),
            cards=st.sampled_from([1, 1, 2, 4]),
            gang=st.booleans(),
            priority=st.sampled_from([20_000, 40_000]),
        ),
        min_size=2,
        max_size=6,
    ),
    services=st.lists(st.sampled_from([1, 2, 4]), min_size=3, max_size=3),
    tides=st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=8, max_size=8),
    grace=st.integers(0, 2),
    whole=st.booleans(),
)


class _Day:
    """A cluster through its tides."""

    def __init__(self, world: _World) -> None:
        conf = (
            _CONF
            if world.whole
            else _CONF.replace("overCommitFactor: 2", "overCommitFactor: 2\n      gangEviction: policy")
        )
        self.h = h = Harness(conf, run=True)
        self.world = world
        total = sum(world.nodes)
        h.queue("serving", priority=80_000, reclaimable=False, cards={_CARD: max(1, total * 3 // 4)})
        h.queue("training", priority=20_000, reclaimable=True, cards={_CARD: total})
        for i, cards in enumerate(world.nodes):
            h.gpu_node(f"n{i}", card=_CARD, count=cards)
        self._lives: Counter[str] = Counter()
        self._leaving: list[tuple[int, str]] = []
        self._steps = 0
        self.replicas: dict[int, list[str]] = {i: [] for i in range(len(world.services))}
        #: Preemptor to the steps with evictions for it.
        self.takers: dict[str, set[int]] = defaultdict(set)
        #: Evicted pods of this tide, of any incarnation.
        self.gone: Counter[str] = Counter()
        for i, job in enumerate(world.training):
            name = f"t{i}"
            h.group(
                name, queue="training", min_member=job.pods if job.gang else 1,
                annotations={"volcano.sh/service.type": "training"},
            )  # fmt: skip
            for pod in range(job.pods):
                self._train(f"{name}-w-{pod}")
        for i in self.replicas:
            h.group(f"s{i}", queue="serving", annotations={"volcano.sh/service.type": "inference"})

    def _train(self, role: str) -> None:
        """A pod of training, in its next life."""
        group = role.partition("-")[0]
        job = self.world.training[int(group[1:])]
        name = f"{role}{self._lives[role]:03d}"
        self._lives[role] += 1
        self.h.pod(name, group=group, card=_CARD, cards=job.cards, priority=job.priority)

    def tide(self, replicas: tuple[int, ...]) -> None:
        """Services grow and shrink; then until nothing happens."""
        self.gone.clear()
        for i, wanted in enumerate(replicas):
            running = self.replicas[i]
            while len(running) > wanted:
                self.h.delete_pod(running.pop())
            while len(running) < wanted:
                self._lives[f"s{i}"] += 1
                running.append(f"s{i}-r-{self._lives[f's{i}']}")
                self.h.pod(
                    running[-1], group=f"s{i}", card=_CARD, cards=self.world.services[i], priority=80_000,
                )  # fmt: skip
        for _ in range(40):
            if self._step() and not self._leaving:
                assert recorded(self.h.state) == rebuilt(self.h.state)
                return
        raise AssertionError("never comes to rest")

    def _step(self) -> bool:
        h = self.h
        self._steps += 1
        for next_wakeup, name in [entry for entry in self._leaving if entry[0] <= self._steps]:
            self._leaving.remove((next_wakeup, name))
            h.delete_pod(name)
        result = h.step()
        assert not result.report.errors
        hit = set()
        for intent in result.intents:
            if isinstance(intent, Evict):
                hit.add(self._evicted(intent))
        for group in hit if self.world.whole else ():
            job = h.job(group)
            left = sum(job.counts[status] for status in _LIVE)
            assert left == 0 or left >= job.min_available or job.min_available <= 1
        return result.idle

    def _evicted(self, intent: Evict) -> str:
        assert intent.name.startswith("t"), "only training leaves"
        assert intent.by.startswith("default/s"), "only inference takes"
        self.takers[intent.by.removeprefix("default/")].add(self._steps)
        role = intent.name[:-3]
        self.gone[role] += 1
        self.h.terminate(intent.name)
        self._leaving.append((self._steps + 1 + self.world.grace, intent.name))
        self._train(role)
        return role.partition("-")[0]


@given(world=_worlds)
@settings(max_examples=4 * settings().max_examples)
def test_reclaim_has_no_cycles_and_no_eviction_is_wasted(world: _World) -> None:
    day = _Day(world)
    day.tide((0, 0, 0))
    assert not day.takers
    for replicas in world.tides:
        day.takers.clear()
        day.tide(replicas)
        for taker, steps in day.takers.items():
            assert len(steps) == 1, "no pod preempts twice"
            assert taker in day.h.binds, "reclaimed capacity is used"
        assert max(day.gone.values(), default=0) <= 1, "a pod that returned is not reclaimed again"
