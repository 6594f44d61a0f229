"""The PodGroup of a Job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.jobs.events import ends_by_eviction
from capcard_sched.controllers.objects import (
    POD_GROUP,
    PRIORITY_CLASS,
    SCHEDULING_API,
    JsonObject,
    annotations_of,
    controller_of,
    merge_diff,
    meta,
    owner_reference,
    spec,
    status,
)
from capcard_sched.controllers.quota_usage import quota_usage
from capcard_sched.model.annotations import EVICT_SCOPE, JOB_VERSION, PARTITION_ID, TASK_SPEC

if TYPE_CHECKING:
    from capcard_sched.controllers.jobs.job_spec import JobSpec, TaskSpec
    from capcard_sched.controllers.view import View

#: Fields of the spec that follow the Job; labels, annotations and the queue do not.
_FOLLOWED = ("minMember", "minTaskMember", "minResources", "priorityClassName")
#: The same, of a Job that has them: without, the PodGroup may have its own.
_FOLLOWED_IF_PRESENT = ("subGroupPolicy", "networkTopology")


def group_of(view: View, job: JsonObject, desired: JobSpec) -> JsonObject | None:
    """The PodGroup of the Job: one it owns, or one without a controller that bears its name."""
    for group in view.owned(job, POD_GROUP):
        return group
    for name in (desired.group_name, desired.name):
        found = view.get(POD_GROUP, desired.namespace, name)
        if found is not None and controller_of(found) is None:
            return found
    return None


def is_of_version(group: JsonObject, version: int) -> bool | None:
    """Whether the PodGroup was created for this version of the Job; None when it does not record one."""
    recorded = annotations_of(group).get(JOB_VERSION)
    return None if recorded is None else recorded == str(version)


def new_group(view: View, job: JsonObject, desired: JobSpec) -> JsonObject:
    """A fresh PodGroup with the labels and annotations of the Job.

    When the eviction of one pod ends them all, it marks the Job as one unit of eviction unless the Job decides that
    itself: otherwise the other victims are evicted for nothing.
    """
    metadata: JsonObject = {
        "name": desired.group_name,
        "namespace": desired.namespace,
        "ownerReferences": [owner_reference(job)],
        "annotations": {
            **({EVICT_SCOPE: "job"} if ends_by_eviction(desired) else {}),
            **annotations_of(job),
            JOB_VERSION: str(status(job).get("version") or 0),
        },
    }
    metadata["annotations"].pop("kubectl.kubernetes.io/last-applied-configuration", None)
    if meta(job).get("labels"):
        metadata["labels"] = dict(meta(job)["labels"])
    body = {**group_spec(view, desired), "queue": desired.queue}
    return {"apiVersion": SCHEDULING_API, "kind": POD_GROUP, "metadata": metadata, "spec": body}


def group_spec(view: View, job: JobSpec) -> JsonObject:
    """The fields of the spec that follow the Job."""
    found: JsonObject = {
        "minMember": job.min_available,
        "minTaskMember": {task.name: task.min_available for task in job.tasks},
        "minResources": _min_resources(view, job),
    }
    if job.priority_class:
        found["priorityClassName"] = job.priority_class
    policies = [_partition_policy(task) for task in job.tasks if task.partition_size]
    if policies:
        found["subGroupPolicy"] = policies
    if job.network_topology:
        found["networkTopology"] = _topology(job.network_topology)
    return found


def _topology(given: JsonObject) -> JsonObject:
    """With the default of the CRD."""
    return {"mode": "hard", **given}


def _partition_policy(task: TaskSpec) -> JsonObject:
    """The partitions of a task as subgroups, with all defaults: an unchanged policy is no patch."""
    found: JsonObject = {
        "name": task.name,
        "subGroupSize": task.partition_size,
        "minSubGroups": task.min_partitions,
        "labelSelector": {"matchLabels": {TASK_SPEC: task.name}},
        "matchLabelKeys": [PARTITION_ID],
    }
    if task.partition_topology:
        found["networkTopology"] = _topology(task.partition_topology)
    return found


def group_patch(view: View, job: JobSpec, group: JsonObject, version: int) -> JsonObject:
    """The merge patch that brings a PodGroup in line with its Job; {} when it is."""
    wanted = group_spec(view, job)
    fields = (*_FOLLOWED, *(field for field in _FOLLOWED_IF_PRESENT if field in wanted))
    changed = merge_diff({field: spec(group)[field] for field in fields if field in spec(group)}, wanted)
    patch: JsonObject = {"spec": changed} if changed else {}
    if is_of_version(group, version) is None:
        patch["metadata"] = {"annotations": {JOB_VERSION: str(version)}}
    return patch


def _min_resources(view: View, job: JobSpec) -> dict[str, str]:
    """Usage of the pods the gang needs: by priority, each task's minimum, then spare replicas up to the gang's."""

    def priority(name: str) -> int:
        found = view.get(PRIORITY_CLASS, "", name) if name else None
        return int(found["value"]) if found is not None else 0

    tasks = sorted(
        job.tasks,
        key=lambda task: -priority((task.template.get("spec") or {}).get("priorityClassName") or job.priority_class),
    )
    counts = {task.name: task.min_available for task in tasks}
    if job.min_available < sum(counts.values()):
        counts = dict.fromkeys(counts, 0)
    left = job.min_available - sum(counts.values())
    for task in tasks:
        more = max(0, min(left, task.replicas - counts[task.name]))
        counts[task.name] += more
        left -= more
    return quota_usage((task.template, counts[task.name]) for task in tasks)
