"""Admission of vcjobs: defaults at creation, the checks of a new job, and the fields that may change afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.admission.review import DEFAULT_QUEUE, ROOT_QUEUE, AdmissionResult, JsonPatch, verdict
from capcard_sched.model.annotations import PREEMPTABLE
from capcard_sched.model.job_plugins import needed_plugins
from capcard_sched.validation.budget import checkpoint
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.inventory import texts
from capcard_sched.validation.job_structure import (
    answers_eviction,
    check_amounts,
    check_job_structure,
    check_numbers,
    check_partitions,
    count_of,
    minimum_of,
    replicas_of,
    task_name,
    tasks_of,
)
from capcard_sched.validation.meaning import canonical_job, changed_fields
from capcard_sched.validation.names import shown
from capcard_sched.validation.object_checks import check_object
from capcard_sched.validation.pod_templates import check_budgets, check_pod_template

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.admission.review import ClusterView
    from capcard_sched.validation.inventory import Json

_MAX_RETRY: Final = 3
#: Operations of a patch beyond which it replaces the list of tasks: the API server applies one after the other.
_MOST_OPERATIONS: Final = 256
#: Scheduler of jobs that name none, unless the flags of the server name another.
DEFAULT_SCHEDULER: Final = "capcard-sched"
_CHANGEABLE = "minAvailable, tasks[*].replicas, tasks[*].minAvailable and priorityClassName"


def default_job(obj: Json, scheduler_name: str) -> AdmissionResult:
    """Set the defaults of a new vcjob in `obj`, and return them as a patch; fields of a wrong type stay as they are."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return AdmissionResult()
    patch = JsonPatch(obj)
    if not spec.get("queue"):
        patch.set(DEFAULT_QUEUE, "spec", "queue")
    if not spec.get("schedulerName"):
        patch.set(scheduler_name, "spec", "schedulerName")
    if not spec.get("maxRetry"):
        patch.set(_MAX_RETRY, "spec", "maxRetry")
    tasks = JsonPatch(obj)
    for index, task in enumerate(tasks_of(spec)):
        checkpoint()
        _default_task(tasks, task, index)
    if len(tasks.operations) <= _MOST_OPERATIONS:
        patch.operations += tasks.operations
    else:
        patch.set(spec["tasks"], "spec", "tasks")
    if not spec.get("minAvailable"):
        patch.set(sum(count_of(task.get("minAvailable")) for task in tasks_of(spec)), "spec", "minAvailable")
    plugins = spec.get("plugins")
    if isinstance(plugins, dict):
        for needed in needed_plugins(plugins):
            patch.set([], "spec", "plugins", needed)
    return AdmissionResult(patch=tuple(patch.operations))


def _default_task(patch: JsonPatch, task: Json, index: int) -> None:
    at = ("spec", "tasks", index)
    if not task.get("name"):
        patch.set(task_name(task, index), *at, "name")
    if task.get("minAvailable") is None:
        patch.set(minimum_of(task), *at, "minAvailable")
    if not task.get("maxRetry"):
        patch.set(_MAX_RETRY, *at, "maxRetry")
    template = task.get("template")
    pod = template.get("spec") if isinstance(template, dict) else None
    if isinstance(pod, dict) and pod.get("hostNetwork") is True and not pod.get("dnsPolicy"):
        patch.set("ClusterFirstWithHostNet", *at, "template", "spec", "dnsPolicy")


def check_new_job(obj: Json, view: ClusterView) -> AdmissionResult:
    """What is wrong with a new job, and warnings about its cards."""
    return verdict(new_job_findings(obj, view))


