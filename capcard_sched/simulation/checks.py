"""Is this document an object the API server would take? Tables of rules per kind, and the first failure of each field.

Values of `volcano.sh/*` annotations and of node labels are never judged here: the scheduler itself turns bad ones into
events, as it must do in a cluster.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from capcard_sched.model.annotations import SIMULATION_DURATION, SIMULATION_EXIT_CODE, SIMULATION_GRACE
from capcard_sched.model.quantity import QuantityError, parse_quantity
from capcard_sched.simulation.duration import ACCEPTED, DurationError, parse_duration
from capcard_sched.simulation.fieldpath import Problem, describe, field_path, shown
from capcard_sched.simulation.kinds import DEPLOYMENT, JOB, POD, REPLICA_SET, STATEFUL_SET, JsonObject
from capcard_sched.simulation.shapes import shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Path with `*` for every entry of a list or mapping.
Path: TypeAlias = tuple[str, ...]
#: What is wrong with a value, None when nothing is.
Check: TypeAlias = "Callable[[Any], str | None]"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_FORM = 'lower-case letters, digits, "-" and ".", starting and ending with a letter or digit'


def _one_of(*words: str) -> Check:
    def check(value: Any) -> str | None:
        accepted = ", ".join(word for word in words if word)
        return None if value in words else f"expected one of {accepted}, got {shown(value)}"

    return check


def _between(least: int, most: int | None = None) -> Check:
    def check(value: Any) -> str | None:
        if value < least:
            return f"must be at least {least}, got {value}"
        return f"must be at most {most}, got {value}" if most is not None and value > most else None

    return check


def _quantity(value: Any) -> str | None:
    try:
        return f"must not be negative, got {shown(value)}" if parse_quantity(value) < 0 else None
    except QuantityError as error:
        return str(error)


def _duration(value: Any) -> str | None:
    try:
        parse_duration(value)
    except DurationError as error:
        return f"{error}: expected {ACCEPTED}"
    return None


def _exit_code(value: Any) -> str | None:
    fits = isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}", value) is not None and int(value) <= 255
    return None if fits else f'expected a string with a number from 0 to 255, such as "1", got {shown(value)}'


def _count_or_percent(value: Any) -> str | None:
    if isinstance(value, int):
        return None if value >= 0 else f"must not be negative, got {value}"
    fits = re.fullmatch(r"[0-9]+%", str(value)) is not None
    return None if fits else f"expected a number or a percentage such as 25%, got {shown(value)}"


_OPERATORS = _one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_EFFECTS = _one_of("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED_AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"
_ACTIONS = _one_of("AbortJob", "RestartJob", "RestartTask", "RestartPod", "TerminateJob", "CompleteJob", "ResumeJob")
_EVENTS = _one_of("*", "PodPending", "PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "Unknown", "JobUpdated")

_TEMPLATE_RULES: tuple[tuple[Path, Check], ...] = (
    (("metadata", "annotations", SIMULATION_DURATION), _duration),
    (("metadata", "annotations", SIMULATION_GRACE), _duration),
    (("metadata", "annotations", SIMULATION_EXIT_CODE), _exit_code),
    (("spec", "terminationGracePeriodSeconds"), _between(0)),
    (("spec", "restartPolicy"), _one_of("Always", "OnFailure", "Never")),
    (("spec", "preemptionPolicy"), _one_of("PreemptLowerPriority", "Never")),
    (("spec", "overhead", "*"), _quantity),
    *(
        (("spec", group, "*", "resources", side, "*"), _quantity)
        for group in ("containers", "initContainers")
        for side in ("requests", "limits")
    ),
    (("spec", "resources", "requests", "*"), _quantity),
    (("spec", "resources", "limits", "*"), _quantity),
    (("spec", "tolerations", "*", "operator"), _one_of("Exists", "Equal", "Lt", "Gt", "")),
    (("spec", "tolerations", "*", "effect"), _one_of("NoSchedule", "PreferNoSchedule", "NoExecute", "")),
    (
        (
            *("spec", "affinity", "nodeAffinity", _REQUIRED_AFFINITY, "nodeSelectorTerms", "*"),
            *("matchExpressions", "*", "operator"),
        ),
        _OPERATORS,
    ),
    (
        ("spec", "topologySpreadConstraints", "*", "whenUnsatisfiable"),
        _one_of("DoNotSchedule", "ScheduleAnyway"),
    ),
)
_POLICY_RULES: tuple[tuple[Path, Check], ...] = (
    (("action",), _ACTIONS),
    (("event",), _EVENTS),
    (("events", "*"), _EVENTS),
    (("timeout",), _duration),
)


def _under(prefix: Path, rules: tuple[tuple[Path, Check], ...]) -> tuple[tuple[Path, Check], ...]:
    return tuple(((*prefix, *path), check) for path, check in rules)


_WORKLOAD_RULES: tuple[tuple[Path, Check], ...] = (
    (("spec", "replicas"), _between(0)),
    (("spec", "podManagementPolicy"), _one_of("OrderedReady", "Parallel")),
    (("spec", "strategy", "type"), _one_of("RollingUpdate", "Recreate")),
    (("spec", "strategy", "rollingUpdate", "maxSurge"), _count_or_percent),
    (("spec", "strategy", "rollingUpdate", "maxUnavailable"), _count_or_percent),
    (("spec", "updateStrategy", "type"), _one_of("RollingUpdate", "OnDelete")),
    *_under(("spec", "template"), _TEMPLATE_RULES),
)
_JOB_PHASES = (
    *("Pending", "Running", "Restarting", "Aborting", "Aborted", "Completing", "Completed"),
    *("Terminating", "Terminated", "Failed", ""),
)
RULES: dict[str, tuple[tuple[Path, Check], ...]] = {
    POD: (
        *_TEMPLATE_RULES,
        (("status", "phase"), _one_of("Pending", "Running", "Succeeded", "Failed", "Unknown")),
    ),
    DEPLOYMENT: _WORKLOAD_RULES,
    REPLICA_SET: _WORKLOAD_RULES,
    STATEFUL_SET: _WORKLOAD_RULES,
    JOB: (
        (("spec", "minAvailable"), _between(0)),
        (("spec", "maxRetry"), _between(0)),
        (("spec", "minSuccess"), _between(1)),
        (("spec", "ttlSecondsAfterFinished"), _between(0)),
        (("spec", "tasks", "*", "replicas"), _between(0)),
        (("spec", "tasks", "*", "minAvailable"), _between(0)),
        (("spec", "tasks", "*", "dependsOn", "iteration"), _one_of("any", "all")),
        (("status", "state", "phase"), _one_of(*_JOB_PHASES)),
        *_under(("spec", "policies", "*"), _POLICY_RULES),
        *_under(("spec", "tasks", "*", "policies", "*"), _POLICY_RULES),
        *_under(("spec", "tasks", "*", "template"), _TEMPLATE_RULES),
    ),
    "Node": (
        (("status", "allocatable", "*"), _quantity),
        (("status", "capacity", "*"), _quantity),
        (("spec", "taints", "*", "effect"), _EFFECTS),
        (("status", "conditions", "*", "status"), _one_of("True", "False", "Unknown")),
    ),
    "Queue": (
        (("spec", "weight"), _between(1, 65535)),
        (("spec", "capability", "*"), _quantity),
        (("spec", "deserved", "*"), _quantity),
        (("spec", "guarantee", "resource", "*"), _quantity),
        (("status", "state"), _one_of("Open", "Closed", "Closing", "Unknown", "")),
        (("status", "allocated", "*"), _quantity),
    ),
    "PodGroup": (
        (("spec", "minMember"), _between(0)),
        (("spec", "minTaskMember", "*"), _between(0)),
        (("spec", "minResources", "*"), _quantity),
        (("status", "phase"), _one_of("Pending", "Inqueue", "Running", "Unknown", "Completed", "")),
    ),
    "PriorityClass": (
        (("preemptionPolicy",), _one_of("PreemptLowerPriority", "Never")),
        (("value",), _between(-(2**31), 2**31 - 1)),
    ),
    "PersistentVolume": ((("spec", "capacity", "*"), _quantity),),
    "PersistentVolumeClaim": ((("spec", "resources", "requests", "*"), _quantity),),
    "ResourceQuota": ((("spec", "hard", "*"), _quantity),),
    "PodDisruptionBudget": (
        (("spec", "minAvailable"), _count_or_percent),
        (("spec", "maxUnavailable"), _count_or_percent),
    ),
    "Command": ((("target", "kind"), _one_of("Job", "Queue")),),
}


def check_object(kind: str, obj: JsonObject) -> Iterator[Problem]:
    """Everything that is wrong with a whole object; wrong types end the search."""
    found = False
    for problem in check_fields(kind, obj):
        found = True
        yield problem
    if not found:
        yield from _check_whole(kind, obj)


def check_fields(kind: str, obj: JsonObject) -> Iterator[Problem]:
    """What is wrong with the fields that are there: also for the body of a patch, which may leave others out."""
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        for field in ("labels", "annotations"):
            yield from _strings(metadata.get(field), ("metadata", field))
    try:
        msgspec.convert(obj, shape_of(kind))
    except msgspec.ValidationError as error:
        yield describe(error, obj)
        return
    for path, check in RULES.get(kind, ()):
        for place, value in _values(obj, path, ()):
            text = check(value)
            if text is not None:
                yield Problem(field_path(place), text)


def with_text_quantities(kind: str, obj: JsonObject) -> JsonObject:
    """The object with quantities that YAML made numbers as strings, the form in which an API server keeps them.

    Changes `obj` in place, which must have passed `check_fields`.
    """
    for path, check in RULES.get(kind, ()):
        if check is _quantity:
            for place, value in _values(obj, path, ()):
                if not isinstance(value, str):
                    holder: Any = obj
                    for step in place[:-1]:
                        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
                    holder[place[-1]] = str(value)
    return obj


def check_name(obj: JsonObject, namespaced: bool | None) -> Iterator[Problem]:
    """`metadata.name` and `metadata.namespace`: there, strings, and of the form the API server takes."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        if metadata is None:
            yield Problem("metadata.name", "is required")
        else:
            yield Problem("metadata", f"expected a mapping, got {shown(metadata)}")
        return
    for field in ("name", "namespace"):
        value = metadata.get(field)
        path = f"metadata.{field}"
        if value is None or value == "":
            if field == "name":
                yield Problem(path, "is required")
        elif not isinstance(value, str):
            yield Problem(path, f"expected a string, got {shown(value)}")
        elif namespaced is not None and (_NAME.fullmatch(value) is None or len(value) > 253):
            yield Problem(path, f"{shown(value)} is not a valid name: use {_NAME_FORM}")


