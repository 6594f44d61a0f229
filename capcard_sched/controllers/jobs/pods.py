"""The pods of a Job: names, labels, annotations, volumes, and the changes of the Job's plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import JsonObject, annotations_of, labels_of, meta, owner_reference, status
from capcard_sched.model.annotations import (
    COOLDOWN_TIME,
    GROUP_NAME,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    JOB_NAME,
    JOB_NAMESPACE,
    JOB_RETRY_COUNT,
    JOB_VERSION,
    NUMA_TOPOLOGY_POLICY,
    PARTITION_ID,
    PREEMPTABLE,
    QUEUE_NAME,
    REVOCABLE_ZONE,
    TASK_INDEX,
    TASK_SPEC,
    TEMPLATE_UID,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.controllers.jobs.job_spec import JobSpec, TaskSpec

_COPIED_ANNOTATIONS = (PREEMPTABLE, COOLDOWN_TIME, REVOCABLE_ZONE)
_COPIED_LABELS = (PREEMPTABLE, COOLDOWN_TIME)


def pod_from(
    template: JsonObject,
    *,
    name: str,
    owner: JsonObject,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: JsonObject | None = None,
) -> JsonObject:
    """A pod of `owner`, in its namespace. `labels`, `annotations` and `spec` override those of the template."""
    described = template.get("metadata") or {}
    metadata: JsonObject = {
        "name": name,
        "namespace": meta(owner)["namespace"],
        "ownerReferences": [owner_reference(owner)],
    }
    for field, more in (("labels", labels), ("annotations", annotations)):
        merged = {**(described.get(field) or {}), **(more or {})}
        if merged:
            metadata[field] = merged
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**(template.get("spec") or {}), **(spec or {})},
    }


def job_pod(job: JsonObject, desired: JobSpec, task: TaskSpec, index: int, group: str) -> JsonObject:
    """JobMember `index` of a task, without the changes of plugins."""
    own, template = annotations_of(job), task.template
    notes = {
        GROUP_NAME: group,
        TASK_INDEX: str(index),
        TASK_SPEC: task.name,
        JOB_NAME: desired.name,
        QUEUE_NAME: desired.queue,
        JOB_VERSION: str(status(job).get("version") or 0),
        TEMPLATE_UID: f"{desired.name}-{task.name}",
        JOB_RETRY_COUNT: str(status(job).get("retryCount") or 0),
    }
    if task.topology_policy:
        notes[NUMA_TOPOLOGY_POLICY] = task.topology_policy
    budget = JDB_MIN_AVAILABLE if JDB_MIN_AVAILABLE in own else JDB_MAX_UNAVAILABLE
    # An annotation or label of the template is closer to the pods than one of the Job.
    described = template.get("metadata") or {}
    given = {*(described.get("annotations") or {}), *(described.get("labels") or {})}
    notes.update({key: own[key] for key in (*_COPIED_ANNOTATIONS, budget) if key in own and key not in given})
    labels = {
        TASK_INDEX: str(index),
        JOB_NAME: desired.name,
        TASK_SPEC: task.name,
        JOB_NAMESPACE: desired.namespace,
        QUEUE_NAME: desired.queue,
    }
    if task.partition_size:
        labels[PARTITION_ID] = task.partition_of(index)
    labels.update({key: value for key, value in labels_of(job).items() if key in _COPIED_LABELS and key not in given})
    body = template.get("spec") or {}
    more: JsonObject = {"schedulerName": body.get("schedulerName") or desired.scheduler_name}
    priority_class = body.get("priorityClassName") or desired.priority_class
    if priority_class:
        more["priorityClassName"] = priority_class
    more.update(_with_volumes(desired, body))
    name = desired.pod_name(task, index)
    return pod_from(template, name=name, owner=job, labels=labels, annotations=notes, spec=more)


def _with_volumes(desired: JobSpec, body: JsonObject) -> JsonObject:
    """The volumes of the Job, mounted in every container."""
    volumes = [volume for volume in desired.volumes if volume.get("volumeClaimName") and volume.get("mountPath")]
    if not volumes:
        return {}
    names: dict[str, str] = {}
    for volume in volumes:
        names.setdefault(volume["volumeClaimName"], f"{volume['volumeClaimName']}-volume")
    mounts = [{"name": names[volume["volumeClaimName"]], "mountPath": volume["mountPath"]} for volume in volumes]
    found: JsonObject = {
        "volumes": [
            *(body.get("volumes") or ()),
            *({"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in names.items()),
        ]
    }
    for group in ("containers", "initContainers"):
        if body.get(group):
            found[group] = [
                {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), *mounts]}
                for container in body[group]
            ]
    return found
