"""The sums a ClusterState keeps, and the same sums counted anew from its tasks, in plain dictionaries to compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from capcard_sched.model.job import Task
from capcard_sched.model.queue import Queue
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.cluster import ClusterState

Sums = dict[str, Any]

_ALLOCATED = {TaskStatus.BOUND, TaskStatus.BINDING, TaskStatus.RUNNING, TaskStatus.ALLOCATED}
_HOLDING = {*_ALLOCATED, TaskStatus.RELEASING, TaskStatus.UNKNOWN}


def recorded(state: ClusterState) -> Sums:
    """What the state has kept up to date, delta by delta and placement by placement."""
    amounts = state.columns.amounts
    table = state.nodes
    return {
        "jobs": {
            key: {
                "tasks": set(job.tasks),
                "pending": set(job.pending),
                "pending_best_effort": job.pending_best_effort,
                "counts": {TaskStatus(i): count for i, count in enumerate(job.counts) if count},
                "roles": {
                    role: {i: count for i, count in enumerate(counts) if count}
                    for role, counts in job.roles.items()
                    if any(counts)
                },
                "allocated": amounts(job.allocated),
                "total_request": amounts(job.total_request),
                "releasing": amounts(job.releasing),
                "bound": job.bound,
            }
            for key, job in state.jobs.items()
        },
        "queues": _queues(state, state.queues),
        "deleted_queues": _queues(state, state.deleted_queues),
        "nodes": {
            name: {
                "tasks": set(node.tasks),
                "used": amounts(table.used[node.row]),
                "releasing": amounts(table.releasing[node.row]),
                "pipelined": amounts(table.pipelined[node.row]),
                "nonzero": table.nonzero_used[node.row].tolist(),
                "allocatable": amounts(table.allocatable[node.row]),
            }
            for name, node in table.by_name.items()
        },
        "totals": (amounts(table.total_allocatable), amounts(table.total_used)),
        "schedulable": set(state.schedulable),
        "orphans": set(state.orphans),
        "groups_missing": set(state.groups_missing),
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
            "tasks": {task.uid for task in members},
            "pending": {task.uid for task in waiting if not (task.gated or task.held)},
            "pending_best_effort": sum(task.cls.best_effort for task in waiting),
            "counts": dict(Counter(task.status for task in members)),
            "roles": _roles(members) if job.min_task_member else {},
            "allocated": _sum(task for task in members if task.status in _ALLOCATED),
            "total_request": _sum(members),
            "releasing": _sum(task for task in bound[key] if task.status not in _ALLOCATED),
            "bound": len(bound[key]),
        }
    nodes = {}
    for name, node in state.nodes.by_name.items():
        here = [task for task in tasks if task.node is node]
        holding = [task for task in here if task.status in _HOLDING]
        nodes[name] = {
            "tasks": {task.uid for task in here},
            "used": _sum(holding),
            "releasing": _sum(task for task in here if task.status is TaskStatus.RELEASING),
            "pipelined": _sum(task for task in here if task.status is TaskStatus.PIPELINED),
            "nonzero": [
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
        "jobs": jobs,
        "queues": {
            name: _sums({key for key, queue in visible.items() if queue == name}, tasks) for name in state.queues
        },
        "deleted_queues": {
            name: _sums({key for key, queue in visible.items() if queue == name and bound[key]}, tasks) for name in lost
        },
        "nodes": nodes,
        "totals": (_add(node["allocatable"] for node in nodes.values()), _add(node["used"] for node in nodes.values())),
        "schedulable": {key for key, queue in visible.items() if queue in state.queues},
        "orphans": {key for key, queue in visible.items() if queue not in state.queues},
        "groups_missing": {key for key, job in state.jobs.items() if not job.uid},
    }


def _is_bound(task: Task) -> bool:
    return task.status in _HOLDING and task.status is not TaskStatus.ALLOCATED and task.node is not None


def _sums(keys: set[str], tasks: list[Task]) -> Sums:
    members = [task for task in tasks if task.job is not None and task.job.key in keys]
    return {
        "jobs": keys,
        "allocated": _sum(task for task in members if task.status in _ALLOCATED),
        "releasing": _sum(task for task in members if _is_bound(task) and task.status not in _ALLOCATED),
    }


def _queues(state: ClusterState, queues: Mapping[str, Queue]) -> Sums:
    amounts = state.columns.amounts
    return {
        name: {
            "jobs": set(queue.jobs),
            "allocated": amounts(queue.allocated),
            "releasing": amounts(queue.releasing),
        }
        for name, queue in queues.items()
    }


def _roles(members: list[Task]) -> dict[str, dict[int, int]]:
    roles: dict[str, Counter[int]] = {}
    for task in members:
        counts = roles.setdefault(task.role, Counter())
        counts[int(task.status)] += 1
        if task.status is TaskStatus.PENDING and task.cls.best_effort:
            counts[len(TaskStatus)] += 1
    return {role: dict(counts) for role, counts in roles.items()}


def _sum(tasks: Any) -> dict[str, int]:
    return _add(task.cls.requests for task in tasks)


def _add(parts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return {resource: amount for resource, amount in total.items() if amount}


def raw(state: ClusterState) -> Sums:
    """Every array and counter that placements change, as bytes and lists: what an undo must give back exactly."""
    table = state.nodes
    return {
        "arrays": [
            array.tobytes()
            for array in (
                table.allocatable,
                table.used,
                table.releasing,
                table.pipelined,
                table.nonzero_used,
                table.total_allocatable,
                table.total_used,
            )
        ],
        "nodes": {node.name: sorted(node.tasks) for node in table.nodes},
        "jobs": {
            key: (
                list(job.counts),
                {role: list(counts) for role, counts in job.roles.items()},
                job.pending_best_effort,
                sorted(job.pending),
                job.allocated.tobytes(),
                job.total_request.tobytes(),
            )
            for key, job in state.jobs.items()
        },
        "queues": {name: queue.allocated.tobytes() for name, queue in state.queues.items()},
        "tasks": {uid: (task.status, task.node) for uid, task in state.tasks.items()},
    }
