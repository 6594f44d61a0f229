"""PodGroups of `scheduling.k8s.io`, translated into those of Volcano: the scheduler knows one kind of group.

The translation of `ns/x` has the name `kube:x`, which no PodGroup of Volcano can have. Its phase and its counts exist
in the scheduler only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.annotations import (
    EVICT_SCOPE,
    GROUP_PRIORITY,
    HELD,
    POD_QUEUE_NAME,
    PREEMPTION_POLICY,
    TOPOLOGY_LABEL,
)
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.objects import ApiStruct, ObjectMeta, PodGroupObject, PodGroupSpec, PodGroupStatus
from capcard_sched.model.quoting import brief, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from capcard_sched.model.decode_errors import FieldProblem
    from capcard_sched.model.objects import PodGroupCondition

KUBE_API: Final = "scheduling.k8s.io/v1beta1"
#: As `model.kinds.qualified_kind` names it.
KUBE_GROUP: Final = f"PodGroup.{KUBE_API}"
#: The conditions that the scheduler writes.
INITIALLY_SCHEDULED: Final = "PodGroupInitiallyScheduled"
DISRUPTION_TARGET: Final = "DisruptionTarget"
_PREFIX: Final = "kube:"
#: Annotations of the translation, which no object may set.
_INTERNAL: Final = (HELD, GROUP_PRIORITY, PREEMPTION_POLICY, TOPOLOGY_LABEL)
#: The fields that the scheduler reads, by name; others of the same objects change what a PodGroup demands.
_KNOWN: Final[Mapping[str, Any]] = {
    "schedulingPolicy": {"basic": {}, "gang": {"minCount": {}}},
    "schedulingConstraints": {"topology": {"key": {}}},
}


class KubeGang(ApiStruct, frozen=True):
    min_count: int = 1


class KubePolicy(ApiStruct, frozen=True):
    """Exactly one of the fields is set."""

    basic: dict[str, Any] | None = None
    gang: KubeGang | None = None


class KubeTopology(ApiStruct, frozen=True):
    key: str = ""


class KubeConstraints(ApiStruct, frozen=True):
    topology: tuple[KubeTopology, ...] | None = None


class KubeGroupSpec(ApiStruct, frozen=True):
    #: `KubePolicy` and `KubeConstraints` as written: a field that the scheduler does not know holds the group back.
    scheduling_policy: dict[str, Any] | None = None
    scheduling_constraints: dict[str, Any] | None = None
    resource_claims: tuple[Any, ...] | None = None
    disruption_mode: str | dict[str, Any] | None = None
    priority_class_name: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    parent_composite_pod_group_name: str | None = None


class KubeCondition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""


class KubeGroupStatus(ApiStruct, frozen=True):
    conditions: tuple[KubeCondition, ...] | None = None


class KubePodGroup(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: KubeGroupSpec = KubeGroupSpec()
    status: KubeGroupStatus = KubeGroupStatus()


def job_name(name: str) -> str:
    """The name of the translation of a PodGroup."""
    return f"{_PREFIX}{name}"


def kube_name(name: str) -> str:
    """The name of the PodGroup of `scheduling.k8s.io` that a job translates; "" for another job."""
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def type_problem(spec: KubeGroupSpec) -> FieldProblem | None:
    """The first field that the scheduler reads and whose value has a wrong type."""
    for field, value, form in (
        ("spec.schedulingPolicy", spec.scheduling_policy, KubePolicy),
        ("spec.schedulingConstraints", spec.scheduling_constraints, KubeConstraints),
    ):
        try:
            msgspec.convert(value or {}, form)
        except msgspec.ValidationError as error:
            return field_problem(error, value).within(field)
    return None


def held_text(spec: KubeGroupSpec, group: str = "the PodGroup") -> str:
    """The fields of a PodGroup that are unsupported or malformed, as a sentence; "" without any."""
    written = {"schedulingPolicy": spec.scheduling_policy, "schedulingConstraints": spec.scheduling_constraints}
    unknown = [place for field, value in written.items() for place in _unknown(value, _KNOWN[field], f"spec.{field}")]
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        return f"{brief(unknown)} of {group} {verb} not supported"
    problem = type_problem(spec)
    if problem is not None:
        return f"{problem.field} of {group}: {problem.message}"
    policy, constraints = _policy(spec), _constraints(spec)
    if spec.parent_composite_pod_group_name:
        return f"spec.parentCompositePodGroupName of {group} is not supported"
    if spec.resource_claims:
        return f"spec.resourceClaims of {group} is not supported"
    if _disruption(spec) is None:
        return f"spec.disruptionMode {_shown_mode(spec)} of {group} is not supported"
    keys = [each.key for each in constraints.topology or ()]
    if len(keys) > 1 or "" in keys:
        return f"spec.schedulingConstraints.topology of {group} has not exactly one key ({', '.join(keys)})"
    if (policy.basic is None) is (policy.gang is None):
        return f"spec.schedulingPolicy of {group} has not exactly one of basic and gang"
    return ""


def _disruption(spec: KubeGroupSpec) -> str | None:
    """`single` or `all`; None for a mode that the scheduler does not know."""
    mode = spec.disruption_mode
    names = [mode] if mode and isinstance(mode, str) else list(mode or {"single": {}})
    name = str(names[0]).lower() if len(names) == 1 else ""
    return name if name in ("single", "all") else None


def _shown_mode(spec: KubeGroupSpec) -> str:
    mode = spec.disruption_mode
    return brief([shortened(str(name)) for name in ([mode] if isinstance(mode, str) else mode or ())])


def _policy(spec: KubeGroupSpec) -> KubePolicy:
    return msgspec.convert(spec.scheduling_policy or {}, KubePolicy)


def _constraints(spec: KubeGroupSpec) -> KubeConstraints:
    return msgspec.convert(spec.scheduling_constraints or {}, KubeConstraints)


def _unknown(value: object, known: Mapping[str, Any], place: str) -> Iterator[str]:
    """The places of fields that are not `known`: a name to its own known fields."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown(item, known, f"{place}[{number}]")
    elif isinstance(value, dict):
        for name, content in value.items():
            if name not in known:
                yield f"{place}.{shortened(str(name))}"
            else:
                yield from _unknown(content, known[name], f"{place}.{name}")


