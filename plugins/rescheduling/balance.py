"""Which nodes give and which take, and which pods go: strategy `lowNodeUtilization` (plugins reference §21).

Percent are counted in hundredths, amounts in thousandths of a core and bytes: all of it is exact.
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


class Standing(NamedTuple):
    """A node and its load in hundredths of a percent."""

    node: Node
    cpu: int
    memory: int


class Sides(NamedTuple):
    """Nodes that take and nodes that give; the latter with the most load first."""

    low: list[Standing]
    high: list[Standing]


def _below(standing: Standing, bounds: Bounds) -> bool:
    return standing.cpu < bounds.cpu * 100 and standing.memory < bounds.memory * 100


def _above(standing: Standing, bounds: Bounds) -> bool:
    return standing.cpu > bounds.cpu * 100 or standing.memory > bounds.memory * 100


def sides(nodes: Sequence[Standing], params: Params) -> Sides:
    """Who takes and who gives; nobody gives when there is nobody to take, or everybody is idle."""
    low = [each for each in nodes if not each.node.unschedulable and _below(each, params.thresholds)]
    if not low or len(low) == len(nodes):
        return Sides(low, [])
    names = {each.node.name for each in low}
    high = [each for each in nodes if each.node.name not in names and _above(each, params.targets)]
    high.sort(key=lambda each: (-(each.cpu + each.memory), each.node.name))
    return Sides(low, high)


def _offered(node: Node, resource: str) -> int:
    return (node.allocatable or node.capacity).get(resource, 0)


def budget(low: Sequence[Standing], targets: Bounds) -> tuple[int, int]:
    """How much cpu and memory the nodes that take may get before they reach their targets."""
    cpu = sum((targets.cpu * 100 - each.cpu) * _offered(each.node, CPU) for each in low) // _WHOLE
    memory = sum((targets.memory * 100 - each.memory) * _offered(each.node, MEMORY) for each in low) // _WHOLE
    return cpu, memory


def quality(cls: TaskClass) -> int:
    """0 BestEffort, 1 Burstable, 2 Guaranteed, by what the pod as a whole asks for."""
    named = [(cls.requests.get(name, 0), cls.limits.get(name, 0)) for name in (CPU, MEMORY)]
    if not any(request or limit for request, limit in named):
        return 0
    return 2 if all(request and request == limit for request, limit in named) else 1


def _first_to_go(task: Task) -> tuple[int, int, float, str]:
    """Least priority, then least quality of service, then the youngest."""
    return task.priority, quality(task.cls), -task.created, task.uid


def chosen(balance: Sides, params: Params, movable: Mapping[str, Sequence[Task]]) -> list[Task]:
    """Pods that go, node by node. `movable`: node name to the pods on it that may."""
    cpu_left, memory_left = budget(balance.low, params.targets)
    targets = params.targets
    victims: list[Task] = []
    for standing in balance.high:
        node, cpu, memory = standing
        capacity = node.capacity or node.allocatable
        for task in sorted(movable.get(node.name, ()), key=_first_to_go):
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


def standings(nodes: Sequence[Node], usage: Mapping[str, NodeUsage], now: float) -> list[Standing]:
    """Nodes of which a load is known that counts, of everything that is compared."""
    found = []
    for node in nodes:
        said = usage.get(node.name)
        if said is not None and said.is_fresh(now) and said.cpu is not None and said.memory is not None:
            found.append(Standing(node, round(said.cpu * 100), round(said.memory * 100)))
    return found