def _strings(values: Any, place: Path) -> Iterator[Problem]:
    for key, value in values.items() if isinstance(values, dict) else ():
        if not isinstance(value, str):
            hint = ": put it in quotes" if not isinstance(value, dict | list) else ""
            yield Problem(field_path((*place, key)), f"expected a string, got {shown(value)}{hint}")


def _values(value: Any, path: Path, place: Path) -> Iterator[tuple[Path, Any]]:
    """Every value that is there under a rule's path, with its own path."""
    if value is None:
        return
    if not path:
        yield place, value
        return
    step, rest = path[0], path[1:]
    if isinstance(value, list):
        if step == "*":
            for index, entry in enumerate(value):
                yield from _values(entry, rest, (*place, str(index)))
    elif isinstance(value, dict):
        for key in list(value) if step == "*" else (step,):
            yield from _values(value.get(key), rest, (*place, key))


# --- rules about a whole object -------------------------------------------------------------------------------------


def _check_whole(kind: str, obj: JsonObject) -> Iterator[Problem]:
    spec = obj.get("spec") or {}
    if kind == POD:
        yield from _check_pod(spec, ("spec",))
    elif kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET):
        yield from _check_workload(spec)
    elif kind == JOB:
        yield from _check_job(spec)
    elif kind == "PriorityClass" and "value" not in obj:
        yield Problem("value", "is required")
    elif kind == "Command":
        for field, value in (("action", obj.get("action")), ("target", obj.get("target"))):
            if not value:
                yield Problem(field, "is required")


