"""Validates input objects as an API server does: types of fields, their constraints, and rules about a whole object.

Schemas extend the structs of the model by the fields that only the simulated cluster uses. Each object is decoded once,
to find wrong types. Unknown fields are kept and not validated; `constraints` validates enumerations and bounds.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model.card_budgets import CARD_BUDGET, CardBudgetObject, card_budget_facts
from capcard_sched.model.decode_errors import field_path, field_problem
from capcard_sched.model.groups import SubGroupPolicySpec
from capcard_sched.model.kinds import KINDS
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.limits import DisruptionBudgetSpec, PodDisruptionBudgetObject
from capcard_sched.model.objects import (
    ApiStruct,
    LabelSelector,
    NetworkTopologySpec,
    ObjectMeta,
    PodGroupObject,
    PodGroupSpec,
    PodObject,
    PodSpec,
)
from capcard_sched.model.quantity import parse_quantity
from capcard_sched.model.quoting import shown
from capcard_sched.model.volumes import (
    PersistentVolumeClaimSpec,
    PersistentVolumeObject,
    PersistentVolumeSpec,
    StorageClassObject,
)
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.constraints import COMMON_RULES, RULES, quantity
from capcard_sched.validation.device_structure import check_device_object
from capcard_sched.validation.job_structure import check_job_structure
from capcard_sched.validation.names import is_subdomain
from capcard_sched.validation.pod_resources import check_pod_level
from capcard_sched.validation.pod_templates import check_pod_claims

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.validation.inventory import Json

    #: Keys and indices from the top of an object to a value.
    Path = tuple[str, ...]


def _shape(base: type[msgspec.Struct] = ApiStruct, **fields: Any) -> Any:
    """`base` with further fields, all of which may be missing."""
    optional = [(name, of, None) for name, of in fields.items()]
    return msgspec.defstruct(f"{base.__name__}Shape", optional, bases=(base,), frozen=True)


def _list(of: Any) -> Any:
    """A list that may be missing."""
    return GenericAlias(tuple, (of, ...)) | None


_TEXT, _TEXTS, _INTEGER, _COUNT = str | None, tuple[str, ...] | None, int | None, int | str | None
_META = _shape(ObjectMeta, deletion_grace_period_seconds=_INTEGER, finalizers=_TEXTS, generation=_INTEGER)
_POD_SPEC = _shape(PodSpec, restart_policy=_TEXT)
_TEMPLATE = _shape(metadata=ObjectMeta, spec=_POD_SPEC)

# --- Deployments, ReplicaSets and StatefulSets
_ROLLING_UPDATE = _shape(max_surge=_COUNT, max_unavailable=_COUNT, partition=_INTEGER)
_STRATEGY = _shape(type=_TEXT, rolling_update=_ROLLING_UPDATE | None)
_CLAIM_TEMPLATE = _shape(metadata=ObjectMeta, spec=PersistentVolumeClaimSpec)
_WORKLOAD_SPEC = _shape(
    replicas=_INTEGER,
    selector=LabelSelector | None,
    template=_TEMPLATE,
    strategy=_STRATEGY | None,
    update_strategy=_STRATEGY | None,
    pod_management_policy=_TEXT,
    service_name=_TEXT,
    volume_claim_templates=_list(_CLAIM_TEMPLATE),
    paused=bool | None,
)
_WORKLOAD = _shape(metadata=_META, spec=_WORKLOAD_SPEC, status=dict[str, Any])
_BATCH_JOB_SPEC = _shape(
    parallelism=_INTEGER,
    completions=_INTEGER,
    completion_mode=_TEXT,
    backoff_limit=_INTEGER,
    suspend=bool | None,
    managed_by=_TEXT,
    ttl_seconds_after_finished=_INTEGER,
    template=_TEMPLATE,
)
_BATCH_JOB_STATUS = _shape(
    active=_INTEGER, succeeded=_INTEGER, failed=_INTEGER, conditions=_list(_shape(type=_TEXT, status=_TEXT))
)

# --- Jobs
_POLICY = _shape(
    action=_TEXT,
    event=_TEXT,
    events=_TEXTS,
    exit_code=_INTEGER,
    timeout=str | int | float | None,  # a duration; validated by `constraints`
)
_DEPENDS_ON = _shape(name=_TEXTS, iteration=_TEXT)
_PARTITION_POLICY = _shape(
    total_partitions=_INTEGER,
    partition_size=_INTEGER,
    min_partitions=_INTEGER,
    network_topology=NetworkTopologySpec | None,
)
_TASK = _shape(
    name=_TEXT,
    replicas=_INTEGER,
    min_available=_INTEGER,
    template=_TEMPLATE,
    policies=_list(_POLICY),
    max_retry=_INTEGER,
    depends_on=_DEPENDS_ON | None,
    partition_policy=_PARTITION_POLICY | None,
    topology_policy=_TEXT,
)
_JOB_SPEC = _shape(
    scheduler_name=_TEXT,
    min_available=_INTEGER,
    tasks=_list(_TASK),
    policies=_list(_POLICY),
    plugins=dict[str, tuple[str, ...] | None] | None,
    queue=_TEXT,
    max_retry=_INTEGER,
    min_success=_INTEGER,
    ttl_seconds_after_finished=_INTEGER,
    priority_class_name=_TEXT,
    network_topology=NetworkTopologySpec | None,
)
_JOB_STATUS = _shape(state=_shape(phase=_TEXT), version=int, retry_count=int)

_COMMAND_TARGET = _shape(kind=str, name=str, api_version=str, uid=str)
_VOLUME_SPEC = _shape(PersistentVolumeSpec, persistent_volume_reclaim_policy=_TEXT)
_POD_GROUP_SPEC = _shape(PodGroupSpec, sub_group_policy=_list(SubGroupPolicySpec))
_BUDGET_SPEC = _shape(DisruptionBudgetSpec, min_available=_COUNT, max_unavailable=_COUNT)

#: Metadata only: of unknown kinds.
_PLAIN = _shape(metadata=_META)
#: The schema of each known kind: the struct of the model with the metadata that the simulated cluster reads, or more.
SHAPES: dict[str, Any] = {
    kind.name: _shape(kind.watch.type, metadata=_META) for kind in KINDS if kind.watch is not None
} | {
    "Pod": _shape(PodObject, metadata=_META, spec=_POD_SPEC),
    "Event": _shape(metadata=_META, reason=_TEXT, message=_TEXT, type=_TEXT, count=_INTEGER),
    "PodGroup": _shape(PodGroupObject, metadata=_META, spec=_POD_GROUP_SPEC),
    "PersistentVolume": _shape(PersistentVolumeObject, metadata=_META, spec=_VOLUME_SPEC),
    "StorageClass": _shape(StorageClassObject, metadata=_META, reclaim_policy=_TEXT),
    "PodDisruptionBudget": _shape(PodDisruptionBudgetObject, metadata=_META, spec=_BUDGET_SPEC),
    "Job": _shape(metadata=_META, spec=_JOB_SPEC, status=_JOB_STATUS),
    "Deployment": _WORKLOAD,
    "ReplicaSet": _WORKLOAD,
    "StatefulSet": _WORKLOAD,
    "Job.batch/v1": _shape(metadata=_META, spec=_BATCH_JOB_SPEC, status=_BATCH_JOB_STATUS),
    "Command": _shape(metadata=_META, action=str, target=_COMMAND_TARGET),
}


_NAME_FORM = 'lower-case letters, digits, "-" and ".", starting and ending with a letter or digit'


def check_object(kind: str, obj: Json) -> Iterator[Finding]:
    """Yields the problems of a whole object; a wrong type is the only one reported."""
    yield from list(check_fields(kind, obj)) or _check_whole(kind, obj)


def check_fields(kind: str, obj: Json) -> Iterator[Finding]:
    """Yields the problems of the present fields; the body of a patch may omit others."""
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        fields = ("labels", "annotations")
        problems = [each for field in fields for each in _strings(metadata.get(field), ("metadata", field))]
        if problems:  # the decoder would report the same again
            yield from problems
            return
    try:
        msgspec.convert(obj, SHAPES.get(kind, _PLAIN))
    except msgspec.ValidationError as error:
        problem = field_problem(error, obj)
        yield Finding("error", problem.field or "the document", problem.message)
        return
    for path, check in (*COMMON_RULES, *RULES.get(kind, ())):
        for place, value in _values(obj, path.split(), ()):
            text = check(value)
            if text is not None:
                yield Finding("error", field_path(place), text)


def with_text_quantities(kind: str, obj: Json) -> Json:
    """Converts quantities that YAML decoded as numbers to strings, the form of an API server.

    Changes `obj` in place, which must have passed `check_fields`.
    """
    for path, check in RULES.get(kind, ()):
        if check is quantity:
            for place, value in _values(obj, path.split(), ()):
                if not isinstance(value, str):
                    holder: Any = obj
                    for step in place[:-1]:
                        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
                    holder[place[-1]] = str(value)
    return obj


def _plain_name(obj: Json, field: str, value: str) -> str:
    """A name; of a PodGroup of `scheduling.k8s.io` in a saved state that of the object it translates."""
    return (kube_name(value) or value) if field == "name" and obj.get("kind") == "PodGroup" else value


def check_name(obj: Json, namespaced: bool | None) -> Iterator[Finding]:
    """Yields problems of `metadata.name` and `metadata.namespace`: absent, not a string, or of a wrong form."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        if metadata is None:
            yield Finding("error", "metadata.name", "is required")
        else:
            yield Finding("error", "metadata", f"expected a mapping, got {shown(metadata)}")
        return
    prefix = metadata.get("generateName")
    if prefix is not None and not isinstance(prefix, str):
        yield Finding("error", "metadata.generateName", f"expected a string, got {shown(prefix)}")
        return
    for field in ("name", "namespace"):
        value = metadata.get(field)
        is_generated = field == "name" and bool(prefix) and str(value).startswith(str(prefix)[:58])
        path = "metadata.generateName" if is_generated else f"metadata.{field}"
        if value is None or value == "":
            if field == "name":
                yield Finding("error", path, "is required")
        elif not isinstance(value, str):
            yield Finding("error", path, f"expected a string, got {shown(value)}")
        elif namespaced is not None and not is_subdomain(_plain_name(obj, field, value)):
            text = prefix if is_generated else value
            yield Finding("error", path, f"{shown(text)} is not a valid name: use {_NAME_FORM}")


