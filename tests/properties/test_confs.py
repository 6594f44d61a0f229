"""Random scheduler-confs of every plugin there is, with any switches, yes/no arguments and actions: none of them breaks
the guarantees of the core.

Plugins are taken from the registry by name, so that a new one takes part from its first day. Expectations are counted
from the plain descriptions below.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from capcard_sched.framework.api.hooks import SWITCHES
from capcard_sched.model.intents import Evict
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import registry
from tests.accounting import rebuilt, recorded
from tests.vectors.notation import VectorHarness

_GPU = "nvidia.com/gpu"
_LIVE = (TaskStatus.RUNNING, TaskStatus.BOUND, TaskStatus.BINDING)
_HELD = (*_LIVE, TaskStatus.RELEASING, TaskStatus.UNKNOWN)
#: With these pods are admitted, placed and evicted.
_ACTIONS = ("enqueue", "allocate", "backfill", "preempt", "reclaim", "shuffle")
#: Arguments beside those that are yes or no.
_ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "capacity-card": [
        {"podOwnerReferenceToServiceType": {"Job": "training", "ReplicaSet": "inference"}},
        {"overCommitFactor": 2},
    ],
    "binpack": [{"binpack.weight": 10, "binpack.resources": _GPU}],
    "sla": [{"sla-waiting-time": "3s"}],
    "tdm": [{"tdm.revocable-zone.rz1": "00:00-23:59", "tdm.evict.period": "1s"}],
    "overcommit": [{"overcommit-factor": 1.5}],
}
_CLASSES = {"low": 20_000, "medium": 40_000, "high": 80_000}


class _Option(NamedTuple):
    """One entry of a tier."""

    name: str
    switches: dict[str, bool]
    arguments: dict[str, Any]

    def is_on(self, switch: str) -> bool:
        return self.switches.get(switch, SWITCHES[switch])


class _Conf(NamedTuple):
    actions: tuple[str, ...]
    tiers: tuple[tuple[_Option, ...], ...]

    def text(self) -> str:
        """The file. JSON is YAML."""
        tiers = [
            {"plugins": [{"name": one.name, **one.switches, "arguments": one.arguments} for one in tier]}
            for tier in self.tiers
        ]
        return json.dumps({"actions": ", ".join(self.actions), "tiers": tiers})

    def minds_cards(self) -> bool:
        """Whether card quotas are kept, and a pod is charged for the card of the node it is on."""
        return any(
            one.name == "capacity-card"
            and one.is_on("enabledAllocatable")
            and one.is_on("enablePredicate")
            and one.arguments.get("cardNodeFilter", True)
            for tier in self.tiers
            for one in tier
        )

    def is_on(self, plugin: str, switch: str) -> bool:
        """Whether the plugin implements the hooks of a switch."""
        return any(one.name == plugin and one.is_on(switch) for tier in self.tiers for one in tier)


class _Gang(NamedTuple):
    queue: str
    minimum: int
    pods: int
    cpu: int
    #: Cards it names, "" for none; each pod requests one card.
    card: str
    priority: str
    service: str
    preemptable: bool


class _World(NamedTuple):
    #: (cpu, card, cards) of each node.
    nodes: list[tuple[int, str, int]]
    quotas: dict[str, dict[str, int]]
    night: list[_Gang]
    day: list[_Gang]
    #: Steps until an evicted pod is gone, and whether it then comes again as a new one.
    grace: int
    back: bool


def _are_together(arguments: dict[str, Any]) -> bool:
    """Whether at most one kind of shared GPUs is on: a scheduler-conf with two of them is rejected."""
    kinds = ("GPUSharingEnable", "GPUNumberEnable", "VGPUEnable")
    return sum(bool(arguments.get(f"deviceshare.{kind}")) for kind in kinds) < 2


def _bools(plugin: str) -> list[str]:
    """Names of the plugin's arguments that are yes or no."""
    found = registry().plugin(plugin)
    assert found is not None
    return [field.encode_name for field in msgspec.structs.fields(found.Arguments) if field.type is bool]


@st.composite
def _options(draw: st.DrawFn, name: str) -> _Option:
    """Half of them as they are, the others with switches and arguments."""
    if draw(st.booleans()):
        usual = {"enablePreemptable": False, "enableReclaimable": False} if name in ("gang", "drf") else {}
        return _Option(name, usual, {})
    switches = draw(st.dictionaries(st.sampled_from(sorted(SWITCHES)), st.booleans(), max_size=3))
    arguments = dict(draw(st.sampled_from([{}, *_ARGUMENTS.get(name, [])])))
    names = _bools(name)
    if names:
        chosen = st.dictionaries(st.sampled_from(names), st.booleans(), max_size=2)
        arguments |= draw(chosen.filter(lambda more: _are_together(arguments | more)))
    return _Option(name, switches, arguments)


