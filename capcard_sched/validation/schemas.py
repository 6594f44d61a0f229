"""Types of the fields of known kinds: each input object is decoded once, to find wrong types.

Schemas extend the structs of the model by the fields that only the simulated cluster uses. Unknown fields are
kept and not validated; enumerations and bounds are validated by `checks`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from capcard_sched.model.kinds import KINDS
from capcard_sched.model.limits import DisruptionBudgetSpec, PodDisruptionBudgetObject
from capcard_sched.model.objects import ApiStruct, LabelSelector, NetworkTopologySpec, ObjectMeta, PodObject, PodSpec
from capcard_sched.model.volumes import (
    PersistentVolumeClaimSpec,
    PersistentVolumeObject,
    PersistentVolumeSpec,
    StorageClassObject,
)

IntOrText: TypeAlias = int | str


class MetaShape(ObjectMeta, frozen=True):
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] | None = None
    generation: int | None = None


class PodSpecShape(PodSpec, frozen=True):
    restart_policy: str | None = None


class PodShape(PodObject, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: PodSpecShape = PodSpecShape()


class TemplateShape(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpecShape = PodSpecShape()


class RollingUpdateShape(ApiStruct, frozen=True):
    max_surge: IntOrText | None = None
    max_unavailable: IntOrText | None = None
    partition: int | None = None


class StrategyShape(ApiStruct, frozen=True):
    type: str | None = None
    rolling_update: RollingUpdateShape | None = None


class ClaimTemplateShape(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class WorkloadSpecShape(ApiStruct, frozen=True):
    """Of Deployments, ReplicaSets and StatefulSets."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: TemplateShape = TemplateShape()
    strategy: StrategyShape | None = None
    update_strategy: StrategyShape | None = None
    pod_management_policy: str | None = None
    service_name: str | None = None
    volume_claim_templates: tuple[ClaimTemplateShape, ...] | None = None
    paused: bool | None = None


class WorkloadShape(ApiStruct, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: WorkloadSpecShape = WorkloadSpecShape()
    status: dict[str, Any] = {}


class PolicyShape(ApiStruct, frozen=True):
    action: str | None = None
    event: str | None = None
    events: tuple[str, ...] | None = None
    exit_code: int | None = None
    #: A duration; validated by `constraints`.
    timeout: str | int | float | None = None


class DependsOnShape(ApiStruct, frozen=True):
    name: tuple[str, ...] | None = None
    iteration: str | None = None


class PartitionPolicyShape(ApiStruct, frozen=True):
    total_partitions: int | None = None
    partition_size: int | None = None
    min_partitions: int | None = None
    network_topology: NetworkTopologySpec | None = None


class TaskShape(ApiStruct, frozen=True):
    name: str | None = None
    replicas: int | None = None
    min_available: int | None = None
    template: TemplateShape = TemplateShape()
    policies: tuple[PolicyShape, ...] | None = None
    max_retry: int | None = None
    depends_on: DependsOnShape | None = None
    partition_policy: PartitionPolicyShape | None = None
    topology_policy: str | None = None


class JobSpecShape(ApiStruct, frozen=True):
    scheduler_name: str | None = None
    min_available: int | None = None
    tasks: tuple[TaskShape, ...] = ()
    policies: tuple[PolicyShape, ...] | None = None
    plugins: dict[str, tuple[str, ...] | None] | None = None
    queue: str | None = None
    max_retry: int | None = None
    min_success: int | None = None
    ttl_seconds_after_finished: int | None = None
    priority_class_name: str | None = None
    network_topology: NetworkTopologySpec | None = None


class JobStateShape(ApiStruct, frozen=True):
    phase: str | None = None


class JobStatusShape(ApiStruct, frozen=True):
    state: JobStateShape = JobStateShape()
    version: int = 0
    retry_count: int = 0


class JobShape(ApiStruct, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: JobSpecShape = JobSpecShape()
    status: JobStatusShape = JobStatusShape()


class CommandTargetShape(ApiStruct, frozen=True):
    kind: str = ""
    name: str = ""
    api_version: str = ""
    uid: str = ""


class CommandShape(ApiStruct, frozen=True):
    metadata: MetaShape = MetaShape()
    action: str = ""
    target: CommandTargetShape = CommandTargetShape()


class VolumeSpecShape(PersistentVolumeSpec, frozen=True):
    persistent_volume_reclaim_policy: str | None = None


class VolumeShape(PersistentVolumeObject, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: VolumeSpecShape = VolumeSpecShape()


class StorageClassShape(StorageClassObject, frozen=True):
    metadata: MetaShape = MetaShape()
    reclaim_policy: str | None = None


class BudgetSpecShape(DisruptionBudgetSpec, frozen=True):
    min_available: IntOrText | None = None
    max_unavailable: IntOrText | None = None


class BudgetShape(PodDisruptionBudgetObject, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: BudgetSpecShape = BudgetSpecShape()


class EventShape(ApiStruct, frozen=True):
    metadata: MetaShape = MetaShape()
    reason: str | None = None
    message: str | None = None
    type: str | None = None
    count: int | None = None


class PlainShape(ApiStruct, frozen=True):
    """Metadata only: unknown kinds."""

    metadata: MetaShape = MetaShape()


def _with_meta(model: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The struct of the model, with the metadata that the simulated cluster reads."""
    fields = [("metadata", MetaShape, MetaShape())]
    return msgspec.defstruct(f"{model.__name__}Shape", fields, bases=(model,), frozen=True)


_OWN_SHAPES: dict[str, type[msgspec.Struct]] = {
    "Pod": PodShape,
    "Event": EventShape,
    "PersistentVolume": VolumeShape,
    "StorageClass": StorageClassShape,
    "PodDisruptionBudget": BudgetShape,
    "Job": JobShape,
    "Deployment": WorkloadShape,
    "ReplicaSet": WorkloadShape,
    "StatefulSet": WorkloadShape,
    "Command": CommandShape,
}
#: The schema of each known kind; of others it is `PlainShape`.
SHAPES: dict[str, type[msgspec.Struct]] = {
    kind.name: _with_meta(kind.watch.type) for kind in KINDS if kind.watch is not None
} | _OWN_SHAPES
