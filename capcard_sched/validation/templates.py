"""Pod templates of workloads, whatever the kind. Objects are plain JSON values and may be malformed; nothing raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.model.json_pods import valid_pod_amounts
from capcard_sched.model.kinds import group_of, kind_of
from capcard_sched.validation.budget import checkpoint
from capcard_sched.validation.inventory import Json, as_map, as_maps, texts, value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: API group and kind of workloads with one pod template, and the field with the number of their pods.
_ONE_TEMPLATE: Final = {
    ("apps", "Deployment"): "replicas",
    ("apps", "ReplicaSet"): "replicas",
    ("apps", "StatefulSet"): "replicas",
    ("apps", "DaemonSet"): "replicas",
    ("batch", "Job"): "parallelism",
}
#: API groups of CronJobs, all of which make Jobs of the same group.
_CRON_JOBS: Final = frozenset({"batch", "batch.volcano.sh"})
#: Path of the Job inside a CronJob.
JOB_TEMPLATE: Final = "spec.jobTemplate"
#: `Template.scheduler` of pods that this scheduler never sees.
NATIVE_SCHEDULERS: Final = frozenset({"", "default-scheduler"})


class Template(NamedTuple):
    """A pod template inside a workload, or a pod."""

    #: Path of the template inside the object; "" for a pod.
    path: str
    body: Json
    replicas: int
    scheduler: str
    #: Its annotations with string values.
    annotations: dict[str, str]

    @property
    def metadata_path(self) -> str:
        return f"{self.path}.metadata" if self.path else "metadata"

    def requests(self) -> Mapping[str, int]:
        """Effective requests in base units. A malformed quantity counts as unset."""
        checkpoint()
        return valid_pod_amounts(self.body).requests

    def resource_names(self) -> set[str]:
        """Names of all resources that one pod requests or limits, at any place."""
        spec = as_map(self.body.get("spec"))
        found = set(as_map(spec.get("overhead")))
        for holder in (*as_maps(spec.get("containers")), *as_maps(spec.get("initContainers")), spec):
            resources = holder.get("resources")
            if isinstance(resources, dict):
                found.update(as_map(resources.get("requests")), as_map(resources.get("limits")))
        return found


def templates_of(obj: Json) -> Iterator[Template]:
    """The pod templates of a workload; a Pod is its own; other kinds have none, nor have those of other API groups."""
    kind, spec = kind_of(obj), as_map(obj.get("spec"))
    if kind == "Pod":
        yield _template("", obj, 1, spec.get("schedulerName"))
    elif kind == "Job":
        for index, task in enumerate(as_maps(spec.get("tasks"))):
            checkpoint()
            body = as_map(task.get("template"))
            scheduler = as_map(body.get("spec")).get("schedulerName") or spec.get("schedulerName") or "volcano"
            yield _template(f"spec.tasks[{index}].template", body, task.get("replicas"), scheduler)
    elif isinstance(spec.get("template"), dict):
        field = _ONE_TEMPLATE.get((group_of(str(obj.get("apiVersion") or "")), str(obj.get("kind") or "")))
        if field is not None:
            scheduler = value_at(spec["template"], "spec", "schedulerName")
            yield _template("spec.template", spec["template"], spec.get(field), scheduler)


def _template(path: str, body: Json, replicas: Any, scheduler: Any) -> Template:
    return Template(path, body, _count(replicas), str(scheduler or ""), texts(body, "metadata", "annotations"))


def job_of_cron(obj: Json) -> Json | None:
    """The Job that a CronJob makes, without a name; its fields are those below `JOB_TEMPLATE`. None for other kinds."""
    api_version = str(obj.get("apiVersion") or "")
    template = value_at(obj, "spec", "jobTemplate")
    if obj.get("kind") != "CronJob" or group_of(api_version) not in _CRON_JOBS or not isinstance(template, dict):
        return None
    metadata = {key: value for key, value in as_map(template.get("metadata")).items() if key != "name"}
    if namespace := value_at(obj, "metadata", "namespace"):
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": "Job", "metadata": metadata, "spec": template.get("spec")}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 1
