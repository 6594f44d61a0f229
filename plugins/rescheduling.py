"""Selects pods of loaded nodes to deschedule.

Percentages are integers in hundredths, amounts are thousandths of a core and bytes, so that all arithmetic is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec

from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.framework.api.problems import nearest, shown
from capcard_sched.framework.eviction.victim_index import protection
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.timestamps import parse_duration
from capcard_sched.model.usage import PERIOD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.model.usage import NodeUsage

Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]

LOW_NODE_UTILIZATION = "lowNodeUtilization"
INTERVAL_KEY = "interval"
PERIOD_KEY = "metricsPeriod"
STRATEGIES_KEY = "strategies"
DEFAULT_INTERVAL = "5m"
_PODS = ("pod", "pods")
#: Parameters that Volcano accepts and ignores, with their defaults.
_UNUSED: dict[str, object] = {"thresholdPriorityClassName": "system-cluster-critical", "nodeFit": True}


class Bounds(msgspec.Struct, frozen=True):
    """Percent of load."""

    cpu: Percent = 100
    memory: Percent = 100


class Params(msgspec.Struct, frozen=True):
    """Parameters of strategy `lowNodeUtilization`."""

    #: A node below all of these is underutilized and can take pods.
    thresholds: Bounds = Bounds()
    #: A node above one of these is overutilized and loses pods.
    targets: Bounds = msgspec.field(name="targetThresholds", default=Bounds())


class Strategy(msgspec.Struct, frozen=True):
    """One entry of `strategies`."""

    name: str = LOW_NODE_UTILIZATION
    params: Params = Params()


class ReschedulingArguments(msgspec.Struct, frozen=True):
    """Arguments of rescheduling."""

    #: Interval between runs.
    interval: str = DEFAULT_INTERVAL
    #: The period of the averages; only the measured period is supported.
    period: str = msgspec.field(name=PERIOD_KEY, default=PERIOD)
    #: The strategies: `lowNodeUtilization`, with its `params` (docs/load.md).
    strategies: tuple[Strategy, ...] = (Strategy(),)


def parse(raw: Mapping[str, object], problems: ArgumentReader) -> ReschedulingArguments:
    """Read the arguments. An invalid value keeps its default with a warning; an unknown strategy is skipped."""
    arguments = problems.decode(ReschedulingArguments, {k: v for k, v in raw.items() if k != STRATEGIES_KEY})
    interval, period = arguments.interval, arguments.period
    interval = problems.positive_duration(INTERVAL_KEY, interval, DEFAULT_INTERVAL)
    if period != PERIOD:
        problems.warning(
            PERIOD_KEY, f'no averages over "{period}" are measured; those over {PERIOD} are used', accepted=PERIOD
        )
        period = PERIOD
    return ReschedulingArguments(interval, period, _strategies(raw.get(STRATEGIES_KEY), problems))


def _strategies(raw: object, problems: ArgumentReader) -> tuple[Strategy, ...]:
    if raw is None:
        return ReschedulingArguments().strategies
    if not isinstance(raw, list):
        problems.error(STRATEGIES_KEY, f"expected a list, got {shown(raw)}", accepted="a list of {name, params}")
        return ()
    entries = [_strategy(entry, index, problems) for index, entry in enumerate(raw)]
    return tuple(entry for entry in entries if entry is not None)


def _strategy(raw: object, index: int, problems: ArgumentReader) -> Strategy | None:
    if not isinstance(raw, dict):
        message = f"entry {index}: expected a map, got {shown(raw)}"
        problems.error(STRATEGIES_KEY, message, accepted="a map with name and params")
        return None
    reader, entry = problems.inside(raw, STRATEGIES_KEY, index)
    name = entry.get("name")
    if name != LOW_NODE_UTILIZATION:
        hint = nearest(name, (LOW_NODE_UTILIZATION,)) if isinstance(name, str) else ""
        reader.warning(
            "name", f"unknown strategy {shown(name)}; it is skipped", hint=hint, accepted=LOW_NODE_UTILIZATION
        )
        return None
    for key in entry:
        if key not in ("name", "params"):
            reader.unknown(key, ("name", "params"))
    reader, params = reader.inside(entry.get("params"), "params")
    known: dict[str, Any] = {}
    for key, value in params.items():
        if key in _UNUSED:
            if value != _UNUSED[key]:
                reader.warning(key, "ignored, as in Volcano: critical pods are never evicted")
        elif key not in ("thresholds", "targetThresholds"):
            reader.unknown(key, ("thresholds", "targetThresholds", *_UNUSED))
        else:
            known[key] = _bounds(reader, params, key)
    found = Params(known.get("thresholds", Bounds()), known.get("targetThresholds", Bounds()))
    for resource in ("cpu", "memory"):
        least, most = getattr(found.thresholds, resource), getattr(found.targets, resource)
        if least > most:
            reader.warning(
                "thresholds",
                f"{resource}: {least} is above the target {most}; a node between the two takes pods and loses none",
            )
    return Strategy(LOW_NODE_UTILIZATION, found)


def _bounds(problems: ArgumentReader, params: Mapping[str, object], key: str) -> Bounds:
    reader, bounds = problems.inside(params.get(key), key)
    for name in _PODS:
        if name in bounds:
            reader.warning(name, "ignored, as in Volcano: the number of pods is not a load")
    return reader.decode(Bounds, {name: value for name, value in bounds.items() if name not in _PODS})


_WHOLE = 10_000


class NodeLoad(NamedTuple):
    """A node and its load in hundredths of a percent."""

    node: Node
    cpu: int
    memory: int


class Sides(NamedTuple):
    """Underutilized nodes and overutilized nodes; the latter with the highest load first."""

    low: list[NodeLoad]
    high: list[NodeLoad]


def _below(load: NodeLoad, bounds: Bounds) -> bool:
    return load.cpu < bounds.cpu * 100 and load.memory < bounds.memory * 100


def _above(load: NodeLoad, bounds: Bounds) -> bool:
    return load.cpu > bounds.cpu * 100 or load.memory > bounds.memory * 100


def sides(nodes: Sequence[NodeLoad], params: Params) -> Sides:
    """Both sides. `high` is empty when no node is underutilized, or every node is."""
    low = [each for each in nodes if not each.node.unschedulable and _below(each, params.thresholds)]
    if not low or len(low) == len(nodes):
        return Sides(low, [])
    names = {each.node.name for each in low}
    high = [each for each in nodes if each.node.name not in names and _above(each, params.targets)]
    high.sort(key=lambda each: (-(each.cpu + each.memory), each.node.name))
    return Sides(low, high)


def _offered(node: Node, resource: str) -> int:
    return (node.allocatable or node.capacity).get(resource, 0)


def budget(low: Sequence[NodeLoad], targets: Bounds) -> tuple[int, int]:
    """The cpu and memory that the underutilized nodes can take before they reach their targets."""
    cpu = sum((targets.cpu * 100 - each.cpu) * _offered(each.node, CPU) for each in low) // _WHOLE
    memory = sum((targets.memory * 100 - each.memory) * _offered(each.node, MEMORY) for each in low) // _WHOLE
    return cpu, memory


def quality(cls: TaskClass) -> int:
    """0 BestEffort, 1 Burstable, 2 Guaranteed, by the sums of the pod's requests and limits."""
    named = [(cls.requests.get(name, 0), cls.limits.get(name, 0)) for name in (CPU, MEMORY)]
    if not any(request or limit for request, limit in named):
        return 0
    return 2 if all(request and request == limit for request, limit in named) else 1


