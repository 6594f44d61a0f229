"""Dumps the scheduler's state to a file (`--cache-dump-dir`).

The dump has nodes, HyperNodes, jobs and queues with their amounts, phases and card figures, and all other tables of the
state. Of annotations and labels it has only those of cards; of containers nothing, neither environment nor arguments.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.daemon.diagnosis.dump_tables import tables
from capcard_sched.framework.api.dispatch import error_text
from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CARD, discover_cards
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.usage import PERIOD

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from capcard_sched.framework.core import Core
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.state.cluster import ClusterState

_UNITS: Final = {
    "cpu": "thousandths of a core",
    "memory": "bytes, as ephemeral-storage and huge pages",
    "pods": "pods",
    "other resources": "thousandths of a unit: one device is 1000",
    "cards": "cards",
    "resourceQuotas": "bytes for resources in bytes, else thousandths",
    "nodeUsage": f"percent, averages over {PERIOD}",
}
#: Prefix of the quota plugin's metrics per queue and card.
_CARD_FIGURES: Final = "queue_card_"

Json = dict[str, Any]


def snapshot(core: Core, now: float) -> bytes:
    """The state as JSON text. For the scheduler thread, between two steps; `now` in Unix seconds.

    Changes nothing. Card figures of a failing plugin are replaced by its error.
    """
    state = core.state
    cards, failures = _card_figures(core)
    tiers = [[option.name for option in tier] for tier in core.conf.tiers]
    document: Json = {
        "time": format_timestamp(now),
        "units": _UNITS,
        "schedulerNames": sorted(state.scheduler_names),
        "defaultQueue": state.default_queue,
        "terms": state.terms,
        "schedulerConf": {"hash": core.conf.hash, "actions": core.conf.actions, "tiers": tiers},
        "total": {
            "nodes": len(state.nodes),
            "jobs": len(state.jobs),
            "queues": len(state.queues),
            "tasks": len(state.tasks),
            "allocatable": state.columns.amounts(state.nodes.total_allocatable),
            "used": state.columns.amounts(state.nodes.total_used),
        },
        "queues": [_queue(state, queue, cards.get(name, {})) for name, queue in sorted(state.queues.items())],
        "deletedQueues": [_queue(state, queue, {}) for _, queue in sorted(state.deleted_queues.items())],
        "jobs": [_job(state, job) for _, job in sorted(state.jobs.items())],
        "nodes": _nodes(state),
        "hyperNodes": _hyper_nodes(state),
        **tables(state, now),
        "tasksWithoutJob": [_task(task) for task in _in_order(state.tasks.values()) if task.job is None],
        "unreadable": _by_object(state.problems),
        "ignoredEdits": _by_object(state.ignored_edits.details),
    }
    if failures:
        document["failures"] = failures
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def write_snapshot(folder: Path, content: bytes, now: float) -> Path:
    """Write `snapshot-<unix seconds>.json` atomically, readable by the owner only. Raises OSError."""
    target = folder / f"snapshot-{int(now)}.json"
    part = folder / f".{target.name}.{os.getpid()}"
    # O_EXCL and O_NOFOLLOW: the folder is often world-writable.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return target


def _by_object(details: Mapping[ObjectRef, str]) -> Json:
    return {
        f"{ref.kind} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind} {ref.name}": detail
        for ref, detail in sorted(details.items())
    }


def _queue(state: ClusterState, queue: Queue, cards: Json) -> Json:
    return {
        "name": queue.name,
        "state": queue.state or "Open",
        "weight": queue.weight,
        "priority": queue.priority,
        "parent": queue.parent,
        "reclaimable": queue.reclaimable,
        "dequeueStrategy": "fifo" if queue.strict_fifo else "traverse",
        "capability": queue.capability,
        "deserved": queue.deserved,
        "guarantee": queue.guarantee,
        "allocated": state.columns.amounts(queue.allocated),
        "releasing": state.columns.amounts(queue.releasing),
        "cards": cards,
        "jobs": sorted(queue.jobs),
    }


def _job(state: ClusterState, job: Job) -> Json:
    return {
        "name": job.key,
        "uid": job.uid,
        "madeUp": job.implicit,
        "queue": job.queue,
        "visible": job.key in state.schedulable,
        "lacks": "PodGroup" if job.key in state.groups_missing else "queue" if job.key in state.orphans else "",
        "phase": job.phase.value,
        "minMember": job.min_available,
        "minTaskMember": job.min_task_member,
        "minResources": job.min_resources,
        "priority": job.priority,
        "created": format_timestamp(job.created),
        "allocated": state.columns.amounts(job.allocated),
        "releasing": state.columns.amounts(job.releasing),
        "requested": state.columns.amounts(job.total_request),
        "counts": {TaskStatus(status).title: count for status, count in enumerate(job.counts) if count},
        "conditions": [(condition.type, condition.status, condition.reason) for condition in job.conditions],
        "networkTopology": _topology(job),
        "tasks": [_task(task) for task in _in_order(job.tasks.values())],
    }


def _topology(job: Job) -> Json | None:
    topology = job.topology
    if topology is None:
        return None
    name = topology.highest_name
    tier = {"highestTierName": name} if name else {"highestTierAllowed": topology.highest}
    return {"mode": "hard" if topology.hard else "soft", **tier}


def _task(task: Task) -> Json:
    found: Json = {
        "name": f"{task.namespace}/{task.name}",
        "uid": task.uid,
        "status": task.status.title,
        "node": task.node.name if task.node is not None else "",
        "request": task.cls.requests,
        "priority": task.priority,
        "role": task.role,
        "card": task.cls.annotations.get(CARD_NAME, "") or task.cls.annotations.get(CARD_NAME_ALIAS, ""),
        "assignedCard": task.assigned_card,
        "nominatedNode": task.nominated_node,
        "gated": task.gated,
        "held": task.held,
        "deleting": task.deleting,
        "foreign": not task.ours,
    }
    return {key: value for key, value in found.items() if value or key == "priority"}


def _nodes(state: ClusterState) -> list[Json]:
    table, amounts = state.nodes, state.columns.amounts
    found = []
    for name, node in sorted(table.by_name.items()):
        row = node.row
        used, releasing, pipelined = table.used[row], table.releasing[row], table.pipelined[row]
        cards = discover_cards(node.labels, node.allocatable).cards
        found.append(
            {
                "name": name,
                "unschedulable": node.unschedulable,
                "taints": [f"{taint.key}={taint.value or ''}:{taint.effect}" for taint in node.taints],
                "cards": {card: amount / CARD for card, (amount, _) in cards.items()},
                "allocatable": amounts(table.allocatable[row]),
                "used": amounts(used),
                "releasing": amounts(releasing),
                "pipelined": amounts(pipelined),
                "idle": amounts(table.allocatable[row] - used),
                "tasks": sorted(f"{task.namespace}/{task.name}" for task in node.tasks.values()),
            }
        )
    # Pods may be bound to nodes without a Node object.
    missing: dict[str, list[str]] = {}
    for task in state.tasks.values():
        if task.node is not None and not task.node.known:
            missing.setdefault(task.node.name, []).append(f"{task.namespace}/{task.name}")
    return found + [{"name": name, "unknown": True, "tasks": sorted(tasks)} for name, tasks in sorted(missing.items())]


def _hyper_nodes(state: ClusterState) -> list[Json]:
    """The tree of the last session, from the lowest tier up; `nodes` are members of no lower HyperNode."""
    tree = state.tree
    nodes: dict[int, list[str]] = {}
    for name, number in sorted(tree.leaf_of.items()):
        nodes.setdefault(number, []).append(name)
    return [
        {
            "name": name,
            "tier": int(tree.tiers[number]),
            "above": tree.names[above] if above >= 0 else "",
            "nodes": nodes.get(number, []),
        }
        for number, (name, above) in enumerate(zip(tree.names, tree.parents.tolist(), strict=True))
    ]


def _card_figures(core: Core) -> tuple[dict[str, Json], list[str]]:
    """Queue to card to figures (capacity, allocated, ...) from the quota plugin's metrics; and errors."""
    found: dict[str, Json] = {}
    failures = []
    for plugin, call in core.dispatch.entries("metrics"):
        try:
            for sample in call():
                if sample.name.startswith(_CARD_FIGURES) and "queue_name" in sample.labels:
                    cards = found.setdefault(sample.labels["queue_name"], {})
                    figures = cards.setdefault(sample.labels["card"], {})
                    figures[sample.name.removeprefix(_CARD_FIGURES)] = sample.value
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            failures.append(f"plugin {plugin}, metrics: {error_text(error)}")
    return found, failures


def _in_order(tasks: Any) -> list[Task]:
    return sorted(tasks, key=lambda task: (task.namespace, task.name))
