"""Mistakes in the objects that a job depends on: its workload and its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.quota.limits import unenforced
from capcard_sched.model.cards import discover_cards
from capcard_sched.model.diagnosis import ObjectProblem
from capcard_sched.model.queue import ROOT, ancestors
from capcard_sched.validation.inventory import Inventory
from capcard_sched.validation.object_checks import check_object

if TYPE_CHECKING:
    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.insight.object_view import Json, ObjectView
    from capcard_sched.model.job import Job
    from capcard_sched.validation.checks import Finding


def problems_of(
    snapshot: CoreSnapshot, objects: ObjectView, job: Job | None, workload: Json | None
) -> tuple[ObjectProblem, ...]:
    """The findings of `validate` about the queue of a job, its workload and, without it, one of its pods.

    Of the queues above the queue: the limits without effect.
    """
    inventory = Inventory(())  # without quotas and nodes: their limits are part of the diagnosis itself
    for node in snapshot.state.nodes.by_name.values():
        cards = discover_cards(node.labels, node.allocatable).cards
        inventory.resources.update(resource for _, resource in cards.values())
    inventory.charges_unnamed = snapshot.conf.quota_plugins.charges_unnamed
    checked = [objects.get("Queue", "", job.queue)] if job is not None and job.queue else []
    if workload is not None:
        checked.append(workload)
    elif job is not None and job.tasks:
        task = min(job.tasks.values(), key=lambda task: task.name)
        checked.append(objects.get("Pod", task.namespace, task.name))
    plugins, shares = snapshot.conf.quota_plugins, snapshot.state.shares
    found = [
        _problem(_name(obj), finding)
        for obj in checked
        if obj is not None
        for finding in check_object(obj, inventory, plugins, shares)
    ]
    if job is not None and job.queue in snapshot.state.queues:
        queues = snapshot.state.queues
        own, parents = queues[job.queue], {name: queue.parent for name, queue in queues.items()}
        above = {parent or ROOT for parent in parents.values()}
        found += [
            _problem(f"Queue {queue.name}", finding)
            for queue in (own, *ancestors(own, queues))
            for finding in unenforced(queue, parents, plugins, is_parent=queue.name in above, shares=shares)
        ]
    return tuple(dict.fromkeys(found))


def _problem(name: str, finding: Finding) -> ObjectProblem:
    return ObjectProblem(
        object=name,
        field=finding.field,
        severity=finding.severity,
        message=finding.message,
        accepted=finding.accepted,
    )


def _name(obj: Json | None) -> str:
    meta = (obj or {}).get("metadata") or {}
    namespace = meta.get("namespace")
    return f"{(obj or {}).get('kind')} {namespace + '/' if namespace else ''}{meta.get('name')}"
