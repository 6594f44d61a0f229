"""Admission of vcjobs: defaults at creation, the checks of a new job, and the fields that may change afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.admission.job_policies import answers_eviction, check_policies
from capcard_sched.admission.names import LABEL_FORM, check_label, is_label, shown
from capcard_sched.admission.pod_templates import check_budgets, check_pod_template
from capcard_sched.admission.review import AdmissionResult, JsonPatch
from capcard_sched.admission.view import DEFAULT_QUEUE, ROOT_QUEUE
from capcard_sched.model.annotations import PREEMPTABLE
from capcard_sched.model.checks import Finding
from capcard_sched.model.inventory import texts
from capcard_sched.model.object_checks import check_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.admission.review import Json
    from capcard_sched.admission.view import ClusterView

#: Job plugins and the plugins each of them needs.
PLUGINS: Final[dict[str, tuple[str, ...]]] = {
    "env": (),
    "svc": (),
    "ssh": (),
    "hcclrank": (),
    "pytorch": ("svc",),
    "tensorflow": ("svc",),
    "ray": ("svc",),
    "mpi": ("svc", "ssh"),
}
_TOPOLOGY_POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node", "")
_MAX_RETRY: Final = 3
#: Characters of a pod name: pods are named `<job>-<task>-<index>`, and the name is also their host name.
_POD_NAME_CHARACTERS: Final = 63
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
    for index, task in enumerate(_tasks(spec)):
        at = ("spec", "tasks", index)
        if not task.get("name"):
            patch.set(f"default{index}", *at, "name")
        if task.get("minAvailable") is None:
            patch.set(_replicas(task), *at, "minAvailable")
        if not task.get("maxRetry"):
            patch.set(_MAX_RETRY, *at, "maxRetry")
        template = task.get("template")
        pod = template.get("spec") if isinstance(template, dict) else None
        if isinstance(pod, dict) and pod.get("hostNetwork") is True and not pod.get("dnsPolicy"):
            patch.set("ClusterFirstWithHostNet", *at, "template", "spec", "dnsPolicy")
    if not spec.get("minAvailable"):
        patch.set(sum(_count(task.get("minAvailable")) for task in _tasks(spec)), "spec", "minAvailable")
    plugins = spec.get("plugins")
    if isinstance(plugins, dict):
        for needed in sorted({name for plugin in plugins for name in PLUGINS.get(plugin, ())} - plugins.keys()):
            patch.set([], "spec", "plugins", needed)
    return AdmissionResult(patch=tuple(patch.operations))


def check_new_job(obj: Json, view: ClusterView) -> AdmissionResult:
    """Everything that is wrong with a new job, and warnings about its cards."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return AdmissionResult((Finding("error", "spec", "is required", "a job spec with at least one task"),))
    findings = [
        *check_job_structure(obj),
        *check_budgets(texts(obj, "metadata", "annotations")),
        *(
            finding
            for index, task in enumerate(_tasks(spec))
            for finding in check_pod_template(task.get("template"), f"spec.tasks[{index}].template")
        ),
        *_check_plugins(spec),
        *check_queue(str(spec.get("queue") or DEFAULT_QUEUE), view),
        *check_object(obj, view.inventory),
        *_check_eviction(obj, spec),
    ]
    return AdmissionResult(tuple(findings))


def check_job_structure(obj: Json) -> Iterator[Finding]:
    """The findings in tasks, policies, volumes and numbers of a job, whose tasks have names."""
    spec = obj["spec"]
    yield from _check_numbers(spec)
    yield from _check_tasks(obj, spec)
    yield from check_policies(spec.get("policies"), "spec.policies")
    yield from _check_volumes(spec.get("volumes"))


