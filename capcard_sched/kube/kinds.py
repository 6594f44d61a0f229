"""The watched kinds: one row each, from which lists, watches, decoding and deltas are derived."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from capcard_sched.kube import paths
from capcard_sched.model import deltas
from capcard_sched.model.annotations import POD_QUEUE_NAME
from capcard_sched.model.cooldown import cooldown_of
from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.model.objects import (
    ConfigMapObject,
    NamespaceObject,
    NodeObject,
    ObjectMeta,
    PodGroupObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)
from capcard_sched.model.pod_template import resizes
from capcard_sched.model.volumes import (
    CSIDriverObject,
    CSINodeObject,
    CSIStorageCapacityObject,
    PersistentVolumeClaimObject,
    PersistentVolumeObject,
    StorageClassObject,
    VolumeAttachmentObject,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class WatchSpec(Protocol):
    """Any decoded object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Identity and labels."""


T = TypeVar("T", bound=WatchSpec)


@dataclass(frozen=True)
class WatchedKind(Generic[T]):
    """One watched kind."""

    #: `kind` of its objects.
    name: str
    #: Path of the collection over all namespaces.
    path: str
    type: type[T]
    changed: Callable[[T], deltas.Delta]
    #: Builds the delta from metadata with namespace and name, and the uid where it is known.
    gone: Callable[[ObjectMeta], deltas.Delta]
    #: Sessions need its initial list. An optional kind may also be missing or forbidden.
    required: bool = False
    #: Attributes, besides the metadata, whose change is delivered. None: all fields. Omitted are fields that a live
    #: cluster rewrites constantly and no plugin reads.
    reads: tuple[str, ...] | None = None
    #: Computes a further value to compare, of fields that are not in `reads`.
    derives: Callable[[T], object] | None = None
    #: Whether an object is delivered at all; one that is no longer selected counts as gone. None: all are.
    selects: Callable[[T], bool] | None = None
    #: Field selector of lists and watches, "" for all objects of the path.
    field_selector: str = ""
    #: The scheduler writes such objects and keeps its assumed version, so `Reflector.relist` delivers all of them,
    #: changed or not.
    written: bool = False
    #: Seconds for which changes wait for further ones, to be delivered together: a single change costs twice as much as
    #: one among ten. The first after a pause does not wait.
    gather: float = 0.01

    @property
    def resource(self) -> str:
        """As in RBAC and metrics: `pods`."""
        return self.path.rpartition("/")[2]

    #: The scheduler emits an event on an object of this kind that it cannot decode.
    explained: bool = True

    def undecodable(self, meta: ObjectMeta, problem: str, node: str) -> deltas.Delta | None:
        """The delta for an object with a field of a wrong type; it keeps its last known facts. None: only logged."""
        if not self.explained:
            return None
        ref: Any = self.name  # checked by the tests for every row
        return deltas.ObjectUnreadable(ObjectRef(ref, meta.namespace or "", meta.name, meta.uid), problem, node)


def _by_name(gone: Callable[[str], deltas.Delta]) -> Callable[[ObjectMeta], deltas.Delta]:
    return lambda meta: gone(meta.name)


def _by_namespace(gone: Callable[[str, str], deltas.Delta]) -> Callable[[ObjectMeta], deltas.Delta]:
    return lambda meta: gone(meta.namespace or "", meta.name)


def _by_uid(gone: Callable[[str, str, str], deltas.Delta]) -> Callable[[ObjectMeta], deltas.Delta]:
    return lambda meta: gone(meta.namespace or "", meta.name, meta.uid)


def _namespace_changed(obj: NamespaceObject) -> deltas.Delta:
    queue = (obj.metadata.annotations or {}).get(POD_QUEUE_NAME, "")
    return deltas.NamespaceChanged(obj.metadata.name, obj.metadata.labels or {}, queue)


KINDS: Final[tuple[WatchedKind[Any], ...]] = (
    WatchedKind(
        "Node",
        paths.NODES,
        NodeObject,
        deltas.NodeChanged,
        _by_name(deltas.NodeGone),
        required=True,
        reads=("spec", "status.allocatable", "status.capacity", "status.images"),
        gather=0.1,  # heartbeats: 500 a second of 5,000 nodes
    ),
    WatchedKind(
        "Pod",
        paths.PODS,
        PodObject,
        deltas.PodChanged,
        _by_uid(deltas.PodGone),
        required=True,
        reads=("spec", "status.phase", "status.nominated_node_name", "status.start_time"),
        # the only uses of the conditions and of the container statuses
        derives=lambda pod: (
            cooldown_of(pod.metadata.labels, pod.metadata.annotations, pod.status.conditions),
            resizes(pod),
        ),
    ),
    WatchedKind(
        "PodGroup",
        paths.POD_GROUPS,
        PodGroupObject,
        deltas.PodGroupChanged,
        _by_uid(deltas.PodGroupGone),
        required=True,
        written=True,
    ),
    WatchedKind(
        "Queue",
        paths.QUEUES,
        QueueObject,
        deltas.QueueChanged,
        _by_name(deltas.QueueGone),
        required=True,
        written=True,
    ),
    WatchedKind(
        "PriorityClass",
        paths.PRIORITY_CLASSES,
        PriorityClassObject,
        deltas.PriorityClassChanged,
        _by_name(deltas.PriorityClassGone),
        explained=False,
    ),
    WatchedKind(
        "Namespace",
        paths.NAMESPACES,
        NamespaceObject,
        _namespace_changed,
        _by_name(deltas.NamespaceGone),
        explained=False,
    ),
    WatchedKind(
        "ResourceQuota",
        paths.QUOTAS,
        ResourceQuotaObject,
        deltas.ResourceQuotaChanged,
        _by_namespace(deltas.ResourceQuotaGone),
        explained=False,
    ),
    WatchedKind(
        "PodDisruptionBudget",
        paths.BUDGETS,
        PodDisruptionBudgetObject,
        deltas.PodDisruptionBudgetChanged,
        _by_namespace(deltas.PodDisruptionBudgetGone),
        explained=False,
    ),
    WatchedKind(
        "Numatopology",
        paths.NUMATOPOLOGIES,
        NumatopologyObject,
        deltas.NumatopologyChanged,
        _by_name(deltas.NumatopologyGone),
        gather=0.1,  # one per node, written whenever CPUs are assigned or released
    ),
    WatchedKind(
        "HyperNode",
        paths.HYPER_NODES,
        HyperNodeObject,
        deltas.HyperNodeChanged,
        _by_name(deltas.HyperNodeGone),
        reads=("spec",),
    ),
    WatchedKind(
        "PersistentVolumeClaim",
        paths.CLAIMS,
        PersistentVolumeClaimObject,
        deltas.PersistentVolumeClaimChanged,
        _by_namespace(deltas.PersistentVolumeClaimGone),
    ),
    WatchedKind(
        "PersistentVolume",
        paths.VOLUMES,
        PersistentVolumeObject,
        deltas.PersistentVolumeChanged,
        _by_name(deltas.PersistentVolumeGone),
    ),
    WatchedKind(
        "StorageClass",
        paths.STORAGE_CLASSES,
        StorageClassObject,
        deltas.StorageClassChanged,
        _by_name(deltas.StorageClassGone),
    ),
    WatchedKind("CSINode", paths.CSI_NODES, CSINodeObject, deltas.CSINodeChanged, _by_name(deltas.CSINodeGone)),
    WatchedKind(
        "CSIDriver",
        paths.CSI_DRIVERS,
        CSIDriverObject,
        deltas.CSIDriverChanged,
        _by_name(deltas.CSIDriverGone),
        explained=False,
    ),
    WatchedKind(
        "CSIStorageCapacity",
        paths.CSI_CAPACITIES,
        CSIStorageCapacityObject,
        deltas.CSIStorageCapacityChanged,
        _by_namespace(deltas.CSIStorageCapacityGone),
    ),
    WatchedKind(
        "VolumeAttachment",
        paths.VOLUME_ATTACHMENTS,
        VolumeAttachmentObject,
        deltas.VolumeAttachmentChanged,
        _by_name(deltas.VolumeAttachmentGone),
        explained=False,
    ),
)


def chosen_kinds(
    *,
    node_selector: Iterable[tuple[str, str]] = (),
    priority_classes: bool = True,
    config_maps: Iterable[tuple[str, str]] = (),
) -> tuple[WatchedKind[Any], ...]:
    """`KINDS` under the flags: nodes with one of these labels (all without labels), PriorityClasses or not.

    `config_maps`: namespace and name of each ConfigMap that a plugin reads.
    """
    wanted = tuple(node_selector)

    def selected(node: NodeObject) -> bool:
        labels = node.metadata.labels or {}
        return any(labels.get(key) == value for key, value in wanted)

    chosen = [
        replace(kind, selects=selected) if kind.name == "Node" and wanted else kind
        for kind in KINDS
        if priority_classes or kind.name != "PriorityClass"
    ]
    return (*chosen, *(_config_map(namespace, name) for namespace, name in sorted(set(config_maps))))


def _config_map(namespace: str, name: str) -> WatchedKind[ConfigMapObject]:
    """One ConfigMap."""
    return WatchedKind(
        "ConfigMap",
        paths.config_maps(namespace),
        ConfigMapObject,
        deltas.ConfigMapChanged,
        _by_namespace(deltas.ConfigMapGone),
        reads=("data",),
        field_selector=f"metadata.name={name}",
    )
