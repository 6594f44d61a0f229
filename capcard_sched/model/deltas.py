"""Facts that come in: what changed in the cluster, as immutable messages."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, PriorityClassObject, QueueObject
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


class _Fact(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """Base: a message that says in JSON, under `kind`, which one it is; recordings are read back by it."""


class NodeChanged(_Fact, frozen=True):
    """A node was added or updated."""

    node: NodeObject


class NodeGone(_Fact, frozen=True):
    """A node was deleted."""

    name: str


class PodChanged(_Fact, frozen=True):
    """A pod was added or updated. A new uid under a known name replaces the old pod."""

    pod: PodObject


class PodGone(_Fact, frozen=True):
    """A pod was deleted. An empty uid means whichever pod has the name."""

    namespace: str
    name: str
    uid: str = ""


class PodGroupChanged(_Fact, frozen=True):
    """A PodGroup was added or updated."""

    group: PodGroupObject


class PodGroupGone(_Fact, frozen=True):
    """A PodGroup was deleted."""

    namespace: str
    name: str
    uid: str = ""


class QueueChanged(_Fact, frozen=True):
    """A queue was added or updated."""

    queue: QueueObject


class QueueGone(_Fact, frozen=True):
    """A queue was deleted."""

    name: str


class PriorityClassChanged(_Fact, frozen=True):
    """A PriorityClass was added or updated."""

    priority_class: PriorityClassObject


class PriorityClassGone(_Fact, frozen=True):
    """A PriorityClass was deleted."""

    name: str


class NamespaceChanged(_Fact, frozen=True):
    """A namespace was added, or its labels changed."""

    name: str
    labels: dict[str, str]


class NamespaceGone(_Fact, frozen=True):
    """A namespace was deleted."""

    name: str


class HyperNodeChanged(_Fact, frozen=True):
    """A HyperNode was added or updated."""

    hyper_node: HyperNodeObject


class HyperNodeGone(_Fact, frozen=True):
    """A HyperNode was deleted."""

    name: str


class ResourceQuotaChanged(_Fact, frozen=True):
    """A ResourceQuota was added or updated."""

    quota: ResourceQuotaObject


class ResourceQuotaGone(_Fact, frozen=True):
    """A ResourceQuota was deleted."""

    namespace: str
    name: str


class PodDisruptionBudgetChanged(_Fact, frozen=True):
    """A PodDisruptionBudget was added or updated."""

    budget: PodDisruptionBudgetObject


class PodDisruptionBudgetGone(_Fact, frozen=True):
    """A PodDisruptionBudget was deleted."""

    namespace: str
    name: str


class NodeUsageChanged(_Fact, frozen=True):
    """The load of some nodes was measured, by name; nodes it leaves out keep what was last said of them."""

    nodes: dict[str, NodeUsage]


class NodeUsageGone(_Fact, frozen=True):
    """Nothing is known of a node's load any more."""

    name: str


class NumatopologyChanged(_Fact, frozen=True):
    """A Numatopology was added or updated."""

    numatopology: NumatopologyObject


class NumatopologyGone(_Fact, frozen=True):
    """A Numatopology was deleted."""

    name: str


class ObjectUnreadable(_Fact, frozen=True):
    """An object has a field of a wrong type: nothing can be decided by it, as if it were gone; its owner is told."""

    object: ObjectRef
    problem: str


class BindFailed(_Fact, frozen=True):
    """The API server refused a binding: the task pends again and others go on.

    With `retry_after` (seconds) above 0 the task is left alone until a `BindRetry` says that it may try again.
    """

    namespace: str
    name: str
    uid: str
    message: str
    retry_after: float = 0.0


class BindRetry(_Fact, frozen=True):
    """A pod that was left alone after a refused binding may be placed again."""

    namespace: str
    name: str
    uid: str


class Takeover(_Fact, frozen=True):
    """This scheduler begins to lead, and what is known is what the API server holds.

    Bindings and evictions decided earlier that have not shown will not come; tasks left alone may be tried.
    """


class EvictFailed(_Fact, frozen=True):
    """The API server refused an eviction: the task keeps its former status."""

    namespace: str
    name: str
    uid: str
    message: str


class PersistentVolumeClaimChanged(_Fact, frozen=True):
    """A claim on a volume was added or updated."""

    claim: PersistentVolumeClaimObject


class PersistentVolumeClaimGone(_Fact, frozen=True):
    """A claim on a volume was deleted."""

    namespace: str
    name: str


class PersistentVolumeChanged(_Fact, frozen=True):
    """A volume was added or updated."""

    volume: PersistentVolumeObject


class PersistentVolumeGone(_Fact, frozen=True):
    """A volume was deleted."""

    name: str


class StorageClassChanged(_Fact, frozen=True):
    """A StorageClass was added or updated."""

    storage_class: StorageClassObject


class StorageClassGone(_Fact, frozen=True):
    """A StorageClass was deleted."""

    name: str


class CSINodeChanged(_Fact, frozen=True):
    """The list of storage drivers of a node was added or updated."""

    csi_node: CSINodeObject


class CSINodeGone(_Fact, frozen=True):
    """The list of storage drivers of a node was deleted."""

    name: str


class CSIDriverChanged(_Fact, frozen=True):
    """A storage driver was added or updated."""

    driver: CSIDriverObject


class CSIDriverGone(_Fact, frozen=True):
    """A storage driver was deleted."""

    name: str


class CSIStorageCapacityChanged(_Fact, frozen=True):
    """What a driver says it can still make was added or updated."""

    capacity: CSIStorageCapacityObject


class CSIStorageCapacityGone(_Fact, frozen=True):
    """What a driver says it can still make was deleted."""

    namespace: str
    name: str


class VolumeAttachmentChanged(_Fact, frozen=True):
    """An attachment of a volume to a node was added or updated."""

    attachment: VolumeAttachmentObject


class VolumeAttachmentGone(_Fact, frozen=True):
    """An attachment of a volume to a node was deleted."""

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
    | ObjectUnreadable
    | BindFailed
    | BindRetry
    | Takeover
    | EvictFailed
)