def _strings(values: Any, place: Path) -> Iterator[Finding]:
    for key, value in values.items() if isinstance(values, dict) else ():
        if not isinstance(value, str):
            hint = ": put it in quotes" if not isinstance(value, dict | list) else ""
            yield Finding("error", field_path((*place, key)), f"expected a string, got {shown(value)}{hint}")


def _values(value: Any, path: Sequence[str], place: Path) -> Iterator[tuple[Path, Any]]:
    """Yields every present value under the path of a rule, with its own path."""
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


def _check_whole(kind: str, obj: Json) -> Iterator[Finding]:
    spec = obj.get("spec") or {}
    if kind == "Pod":
        yield from _check_pod(spec, ("spec",))
    elif kind in ("Deployment", "ReplicaSet", "StatefulSet", "Job.batch/v1"):
        yield from _check_workload(spec)
    elif kind == "Job":
        yield from _check_job(obj)
    elif kind == CARD_BUDGET:
        yield from _check_card_budget(obj)
    elif kind == "PriorityClass" and "value" not in obj:
        yield Finding("error", "value", "is required")
    elif kind == "Command":
        for field in ("action", "target"):
            if not obj.get(field):
                yield Finding("error", field, "is required")
    else:
        yield from check_device_object(kind, obj)


def _check_card_budget(obj: Json) -> Iterator[Finding]:
    _, problems = card_budget_facts(msgspec.convert(obj, CardBudgetObject))
    for problem in problems:
        yield Finding("error", problem.field, problem.message)


