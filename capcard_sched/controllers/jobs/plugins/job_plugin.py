"""The base of Job plugins, their arguments, and changes of pods that several of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from capcard_sched.controllers.objects import JsonObject, Key, meta, owner_reference
from capcard_sched.model.job_plugins import parse_plugin_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capcard_sched.controllers.jobs.job_spec import JobSpec, TaskSpec


class PluginError(ValueError):
    """A plugin that does not exist, or a Job that has too many pods for plugins."""


class KeyPair(NamedTuple):
    """An SSH key pair in the forms of OpenSSH's files."""

    private: str
    public: str


class JobPlugin:
    """One plugin of one Job. `model.job_plugins` has its arguments."""

    name: ClassVar[str]

    def __init__(self, job: JobSpec, arguments: Iterable[str], make_keys: Callable[[], KeyPair]) -> None:
        self.job = job
        self.make_keys = make_keys
        self.arguments = parse_plugin_arguments(self.name, arguments)
        self._hosts: dict[str, list[str]] = {}

    @property
    def entries(self) -> int:
        """Variables and mounts that it adds to each container, where their number depends on the Job; else 0."""
        return 0

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """Change a pod before it is created, in place."""

    def contents(self) -> dict[Key, JsonObject]:
        """Objects and the part of each that follows the Job's replicas, as merge patches."""
        return {}

    def objects(self, job: JsonObject) -> list[JsonObject]:
        """The objects to create when the Job starts; they are deleted when all its pods are."""
        return []

    def owned(self, job: JsonObject, api_version: str, kind: str, name: str, **body: object) -> JsonObject:
        """An object that the Job owns, in its namespace; `body` has the fields other than the metadata."""
        metadata = {"name": name, "namespace": meta(job)["namespace"], "ownerReferences": [owner_reference(job)]}
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}

    def hosts(self, task: TaskSpec) -> list[str]:
        """Host names of a task's pods in the Service of the Job."""
        if task.name not in self._hosts:
            self._hosts[task.name] = self._task_hosts(task)
        return self._hosts[task.name]

    def _task_hosts(self, task: TaskSpec) -> list[str]:
        body = task.template.get("spec") or {}
        domain = body.get("subdomain") or self.job.name
        if body.get("hostname"):
            return [f"{body['hostname']}.{domain}"] * task.replicas
        return [f"{self.job.pod_name(task, index)}.{domain}" for index in range(task.replicas)]

    def task_hosts(self, name: str) -> list[str]:
        """Host names of the task of that name, [] when there is none."""
        task = self.job.task(name)
        return self.hosts(task) if task is not None else []


def containers(pod: JsonObject, *, init: bool = True) -> Iterable[JsonObject]:
    """Copies of the pod's containers, put in the place of those of the template, so that they may be changed."""
    body = pod["spec"]
    found = []
    for group in ("containers", "initContainers") if init else ("containers",):
        if body.get(group):
            body[group] = [dict(container) for container in body[group]]
            found += body[group]
    return found


def add_env(container: JsonObject, entries: Iterable[JsonObject]) -> None:
    """Environment variables of a container; those that the template sets are kept."""
    present = list(container.get("env") or ())
    names = {entry.get("name") for entry in present}
    container["env"] = [*present, *(entry for entry in entries if entry["name"] not in names)]


def add_port(container: JsonObject, name: str, port: int) -> None:
    """A container port, unless the template has it."""
    present = list(container.get("ports") or ())
    if all(entry.get("containerPort") != port for entry in present):
        container["ports"] = [*present, {"name": name, "containerPort": port}]


def add_mount(pod: JsonObject, volume: JsonObject, path: str) -> None:
    """A volume, mounted in every container."""
    body = pod["spec"]
    body["volumes"] = [*(body.get("volumes") or ()), volume]
    for container in containers(pod):
        mount = {"name": volume["name"], "mountPath": path}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
