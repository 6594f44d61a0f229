"""The kinds of API objects: one row each, from which paths, decoding, watches, and the simulated API server derive."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from capcard_sched.model.cooldown import cooldown_of
from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.model.objects import (
    ConfigMapObject,
    DeviceClassObject,
    NamespaceObject,
    NodeObject,
    PodGroupObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)
from capcard_sched.model.pod_requests import resizes
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
    from collections.abc import Callable

#: An object that the scheduler reads. Its kind is the tag of its type.
KubernetesObject: TypeAlias = (
    PriorityClassObject
    | NamespaceObject
    | ConfigMapObject
    | ResourceQuotaObject
    | DeviceClassObject
    | StorageClassObject
    | CSIDriverObject
    | CSIStorageCapacityObject
    | PersistentVolumeObject
    | PersistentVolumeClaimObject
    | PodDisruptionBudgetObject
    | NodeObject
    | HyperNodeObject
    | CSINodeObject
    | NumatopologyObject
    | VolumeAttachmentObject
    | QueueObject
    | PodGroupObject
    | PodObject
)

CORE_API: Final = "v1"
APPS_API: Final = "apps/v1"
SCHEDULING_API: Final = "scheduling.volcano.sh/v1beta1"
BATCH_API: Final = "batch.volcano.sh/v1alpha1"
BUS_API: Final = "bus.volcano.sh/v1alpha1"
NETWORKING_API: Final = "networking.k8s.io/v1"
STORAGE_API: Final = "storage.k8s.io/v1"
RESOURCE_API: Final = "resource.k8s.io/v1"


@dataclass(frozen=True)
class WatchRule:
    """The scheduler's watch of one kind."""

    #: Decoded form.
    type: type[Any]
    _: KW_ONLY
    #: Sessions need its initial list. An optional kind may also be missing or forbidden.
    required: bool = False
    #: Attributes, besides the metadata, whose change is delivered. None: all fields. Omitted are fields that a live
    #: cluster rewrites constantly and no plugin reads.
    reads: tuple[str, ...] | None = None
    #: Computes a further value to compare, of fields that are not in `reads`.
    derives: Callable[[Any], object] | None = None
    #: The scheduler writes such objects and keeps its assumed version, so a relist delivers all of them, changed or
    #: not.
    written: bool = False
    #: The scheduler emits an event on an object of this kind that it cannot decode.
    explained: bool = True
    #: Seconds for which changes wait for further ones, to be delivered together: a single change costs twice as much
    #: as one among ten. The first after a pause does not wait.
    gather: float = 0.01


class Kind(NamedTuple):
    name: str
    #: `v1`, or group and version.
    api_version: str
    #: As in paths and RBAC: `pods`.
    resource: str
    namespaced: bool = True
    #: None: the scheduler does not read it.
    watch: WatchRule | None = None

    @property
    def api(self) -> str:
        """Path of the API version: `/api/v1`."""
        return f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"

    def collection(self, namespace: str = "") -> str:
        """Path of the objects of a namespace, or of all."""
        return f"{self.api}/namespaces/{namespace}/{self.resource}" if namespace else f"{self.api}/{self.resource}"


def _pod_conditions(pod: PodObject) -> object:
    """The only uses of the conditions and of the container statuses."""
    return cooldown_of(pod.metadata.labels, pod.metadata.annotations, pod.status.conditions), resizes(pod)


