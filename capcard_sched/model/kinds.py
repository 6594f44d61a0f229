"""The kinds of API objects: one row each, from which paths, decoding, watches, and the simulated API server derive."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from capcard_sched.model.card_budgets import BUDGET_API, CARD_BUDGET, CardBudgetObject
from capcard_sched.model.cooldown import cooldown_of
from capcard_sched.model.device_objects import (
    DeviceClassObject,
    DeviceTaintRuleObject,
    ResourceClaimObject,
    ResourceClaimTemplateObject,
    ResourceSliceObject,
)
from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.kube_groups import KUBE_API, KUBE_GROUP, KubePodGroup
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.namespace_queues import NAMESPACE_QUEUE, NamespaceQueueObject
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.model.objects import (
    ConfigMapObject,
    NamespaceObject,
    NodeObject,
    PodGroupObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)
from capcard_sched.model.pod_requests import resizes
from capcard_sched.model.provisioning import (
    POD_TEMPLATE,
    PROVISIONING_API,
    PROVISIONING_REQUEST,
    VOLCANO_GROUPS,
    ProvisioningRequestObject,
)
from capcard_sched.model.volumes import (
    CSIDriverObject,
    CSINodeObject,
    CSIStorageCapacityObject,
    PersistentVolumeClaimObject,
    PersistentVolumeObject,
    StorageClassObject,
    VolumeAttachmentObject,
)

#: After an error about a kind that is not served.
CRD_HINT: Final = "install the CustomResourceDefinitions: kubectl apply -f manifests/crds"

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: An object that the scheduler reads. Its kind is the tag of its type.
KubernetesObject: TypeAlias = (
    PriorityClassObject
    | NamespaceObject
    | ConfigMapObject
    | ResourceQuotaObject
    | DeviceClassObject
    | ResourceSliceObject
    | DeviceTaintRuleObject
    | ResourceClaimTemplateObject
    | ResourceClaimObject
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
    | NamespaceQueueObject
    | CardBudgetObject
    | ProvisioningRequestObject
    | PodGroupObject
    | PodObject
)

CORE_API: Final = "v1"
APPS_API: Final = "apps/v1"
SCHEDULING_API: Final = VOLCANO_GROUPS
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
    #: Clusters without the kind are common: its absence is no warning.
    expected: bool = True
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


def group_of(api_version: str) -> str:
    """The API group of `group/version`; "" for the core group, whose versions have no group."""
    return api_version.rpartition("/")[0]


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
    def group(self) -> str:
        """API group; "" for the core group."""
        return group_of(self.api_version)

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
    Kind(
        "ResourceSlice",
        RESOURCE_API,
        "resourceslices",
        namespaced=False,
        watch=WatchRule(ResourceSliceObject, reads=("spec",), gather=0.1),
    ),
    Kind(
        "DeviceTaintRule",
        RESOURCE_API,
        "devicetaintrules",
        namespaced=False,
        watch=WatchRule(DeviceTaintRuleObject, reads=("spec",), explained=False),
    ),
    Kind(
        "ResourceClaimTemplate",
        RESOURCE_API,
        "resourceclaimtemplates",
        watch=WatchRule(ResourceClaimTemplateObject, reads=("spec",), explained=False),
    ),
    Kind("ResourceClaim", RESOURCE_API, "resourceclaims", watch=WatchRule(ResourceClaimObject)),
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
    Kind(
        NAMESPACE_QUEUE,
        SCHEDULING_API,
        "namespacequeues",
        watch=WatchRule(NamespaceQueueObject, expected=False, written=True),
    ),
    Kind(
        CARD_BUDGET,
        BUDGET_API,
        "cardbudgets",
        namespaced=False,
        watch=WatchRule(CardBudgetObject, expected=False, reads=("spec", "status")),
    ),
    Kind("Deployment", APPS_API, "deployments"),
    Kind("ReplicaSet", APPS_API, "replicasets"),
    Kind("StatefulSet", APPS_API, "statefulsets"),
    Kind("CronJob", BATCH_API, "cronjobs"),
    Kind("Job", BATCH_API, "jobs"),
    Kind(
        KUBE_GROUP, KUBE_API, "podgroups", watch=WatchRule(KubePodGroup, expected=False, written=True, explained=False)
    ),
    Kind("PodGroup", SCHEDULING_API, "podgroups", watch=WatchRule(PodGroupObject, required=True, written=True)),
    Kind(
        "Pod",
        CORE_API,
        "pods",
        watch=WatchRule(
            PodObject,
            required=True,
            reads=(
                "spec",
                "status.phase",
                "status.nominated_node_name",
                "status.start_time",
                "status.resource_claim_statuses",
                "status.extended_resource_claim_status",
            ),
            derives=_pod_conditions,
        ),
    ),
    Kind(POD_TEMPLATE, CORE_API, "podtemplates"),
    Kind(
        PROVISIONING_REQUEST,
        PROVISIONING_API,
        "provisioningrequests",
        watch=WatchRule(ProvisioningRequestObject, expected=False, reads=("spec", "status"), explained=False),
    ),
    Kind("Event", CORE_API, "events"),
    Kind("Command", BUS_API, "commands"),
)
KIND_BY_NAME: Final = {kind.name: kind for kind in KINDS}
#: Group and name of further kinds that own pods. Two of them share their name with a kind of the table.
#: A Job of Kubernetes, whose kind is that of a Job of Volcano.
BATCH_JOB: Final = "Job.batch/v1"
_OWNERS: Final = frozenset({("apps", "DaemonSet"), ("batch", "Job"), ("batch", "CronJob")})
_OWNER_NAMES: Final = frozenset(name for _, name in _OWNERS)


def kind_of(obj: Mapping[str, Any]) -> str:
    """The kind of an object, or of a reference to one, by its API group, whatever the version.

    The plain name for kinds of the table, else name and `apiVersion`: `Job.batch/v1`. A reference without `apiVersion`
    means the kind of the table. Every dispatch on the kind of a JSON object uses it.
    """
    return qualified_kind(str(obj.get("apiVersion") or ""), str(obj.get("kind") or ""))


def qualified_kind(api_version: str, name: str) -> str:
    """`kind_of` for the two fields."""
    known = KIND_BY_NAME.get(name)
    is_known = known is not None and (not api_version or known.group == group_of(api_version))
    return name if is_known or not api_version else f"{name}.{api_version}"


def is_native(obj: Mapping[str, Any]) -> bool:
    """Whether an object is no namesake: no object of another API group with the name of a kind of the product."""
    kind, api_version = str(obj.get("kind") or ""), str(obj.get("apiVersion") or "")
    return owner_kind(api_version, kind) == kind


def owner_kind(api_version: str, name: str) -> str:
    """The name of the kind of an owner; with its group where it shares a name with a kind of Kubernetes or Volcano."""
    group = group_of(api_version)
    known = KIND_BY_NAME.get(name)
    is_namesake = known is not None or name in _OWNER_NAMES
    if not api_version or not is_namesake or (group, name) in _OWNERS or (known is not None and known.group == group):
        return name
    return f"{name}.{group}"


def kind_of_object(obj: KubernetesObject) -> str:
    """The name of the kind of an object."""
    return _kind_of_type(type(obj))


@cache
def _kind_of_type(of: type[KubernetesObject]) -> str:
    return str(of.__struct_config__.tag)