@st.composite
def _confs(draw: st.DrawFn, plugins: tuple[str, ...]) -> _Conf:
    """`plugins`: those that must be among them."""
    others = [name for name in registry().plugin_names() if name not in plugins]
    names = [*plugins, *draw(st.lists(st.sampled_from(others), unique=True, max_size=4))]
    names = draw(st.permutations(names))
    options = [draw(_options(name)) for name in names]
    if "proportion" in names:  # which is incompatible with a hierarchical drf
        for one in options:
            if one.name == "drf":
                one.switches.pop("enableHierarchy", None)
    cuts = sorted({0, len(options), *draw(st.lists(st.integers(0, len(options)), max_size=2))})
    tiers = tuple(tuple(options[first:last]) for first, last in pairwise(cuts))
    actions = tuple(draw(st.lists(st.sampled_from(_ACTIONS), unique=True, min_size=1, max_size=6)))
    if draw(st.integers(0, 5)):
        actions = tuple(name for name in _ACTIONS if name in (*actions, "enqueue", "allocate", "preempt", "reclaim"))
    return _Conf(actions, tiers)


def _gangs_of(queues: list[str], priorities: list[str], services: list[str]) -> st.SearchStrategy[_Gang]:
    return st.builds(
        lambda gang: gang._replace(minimum=min(gang.minimum, gang.pods)),
        st.builds(
            _Gang,
            queue=st.sampled_from(queues),
            minimum=st.integers(1, 3),
            pods=st.integers(1, 4),
            cpu=st.sampled_from([1, 1, 2, 0]),
            card=st.sampled_from(["A", "A", "A", "B", "A|B", ""]),
            priority=st.sampled_from(priorities),
            service=st.sampled_from(services),
            preemptable=st.sampled_from([True, True, True, True, False]),
        ),
    )


_quotas = st.fixed_dictionaries({"A": st.sampled_from([12, 12, 6, 2]), "B": st.sampled_from([12, 4])})
_worlds = st.builds(
    _World,
    nodes=st.lists(
        st.tuples(st.integers(2, 8), st.sampled_from(["A", "A", "B"]), st.integers(1, 4)), min_size=1, max_size=3
    ),
    quotas=st.fixed_dictionaries({"qi": _quotas, "qt": _quotas}),
    night=st.lists(
        _gangs_of(["qt", "qt", "qi"], ["low", "low", "medium"], ["training", "training", ""]), min_size=4, max_size=8
    ),
    day=st.lists(_gangs_of(["qi", "qt"], ["high", "high", "low"], ["inference", "training"]), min_size=1, max_size=3),
    grace=st.integers(0, 2),
    back=st.booleans(),
)


