"""The spec of a Job with the defaults of admission applied, and its pods: names, labels, annotations, volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.controllers.objects import (
    JsonObject,
    annotations_of,
    labels_of,
    meta,
    owner_reference,
    spec,
    status,
    volume_name,
)
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
from capcard_sched.model.job_tasks import default_minimum

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Restarts of a Job, and of the containers of a task, without a policy of their own.
DEFAULT_MAX_RETRY = 3
DEFAULT_QUEUE = "default"


class TaskSpec(NamedTuple):
    """One role of a Job."""

    name: str
    replicas: int
    min_available: int
    #: Container restarts after which the task has failed; -1 for never.
    max_retry: int
    template: JsonObject
    policies: tuple[JsonObject, ...]
    depends_on: tuple[str, ...]
    #: One of `depends_on` is enough.
    depends_on_any: bool
    topology_policy: str
    #: Pods of a partition; 0 for a task without partitions.
    partition_size: int = 0
    #: Partitions that the Job needs, and their `networkTopology`; None without one.
    min_partitions: int = 0
    partition_topology: JsonObject | None = None

    def partition_of(self, index: int) -> str:
        """The partition of a pod, "" without partitions."""
        return str(index // self.partition_size) if self.partition_size else ""


class JobSpec(NamedTuple):
    """The spec of a Job, with defaults."""

    namespace: str
    name: str
    uid: str
    queue: str
    scheduler_name: str
    priority_class: str
    min_available: int
    max_retry: int
    min_success: int | None
    tasks: tuple[TaskSpec, ...]
    policies: tuple[JsonObject, ...]
    #: Plugin to its arguments.
    plugins: Mapping[str, tuple[str, ...]]
    volumes: tuple[JsonObject, ...]
    network_topology: JsonObject | None
    #: Name to task; the first of equal names.
    by_name: Mapping[str, TaskSpec]

    @property
    def checks_tasks(self) -> bool:
        """Whether the minimums of the tasks count: together they are at most that of the Job."""
        return self.min_available >= sum(task.min_available for task in self.tasks)

    @property
    def replicas(self) -> int:
        return sum(task.replicas for task in self.tasks)

    def task(self, name: str) -> TaskSpec | None:
        return self.by_name.get(name)

    def pod_name(self, task: TaskSpec, index: int) -> str:
        """`<job>-<task>-<index>`."""
        return f"{self.name}-{task.name}-{index}"

    @property
    def group_name(self) -> str:
        """`<job>-<uid>`."""
        return f"{self.name}-{self.uid}"


def job_spec(job: JsonObject, scheduler_name: str) -> JobSpec:
    """The spec of a Job; `scheduler_name` for a Job that names none."""
    body = spec(job)
    tasks = tuple(_task(index, raw) for index, raw in enumerate(body.get("tasks") or ()))
    return JobSpec(
        namespace=meta(job)["namespace"],
        name=meta(job)["name"],
        uid=meta(job)["uid"],
        queue=body.get("queue") or DEFAULT_QUEUE,
        scheduler_name=body.get("schedulerName") or scheduler_name,
        priority_class=body.get("priorityClassName") or "",
        min_available=int(body.get("minAvailable") or sum(task.min_available for task in tasks)),
        max_retry=int(body.get("maxRetry") or DEFAULT_MAX_RETRY),
        min_success=None if body.get("minSuccess") is None else int(body["minSuccess"]),
        tasks=tasks,
        policies=tuple(body.get("policies") or ()),
        plugins={name: tuple(arguments or ()) for name, arguments in (body.get("plugins") or {}).items()},
        volumes=tuple(body.get("volumes") or ()),
        network_topology=body.get("networkTopology"),
        by_name={task.name: task for task in reversed(tasks)},
    )


def _task(index: int, raw: JsonObject) -> TaskSpec:
    replicas = int(1 if raw.get("replicas") is None else raw["replicas"])
    depends, partitions = raw.get("dependsOn") or {}, raw.get("partitionPolicy")
    minimum = raw.get("minAvailable")
    return TaskSpec(
        name=raw.get("name") or f"default{index}",
        replicas=replicas,
        min_available=default_minimum(replicas, partitions) if minimum is None else int(minimum),
        max_retry=int(raw.get("maxRetry") or DEFAULT_MAX_RETRY),
        template=raw.get("template") or {},
        policies=tuple(raw.get("policies") or ()),
        depends_on=tuple(depends.get("name") or ()),
        depends_on_any=depends.get("iteration") == "any",
        topology_policy=raw.get("topologyPolicy") or "",
        partition_size=max(0, int((partitions or {}).get("partitionSize") or 0)),
        min_partitions=max(0, int((partitions or {}).get("minPartitions") or 0)),
        partition_topology=(partitions or {}).get("networkTopology"),
    )


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
        names.setdefault(volume["volumeClaimName"], volume_name(f"{volume['volumeClaimName']}-volume"))
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
