"""The structure of vcjobs: tasks, policies, volumes and numbers; the rules of a webhook, read in the simulator too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

from capcard_sched.model.job_plugins import needed_plugins
from capcard_sched.model.job_tasks import default_minimum, partition_minimum
from capcard_sched.model.quantity import QuantityError, parse_quantity
from capcard_sched.model.quoting import plural
from capcard_sched.validation.budget import checkpoint
from capcard_sched.validation.checks import Finding, listed
from capcard_sched.validation.inventory import as_map, as_maps, value_at
from capcard_sched.validation.names import LABEL_FORM, SUBDOMAIN_FORM, check_label, is_label, is_subdomain, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.validation.inventory import Json

#: Actions that policies may name.
ACTIONS: Final = (
    *("AbortJob", "RestartJob", "RestartTask", "RestartPartition", "RestartPod"),
    *("TerminateJob", "CompleteJob", "ResumeJob"),
)
EVENTS: Final = ("*", "PodPending", "PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "Unknown", "JobUpdated")


#: Names are values of labels, too.
_JOB_NAME_FORM: Final = 'at most 63 lower-case letters, digits, "-" and ".", starting and ending with a letter or digit'


def _is_job_name(text: str) -> bool:
    return is_subdomain(text) and len(text) <= _POD_NAME_CHARACTERS


def check_policies(policies: Any, field: str) -> Iterator[Finding]:
    """The findings of `policies` of a job or task."""
    events: set[str] = set()
    codes: set[int] = set()
    entries = [entry for entry in policies if isinstance(entry, dict)] if isinstance(policies, list) else []
    for index, policy in enumerate(entries):
        place = f"{field}[{index}]"
        named = [event for event in (policy.get("event"), *(policy.get("events") or ())) if event]
        code = policy.get("exitCode")
        if named and code is not None:
            yield Finding("error", place, "must not specify event and exitCode simultaneously", "event or exitCode")
        elif not named and code is None:
            yield Finding("error", place, "either event and exitCode should be specified", "event, events or exitCode")
        for event in dict.fromkeys(named):
            if event not in EVENTS:
                yield Finding("error", f"{place}.event", f"invalid policy event {shown(event)}", ", ".join(EVENTS))
            elif event in events:
                message = f"duplicate event {event}  across different policy"
                yield Finding("error", f"{place}.event", message, "each event in one policy")
            events.add(event)
        if code == 0:
            yield Finding("error", f"{place}.exitCode", "0 is not a valid error code", "a number other than 0")
        elif code in codes:
            message = f"duplicate exitCode {code}"
            yield Finding("error", f"{place}.exitCode", message, "each exit code in one policy")
        if isinstance(code, int):
            codes.add(code)
        if policy.get("action") not in ACTIONS:
            message = f"invalid policy action {shown(policy.get('action'))}"
            yield Finding("error", f"{place}.action", message, ", ".join(ACTIONS))
    if "*" in events and len(events) > 1:
        yield Finding("error", field, "if there's * here, no other policy should be here", "only the event *")


def answers_eviction(owner: Json) -> bool:
    """Whether a policy of a job or task is for the event."""
    policies = owner.get("policies")
    entries = [entry for entry in policies if isinstance(entry, dict)] if isinstance(policies, list) else []
    return any(name in ("PodEvicted", "*") for entry in entries for name in (entry.get("event"), *_events(entry)))


def _events(policy: Json) -> list[Any]:
    events = policy.get("events")
    return events if isinstance(events, list) else []


_TOPOLOGY_POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node", "")
#: Characters of a pod name: pods are named `<job>-<task>-<index>`, and the name is also their host name.
_POD_NAME_CHARACTERS: Final = 63


def check_job_structure(obj: Json) -> Iterator[Finding]:
    """The findings in tasks, policies, volumes and numbers of a job, whose tasks have names."""
    spec = obj["spec"]
    yield from check_numbers(spec)
    yield from _check_tasks(obj, spec)
    yield from check_policies(spec.get("policies"), "spec.policies")
    yield from _check_volumes(spec.get("volumes"))


def check_numbers(spec: Json) -> Iterator[Finding]:
    """The numbers of a job."""
    for name, message in (
        ("minAvailable", "job 'minAvailable' must be >= 0"),
        ("maxRetry", "'maxRetry' cannot be less than zero"),
        ("ttlSecondsAfterFinished", "'ttlSecondsAfterFinished' cannot be less than zero"),
        ("minSuccess", "'minSuccess' must be at least 1"),
    ):
        value = spec.get(name)
        least = 1 if name == "minSuccess" else 0
        if value is None:
            continue
        if not _is_whole(value):
            yield Finding("error", f"spec.{name}", f"{shown(value)} is not an integer", f"a whole number from {least}")
        elif value < least:
            yield Finding("error", f"spec.{name}", f"{message}, got {value}", f"a whole number from {least}")


def _check_tasks(obj: Json, spec: Json) -> Iterator[Finding]:
    yield from _check_tier(spec.get("networkTopology"), "spec.networkTopology")
    tasks = tasks_of(spec)
    if not tasks:
        yield Finding("error", "spec.tasks", "No task specified in job spec", "a list with at least one task")
        return
    job = str((obj.get("metadata") or {}).get("name") or "")
    plugins = as_map(spec.get("plugins"))
    # The Service of the plugin svc, and its host names, have the name of the Job.
    is_host = "svc" in {*plugins, *needed_plugins(plugins)}
    is_name = is_label if is_host else _is_job_name
    if job and not is_name(job):
        form = f"{LABEL_FORM}, with plugin svc" if is_host else _JOB_NAME_FORM
        yield Finding("error", "metadata.name", f"{shown(job)} is not the name of a Job", form)
    names: set[str] = set()
    for index, task in enumerate(tasks):
        checkpoint()
        field = f"spec.tasks[{index}]"
        name = task.get("name")
        yield from check_label(name, f"{field}.name")
        if name in names:
            yield Finding("error", f"{field}.name", f"duplicated task name {name}", "distinct names")
        names.add(str(name))
        pod = f"{job}-{name}-{max(replicas_of(task) - 1, 0)}"
        if is_label(str(name)) and (len(pod) > _POD_NAME_CHARACTERS or (job and not is_name(pod))):
            message = f"pods would be named {shown(pod)}, which is not the name of a pod of the Job"
            form = LABEL_FORM if is_host else _JOB_NAME_FORM
            yield Finding("error", f"{field}.name", message, f"a job and task name that give pod names of {form}")
        yield from check_policies(task.get("policies"), f"{field}.policies")
        yield from _check_topology(task, field)
        yield from check_partitions(task, field)
        max_retry = task.get("maxRetry")
        if isinstance(max_retry, int) and max_retry < -1:
            message = f"{max_retry} is less than -1"
            yield Finding("error", f"{field}.maxRetry", message, "a whole number; -1 is without limit")
    yield from check_amounts(obj, spec)
    yield from check_dependencies(tasks)


def check_amounts(obj: Json, spec: Json) -> Iterator[Finding]:
    """Replicas and minimums of the tasks, and the minimums of the job."""
    job = (obj.get("metadata") or {}).get("name", "")
    total = 0
    for index, task in enumerate(tasks_of(spec)):
        checkpoint()
        field = f"spec.tasks[{index}]"
        for name in ("replicas", "minAvailable"):
            value = task.get(name)
            if value is not None and not (_is_whole(value) and value >= 0):
                yield Finding("error", f"{field}.{name}", f"{shown(value)} is not accepted", "a whole number from 0")
        replicas = replicas_of(task)
        total += replicas
        if count_of(task.get("minAvailable")) > replicas:
            where = f"in task: {task.get('name')}, job: {job}"
            message = f"'minAvailable' is greater than 'replicas' {where}, got {task['minAvailable']}"
            yield Finding("error", f"{field}.minAvailable", message, f"at most {replicas}")
    if count_of(spec.get("minAvailable")) > total:
        yield _more_than_replicas(spec, "minAvailable", total)
    if count_of(spec.get("minSuccess")) > total:
        yield _more_than_replicas(spec, "minSuccess", total)


def _more_than_replicas(spec: Json, name: str, total: int) -> Finding:
    message = f"job '{name}' should not be greater than total replicas in tasks, got {spec[name]}"
    return Finding("error", f"spec.{name}", message, f"at most {total}")


def _check_topology(task: Json, field: str) -> Iterator[Finding]:
    policy = task.get("topologyPolicy")
    if policy is None:
        return
    if policy not in _TOPOLOGY_POLICIES:
        accepted = ", ".join(each for each in _TOPOLOGY_POLICIES if each)
        yield Finding("error", f"{field}.topologyPolicy", f"{shown(policy)} is not accepted", accepted)
    elif policy not in {"", "none"}:
        for index, container in enumerate(as_maps(value_at(task, "template", "spec", "containers"))):
            limits, requests = (value_at(container, "resources", side) for side in ("limits", "requests"))
            cpu = {**as_map(limits), **as_map(requests)}.get("cpu")
            if not _is_whole_quantity(cpu):
                place = f"{field}.template.spec.containers[{index}].resources.requests.cpu"
                message = f"{shown(cpu)} is not a whole number of CPUs, which topologyPolicy {policy} requires"
                yield Finding("error", place, message, "a request or limit of whole CPUs, such as 4 or 4000m")


def _is_whole_quantity(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    try:
        exact = parse_quantity(value)
    except QuantityError:
        return False
    return exact >= 0 and exact == int(exact)


def _check_tier(topology: Any, field: str) -> Iterator[Finding]:
    """A network topology has one tier, by number or by name."""
    if isinstance(topology, dict) and None not in map(topology.get, ("highestTierAllowed", "highestTierName")):
        yield Finding("error", field, "has both highestTierAllowed and highestTierName", "one of them")


def check_partitions(task: Json, task_field: str) -> Iterator[Finding]:
    """Partitions have one size, the replicas fill them, and the minimums agree."""
    policy = task.get("partitionPolicy")
    if policy is None:
        return
    field = f"{task_field}.partitionPolicy"
    if not isinstance(policy, dict):
        yield Finding("error", field, f"{shown(policy)} is not accepted", "totalPartitions and partitionSize")
        return
    yield from _check_tier(policy.get("networkTopology"), f"{field}.networkTopology")
    valid = True
    for name, least in (("totalPartitions", 1), ("partitionSize", 1), ("minPartitions", 0)):
        value = policy.get(name)
        if not (_is_whole(value) and value >= least) and not (value is None and least == 0):
            valid = False
            yield Finding("error", f"{field}.{name}", f"{shown(value)} is not accepted", f"a whole number from {least}")
    if not valid:
        return
    total, size = policy["totalPartitions"], policy["partitionSize"]
    if total * size != replicas_of(task):
        message = f"{total} x {size} is not the number of replicas of the task, {replicas_of(task)}"
        yield Finding("error", field, message, "totalPartitions x partitionSize = replicas")
    if count_of(policy.get("minPartitions")) > total:
        message = f"{policy['minPartitions']} is more than the {plural(total, 'partition')}"
        yield Finding("error", f"{field}.minPartitions", message, f"at most {total}")
    needed, given = partition_minimum(policy), task.get("minAvailable")
    if needed is not None and given is not None and given != needed:
        message = f"{shown(given)} is not minPartitions x partitionSize"
        yield Finding("error", f"{task_field}.minAvailable", message, f"{needed}, or no value")


def check_dependencies(tasks: Sequence[Json]) -> Iterator[Finding]:
    """The findings of `dependsOn`: missing tasks, and cycles."""
    graph = {task_name(task, index): depends_on(task) for index, task in enumerate(tasks)}
    names = ""
    for index, task in enumerate(tasks):
        checkpoint()
        field = f"spec.tasks[{index}].dependsOn"
        for other in depends_on(task):
            if other not in graph:
                names = names or listed(graph)
                yield Finding("error", f"{field}.name", f"there is no task {shown(other)}", names)
        iteration = as_map(task.get("dependsOn")).get("iteration")
        if iteration not in {None, "", "any", "all"}:
            yield Finding("error", f"{field}.iteration", f"{shown(iteration)} is not accepted", "any or all")
    cycle = _in_cycles(graph)
    if cycle:
        message = "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG)"
        yield Finding("error", "spec.tasks", message, f"no cycle; these tasks depend on each other: {listed(cycle)}")


def _in_cycles(graph: Mapping[str, Sequence[str]]) -> set[str]:
    """Tasks that depend on a cycle or are part of one; linear in tasks and dependencies."""
    missing = {name: {other for other in others if other in graph} for name, others in graph.items()}
    dependents: dict[str, list[str]] = {}
    for name, others in missing.items():
        for other in others:
            dependents.setdefault(other, []).append(name)
    waiting = {name: len(others) for name, others in missing.items()}
    free = [name for name, count in waiting.items() if not count]
    while free:
        name = free.pop()
        del waiting[name]
        for dependent in dependents.get(name, ()):
            waiting[dependent] -= 1
            if not waiting[dependent]:
                free.append(dependent)
    return set(waiting)


def depends_on(task: Json) -> list[str]:
    dependencies = task.get("dependsOn")
    names = dependencies.get("name") if isinstance(dependencies, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else []


def _check_volumes(volumes: Any) -> Iterator[Finding]:
    paths: set[str] = set()
    for index, volume in enumerate(as_maps(volumes)):
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
        elif name and not (isinstance(name, str) and is_subdomain(name)):
            message = f"{shown(name)} is not the name of a PersistentVolumeClaim"
            yield Finding("error", f"{field}.volumeClaimName", message, SUBDOMAIN_FORM)


def tasks_of(spec: Json) -> list[Json]:
    return as_maps(spec.get("tasks"))


def task_name(task: Json, index: int) -> str:
    """The name of a task, by default that of its index."""
    return str(task.get("name") or f"default{index}")


def minimum_of(task: Json) -> int:
    """`minAvailable` of a task, with its default."""
    value = task.get("minAvailable")
    return default_minimum(replicas_of(task), task.get("partitionPolicy")) if value is None else count_of(value)


def replicas_of(task: Json) -> int:
    """Pods of a task; a task without a count has one."""
    value = task.get("replicas")
    return 1 if value is None else count_of(value)


def count_of(value: Any) -> int:
    """The value if it is a positive whole number, else 0."""
    return value if _is_whole(value) and value > 0 else 0


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