def new_job_findings(obj: Json, view: ClusterView) -> Iterator[Finding]:
    """Everything that is wrong with a new job, and warnings about its cards."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        yield _no_spec(spec)
        return
    yield from check_job_structure(obj)
    yield from check_budgets(texts(obj, "metadata", "annotations"))
    for index, task in enumerate(tasks_of(spec)):
        yield from check_pod_template(task.get("template"), f"spec.tasks[{index}].template")
    yield from check_queue(str(spec.get("queue") or DEFAULT_QUEUE), view)
    yield from check_object(obj, view.inventory)
    yield from _check_eviction(obj, spec)


def _no_spec(spec: object) -> Finding:
    message = "is required" if spec is None else f"expected a mapping, got {shown(spec)}"
    return Finding("error", "spec", message, "a job spec with at least one task")


def check_job_update(
    obj: Json, old: Json, view: ClusterView, scheduler_name: str = DEFAULT_SCHEDULER
) -> AdmissionResult:
    """Whether a change of a job's spec is allowed. A job that is being deleted may change: its finalizers must go.

    Specs are compared by meaning; `scheduler_name`: that of jobs that name none.
    """
    return verdict(_update_findings(obj, old, view, scheduler_name))


def _update_findings(obj: Json, old: Json, view: ClusterView, scheduler_name: str) -> Iterator[Finding]:
    new_spec, old_spec = obj.get("spec"), old.get("spec")
    if (obj.get("metadata") or {}).get("deletionTimestamp") or new_spec == old_spec:
        return
    if not isinstance(new_spec, dict) or not isinstance(old_spec, dict):
        yield _no_spec(new_spec)
        return
    yield from check_numbers(new_spec)
    yield from check_amounts(obj, new_spec)
    if len(tasks_of(new_spec)) != len(tasks_of(old_spec)):
        yield Finding("error", "spec.tasks", "job updates may not add or remove tasks", "the same tasks")
        return
    yield from _check_partitions(new_spec, old_spec)
    fixed = _fixed(new_spec), _fixed(old_spec)
    for index, (new_task, old_task) in enumerate(zip(fixed[0]["tasks"], fixed[1]["tasks"], strict=True)):
        if new_task == old_task:  # most are, and a canonical form costs more than the comparison
            fixed[0]["tasks"][index] = fixed[1]["tasks"][index] = {}
    canonical_new, canonical_old = (canonical_job(spec, scheduler_name) for spec in fixed)
    changed = changed_fields(canonical_new, canonical_old, "spec")
    if changed:
        message = (
            "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec` "
            "and `PriorityClassName`"
        )
        yield Finding("error", changed[0], message, f"changes of {_CHANGEABLE}")
    for finding in check_object(obj, view.inventory):
        if finding.severity != "error":
            yield finding


def check_queue(name: str, view: ClusterView, field: str = "spec.queue") -> Iterator[Finding]:
    """Whether jobs may be submitted to a queue: it exists, is open, and has no queues below it."""
    if "/" in name:
        return  # `check_object` checks it
    queue = view.queue(name)
    if name == ROOT_QUEUE:
        message = "can not submit job to root queue"
    elif queue is None:
        message = f"unable to find job queue: {name}"
    elif queue.state not in {"", "Open"}:
        message = f"can only submit job to queue with state `Open`, queue `{name}` status is `{queue.state}`"
    elif children := view.children(name):
        message = f"can only submit job to leaf queue, queue `{name}` has {len(children)} child queues"
    else:
        return
    open_queues = ", ".join(sorted(entry.name for entry in view.queues() if _takes_jobs(entry.name, view))[:10])
    yield Finding("error", field, message, f"an open queue without child queues: {open_queues or 'there is none'}")


def _takes_jobs(name: str, view: ClusterView) -> bool:
    queue = view.queue(name)
    return name != ROOT_QUEUE and queue is not None and queue.state in {"", "Open"} and not view.children(name)


def _check_eviction(obj: Json, spec: Json) -> Iterator[Finding]:
    """A warning for a gang that stays incomplete when a pod of some task is evicted."""
    annotations = texts(obj, "metadata", "annotations")
    gang = count_of(spec.get("minAvailable") or sum(map(replicas_of, tasks_of(spec))))
    if gang <= 1 or annotations.get(PREEMPTABLE) == "false" or answers_eviction(spec):
        return
    if not all(map(answers_eviction, tasks_of(spec))):
        message = "no policy for PodEvicted: when a pod of the gang is evicted, the others wait for its replacement"
        yield Finding("warning", "spec.policies", message, "{event: PodEvicted, action: RestartJob}")


def _check_partitions(new_spec: Json, old_spec: Json) -> Iterator[Finding]:
    """Errors in the partitions of tasks that the stored job does not have."""
    for index, (task, stored) in enumerate(zip(tasks_of(new_spec), tasks_of(old_spec), strict=True)):
        known = set(check_partitions(stored, f"spec.tasks[{index}]"))
        for finding in check_partitions(task, f"spec.tasks[{index}]"):
            if finding.severity == "error" and finding not in known:
                yield finding


def _fixed(spec: Json) -> Json:
    """The part of a spec that an update must not change."""
    scaled = {"replicas", "minAvailable"}
    tasks = [{key: value for key, value in task.items() if key not in scaled} for task in tasks_of(spec)]
    rest = {key: value for key, value in spec.items() if key not in {"minAvailable", "priorityClassName", "tasks"}}
    # The controller writes the names of the claims it creates.
    volumes = spec.get("volumes")
    if isinstance(volumes, list):
        rest["volumes"] = [
            {
                key: value
                for key, value in volume.items()
                if not (key == "volumeClaimName" and volume.get("volumeClaim"))
            }
            if isinstance(volume, dict)
            else volume
            for volume in volumes
        ]
    return {**rest, "tasks": tasks}