def _check_pod(spec: JsonObject, place: Path) -> Iterator[Problem]:
    if not spec.get("containers"):
        yield Problem(field_path((*place, "containers")), "is required: a pod has at least one container")
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            for name, request in (resources.get("requests") or {}).items():
                if name in limits and parse_quantity(request) > parse_quantity(limits[name]):
                    path = field_path((*place, group, str(index), "resources", "requests", name))
                    yield Problem(path, f"{request} is more than its limit {limits[name]}")


def _check_workload(spec: JsonObject) -> Iterator[Problem]:
    template = spec.get("template")
    if not template:
        yield Problem("spec.template", "is required")
        return
    yield from _check_pod(template.get("spec") or {}, ("spec", "template", "spec"))
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    for key, value in wanted.items():
        if labels.get(key) != value:
            path = field_path(("spec", "selector", "matchLabels", key))
            yield Problem(path, f"{key}={value} is not a label of spec.template, which must match its own selector")


def _check_job(spec: JsonObject) -> Iterator[Problem]:
    tasks = spec.get("tasks") or []
    if not tasks:
        yield Problem("spec.tasks", "is required: a Job has at least one task")
        return
    seen: set[str] = set()
    for index, task in enumerate(tasks):
        place = ("spec", "tasks", str(index))
        name = task.get("name") or f"default{index}"
        if _NAME.fullmatch(name) is None:
            yield Problem(field_path((*place, "name")), f"{shown(name)} is not a valid name: use {_NAME_FORM}")
        if name in seen:
            yield Problem(field_path((*place, "name")), f'the task name "{name}" occurs twice')
        seen.add(name)
        replicas = task.get("replicas", 1)
        if task.get("minAvailable", 0) > replicas:
            text = f"{task['minAvailable']} is more than the {replicas} replicas of the task"
            yield Problem(field_path((*place, "minAvailable")), text)
        template = task.get("template") or {}
        yield from _check_pod(template.get("spec") or {}, (*place, "template", "spec"))
        yield from _check_policies(task.get("policies"), (*place, "policies"))
    total = sum(task.get("replicas", 1) for task in tasks)
    if spec.get("minAvailable", 0) > total:
        yield Problem("spec.minAvailable", f"{spec['minAvailable']} is more than the {total} replicas of all tasks")
    names = {task.get("name") or f"default{index}": task for index, task in enumerate(tasks)}
    for index, task in enumerate(tasks):
        for other in (task.get("dependsOn") or {}).get("name") or ():
            path = field_path(("spec", "tasks", str(index), "dependsOn", "name"))
            if other not in names:
                yield Problem(path, f'there is no task "{other}"')
    if _has_cycle({name: (task.get("dependsOn") or {}).get("name") or [] for name, task in names.items()}):
        yield Problem("spec.tasks", "the tasks depend on each other in a circle")
    yield from _check_policies(spec.get("policies"), ("spec", "policies"))


def _check_policies(policies: Any, place: Path) -> Iterator[Problem]:
    for index, policy in enumerate(policies or ()):
        path = field_path((*place, str(index)))
        events = [event for event in (policy.get("event"), *(policy.get("events") or ())) if event]
        if events and policy.get("exitCode") is not None:
            yield Problem(path, "has both an event and an exitCode: give one of them")
        elif not events and policy.get("exitCode") is None:
            yield Problem(path, "needs an event, events or an exitCode")
        if policy.get("exitCode") == 0:
            yield Problem(f"{path}.exitCode", "0 is not an error code")
        if not policy.get("action"):
            yield Problem(f"{path}.action", "is required")


def _has_cycle(graph: dict[str, list[str]]) -> bool:
    remaining = {name: {other for other in others if other in graph} for name, others in graph.items()}
    while remaining:
        free = [name for name, others in remaining.items() if not others]
        if not free:
            return True
        for name in free:
            del remaining[name]
        for others in remaining.values():
            others.difference_update(free)
    return False