def translated(group: KubePodGroup) -> PodGroupObject:
    """The equal PodGroup of Volcano. Its pods are each a unit of their own under the policy basic."""
    meta, spec = group.metadata, group.spec
    notes = {key: text for key, text in (meta.annotations or {}).items() if key not in _INTERNAL}
    held = held_text(spec, f"PodGroup {meta.name}")
    gang, topology = None, None
    if held:
        notes[HELD] = held
    else:
        gang, topology = _policy(spec).gang, _constraints(spec).topology
    if topology:
        notes[TOPOLOGY_LABEL] = topology[0].key
    if spec.priority is not None:
        notes[GROUP_PRIORITY] = str(spec.priority)
    if spec.preemption_policy:
        notes[PREEMPTION_POLICY] = spec.preemption_policy
    if _disruption(spec) == "all":
        notes.setdefault(EVICT_SCOPE, "job")
    started = any(row.type == INITIALLY_SCHEDULED and row.status == "True" for row in group.status.conditions or ())
    return PodGroupObject(
        ObjectMeta(
            job_name(meta.name),
            meta.namespace,
            meta.uid,
            meta.resource_version,
            meta.creation_timestamp,
            annotations=notes,
            labels=meta.labels,
        ),
        PodGroupSpec(
            min_member=max(1, gang.min_count) if gang is not None else 1,
            queue=notes.get(POD_QUEUE_NAME),
            priority_class_name=spec.priority_class_name,
        ),
        PodGroupStatus(phase="Running" if started else "Pending"),
    )


def unschedulable_text(conditions: Iterable[PodGroupCondition]) -> str:
    """The message of the condition Unschedulable of a job, "" without one."""
    return next((row.message for row in conditions if row.type == "Unschedulable" and row.status == "True"), "")


def disruption(scheduler_name: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition DisruptionTarget of evicted pods, and of wholly evicted groups."""
    return "True", "PreemptionByScheduler", f"{scheduler_name}: preempting to accommodate a higher priority pod"


def kube_condition(phase: str, message: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition, by the phase of the job: once a gang ran, it stays True."""
    if phase in ("Pending", "Inqueue"):
        return "False", "Unschedulable", message
    return "True", "Scheduled", "the minimum of the PodGroup is bound"