def check_job_update(obj: Json, old: Json, view: ClusterView) -> AdmissionResult:
    """Whether a change of a job's spec is allowed. A job that is being deleted may change: its finalizers must go."""
    new_spec, old_spec = obj.get("spec"), old.get("spec")
    if (obj.get("metadata") or {}).get("deletionTimestamp") or new_spec == old_spec:
        return AdmissionResult()
    if not isinstance(new_spec, dict) or not isinstance(old_spec, dict):
        return AdmissionResult((Finding("error", "spec", "is required", "a job spec with at least one task"),))
    findings = [*_check_numbers(new_spec), *_check_amounts(obj, new_spec)]
    if len(_tasks(new_spec)) != len(_tasks(old_spec)):
        findings.append(Finding("error", "spec.tasks", "job updates may not add or remove tasks", "the same tasks"))
        return AdmissionResult(tuple(findings))
    changed = sorted(_changed(_fixed(new_spec), _fixed(old_spec), "spec"))
    if changed:
        message = (
            "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec` "
            "and `PriorityClassName`"
        )
        findings.append(Finding("error", changed[0], message, f"changes of {_CHANGEABLE}"))
    findings += [finding for finding in check_object(obj, view.inventory) if finding.severity != "error"]
    return AdmissionResult(tuple(findings))


def check_queue(name: str, view: ClusterView, field: str = "spec.queue") -> Iterator[Finding]:
    """Whether jobs may be submitted to a queue: it exists, is open, and has no queues below it."""
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


# --- parts of a job -------------------------------------------------------------------------------------------------


def _check_numbers(spec: Json) -> Iterator[Finding]:
    for name, message in (
        ("minAvailable", "job 'minAvailable' must be >= 0."),
        ("maxRetry", "'maxRetry' cannot be less than zero."),
        ("ttlSecondsAfterFinished", "'ttlSecondsAfterFinished' cannot be less than zero."),
        ("minSuccess", "'minSuccess' must be at least 1."),
    ):
        value = spec.get(name)
        least = 1 if name == "minSuccess" else 0
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            yield Finding("error", f"spec.{name}", f"{shown(value)} is not an integer", f"a whole number from {least}")
        elif value < least:
            yield Finding("error", f"spec.{name}", message, f"a whole number from {least}")


def _check_tasks(obj: Json, spec: Json) -> Iterator[Finding]:
    tasks = _tasks(spec)
    if not tasks:
        yield Finding("error", "spec.tasks", "No task specified in job spec", "a list with at least one task")
        return
    job = str((obj.get("metadata") or {}).get("name") or "")
    if job:
        yield from check_label(job, "metadata.name")
    names: set[str] = set()
    for index, task in enumerate(tasks):
        field = f"spec.tasks[{index}]"
        name = task.get("name")
        yield from check_label(name, f"{field}.name")
        if name in names:
            yield Finding("error", f"{field}.name", f"duplicated task name {name}", "distinct names")
        names.add(str(name))
        pod = f"{job}-{name}-{max(_replicas(task) - 1, 0)}"
        if is_label(str(name)) and (len(pod) > _POD_NAME_CHARACTERS or (job and not is_label(pod))):
            message = f"pods would be named {shown(pod)}, which is not a DNS-1123 label"
            yield Finding("error", f"{field}.name", message, f"a job and task name that give pod names of {LABEL_FORM}")
        yield from check_policies(task.get("policies"), f"{field}.policies")
        yield from _check_topology(task, field)
        yield from _check_partitions(task, field)
        max_retry = task.get("maxRetry")
        if isinstance(max_retry, int) and max_retry < -1:
            message = f"{max_retry} is less than -1"
            yield Finding("error", f"{field}.maxRetry", message, "a whole number; -1 is without limit")
    yield from _check_amounts(obj, spec)
    yield from _check_dependencies(tasks)


def _check_amounts(obj: Json, spec: Json) -> Iterator[Finding]:
    job = (obj.get("metadata") or {}).get("name", "")
    total = 0
    for index, task in enumerate(_tasks(spec)):
        field = f"spec.tasks[{index}]"
        for name in ("replicas", "minAvailable"):
            value = task.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                yield Finding("error", f"{field}.{name}", f"{shown(value)} is not accepted", "a whole number from 0")
        replicas = _replicas(task)
        total += replicas
        if _count(task.get("minAvailable")) > replicas:
            message = f"'minAvailable' is greater than 'replicas' in task: {task.get('name')}, job: {job}"
            yield Finding("error", f"{field}.minAvailable", message, f"at most {replicas}")
    if _count(spec.get("minAvailable")) > total:
        message = "job 'minAvailable' should not be greater than total replicas in tasks"
        yield Finding("error", "spec.minAvailable", message, f"at most {total}")
    if _count(spec.get("minSuccess")) > total:
        message = "job 'minSuccess' should not be greater than total replicas in tasks"
        yield Finding("error", "spec.minSuccess", message, f"at most {total}")


