"""The rules of the webhooks, and those of every API server about pods, for objects of files: they would be rejected."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.admission.jobs import default_job, new_job_findings
from capcard_sched.admission.queues import queue_findings
from capcard_sched.admission.review import DEFAULT_QUEUE, ROOT_QUEUE, ClusterView
from capcard_sched.model.kinds import group_of, is_native, kind_of
from capcard_sched.model.objects import ObjectMeta, QueueObject
from capcard_sched.model.quoting import plural
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.inventory import as_map, as_maps, object_name, value_at
from capcard_sched.validation.names import check_annotation_key, check_labels
from capcard_sched.validation.pod_templates import check_pod_template
from capcard_sched.validation.structure import check_fields
from capcard_sched.validation.templates import JOB_TEMPLATE, job_of_cron, templates_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.validation.inventory import Json

#: Findings of one object; the number of further ones follows.
MAX_FINDINGS: Final = 64
#: API group of a workload to the restart policies of its pods; batch Jobs have no default among them.
_RESTART_POLICIES: Final = {"apps": ("Always", None), "batch": ("OnFailure", "Never")}
#: Default `schedulerName` of a vcjob; the rules do not depend on it.
_SCHEDULER: Final = "volcano"


class FileView:
    """The rules over the queues of all files. A queue that is in none of them may exist in the cluster."""

    def __init__(self, objects: Sequence[Json]) -> None:
        self._view = ClusterView()
        for name in (ROOT_QUEUE, DEFAULT_QUEUE):
            self._view.set_queue(QueueObject(metadata=ObjectMeta(name=name)))
        for obj in objects:
            if kind_of(obj) == "Queue" and object_name(obj):
                try:
                    self._view.set_queue(msgspec.convert(obj, QueueObject))
                except msgspec.ValidationError:
                    continue  # the scenario reader reports it

    def check(self, obj: Json) -> list[Finding]:
        """The findings about an object whose known fields have their types: at most 64, and the number of others."""
        found = list(dict.fromkeys(self._check(obj))) if is_native(obj) else []
        more = len(found) - MAX_FINDINGS
        return [*found[:MAX_FINDINGS], Finding("error", "", plural(more, "more problem"))] if more > 0 else found

    def _check(self, obj: Json) -> Iterator[Finding]:
        metadata = as_map(obj.get("metadata"))
        yield from check_labels(metadata.get("labels"), "metadata.labels")
        for key in as_map(metadata.get("annotations")):
            yield from check_annotation_key(key, "metadata.annotations")
        kind, job = kind_of(obj), job_of_cron(obj)
        if job is not None:
            problems = list(check_fields("Job", job)) if kind_of(job) == "Job" else []
            for finding in problems or self._check(job):
                yield msgspec.structs.replace(finding, field=f"{JOB_TEMPLATE}.{finding.field}")
        elif kind == "Queue":
            yield from self._check_queue(obj)
        elif kind == "Job":
            yield from self._check_job(obj)
        elif kind == "PodGroup":
            yield from self._check_state(str(value_at(obj, "spec", "queue") or DEFAULT_QUEUE))
        else:
            yield from _check_workload(obj)

    def _check_queue(self, obj: Json) -> Iterator[Finding]:
        name, tree = object_name(obj), self._view.inventory.tree
        yield from tree.below_ancestors(name)
        yield from tree.sums_below(name)
        # The tree is checked above: each sum once, at the parent.
        for finding in queue_findings(obj, obj, self._view):
            if finding.severity != "error":
                continue
            # Of a cluster, objects that exist: a parent may have got its pods before its children.
            is_parent = finding.field == "spec.parent"
            if not is_parent or "cannot be the parent" not in finding.message:
                is_missing = is_parent and self._view.queue(str(value_at(obj, "spec", "parent"))) is None
                if not is_missing:
                    yield finding

    def _check_job(self, obj: Json) -> Iterator[Finding]:
        job = deepcopy(obj)
        default_job(job, _SCHEDULER)
        name = str(value_at(job, "spec", "queue") or DEFAULT_QUEUE)
        queue = self._view.queue(name)
        for finding in new_job_findings(job, self._view):
            if finding.severity != "error":
                continue
            if finding.field != "spec.queue":
                yield finding
            elif queue is not None and queue.state in {"", "Open"}:
                yield finding  # it has child queues, or is root
        yield from self._check_state(name)

    def _check_state(self, name: str) -> Iterator[Finding]:
        """A warning for a queue that is not open: the object may be older than the state of its queue."""
        queue = self._view.queue(name)
        if queue is not None and queue.state not in {"", "Open"}:
            yield Finding("warning", "spec.queue", f"queue {name} is {queue.state}", "an open queue")


def _check_workload(obj: Json) -> Iterator[Finding]:
    """What an API server rejects in a Pod, or in a workload with one template."""
    for template in templates_of(obj):
        claims = [object_name(each) for each in as_maps(value_at(obj, "spec", "volumeClaimTemplates"))]
        for finding in check_pod_template(template.body, template.path, volumes=claims):
            yield msgspec.structs.replace(finding, field=finding.field.lstrip("."))
        if not template.path:
            return
        group = group_of(str(obj.get("apiVersion") or ""))
        policies = _RESTART_POLICIES.get(group, ())
        policy = value_at(template.body, "spec", "restartPolicy")
        if policies and policy not in policies:
            given = f'"{policy}" is not accepted' if policy else "is required"
            accepted = " or ".join(filter(None, policies))
            yield Finding("error", f"{template.path}.spec.restartPolicy", f"{given} for a {obj['kind']}", accepted)
        if group == "apps" and not value_at(obj, "spec", "selector"):
            yield Finding("error", "spec.selector", "is required", "matchLabels with labels of the pod template")