def _check_pod(spec: Json, place: Path) -> Iterator[Finding]:
    if not spec.get("containers"):
        yield Finding("error", field_path((*place, "containers")), "is required: a pod has at least one container")
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            for name, request in (resources.get("requests") or {}).items():
                if name in limits and parse_quantity(request) > parse_quantity(limits[name]):
                    path = field_path((*place, group, str(index), "resources", "requests", name))
                    yield Finding("error", path, f"{request} is more than its limit {limits[name]}")
    yield from check_pod_level(spec, field_path((*place, "resources")))
    for finding in check_pod_claims(spec, field_path(place)):
        yield msgspec.structs.replace(finding, message=f"{finding.message}; accepted: {finding.accepted}", accepted="")


def _check_workload(spec: Json) -> Iterator[Finding]:
    template = spec.get("template")
    if not template:
        yield Finding("error", "spec.template", "is required")
        return
    yield from _check_pod(template.get("spec") or {}, ("spec", "template", "spec"))
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    for key, value in wanted.items():
        if labels.get(key) != value:
            path = field_path(("spec", "selector", "matchLabels", key))
            message = f"{key}={value} is not a label of spec.template, which must match its own selector"
            yield Finding("error", path, message)


def _check_job(obj: Json) -> Iterator[Finding]:
    """The rules of the webhook, and the pod templates."""
    spec = obj.get("spec") or {}
    tasks = [
        {**task, "name": task.get("name") or f"default{index}"} for index, task in enumerate(spec.get("tasks") or ())
    ]
    for finding in check_job_structure({**obj, "spec": {**spec, "tasks": tasks}}):
        if finding.severity == "error":
            yield Finding("error", finding.field, f"{finding.message}; accepted: {finding.accepted}")
    for index, task in enumerate(tasks):
        template = task.get("template") or {}
        yield from _check_pod(template.get("spec") or {}, ("spec", "tasks", str(index), "template", "spec"))