class _Run:
    """A harness under a conf, with victims that leave and come again."""

    def __init__(self, conf: _Conf, world: _World) -> None:
        self.h = h = VectorHarness(conf.text(), run=True)
        self.conf = conf
        self.world = world
        self.gangs: dict[str, _Gang] = {}
        self.nodes = {f"n{i}": node for i, node in enumerate(world.nodes)}
        self.evictions = 0
        self.quiet = 0
        self._leaving: list[tuple[int, str]] = []
        self._steps = 0
        for name, value in _CLASSES.items():
            h.priority_class(name, value)
        h.queue("qi", priority=80_000, reclaimable=False, cards=world.quotas["qi"], deserved={"cpu": "4", _GPU: "4"})
        h.queue(
            "qt", priority=20_000, cards=world.quotas["qt"], weight=2, guarantee={"cpu": "1"}, capability={"cpu": "12"}
        )
        for name, (cpu, card, cards) in self.nodes.items():
            h.gpu_node(name, card=card, count=cards, cpu=str(cpu), labels={"volcano.sh/revocable-zone": "rz1"})
        selector = "{selector: {matchLabels: {gang: g0}}}"
        h.do(
            f"object budget kind=PodDisruptionBudget metadata={{namespace: default}} spec={selector} "
            "status={disruptionsAllowed: 1}"
        )

    def arrive(self, gangs: list[_Gang]) -> None:
        for gang in gangs:
            name = f"g{len(self.gangs)}"
            self.gangs[name] = gang
            notes = {"volcano.sh/service.type": gang.service} if gang.service else {}
            if not gang.preemptable:
                notes["volcano.sh/preemptable"] = "false"
            self.h.group(
                name, queue=gang.queue, min_member=gang.minimum, phase="Pending", priority_class=gang.priority,
                annotations=notes, min_resources={"cpu": str(gang.cpu * gang.minimum)},
            )  # fmt: skip
            for i in range(gang.pods):
                self._pod(name, f"{name}-w-{i}")

    def _pod(self, group: str, name: str) -> None:
        gang = self.gangs[group]
        self.h.pod(
            name, group=group, requests={"cpu": str(gang.cpu)} if gang.cpu else {}, card=gang.card or None,
            cards=1 if gang.card else 0, priority=_CLASSES[gang.priority], labels={"gang": group},
        )  # fmt: skip

    def step(self) -> None:
        """One step, and everything that must hold after it."""
        h = self.h
        self._steps += 1
        for next_wakeup, name in [entry for entry in self._leaving if entry[0] <= self._steps]:
            self._leaving.remove((next_wakeup, name))
            h.delete_pod(name)
            if self.world.back:
                base, _, index = name.rpartition("-")
                self._pod(base.removesuffix("-w"), f"{base}-{int(index) + 10}")
        before = dict(h.binds)
        result = h.step()
        assert not result.report.errors
        assert recorded(h.state) == rebuilt(h.state)
        assert not h.state.nodes.pipelined.any()
        fresh = {name for name in h.binds if before.get(name) != h.binds[name]}
        gone = [intent for intent in result.intents if isinstance(intent, Evict)]
        assert len({intent.uid for intent in gone}) == len(gone)
        self._check_nodes({h.binds[name] for name in fresh})
        self._check_gangs(fresh, gone)
        if fresh:
            self._check_queues({self.gangs[h.task(name).job.name].queue for name in fresh})  # type: ignore[union-attr]
        for intent in gone:
            self._evicted(intent)
        self.quiet = 0 if fresh or gone or self._leaving else self.quiet + 1

    def _evicted(self, intent: Evict) -> None:
        task = self.h.task(intent.name)
        assert task.job is not None
        assert self.gangs[task.job.name].preemptable, "a pod that is not preemptable is never a victim"
        assert not task.deleting
        self.evictions += 1
        self.h.terminate(intent.name)
        self._leaving.append((self._steps + 1 + self.world.grace, intent.name))

    def _check_nodes(self, names: set[str]) -> None:
        for name in names:
            cpu, _, cards = self.nodes[name]
            left = {"cpu": 1000 * cpu, _GPU: 1000 * cards}
            for task in self.h.state.nodes.by_name[name].tasks.values():
                if task.status in _HELD:
                    for resource in left:
                        left[resource] -= task.cls.requests.get(resource, 0)
            assert min(left.values()) >= 0, (name, left)

    def _check_gangs(self, fresh: set[str], gone: list[Evict]) -> None:
        """With gang, bound pods have a whole gang, and a gang that lost a pod is whole or gone."""
        if self.conf.is_on("gang", "enableJobReady"):
            for job in {self.h.task(name).job for name in fresh}:
                assert job is not None
                placed = sum(
                    task.status in (*_LIVE, TaskStatus.SUCCEEDED) or not self.gangs[job.name].cpu
                    for task in job.tasks.values()
                )
                assert placed >= self.gangs[job.name].minimum, job.name
        for job in {self.h.task(intent.name).job for intent in gone}:
            assert job is not None
            gang = self.gangs[job.name]
            left = sum(job.counts[status] for status in _LIVE)
            assert left == 0 or left >= gang.minimum or gang.minimum <= 1, job.name

    def _check_queues(self, queues: set[str]) -> None:
        """No quota of a queue that was given something is overdrawn, where a plugin keeps it."""
        cards: Counter[tuple[str, str]] = Counter()
        cpu: Counter[str] = Counter()
        for task in self.h.state.tasks.values():
            if task.job is None or task.node is None or task.status not in _LIVE:
                continue
            gang = self.gangs[task.job.name]
            cpu[gang.queue] += gang.cpu
            if gang.card:
                cards[gang.queue, self.nodes[task.node.name][1]] += 1
        if self.conf.minds_cards():
            for (queue, card), count in cards.items():
                assert queue not in queues or count <= self.world.quotas[queue][card], (queue, card)
        if any(self.conf.is_on(plugin, "enabledAllocatable") for plugin in ("capacity", "proportion")):
            assert "qt" not in queues or cpu["qt"] <= 12

    def settle(self) -> None:
        """Steps until the pods stay the same for a while. Evictions end, whichever plugin decides."""
        self.quiet = 0
        for _ in range(60):
            self.step()
            if self.quiet >= 3:
                return
        raise AssertionError(f"never comes to rest: {self.evictions} evictions")


@pytest.mark.parametrize(
    "plugins", [(), ("gang", "priority"), ("gang", "capacity-card"), ("gang", "capacity")], ids="+".join
)
@given(world=_worlds, data=st.data())
@settings(max_examples=settings().max_examples // 2)
def test_no_conf_breaks_the_guarantees_of_the_core(
    plugins: tuple[str, ...], world: _World, data: st.DataObject
) -> None:
    run = _Run(data.draw(_confs(plugins)), world)
    run.arrive(world.night)
    run.settle()
    run.arrive(world.day)
    run.settle()
    assert run.evictions <= 3 * sum(gang.pods for gang in (*world.night, *world.day))