def _victim_order(task: Task) -> tuple[int, int, float, str]:
    """Lowest priority, then lowest quality of service, then the youngest."""
    return task.priority, quality(task.cls), -task.created, task.uid


def select_victims(balance: Sides, params: Params, movable: Mapping[str, Sequence[Task]]) -> list[Task]:
    """The victims, node by node. `movable`: node name to its evictable pods."""
    cpu_left, memory_left = budget(balance.low, params.targets)
    targets = params.targets
    victims: list[Task] = []
    for load in balance.high:
        node, cpu, memory = load
        capacity = node.capacity or node.allocatable
        for task in sorted(movable.get(node.name, ()), key=_victim_order):
            if not (cpu >= targets.cpu * 100 or memory >= targets.memory * 100):
                break
            if cpu_left <= 0 or memory_left <= 0:
                return victims
            used_cpu, used_memory = task.cls.requests.get(CPU, 0), task.cls.requests.get(MEMORY, 0)
            victims.append(task)
            cpu_left -= used_cpu
            memory_left -= used_memory
            cpu -= _share(used_cpu, capacity.get(CPU, 0))
            memory -= _share(used_memory, capacity.get(MEMORY, 0))
    return victims


def _share(amount: int, capacity: int) -> int:
    return amount * _WHOLE // capacity if capacity > 0 else 0


