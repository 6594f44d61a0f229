"""The spec of a Job with the defaults of admission applied: a Job may come without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.controllers.objects import JsonObject, meta, spec

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Restarts of a Job, and of the containers of a task, unless they say otherwise.
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

    def partition_of(self, index: int) -> str:
        """The partition of a pod, "" without partitions."""
        return str(index // self.partition_size) if self.partition_size else ""


class JobSpec(NamedTuple):
    """What a Job asks for."""

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

    @property
    def replicas(self) -> int:
        """Pods of all tasks."""
        return sum(task.replicas for task in self.tasks)

    def task(self, name: str) -> TaskSpec | None:
        """The task of that name."""
        return next((task for task in self.tasks if task.name == name), None)

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
    )


def _task(index: int, raw: JsonObject) -> TaskSpec:
    replicas = int(1 if raw.get("replicas") is None else raw["replicas"])
    depends = raw.get("dependsOn") or {}
    return TaskSpec(
        name=raw.get("name") or f"default{index}",
        replicas=replicas,
        min_available=int(replicas if raw.get("minAvailable") is None else raw["minAvailable"]),
        max_retry=int(raw.get("maxRetry") or DEFAULT_MAX_RETRY),
        template=raw.get("template") or {},
        policies=tuple(raw.get("policies") or ()),
        depends_on=tuple(depends.get("name") or ()),
        depends_on_any=depends.get("iteration") == "any",
        topology_policy=raw.get("topologyPolicy") or "",
        partition_size=max(0, int((raw.get("partitionPolicy") or {}).get("partitionSize") or 0)),
    )
