"""Pods of other jobs that a fix ends: the fewest that return quota, or free nodes.

A unit is what ends together: one pod of a Deployment or ReplicaSet, which can be scaled, or else a whole job.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.framework.explain.capacity import workload_name
from capcard_sched.insight.trials.change import ProposedChange
from capcard_sched.model.job import SYSTEM_NAMESPACE
from capcard_sched.model.quantity import in_units
from capcard_sched.model.queue import subtree
from capcard_sched.model.refusal import Code
from capcard_sched.model.resources import CPU, MEMORY, PODS
from capcard_sched.model.selectors import matches_labels, untolerated_taint
from capcard_sched.model.status import ALLOCATED_STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.state.cluster import ClusterState

#: Kinds of workloads of which single pods can end for good.
_SCALABLE: Final = ("deployment/", "replicaset/")
#: Nodes of which the conflicting pods are proposed, and units that are proposed together.
_MOST_NODES: Final = 4
_MOST_TOGETHER: Final = 8
#: Kinds of owners whose pods belong to their node.
_OF_NODES: Final = frozenset({"DaemonSet", "Node"})
#: Kinds of owners that a command scales or suspends; "" for pods without one. The pods of others come back, or belong
#: to their node.
_OWNERS: Final = frozenset({"", "Job", "ReplicaSet", "StatefulSet"})


class EndingUnit(NamedTuple):
    """Pods that end together."""

    change: ProposedChange
    #: Number of pods and priority of the job: fewer and lower first.
    pods: int
    priority: int


def unit_of(task: Task) -> EndingUnit | None:
    """The unit of a pod; None for pods that belong to their node or to the cluster."""
    if not may_end(task):
        return None
    job = task.job
    workload = workload_name(task)
    if job is None or workload.partition("/")[2].startswith(_SCALABLE):
        change = ProposedChange("End", ("Pod", task.namespace, task.name), workload)
        return EndingUnit(change, 1, job.priority if job is not None else task.priority)
    return EndingUnit(
        ProposedChange("End", ("PodGroup", job.namespace, job.name), workload), len(job.tasks), job.priority
    )


def may_end(task: Task) -> bool:
    """Whether a pod belongs neither to its node nor to the cluster."""
    return task.cls.owner_kind not in _OF_NODES and task.namespace != SYSTEM_NAMESPACE


def endable_unit(task: Task) -> EndingUnit | None:
    """The unit of a pod that a command ends for good; None for pods that end already, or come back, too."""
    return unit_of(task) if task.cls.owner_kind in _OWNERS and not task.deleting else None


def jobs_below(core: Core, queue: Queue) -> Iterator[Job]:
    return (job for one in subtree(queue, core.snapshot().state.queues) for job in one.jobs.values())


def limit_holders(
    core: Core, jobs: Iterable[Job], job: Job, resource: str, missing: float
) -> tuple[ProposedChange, ...]:
    """The fewest units of some jobs that return an amount of a card or resource; () when all are not enough."""
    amounts: dict[EndingUnit, float] = {}
    state = core.snapshot().state
    for other in (other for other in jobs if other is not job):
        counted = core.snapshot().dispatch.first("job_cards", other)
        reserved = counted.reserved.get(resource, 0) / 1000 if counted is not None and not job.tasks else 0.0
        for task in other.tasks.values():
            unit = endable_unit(task)
            amount = _held(state, task, resource)
            if unit is not None and amount:
                amounts[unit] = amounts.get(unit, 0.0) + amount
        if reserved and other.tasks and (unit := endable_unit(next(iter(other.tasks.values())))) is not None:
            amounts[unit] = amounts.get(unit, 0.0) + reserved
    return tuple(unit.change for unit in fewest(amounts, missing))


def fewest(amounts: dict[EndingUnit, float], missing: float) -> list[EndingUnit]:
    """The fewest units with a sum of at least `missing`, then those of the lowest priority and the smallest excess."""
    ordered = sorted(amounts, key=lambda unit: (-amounts[unit], unit.priority, unit.pods, unit.change.target))
    chosen: list[EndingUnit] = []
    total = 0.0
    for unit in ordered:
        if total >= missing:
            break
        chosen.append(unit)
        total += amounts[unit]
    if total < missing:
        return []
    rest = sorted(set(ordered) - set(chosen), key=lambda unit: (unit.priority, amounts[unit], unit.change.target))
    for index, unit in enumerate(chosen):
        spare = total - missing
        for other in rest:
            cheaper = (other.priority, amounts[other]) < (unit.priority, amounts[unit])
            if cheaper and amounts[unit] - amounts[other] <= spare:
                chosen[index] = other
                rest.remove(other)
                total += amounts[other] - amounts[unit]
                break
    return chosen


def _held(state: ClusterState, task: Task, resource: str) -> float:
    """The amount of a card or resource that a pod on a node uses."""
    if task.node is None or task.status not in ALLOCATED_STATUSES:
        return 0.0
    if resource == PODS:
        return 1.0
    cards = state.cards_of(task.node)
    requested = cards[resource][1] if resource in cards else resource
    return in_units(requested, task.cls.requests.get(requested, 0))


# --- conflicts ------------------------------------------------------------------------------------------------------


def conflicts(core: Core, job: Job, needed: Sequence[Task]) -> Iterator[tuple[ProposedChange, ...]]:
    """Units with pods that exclude the needed pods: per node, and all.

    By a port, affinity, spread, device, claim or volume, by the affinity of groups, and with their cards in the domains
    of a network topology. A trial decides.
    """
    by_node: dict[str, dict[EndingUnit, None]] = {}
    wanted, state = list({task.cls: task for task in needed}.values()), core.snapshot().state
    apart: dict[str, bool] = {}
    for other in state.tasks.values():
        if other.node is None or other.job is job:
            continue
        if other.job is not None and other.job.key not in apart:  # 64 terms of each, for all of its pods
            apart[other.job.key] = _are_apart(job, other.job) or _are_apart(other.job, job)
        is_apart = other.job is not None and apart[other.job.key]
        if not is_apart and not any(_exclude(task, other) for task in wanted):
            continue
        if (unit := endable_unit(other)) is not None:
            by_node.setdefault(other.node.name, {})[unit] = None
    groups = sorted(by_node.values(), key=lambda units: (len(units), max(unit.priority for unit in units)))
    together = dict.fromkeys(unit for units in groups for unit in units)
    for units in (*groups[:_MOST_NODES], *([together] if len(together) <= _MOST_TOGETHER else [])):
        yield tuple(unit.change for unit in units)


def _exclude(task: Task, other: Task) -> bool:
    """Whether a running pod may exclude a pending one from a node or a domain; a trial decides."""
    if task.cls.requests.keys() & other.cls.requests.keys() - {CPU, MEMORY, PODS}:
        return True
    if (task.cls.claims and other.cls.claims) or (task.cls.volumes and other.cls.volumes):
        return True
    if {one.port for one in task.cls.host_ports} & {one.port for one in other.cls.host_ports}:
        return True
    spread = task.namespace == other.namespace and any(
        matches_labels(one.label_selector, other.labels) for one in task.cls.spread
    )
    return spread or _repels(task, other) or _repels(other, task)


def _are_apart(one: Job, other: Job) -> bool:
    """Whether a term of one group selects the labels of the other, whatever the namespaces."""
    return any(matches_labels(term.groups, other.labels) for term in one.anti_affinity if term.groups is not None)


def _repels(one: Task, other: Task) -> bool:
    """Whether a required anti-affinity of one pod selects the other, whatever the namespaces."""
    affinity = one.cls.affinity
    terms = affinity.pod_anti_affinity.required if affinity is not None and affinity.pod_anti_affinity else ()
    return any(matches_labels(term.label_selector, other.labels) for term in terms or ())


# --- nodes ----------------------------------------------------------------------------------------------------------


def cheapest_on_nodes(core: Core, session: Session, job: Job, needed: Sequence[Task]) -> tuple[ProposedChange, ...]:
    """The fewest units whose end gives every needed pod a node; () when no set does."""
    queue = session.queues.get(job.queue)
    if queue is None:
        return ()
    plan = _NodePlan(core, job)
    for cls in dict.fromkeys(task.cls for task in needed):
        tasks = [task for task in needed if task.cls is cls]
        signature = session.engine.signature(queue, tasks[0])
        rows = np.flatnonzero(session.engine.open_to_evictions(signature))
        # What no end of pods changes, such as the affinity to a pod elsewhere.
        rows = rows[session.engine.filter_rows(signature, rows).codes <= Code.UNSCHEDULABLE]
        nodes = [
            node
            for row in rows
            if not (node := core.snapshot().state.nodes.nodes[row]).unschedulable
            and untolerated_taint(node.taints, cls.tolerations) is None
        ]
        if not plan.place(nodes, cls.fit_request, len(tasks)):
            return ()
    return tuple(plan.ended)


class _NodePlan:
    """Units that end, and the resources that they free, while pods are placed one by one."""

    def __init__(self, core: Core, job: Job) -> None:
        self._core, self._job = core, job
        table = core.snapshot().state.nodes
        self._free: dict[int, Vector] = {}
        self._table = table
        #: The units of jobs that end as a whole; None for jobs of which single pods end.
        self._jobs: dict[Job, EndingUnit | None] = {}
        self.ended: dict[ProposedChange, None] = {}
        self._named = {task.key: task for task in core.snapshot().state.tasks.values()}

    def place(self, nodes: Sequence[Node], request: Vector, count: int) -> bool:
        """Place pods of one request on the cheapest nodes; False when they have no place even so."""
        wanted = np.flatnonzero(request)
        heap = [(cost, node.row) for node in nodes if (cost := self._cost(node, request, wanted)) is not None]
        heapify(heap)
        while count and heap:
            cost, row = heappop(heap)
            node = self._table.nodes[row]
            current = self._cost(node, request, wanted)
            if current is None:
                continue
            if current != cost:
                heappush(heap, (current, row))
                continue
            for unit in self._units(node, request, wanted) or ():
                self._end(unit)
            self._free[row] = self._idle(row) - request
            count -= 1
            if (again := self._cost(node, request, wanted)) is not None:
                heappush(heap, (again, row))
        return not count

    def _idle(self, row: int) -> Vector:
        if row not in self._free:
            self._free[row] = self._table.allocatable[row] - self._table.used[row]
        return self._free[row]

    def _cost(self, node: Node, request: Vector, wanted: Vector) -> tuple[int, int, int] | None:
        units = self._units(node, request, wanted)
        if units is None:
            return None
        return len(units), max((unit.priority for unit in units), default=0), sum(unit.pods for unit in units)

    def _units(self, node: Node, request: Vector, wanted: Vector) -> list[EndingUnit] | None:
        """The fewest units of a node that make place for one more pod; None when all are not enough."""
        lacks = (request - self._idle(node.row))[wanted]
        if not (lacks > 0).any():
            return []
        members: dict[int, tuple[EndingUnit, dict[TaskClass, int]]] = {}
        for task in node.tasks.values():
            unit = self._unit_of(task) if task.job is not self._job else None
            if unit is not None:
                _, classes = members.setdefault(id(unit), (unit, {}))
                classes[task.cls] = classes.get(task.cls, 0) + 1
        gains: dict[EndingUnit, Vector] = {
            unit: np.sum([cls.fit_request[wanted] * count for cls, count in classes.items()], axis=0)
            for unit, classes in members.values()
            if unit.change not in self.ended
        }
        if len(gains) == 1:
            ((unit, gain),) = gains.items()
            return None if (lacks > gain).any() else [unit]
        scale = np.maximum(lacks, 1)
        weight = {unit: float((np.minimum(gain, scale) / scale)[lacks > 0].sum()) for unit, gain in gains.items()}
        chosen: list[EndingUnit] = []
        left = lacks.copy()
        for unit in sorted(gains, key=lambda unit: (-weight[unit], unit.priority, unit.pods, unit.change.target)):
            if not (left > 0).any():
                break
            chosen.append(unit)
            left = left - gains[unit]
        if (left > 0).any():
            return None
        for unit in sorted(chosen, key=lambda unit: weight[unit]):
            if not (left + gains[unit] > 0).any():
                chosen.remove(unit)
                left = left + gains[unit]
        return chosen

    def _unit_of(self, task: Task) -> EndingUnit | None:
        """`endable_unit`, computed once per job that ends as a whole."""
        job = task.job
        if job is None or not may_end(task):
            return endable_unit(task)
        if job not in self._jobs:
            unit = endable_unit(task)
            self._jobs[job] = unit if unit is not None and unit.change.target[0] == "PodGroup" else None
        return self._jobs[job] or endable_unit(task)

    def _end(self, unit: EndingUnit) -> None:
        self.ended[unit.change] = None
        kind, namespace, name = unit.change.target
        job = self._core.snapshot().state.jobs.get(f"{namespace}/{name}") if kind == "PodGroup" else None
        named = None if job is not None else self._named.get(f"{namespace}/{name}")
        for task in job.tasks.values() if job is not None else [named] if named is not None else []:
            if task.node is not None and task.node.row >= 0:
                self._free[task.node.row] = self._idle(task.node.row) + task.cls.fit_request
