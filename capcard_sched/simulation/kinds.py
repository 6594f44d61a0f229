"""The kinds the simulated API server knows: one table, from which loading, defaulting and output order are derived."""

from typing import Any, NamedTuple, TypeAlias

#: An API object as JSON. Values in the store are never changed in place.
JsonObject: TypeAlias = dict[str, Any]

POD = "Pod"
NODE = "Node"
NAMESPACE = "Namespace"
EVENT = "Event"
DEPLOYMENT = "Deployment"
REPLICA_SET = "ReplicaSet"
STATEFUL_SET = "StatefulSet"
PRIORITY_CLASS = "PriorityClass"
QUEUE = "Queue"
POD_GROUP = "PodGroup"
JOB = "Job"
COMMAND = "Command"
RESOURCE_QUOTA = "ResourceQuota"
DISRUPTION_BUDGET = "PodDisruptionBudget"
STORAGE_CLASS = "StorageClass"
VOLUME = "PersistentVolume"
CLAIM = "PersistentVolumeClaim"
CSI_DRIVER = "CSIDriver"
CSI_NODE = "CSINode"
STORAGE_CAPACITY = "CSIStorageCapacity"
VOLUME_ATTACHMENT = "VolumeAttachment"
HYPER_NODE = "HyperNode"
NUMATOPOLOGY = "Numatopology"

SIMULATION_API = "simulation.capcard-sched.io/v1alpha1"
SCENARIO = "Scenario"
APPS_API = "apps/v1"
SCHEDULING_API = "scheduling.volcano.sh/v1beta1"
BATCH_API = "batch.volcano.sh/v1alpha1"
STORAGE_API = "storage.k8s.io/v1"
NODE_INFO_API = "nodeinfo.volcano.sh/v1alpha1"


class ApiKind(NamedTuple):
    """One known kind. Rows are in the order in which objects of the start are created."""

    name: str
    api_version: str
    namespaced: bool = True


KINDS = (
    ApiKind(PRIORITY_CLASS, "scheduling.k8s.io/v1", namespaced=False),
    ApiKind(NAMESPACE, "v1", namespaced=False),
    ApiKind("ConfigMap", "v1"),
    ApiKind(RESOURCE_QUOTA, "v1"),
    ApiKind(STORAGE_CLASS, STORAGE_API, namespaced=False),
    ApiKind(CSI_DRIVER, STORAGE_API, namespaced=False),
    ApiKind(STORAGE_CAPACITY, STORAGE_API),
    ApiKind(VOLUME, "v1", namespaced=False),
    ApiKind(CLAIM, "v1"),
    ApiKind(DISRUPTION_BUDGET, "policy/v1"),
    ApiKind(NODE, "v1", namespaced=False),
    ApiKind(HYPER_NODE, "topology.volcano.sh/v1alpha1", namespaced=False),
    ApiKind(CSI_NODE, STORAGE_API, namespaced=False),
    ApiKind(NUMATOPOLOGY, NODE_INFO_API, namespaced=False),
    ApiKind(VOLUME_ATTACHMENT, STORAGE_API, namespaced=False),
    ApiKind(QUEUE, SCHEDULING_API, namespaced=False),
    ApiKind(DEPLOYMENT, APPS_API),
    ApiKind(REPLICA_SET, APPS_API),
    ApiKind(STATEFUL_SET, APPS_API),
    ApiKind(JOB, BATCH_API),
    ApiKind(POD_GROUP, SCHEDULING_API),
    ApiKind(POD, "v1"),
    ApiKind(EVENT, "v1"),
    ApiKind(COMMAND, "bus.volcano.sh/v1alpha1"),
)
BY_NAME = {kind.name: kind for kind in KINDS}
_RANK = {kind.name: rank for rank, kind in enumerate(KINDS)}

#: Other people's kinds that share a name with one of ours: kept like every unknown kind.
NAMESAKES = frozenset(
    {
        ("batch/v1", "Job"),
        ("events.k8s.io/v1", "Event"),
        ("scheduling.k8s.io/v1alpha1", "PodGroup"),
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    }
)


def kind_of(obj: JsonObject) -> str:
    """The store's name for the kind of an object: the plain word when it is known, else with its apiVersion."""
    kind, api_version = str(obj["kind"]), str(obj["apiVersion"])
    known = BY_NAME.get(kind)
    return kind if known is not None and known.api_version == api_version else f"{kind}.{api_version}"


def is_known(kind: str) -> bool:
    """Whether the table has it."""
    return kind in BY_NAME


def is_namespaced(kind: str) -> bool | None:
    """None when the kind is unknown, and so is its scope."""
    known = BY_NAME.get(kind)
    return None if known is None else known.namespaced


def creation_rank(kind: str) -> int:
    """Where the kind stands in the order of creation at the start; unknown kinds come last."""
    return _RANK.get(kind, len(KINDS))


def meta(obj: JsonObject) -> JsonObject:
    """`metadata` of a stored object."""
    metadata: JsonObject = obj["metadata"]
    return metadata


def spec(obj: JsonObject) -> JsonObject:
    """`spec`, {} when there is none."""
    return obj.get("spec") or {}


def status(obj: JsonObject) -> JsonObject:
    """`status`, {} when there is none."""
    return obj.get("status") or {}


def annotations_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.annotations`, {} when there are none."""
    return meta(obj).get("annotations") or {}


def labels_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.labels`, {} when there are none."""
    return meta(obj).get("labels") or {}


def controller_of(obj: JsonObject) -> JsonObject | None:
    """The owner reference with `controller: true`, if it says whom it means: an API server takes no other."""
    for owner in meta(obj).get("ownerReferences") or ():
        if owner.get("controller"):
            return dict(owner) if owner.get("uid") and owner.get("kind") and owner.get("name") else None
    return None
