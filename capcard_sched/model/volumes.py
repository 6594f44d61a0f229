"""Storage objects of Kubernetes: only the fields the scheduler reads (see `model.objects`)."""

from __future__ import annotations

from typing import Final

from capcard_sched.model.in_tree_volumes import AttachmentKey, InTreeSources
from capcard_sched.model.objects import ApiStruct, LabelSelector, NodeSelector, ObjectMeta, RawAmounts, RawQuantity

#: Annotation of a claim: the node to provision its volume for.
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
#: Annotation of a claim: the volume controller has completed the binding.
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
#: Annotation of a volume: a controller or scheduler set its claim, not a user.
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
#: Annotation of a claim that names its class, read before `spec.storageClassName`.
CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
#: Annotation of a StorageClass: default of claims that name none.
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
#: Provisioner of classes with manually created volumes.
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
WAIT_FOR_CONSUMER: Final = "WaitForFirstConsumer"
IMMEDIATE: Final = "Immediate"


# --- claims ---------------------------------------------------------------------------------------------------------


class ClaimResources(ApiStruct, frozen=True):
    requests: RawAmounts | None = None


class PersistentVolumeClaimSpec(ApiStruct, frozen=True):
    access_modes: tuple[str, ...] | None = None
    selector: LabelSelector | None = None
    resources: ClaimResources | None = None
    volume_name: str | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None


class PersistentVolumeClaimStatus(ApiStruct, frozen=True):
    phase: str | None = None


class PersistentVolumeClaimObject(ApiStruct, frozen=True, tag="PersistentVolumeClaim", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


# --- volumes --------------------------------------------------------------------------------------------------------


class ClaimReference(ApiStruct, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class CSIVolumeSource(ApiStruct, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(ApiStruct, frozen=True):
    required: NodeSelector | None = None


class PersistentVolumeSpec(InTreeSources, frozen=True):
    capacity: RawAmounts | None = None
    access_modes: tuple[str, ...] | None = None
    claim_ref: ClaimReference | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None


def attached_as(spec: PersistentVolumeSpec) -> AttachmentKey | None:
    """The key by which attachments of a volume are counted; None for volumes that are not attached.

    An in-tree volume counts as one of the CSI driver that replaces its plugin.
    """
    if spec.csi is not None:
        return AttachmentKey(spec.csi.driver, spec.csi.volume_handle)
    return spec.in_tree()


class PersistentVolumeStatus(ApiStruct, frozen=True):
    phase: str | None = None


class PersistentVolumeObject(ApiStruct, frozen=True, tag="PersistentVolume", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


# --- classes and drivers --------------------------------------------------------------------------------------------


class TopologyRequirement(ApiStruct, frozen=True):
    key: str = ""
    values: tuple[str, ...] | None = None


class TopologySelectorTerm(ApiStruct, frozen=True):
    match_label_expressions: tuple[TopologyRequirement, ...] | None = None


class StorageClassObject(ApiStruct, frozen=True, tag="StorageClass", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] | None = None


class CSINodeAllocatable(ApiStruct, frozen=True):
    count: int | None = None


class CSINodeDriver(ApiStruct, frozen=True):
    name: str = ""
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(ApiStruct, frozen=True):
    drivers: tuple[CSINodeDriver, ...] | None = None


class CSINodeObject(ApiStruct, frozen=True, tag="CSINode", tag_field="kind"):
    """Has the name of its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(ApiStruct, frozen=True):
    storage_capacity: bool | None = None
    #: Pods with volumes of the driver fit only nodes whose CSINode lists it.
    prevent_pod_scheduling_if_missing: bool | None = None


class CSIDriverObject(ApiStruct, frozen=True, tag="CSIDriver", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacityObject(ApiStruct, frozen=True, tag="CSIStorageCapacity", tag_field="kind"):
    """Available capacity of a driver for one class on the nodes that a topology selector matches."""

    metadata: ObjectMeta = ObjectMeta()
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: RawQuantity | None = None
    maximum_volume_size: RawQuantity | None = None


class AttachmentSource(ApiStruct, frozen=True):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(ApiStruct, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: AttachmentSource = AttachmentSource()


class VolumeAttachmentObject(ApiStruct, frozen=True, tag="VolumeAttachment", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
