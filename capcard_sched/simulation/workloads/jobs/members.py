"""The objects of a Job: its pods and its PodGroup (controllers reference §4.4, §4.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import (
    COOLDOWN_TIME,
    EVICT_SCOPE,
    GROUP_NAME,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    JOB_NAME,
    JOB_NAMESPACE,
    JOB_RETRY_COUNT,
    JOB_VERSION,
    NUMA_TOPOLOGY_POLICY,
    PREEMPTABLE,
    QUEUE_NAME,
    REVOCABLE_ZONE,
    TASK_INDEX,
    TASK_SPEC,
    TEMPLATE_UID,
)
from capcard_sched.simulation.kinds import (
    POD_GROUP,
    PRIORITY_CLASS,
    SCHEDULING_API,
    JsonObject,
    annotations_of,
    labels_of,
    meta,
    spec,
    status,
)
from capcard_sched.simulation.workloads.jobs.policies import ends_by_eviction
from capcard_sched.simulation.workloads.quota_usage import quota_usage
from capcard_sched.simulation.workloads.templates import owner_reference, pod_from

if TYPE_CHECKING:
    from capcard_sched.simulation.store import Store

_COPIED_ANNOTATIONS = (PREEMPTABLE, COOLDOWN_TIME, REVOCABLE_ZONE)
_COPIED_LABELS = (PREEMPTABLE, COOLDOWN_TIME)


def total_replicas(job: JsonObject) -> int:
    """Pods of all tasks."""
    return sum(int(task["replicas"]) for task in spec(job)["tasks"])


def group_of(store: Store, job: JsonObject) -> JsonObject | None:
    """The Job's PodGroup: one it owns, or one that bears its name."""
    for group in store.owned(meta(job)["uid"], POD_GROUP):
        return group
    for name in (group_name(job), meta(job)["name"]):
        found = store.get(POD_GROUP, meta(job)["namespace"], name)
        if found is not None:
            return found
    return None


def group_name(job: JsonObject) -> str:
    """`<job>-<uid>`."""
    return f"{meta(job)['name']}-{meta(job)['uid']}"


def group_spec(store: Store, job: JsonObject) -> JsonObject:
    """`spec` of the PodGroup."""
    found: JsonObject = {
        "minMember": int(spec(job)["minAvailable"]),
        "minTaskMember": {task["name"]: int(task["minAvailable"]) for task in spec(job)["tasks"]},
        "queue": spec(job)["queue"],
        "minResources": _min_resources(store, job),
    }
    for field in ("priorityClassName", "networkTopology"):
        if spec(job).get(field):
            found[field] = spec(job)[field]
    return found


def group_for(store: Store, job: JsonObject) -> JsonObject:
    """A fresh PodGroup: labels and annotations are the Job's.

    Unless the Job says otherwise, it tells the scheduler when losing one pod to an eviction ends them all: they are
    one victim then, so that nobody leaves for nothing (tidal reference §8).
    """
    metadata: JsonObject = {
        "name": group_name(job),
        "namespace": meta(job)["namespace"],
        "ownerReferences": [owner_reference(job)],
    }
    for field in ("labels", "annotations"):
        if meta(job).get(field):
            metadata[field] = dict(meta(job)[field])
    if ends_by_eviction(job):
        metadata["annotations"] = {EVICT_SCOPE: "job", **metadata.get("annotations", {})}
    return {"apiVersion": SCHEDULING_API, "kind": POD_GROUP, "metadata": metadata, "spec": group_spec(store, job)}


def _min_resources(store: Store, job: JsonObject) -> dict[str, str]:
    """Usage of the pods the gang needs: by priority, each task's minimum, then spare replicas up to the gang's."""

    def priority(task: JsonObject) -> int:
        name = (task["template"].get("spec") or {}).get("priorityClassName") or spec(job).get("priorityClassName")
        found = store.get(PRIORITY_CLASS, "", name) if name else None
        return int(found["value"]) if found is not None else 0

    tasks = sorted(spec(job)["tasks"], key=lambda task: -priority(task))
    wanted = int(spec(job)["minAvailable"])
    by_task = {task["name"]: int(task["minAvailable"]) for task in tasks}
    if wanted < sum(by_task.values()):
        counts = dict.fromkeys(by_task, 0)
        limits = {task["name"]: int(task["replicas"]) for task in tasks}
    else:
        counts = by_task
        limits = {task["name"]: int(task["replicas"]) for task in tasks}
    left = wanted - sum(counts.values())
    for name in counts:
        more = max(0, min(left, limits[name] - counts[name]))
        counts[name] += more
        left -= more
    return quota_usage((task["template"].get("spec") or {}, counts[task["name"]]) for task in tasks)


def pod_name(job: JsonObject, task: JsonObject, index: int) -> str:
    """`<job>-<task>-<index>`."""
    return f"{meta(job)['name']}-{task['name']}-{index}"


def pod_for(job: JsonObject, task: JsonObject, index: int, group: str) -> JsonObject:
    """Member `index` of a task."""
    name = meta(job)["name"]
    own = annotations_of(job)
    notes = {
        GROUP_NAME: group,
        TASK_INDEX: str(index),
        TASK_SPEC: task["name"],
        JOB_NAME: name,
        QUEUE_NAME: spec(job)["queue"],
        JOB_VERSION: str(status(job).get("version", 0)),
        TEMPLATE_UID: f"{name}-{task['name']}",
        JOB_RETRY_COUNT: str(status(job).get("retryCount", 0)),
    }
    if task.get("topologyPolicy"):
        notes[NUMA_TOPOLOGY_POLICY] = task["topologyPolicy"]
    budget = JDB_MIN_AVAILABLE if JDB_MIN_AVAILABLE in own else JDB_MAX_UNAVAILABLE
    template = task["template"]
    # What a template says of its own pods, be it in an annotation or a label, is closer to them than the Job.
    described = template.get("metadata") or {}
    said = {*(described.get("annotations") or {}), *(described.get("labels") or {})}
    notes.update({key: own[key] for key in (*_COPIED_ANNOTATIONS, budget) if key in own and key not in said})
    marks = {
        TASK_INDEX: str(index),
        JOB_NAME: name,
        TASK_SPEC: task["name"],
        JOB_NAMESPACE: meta(job)["namespace"],
        QUEUE_NAME: spec(job)["queue"],
    }
    marks.update({key: value for key, value in labels_of(job).items() if key in _COPIED_LABELS and key not in said})
    own_spec = template.get("spec") or {}
    more: JsonObject = {"schedulerName": own_spec.get("schedulerName") or spec(job)["schedulerName"]}
    class_name = own_spec.get("priorityClassName") or spec(job).get("priorityClassName")
    if class_name:
        more["priorityClassName"] = class_name
    return pod_from(template, name=pod_name(job, task, index), owner=job, labels=marks, annotations=notes, spec=more)