def _check_topology(task: Json, field: str) -> Iterator[Finding]:
    policy = task.get("topologyPolicy")
    if policy is None:
        return
    if policy not in _TOPOLOGY_POLICIES:
        accepted = ", ".join(each for each in _TOPOLOGY_POLICIES if each)
        yield Finding("error", f"{field}.topologyPolicy", f"{shown(policy)} is not accepted", accepted)
    elif policy not in {"", "none"}:
        pod = (task.get("template") or {}).get("spec") or {}
        for index, container in enumerate(pod.get("containers") or ()):
            cpu = ((container.get("resources") or {}).get("requests") or {}).get("cpu")
            if cpu is None or not str(cpu).isdigit():
                place = f"{field}.template.spec.containers[{index}].resources.requests.cpu"
                message = f"{shown(cpu)} is not a whole number of CPUs, which topologyPolicy {policy} requires"
                yield Finding("error", place, message, "an integer such as 4")


def _check_partitions(task: Json, field: str) -> Iterator[Finding]:
    """Partitions have one size, and the replicas fill them."""
    policy = task.get("partitionPolicy")
    if policy is None:
        return
    field = f"{field}.partitionPolicy"
    if not isinstance(policy, dict):
        yield Finding("error", field, f"{shown(policy)} is not accepted", "totalPartitions and partitionSize")
        return
    valid = True
    for name, least in (("totalPartitions", 1), ("partitionSize", 1), ("minPartitions", 0)):
        value = policy.get(name)
        required = least == 1
        if (value is None and required) or (
            value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least)
        ):
            valid = False
            yield Finding("error", f"{field}.{name}", f"{shown(value)} is not accepted", f"a whole number from {least}")
    if not valid:
        return
    total, size = policy["totalPartitions"], policy["partitionSize"]
    if total * size != _replicas(task):
        message = f"{total} partitions of {size} pods are not the {_replicas(task)} replicas of the task"
        yield Finding("error", field, message, "totalPartitions x partitionSize = replicas")
    if _count(policy.get("minPartitions")) > total:
        message = f"{policy['minPartitions']} is more than the {total} partitions"
        yield Finding("error", f"{field}.minPartitions", message, f"at most {total}")
    for name in ("minPartitions", "networkTopology"):
        if policy.get(name):
            yield Finding("warning", f"{field}.{name}", "has no effect: the gang is that of minAvailable", "no value")


def _check_dependencies(tasks: Sequence[Json]) -> Iterator[Finding]:
    graph = {str(task.get("name")): _depends_on(task) for task in tasks}
    for index, task in enumerate(tasks):
        field = f"spec.tasks[{index}].dependsOn"
        for other in _depends_on(task):
            if other not in graph:
                message = f"there is no task {shown(other)}"
                yield Finding("error", f"{field}.name", message, ", ".join(sorted(graph)))
        iteration = (task.get("dependsOn") or {}).get("iteration")
        if iteration not in {None, "", "any", "all"}:
            yield Finding("error", f"{field}.iteration", f"{shown(iteration)} is not accepted", "any or all")
    remaining = {name: {other for other in others if other in graph} for name, others in graph.items()}
    while remaining:
        free = {name for name, others in remaining.items() if not others}
        if not free:
            message = "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG)"
            cycle = ", ".join(sorted(remaining))
            yield Finding("error", "spec.tasks", message, f"no cycle; these tasks depend on each other: {cycle}")
            return
        remaining = {name: others - free for name, others in remaining.items() if name not in free}


