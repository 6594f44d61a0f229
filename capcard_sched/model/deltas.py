"""Deltas: changes in the cluster, as immutable messages to the core."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.model.objects import (
    ConfigMapObject,
    NodeObject,
    PodGroupObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)
from capcard_sched.model.usage import NodeUsage
from capcard_sched.model.volumes import (
    CSIDriverObject,
    CSINodeObject,
    CSIStorageCapacityObject,
    PersistentVolumeClaimObject,
    PersistentVolumeObject,
    StorageClassObject,
    VolumeAttachmentObject,
)


class _Delta(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """Base: tagged by `kind` in JSON, so that recordings can be decoded."""


class NodeChanged(_Delta, frozen=True):
    """A node was added or updated."""

    node: NodeObject


class NodeGone(_Delta, frozen=True):
    """A node was deleted."""

    name: str


class PodChanged(_Delta, frozen=True):
    """A pod was added or updated. A new uid under a known name replaces the old pod."""

    pod: PodObject


class PodGone(_Delta, frozen=True):
    """A pod was deleted. An empty uid matches any pod of the name."""

    namespace: str
    name: str
    uid: str = ""


class PodGroupChanged(_Delta, frozen=True):
    """A PodGroup was added or updated."""

    group: PodGroupObject


class PodGroupGone(_Delta, frozen=True):
    """A PodGroup was deleted."""

    namespace: str
    name: str
    uid: str = ""


class QueueChanged(_Delta, frozen=True):
    """A queue was added or updated."""

    queue: QueueObject


class QueueGone(_Delta, frozen=True):
    """A queue was deleted."""

    name: str


class PriorityClassChanged(_Delta, frozen=True):
    """A PriorityClass was added or updated."""

    priority_class: PriorityClassObject


class PriorityClassGone(_Delta, frozen=True):
    """A PriorityClass was deleted."""

    name: str


class NamespaceChanged(_Delta, frozen=True):
    """A namespace was added, or its labels or default queue changed."""

    name: str
    labels: dict[str, str]
    #: The queue of PodGroups that name none (annotation `scheduling.volcano.sh/queue-name`); "" without one.
    default_queue: str = ""


class NamespaceGone(_Delta, frozen=True):
    """A namespace was deleted."""

    name: str


class HyperNodeChanged(_Delta, frozen=True):
    """A HyperNode was added or updated."""

    hyper_node: HyperNodeObject


class HyperNodeGone(_Delta, frozen=True):
    """A HyperNode was deleted."""

    name: str


class ResourceQuotaChanged(_Delta, frozen=True):
    """A ResourceQuota was added or updated."""

    quota: ResourceQuotaObject


class ResourceQuotaGone(_Delta, frozen=True):
    """A ResourceQuota was deleted."""

    namespace: str
    name: str


class PodDisruptionBudgetChanged(_Delta, frozen=True):
    """A PodDisruptionBudget was added or updated."""

    budget: PodDisruptionBudgetObject


class PodDisruptionBudgetGone(_Delta, frozen=True):
    """A PodDisruptionBudget was deleted."""

    namespace: str
    name: str


class NodeUsageChanged(_Delta, frozen=True):
    """The load of some nodes was measured, by node name; other nodes keep their last measurement."""

    nodes: dict[str, NodeUsage]


class NodeUsageGone(_Delta, frozen=True):
    """The load of a node is no longer measured."""

    name: str


class NumatopologyChanged(_Delta, frozen=True):
    """A Numatopology was added or updated."""

    numatopology: NumatopologyObject


class NumatopologyGone(_Delta, frozen=True):
    """A Numatopology was deleted."""

    name: str


class ConfigMapChanged(_Delta, frozen=True):
    """A ConfigMap that a plugin reads was added or updated."""

    config_map: ConfigMapObject


class ConfigMapGone(_Delta, frozen=True):
    """A ConfigMap that a plugin reads was deleted."""

    namespace: str
    name: str


class ObjectUnreadable(_Delta, frozen=True):
    """An object has a field of a wrong type: it keeps its last known facts, and the scheduler emits an event on it."""

    object: ObjectRef
    problem: str
    #: Node of a bound and unfinished pod, else "".
    node: str = ""


class BindFailed(_Delta, frozen=True):
    """The API server rejected a binding: the task is pending again.

    With `retry_after` (seconds) above 0 the task is in backoff until a `BindRetry`.
    """

    namespace: str
    name: str
    uid: str
    message: str
    retry_after: float = 0.0


class BindRetry(_Delta, frozen=True):
    """The backoff of a pod after a rejected binding ended."""

    namespace: str
    name: str
    uid: str


class Takeover(_Delta, frozen=True):
    """This scheduler became leader, and the state matches the API server.

    Bindings and evictions of an earlier term that the watch has not confirmed are dropped; backoffs end.
    """


class EvictFailed(_Delta, frozen=True):
    """The API server rejected an eviction: the task gets its former status again."""

    namespace: str
    name: str
    uid: str
    message: str


class PersistentVolumeClaimChanged(_Delta, frozen=True):
    """A PersistentVolumeClaim was added or updated."""

    claim: PersistentVolumeClaimObject


class PersistentVolumeClaimGone(_Delta, frozen=True):
    """A PersistentVolumeClaim was deleted."""

    namespace: str
    name: str


class PersistentVolumeChanged(_Delta, frozen=True):
    """A PersistentVolume was added or updated."""

    volume: PersistentVolumeObject


class PersistentVolumeGone(_Delta, frozen=True):
    """A PersistentVolume was deleted."""

    name: str


class StorageClassChanged(_Delta, frozen=True):
    """A StorageClass was added or updated."""

    storage_class: StorageClassObject


class StorageClassGone(_Delta, frozen=True):
    """A StorageClass was deleted."""

    name: str


class CSINodeChanged(_Delta, frozen=True):
    """A CSINode was added or updated."""

    csi_node: CSINodeObject


class CSINodeGone(_Delta, frozen=True):
    """A CSINode was deleted."""

    name: str


class CSIDriverChanged(_Delta, frozen=True):
    """A CSIDriver was added or updated."""

    driver: CSIDriverObject


class CSIDriverGone(_Delta, frozen=True):
    """A CSIDriver was deleted."""

    name: str


class CSIStorageCapacityChanged(_Delta, frozen=True):
    """A CSIStorageCapacity was added or updated."""

    capacity: CSIStorageCapacityObject


class CSIStorageCapacityGone(_Delta, frozen=True):
    """A CSIStorageCapacity was deleted."""

    namespace: str
    name: str


class VolumeAttachmentChanged(_Delta, frozen=True):
    """A VolumeAttachment was added or updated."""

    attachment: VolumeAttachmentObject


class VolumeAttachmentGone(_Delta, frozen=True):
    """A VolumeAttachment was deleted."""

    name: str


Delta: TypeAlias = (
    NodeChanged
    | NodeGone
    | PodChanged
    | PodGone
    | PodGroupChanged
    | PodGroupGone
    | QueueChanged
    | QueueGone
    | PriorityClassChanged
    | PriorityClassGone
    | PersistentVolumeClaimChanged
    | PersistentVolumeClaimGone
    | PersistentVolumeChanged
    | PersistentVolumeGone
    | StorageClassChanged
    | StorageClassGone
    | CSINodeChanged
    | CSINodeGone
    | CSIDriverChanged
    | CSIDriverGone
    | CSIStorageCapacityChanged
    | CSIStorageCapacityGone
    | VolumeAttachmentChanged
    | VolumeAttachmentGone
    | NamespaceChanged
    | NamespaceGone
    | ResourceQuotaChanged
    | ResourceQuotaGone
    | PodDisruptionBudgetChanged
    | PodDisruptionBudgetGone
    | HyperNodeChanged
    | HyperNodeGone
    | NodeUsageChanged
    | NodeUsageGone
    | NumatopologyChanged
    | NumatopologyGone
    | ConfigMapChanged
    | ConfigMapGone
    | ObjectUnreadable
    | BindFailed
    | BindRetry
    | Takeover
    | EvictFailed
)