#: In the order in which initial objects of a simulation are created: kinds that others refer to come first.
KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        "PriorityClass",
        "scheduling.k8s.io/v1",
        "priorityclasses",
        namespaced=False,
        watch=WatchRule(PriorityClassObject, explained=False),
    ),
    Kind("Namespace", CORE_API, "namespaces", namespaced=False, watch=WatchRule(NamespaceObject, explained=False)),
    Kind("ConfigMap", CORE_API, "configmaps", watch=WatchRule(ConfigMapObject, reads=("data",))),
    Kind("Secret", CORE_API, "secrets"),
    Kind("Service", CORE_API, "services"),
    Kind("NetworkPolicy", NETWORKING_API, "networkpolicies"),
    Kind("ResourceQuota", CORE_API, "resourcequotas", watch=WatchRule(ResourceQuotaObject, explained=False)),
    Kind(
        "DeviceClass",
        RESOURCE_API,
        "deviceclasses",
        namespaced=False,
        watch=WatchRule(DeviceClassObject, reads=("spec",), explained=False),
    ),
    Kind("StorageClass", STORAGE_API, "storageclasses", namespaced=False, watch=WatchRule(StorageClassObject)),
    Kind("CSIDriver", STORAGE_API, "csidrivers", namespaced=False, watch=WatchRule(CSIDriverObject, explained=False)),
    Kind("CSIStorageCapacity", STORAGE_API, "csistoragecapacities", watch=WatchRule(CSIStorageCapacityObject)),
    Kind("PersistentVolume", CORE_API, "persistentvolumes", namespaced=False, watch=WatchRule(PersistentVolumeObject)),
    Kind("PersistentVolumeClaim", CORE_API, "persistentvolumeclaims", watch=WatchRule(PersistentVolumeClaimObject)),
    Kind(
        "PodDisruptionBudget",
        "policy/v1",
        "poddisruptionbudgets",
        watch=WatchRule(PodDisruptionBudgetObject, explained=False),
    ),
    Kind(
        "Node",
        CORE_API,
        "nodes",
        namespaced=False,
        watch=WatchRule(
            NodeObject,
            required=True,
            reads=("spec", "status.allocatable", "status.capacity", "status.images", "status.declared_features"),
            gather=0.1,  # heartbeats: 500 a second of 5,000 nodes
        ),
    ),
    Kind(
        "HyperNode",
        "topology.volcano.sh/v1alpha1",
        "hypernodes",
        namespaced=False,
        watch=WatchRule(HyperNodeObject, reads=("spec",)),
    ),
    Kind("CSINode", STORAGE_API, "csinodes", namespaced=False, watch=WatchRule(CSINodeObject)),
    Kind(
        "Numatopology",
        "nodeinfo.volcano.sh/v1alpha1",
        "numatopologies",
        namespaced=False,
        # one per node, written whenever CPUs are assigned or released
        watch=WatchRule(NumatopologyObject, gather=0.1),
    ),
    Kind(
        "VolumeAttachment",
        STORAGE_API,
        "volumeattachments",
        namespaced=False,
        watch=WatchRule(VolumeAttachmentObject, explained=False),
    ),
    Kind(
        "Queue",
        SCHEDULING_API,
        "queues",
        namespaced=False,
        watch=WatchRule(QueueObject, required=True, written=True),
    ),
    Kind("Deployment", APPS_API, "deployments"),
    Kind("ReplicaSet", APPS_API, "replicasets"),
    Kind("StatefulSet", APPS_API, "statefulsets"),
    Kind("CronJob", BATCH_API, "cronjobs"),
    Kind("Job", BATCH_API, "jobs"),
    Kind("PodGroup", SCHEDULING_API, "podgroups", watch=WatchRule(PodGroupObject, required=True, written=True)),
    Kind(
        "Pod",
        CORE_API,
        "pods",
        watch=WatchRule(
            PodObject,
            required=True,
            reads=("spec", "status.phase", "status.nominated_node_name", "status.start_time"),
            derives=_pod_conditions,
        ),
    ),
    Kind("Event", CORE_API, "events"),
    Kind("Command", BUS_API, "commands"),
)
KIND_BY_NAME: Final = {kind.name: kind for kind in KINDS}


def kind_of_object(obj: KubernetesObject) -> str:
    """The name of the kind of an object."""
    return _kind_of_type(type(obj))


@cache
def _kind_of_type(of: type[KubernetesObject]) -> str:
    return str(of.__struct_config__.tag)
