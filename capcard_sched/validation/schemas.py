"""Types of the fields of known kinds: each input object is decoded once, to find wrong types.

Schemas extend the structs of the model by the fields that only the simulated cluster uses. Unknown fields are
kept and not validated; enumerations and bounds are validated by `checks`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.model.objects import (
    LabelSelector,
    NetworkTopologySpec,
    NodeObject,
    ObjectMeta,
    PodGroupObject,
    PodGroupSpec,
    PodObject,
    PodSpec,
    PriorityClassObject,
    QueueObject,
    QueueSpec,
    QueueStatus,
    RawAmounts,
)
from capcard_sched.model.volumes import (
    CSIDriverObject,
    CSINodeObject,
    CSIStorageCapacityObject,
    PersistentVolumeClaimObject,
    PersistentVolumeClaimSpec,
    PersistentVolumeObject,
    PersistentVolumeSpec,
    StorageClassObject,
    VolumeAttachmentObject,
)

IntOrText: TypeAlias = int | str


class _Shape(msgspec.Struct, rename="camel", frozen=True):
    """Base: camelCase on the wire."""


class MetaShape(ObjectMeta, frozen=True):
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] | None = None
    generation: int | None = None


class PodSpecShape(PodSpec, frozen=True):
    restart_policy: str | None = None
    active_deadline_seconds: int | None = None


class PodShape(PodObject, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: PodSpecShape = PodSpecShape()


class TemplateShape(_Shape, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpecShape = PodSpecShape()


class RollingUpdateShape(_Shape, frozen=True):
    max_surge: IntOrText | None = None
    max_unavailable: IntOrText | None = None
    partition: int | None = None


class StrategyShape(_Shape, frozen=True):
    type: str | None = None
    rolling_update: RollingUpdateShape | None = None


class ClaimTemplateShape(_Shape, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class WorkloadSpecShape(_Shape, frozen=True):
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


class WorkloadShape(_Shape, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: WorkloadSpecShape = WorkloadSpecShape()
    status: dict[str, Any] = {}


class PolicyShape(_Shape, frozen=True):
    action: str | None = None
    event: str | None = None
    events: tuple[str, ...] | None = None
    exit_code: int | None = None
    #: A duration; validated by `constraints`.
    timeout: str | int | float | None = None


class DependsOnShape(_Shape, frozen=True):
    name: tuple[str, ...] | None = None
    iteration: str | None = None


class PartitionPolicyShape(_Shape, frozen=True):
    total_partitions: int | None = None
    partition_size: int | None = None
    min_partitions: int | None = None
    network_topology: NetworkTopologySpec | None = None


class TaskShape(_Shape, frozen=True):
    name: str | None = None
    replicas: int | None = None
    min_available: int | None = None
    template: TemplateShape = TemplateShape()
    policies: tuple[PolicyShape, ...] | None = None
    max_retry: int | None = None
    depends_on: DependsOnShape | None = None
    partition_policy: PartitionPolicyShape | None = None
    topology_policy: str | None = None


class JobSpecShape(_Shape, frozen=True):
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


class JobStateShape(_Shape, frozen=True):
    phase: str | None = None


class JobStatusShape(_Shape, frozen=True):
    state: JobStateShape = JobStateShape()
    version: int = 0
    retry_count: int = 0


class JobShape(_Shape, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: JobSpecShape = JobSpecShape()
    status: JobStatusShape = JobStatusShape()


class QueueShape(QueueObject, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


class PodGroupShape(PodGroupObject, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: PodGroupSpec = PodGroupSpec()


class NodeShape(NodeObject, frozen=True):
    metadata: MetaShape = MetaShape()


class ClassShape(PriorityClassObject, frozen=True):
    metadata: MetaShape = MetaShape()


class CommandTargetShape(_Shape, frozen=True):
    kind: str = ""
    name: str = ""
    api_version: str = ""
    uid: str = ""


class CommandShape(_Shape, frozen=True):
    metadata: MetaShape = MetaShape()
    action: str = ""
    target: CommandTargetShape = CommandTargetShape()


class ClaimShape(PersistentVolumeClaimObject, frozen=True):
    metadata: MetaShape = MetaShape()


class VolumeSpecShape(PersistentVolumeSpec, frozen=True):
    persistent_volume_reclaim_policy: str | None = None


class VolumeShape(PersistentVolumeObject, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: VolumeSpecShape = VolumeSpecShape()


class StorageClassShape(StorageClassObject, frozen=True):
    metadata: MetaShape = MetaShape()
    reclaim_policy: str | None = None


class CSINodeShape(CSINodeObject, frozen=True):
    metadata: MetaShape = MetaShape()


class CSIDriverShape(CSIDriverObject, frozen=True):
    metadata: MetaShape = MetaShape()


class CSIStorageCapacityShape(CSIStorageCapacityObject, frozen=True):
    metadata: MetaShape = MetaShape()


class VolumeAttachmentShape(VolumeAttachmentObject, frozen=True):
    metadata: MetaShape = MetaShape()


class NumatopologyShape(NumatopologyObject, frozen=True):
    metadata: MetaShape = MetaShape()


class QuotaSpecShape(_Shape, frozen=True):
    hard: RawAmounts | None = None


class QuotaShape(_Shape, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: QuotaSpecShape = QuotaSpecShape()


class HyperNodeShape(HyperNodeObject, frozen=True):
    metadata: MetaShape = MetaShape()


class BudgetSpecShape(_Shape, frozen=True):
    min_available: IntOrText | None = None
    max_unavailable: IntOrText | None = None
    selector: LabelSelector | None = None


class BudgetShape(_Shape, frozen=True):
    metadata: MetaShape = MetaShape()
    spec: BudgetSpecShape = BudgetSpecShape()


class ConfigMapShape(_Shape, frozen=True):
    metadata: MetaShape = MetaShape()
    data: dict[str, str] | None = None


class EventShape(_Shape, frozen=True):
    metadata: MetaShape = MetaShape()
    reason: str | None = None
    message: str | None = None
    type: str | None = None
    count: int | None = None


class PlainShape(_Shape, frozen=True):
    """Metadata only: namespaces and unknown kinds."""

    metadata: MetaShape = MetaShape()


SHAPES: dict[str, type[msgspec.Struct]] = {
    "Pod": PodShape,
    "Node": NodeShape,
    "Namespace": PlainShape,
    "Event": EventShape,
    "ConfigMap": ConfigMapShape,
    "PersistentVolume": VolumeShape,
    "PersistentVolumeClaim": ClaimShape,
    "StorageClass": StorageClassShape,
    "CSINode": CSINodeShape,
    "CSIDriver": CSIDriverShape,
    "CSIStorageCapacity": CSIStorageCapacityShape,
    "VolumeAttachment": VolumeAttachmentShape,
    "Numatopology": NumatopologyShape,
    "ResourceQuota": QuotaShape,
    "PodDisruptionBudget": BudgetShape,
    "HyperNode": HyperNodeShape,
    "PriorityClass": ClassShape,
    "Queue": QueueShape,
    "PodGroup": PodGroupShape,
    "Job": JobShape,
    "Deployment": WorkloadShape,
    "ReplicaSet": WorkloadShape,
    "StatefulSet": WorkloadShape,
    "Command": CommandShape,
}


def shape_of(kind: str) -> type[msgspec.Struct]:
    """The schema of a kind."""
    return SHAPES.get(kind, PlainShape)
