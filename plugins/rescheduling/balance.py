"""Strategy `lowNodeUtilization`: underutilized and overutilized nodes, and the victims.

Percentages are integers in hundredths, amounts are thousandths of a core and bytes, so that all arithmetic is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.resources import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.model.usage import NodeUsage
    from capcard_sched.plugins.rescheduling.arguments import Bounds, Params

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