def node_loads(nodes: Sequence[Node], usage: Mapping[str, NodeUsage], now: float) -> list[NodeLoad]:
    """The loads of the nodes with fresh measurements of cpu and memory."""
    found = []
    for node in nodes:
        measured = usage.get(node.name)
        if measured is None or not measured.is_fresh(now) or measured.cpu is None or measured.memory is None:
            continue
        found.append(NodeLoad(node, round(measured.cpu * 100), round(measured.memory * 100)))
    return found


class Rescheduling(Plugin):
    """Selects victims on nodes with high measured load for action shuffle, as many as nodes with low load can take.

    The load is that of plugin `usage`. Victims are selected on a node once per measurement, because only the next one
    shows the effect. Pods that may not be evicted are skipped and not counted.
    """

    name = "rescheduling"
    Arguments = ReschedulingArguments
    arguments: ReschedulingArguments
    reads = Reads.USAGE

    def setup(self) -> None:
        self._interval = parse_duration(self.arguments.interval)
        self._session: Session
        #: Unix seconds of the last run.
        self._ran_at: float | None = None
        #: Whether to run again after the interval: load was measured since, or a node still has victims.
        self._unfinished = False
        #: Node name to the measurement on which victims were last selected there.
        self._measured: dict[str, NodeUsage] = {}

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> ReschedulingArguments:
        return parse(raw, problems)

    def open(self, session: Session) -> None:
        self._session = session
        self._unfinished |= bool(session.changed.usage)

    def next_wakeup(self) -> float | None:
        """The end of the interval, if there is a reason to run then."""
        return self._ran_at + self._interval if self._unfinished and self._ran_at is not None else None

    def victim_tasks(self, tasks: Sequence[Task]) -> list[Task]:
        """Victims, at most once per interval. O(nodes + pods of the overloaded nodes)."""
        session = self._session
        if self._ran_at is not None and session.now < self._ran_at + self._interval:
            return []
        nodes = node_loads(session.nodes.nodes, session.snapshot.usage, session.now) if session.snapshot.usage else []
        if not nodes:
            return []
        self._ran_at, self._unfinished = session.now, False
        self._measured = {
            name: load for name, load in self._measured.items() if session.snapshot.usage.get(name) is load
        }
        movable: dict[str, list[Task]] = {}
        for task in tasks:
            if task.node is not None and not protection(session, task):
                movable.setdefault(task.node.name, []).append(task)
        victims: dict[str, Task] = {}
        for strategy in self.arguments.strategies:
            low, high = sides(nodes, strategy.params)
            fresh = Sides(low, [each for each in high if each.node.name not in self._measured])
            self._unfinished |= bool(fresh.high)
            victims |= {task.uid: task for task in select_victims(fresh, strategy.params, movable)}
        for task in victims.values():
            assert task.node is not None, task
            self._measured[task.node.name] = session.snapshot.usage[task.node.name]
        return list(victims.values())
