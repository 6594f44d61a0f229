"""The sums a ClusterState keeps, and the same sums counted anew from its tasks, in plain dictionaries to compare."""

from __future__ import annotations

from collections import Counter
from typing import Any

from capcard_sched.model.deltas import Delta, ObjectGone
from capcard_sched.model.job import Task
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.cluster import ClusterState
from capcard_sched.state.document import to_document

Sums = dict[str, Any]

_ALLOCATED = {TaskStatus.BOUND, TaskStatus.BINDING, TaskStatus.RUNNING, TaskStatus.ALLOCATED}
_HOLDING = {*_ALLOCATED, TaskStatus.RELEASING, TaskStatus.UNKNOWN}


#: The sums in the document of a state, by kind.
_FIELDS = {
    "PodGroup": (
        "tasks", "pending", "gated", "pending_best_effort", "counts", "roles", "allocated", "total_request",
        "releasing", "bound", "schedulable", "orphan", "without_group",
    ),
    "Queue": ("jobs", "allocated", "releasing"),
    "DeletedQueue": ("jobs", "allocated", "releasing"),
    "Node": ("tasks", "used", "releasing", "pipelined", "nonzero_used", "allocatable"),
    "Cluster": ("total_allocatable", "total_used"),
}  # fmt: skip


def recorded(state: ClusterState) -> Sums:
    """Compares the state's incremental accounting with a rebuild, delta by delta and placement by placement."""
    document = to_document(state)
    return {
        kind: {name: {field: row[field] for field in fields} for name, row in document[kind].items()}
        for kind, fields in _FIELDS.items()
    }


def rebuilt(state: ClusterState) -> Sums:
    """The same, counted from scratch out of task, job and node facts."""
    tasks = list(state.tasks.values())
    visible = {key: job.queue for key, job in state.jobs.items() if job.uid or job.queue}
    bound = {key: [task for task in tasks if task.job is job and _is_bound(task)] for key, job in state.jobs.items()}
    lost = {queue for key, queue in visible.items() if queue not in state.queues and bound[key]}
    jobs = {}
    for key, job in state.jobs.items():
        members = [task for task in tasks if task.job is job]
        waiting = [task for task in members if task.status is TaskStatus.PENDING]
        jobs[key] = {
            "tasks": sorted(task.uid for task in members),
            "pending": sorted(task.uid for task in waiting if not (task.gated or task.held)),
            "gated": sorted(task.uid for task in waiting if task.gated),
            "pending_best_effort": sum(task.cls.best_effort for task in waiting if not task.gated),
            "counts": dict(Counter(task.status.title for task in members)),
            "roles": _roles(members) if job.min_task_member else {},
            "allocated": _sum(task for task in members if task.status in _ALLOCATED),
            "total_request": _sum(members),
            "releasing": _sum(task for task in bound[key] if task.status not in _ALLOCATED),
            "bound": len(bound[key]),
            "schedulable": key in visible and visible[key] in state.queues and key not in state.held,
            "without_group": not job.uid,
            "orphan": key in visible and visible[key] not in state.queues,
        }
    nodes = {}
    for name, node in state.nodes.by_name.items():
        here = [task for task in tasks if task.node is node]
        holding = [task for task in here if task.status in _HOLDING]
        nodes[name] = {
            "tasks": sorted(task.uid for task in here),
            "used": _sum(holding),
            "releasing": _sum(task for task in here if task.status is TaskStatus.RELEASING),
            "pipelined": _sum(task for task in here if task.status is TaskStatus.PIPELINED),
            "nonzero_used": [
                sum(task.cls.nonzero_cpu_milli for task in holding),
                sum(task.cls.nonzero_memory_bytes for task in holding),
            ],
            "allocatable": {
                resource: amount
                for resource, amount in node.allocatable.items()
                if amount and not node.undecodable_pods
            },
        }
    return {
        "PodGroup": jobs,
        "Queue": {
            name: _sums({key for key, queue in visible.items() if queue == name}, tasks) for name in state.queues
        },
        "DeletedQueue": {
            name: _sums({key for key, queue in visible.items() if queue == name and bound[key]}, tasks) for name in lost
        },
        "Node": nodes,
        "Cluster": {
            "": {
                "total_allocatable": _add(node["allocatable"] for node in nodes.values()),
                "total_used": _add(node["used"] for node in nodes.values()),
            }
        },
    }


class CheckedState(ClusterState):
    """A state of some deltas; after each delta its sums equal a recount."""

    def __init__(self, *found: Delta) -> None:
        super().__init__(("capcard-sched",), "default")
        self.apply(*found)

    def apply(self, *found: Delta) -> None:
        """Apply deltas in order."""
        for delta in found:
            super().apply(delta)
            assert recorded(self) == rebuilt(self)

    def delete(self, kind: str, name: str, uid: str = "", *, namespace: str = "default") -> None:
        """Delete an object; nodes, queues and priority classes have no namespace."""
        self.apply(gone(kind, name, uid, namespace=namespace))

    def marked(self, *found: Delta) -> set[str]:
        """The changes that deltas mark, as kind:name."""
        self.open_session()
        self.apply(*found)
        dirty = self.open_session()
        assert not dirty.everything
        assert bool(dirty) == bool(dirty.jobs or dirty.queues or dirty.nodes)
        kinds = {"job": dirty.jobs, "queue": dirty.queues, "node": dirty.nodes}
        return {f"{kind}:{name}" for kind, names in kinds.items() for name in names}


def gone(kind: str, name: str, uid: str = "", *, namespace: str = "default") -> ObjectGone:
    """The deletion of an object; nodes, queues and priority classes have no namespace."""
    return ObjectGone(kind, "" if kind in ("Node", "Queue", "PriorityClass") else namespace, name, uid)


def _is_bound(task: Task) -> bool:
    return task.status in _HOLDING and task.status is not TaskStatus.ALLOCATED and task.node is not None


def _sums(keys: set[str], tasks: list[Task]) -> Sums:
    members = [task for task in tasks if task.job is not None and task.job.key in keys]
    return {
        "jobs": sorted(keys),
        "allocated": _sum(task for task in members if task.status in _ALLOCATED),
        "releasing": _sum(task for task in members if _is_bound(task) and task.status not in _ALLOCATED),
    }


def _roles(members: list[Task]) -> dict[str, list[int]]:
    roles: dict[str, list[int]] = {}
    for task in members:
        counts = roles.setdefault(task.role, [0] * (len(TaskStatus) + 1))
        counts[task.status] += 1
        counts[-1] += task.status is TaskStatus.PENDING and task.cls.best_effort
    return roles


def _sum(tasks: Any) -> dict[str, int]:
    return _add(task.cls.requests for task in tasks)


def _add(parts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return {resource: amount for resource, amount in total.items() if amount}