def _depends_on(task: Json) -> list[str]:
    names = (task.get("dependsOn") or {}).get("name")
    return [str(name) for name in names] if isinstance(names, list) else []


def _check_plugins(spec: Json) -> Iterator[Finding]:
    plugins = spec.get("plugins")
    if not isinstance(plugins, dict):
        return
    for name, arguments in plugins.items():
        if name not in PLUGINS:
            yield Finding(
                "error", f"spec.plugins.{name}", f"unable to find job plugin: {name}", ", ".join(sorted(PLUGINS))
            )
        elif name == "mpi":
            yield from _check_mpi(_tasks(spec), arguments if isinstance(arguments, list) else [])


def _check_mpi(tasks: Sequence[Json], arguments: Sequence[Any]) -> Iterator[Finding]:
    names = {str(task.get("name")) for task in tasks}
    for role in ("master", "worker"):
        given = [str(each).partition("=")[2] for each in arguments if str(each).lstrip("-").startswith(f"{role}=")]
        wanted = given[-1] if given else role
        if wanted not in names:
            message = f"The specified mpi {role} task was not found"
            yield Finding("error", "spec.plugins.mpi", message, f"--{role}= with one of {', '.join(sorted(names))}")


def _check_eviction(obj: Json, spec: Json) -> Iterator[Finding]:
    """A warning for a gang that stays incomplete when a pod of some task is evicted."""
    annotations = texts(obj, "metadata", "annotations")
    gang = _count(spec.get("minAvailable") or sum(map(_replicas, _tasks(spec))))
    if gang <= 1 or annotations.get(PREEMPTABLE) == "false" or answers_eviction(spec):
        return
    if not all(map(answers_eviction, _tasks(spec))):
        message = "no policy for PodEvicted: when a pod of the gang is evicted, the others wait for its replacement"
        yield Finding("warning", "spec.policies", message, "{event: PodEvicted, action: RestartJob}")


def _check_volumes(volumes: Any) -> Iterator[Finding]:
    paths: set[str] = set()
    entries = [entry for entry in volumes if isinstance(entry, dict)] if isinstance(volumes, list) else []
    for index, volume in enumerate(entries):
        field = f"spec.volumes[{index}]"
        path = volume.get("mountPath")
        if not path:
            yield Finding("error", f"{field}.mountPath", "mountPath is required", "an absolute path")
        elif ":" in str(path):
            yield Finding("error", f"{field}.mountPath", f"{shown(path)} contains a colon", "a path without ':'")
        elif path in paths:
            yield Finding("error", f"{field}.mountPath", f"duplicated mountPath: {path}", "distinct paths")
        paths.add(str(path))
        name, claim = volume.get("volumeClaimName"), volume.get("volumeClaim")
        if bool(name) == bool(claim):
            message = "either VolumeClaim or VolumeClaimName must be specified"
            yield Finding("error", field, message, "volumeClaim or volumeClaimName")
        elif name:
            yield from check_label(name, f"{field}.volumeClaimName")


# --- plain values ---------------------------------------------------------------------------------------------------


def _tasks(spec: Json) -> list[Json]:
    tasks = spec.get("tasks")
    return [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []


def _replicas(task: Json) -> int:
    """Pods of a task; a task without a count has one."""
    value = task.get("replicas")
    return 1 if value is None else _count(value)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _fixed(spec: Json) -> Json:
    """The part of a spec that an update must not change."""
    scaled = {"replicas", "minAvailable"}
    tasks = [{key: value for key, value in task.items() if key not in scaled} for task in _tasks(spec)]
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


def _changed(new: Any, old: Any, path: str) -> Iterator[str]:
    """Paths of the values that differ."""
    if isinstance(new, dict) and isinstance(old, dict):
        for key in sorted(new.keys() | old.keys()):
            yield from _changed(new.get(key), old.get(key), f"{path}.{key}")
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for index, (mine, theirs) in enumerate(zip(new, old, strict=True)):
            yield from _changed(mine, theirs, f"{path}[{index}]")
    elif new != old:
        yield path
