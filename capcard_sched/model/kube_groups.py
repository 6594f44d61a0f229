"""PodGroups of `scheduling.k8s.io`, translated into those of Volcano: the scheduler knows one kind of group.

The translation of `ns/x` has the name `kube:x`, which no PodGroup of Volcano can have. Its phase and its counts exist
in the scheduler only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.model.annotations import EVICT_SCOPE, HELD, POD_QUEUE_NAME, PREEMPTION_POLICY, TOPOLOGY_LABEL
from capcard_sched.model.objects import ApiStruct, ObjectMeta, PodGroupObject, PodGroupSpec, PodGroupStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.objects import PodGroupCondition

KUBE_API: Final = "scheduling.k8s.io/v1beta1"
#: As `model.kinds.qualified_kind` names it.
KUBE_GROUP: Final = f"PodGroup.{KUBE_API}"
#: The conditions that the scheduler writes.
INITIALLY_SCHEDULED: Final = "PodGroupInitiallyScheduled"
DISRUPTION_TARGET: Final = "DisruptionTarget"
_PREFIX: Final = "kube:"
#: Annotations of the translation, which no object may set.
_INTERNAL: Final = (HELD, PREEMPTION_POLICY, TOPOLOGY_LABEL)


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
    scheduling_policy: KubePolicy | None = None
    scheduling_constraints: KubeConstraints | None = None
    resource_claims: tuple[Any, ...] | None = None
    disruption_mode: str | dict[str, Any] | None = None
    priority_class_name: str | None = None
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


def held_text(spec: KubeGroupSpec) -> str:
    """The unsupported fields of a PodGroup as a sentence; "" without any."""
    policy, constraints = spec.scheduling_policy or KubePolicy(), spec.scheduling_constraints or KubeConstraints()
    if spec.parent_composite_pod_group_name:
        return "composite pod groups are not supported"
    if spec.resource_claims:
        return "claims of a PodGroup are not supported"
    keys = [each.key for each in constraints.topology or ()]
    if len(keys) > 1 or "" in keys:
        return f"schedulingConstraints.topology has not exactly one key ({', '.join(keys)})"
    if (policy.basic is None) is (policy.gang is None):
        return "spec.schedulingPolicy of the PodGroup has not exactly one of basic and gang"
    return ""


def translated(group: KubePodGroup) -> PodGroupObject:
    """The equal PodGroup of Volcano. Its pods are each a unit of their own under the policy basic."""
    meta, spec = group.metadata, group.spec
    gang = spec.scheduling_policy.gang if spec.scheduling_policy is not None else None
    notes = {key: text for key, text in (meta.annotations or {}).items() if key not in _INTERNAL}
    held = held_text(spec)
    if held:
        notes[HELD] = held
    if spec.scheduling_constraints is not None and spec.scheduling_constraints.topology:
        notes[TOPOLOGY_LABEL] = spec.scheduling_constraints.topology[0].key
    if spec.preemption_policy:
        notes[PREEMPTION_POLICY] = spec.preemption_policy
    mode = spec.disruption_mode
    if mode in ("all", "All") or (isinstance(mode, dict) and "all" in mode):
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
