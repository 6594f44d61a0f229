"""The kinds of the simulated API server: one table, from which loading, defaulting and output order are derived."""

from typing import Final, NamedTuple

from capcard_sched.controllers.objects import (
    APPS_API,
    BATCH_API,
    BUS_API,
    CLAIM,
    COMMAND,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    EVENT,
    JOB,
    NETWORK_POLICY,
    NETWORKING_API,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE,
    REPLICA_SET,
    SCHEDULING_API,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    JsonObject,
)

NODE: Final = "Node"
NAMESPACE: Final = "Namespace"
RESOURCE_QUOTA: Final = "ResourceQuota"
DISRUPTION_BUDGET: Final = "PodDisruptionBudget"
STORAGE_CLASS: Final = "StorageClass"
VOLUME: Final = "PersistentVolume"
CSI_DRIVER: Final = "CSIDriver"
CSI_NODE: Final = "CSINode"
STORAGE_CAPACITY: Final = "CSIStorageCapacity"
VOLUME_ATTACHMENT: Final = "VolumeAttachment"
HYPER_NODE: Final = "HyperNode"
NUMATOPOLOGY: Final = "Numatopology"

SIMULATION_API: Final = "simulation.capcard-sched.io/v1alpha1"
SCENARIO: Final = "Scenario"
STORAGE_API: Final = "storage.k8s.io/v1"
NODE_INFO_API: Final = "nodeinfo.volcano.sh/v1alpha1"


class ApiKind(NamedTuple):
    """One known kind. Rows are in the order in which initial objects are created."""

    name: str
    api_version: str
    namespaced: bool = True


KINDS = (
    ApiKind(PRIORITY_CLASS, "scheduling.k8s.io/v1", namespaced=False),
    ApiKind(NAMESPACE, "v1", namespaced=False),
    ApiKind(CONFIG_MAP, "v1"),
    ApiKind(SECRET, "v1"),
    ApiKind(SERVICE, "v1"),
    ApiKind(NETWORK_POLICY, NETWORKING_API),
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
    ApiKind(CRON_JOB, BATCH_API),
    ApiKind(JOB, BATCH_API),
    ApiKind(POD_GROUP, SCHEDULING_API),
    ApiKind(POD, "v1"),
    ApiKind(EVENT, "v1"),
    ApiKind(COMMAND, BUS_API),
)
BY_NAME = {kind.name: kind for kind in KINDS}
_RANK = {kind.name: rank for rank, kind in enumerate(KINDS)}

#: Kinds of other API groups that share a name with one of ours: kept like every unknown kind.
NAMESAKES = frozenset(
    {
        ("batch/v1", "CronJob"),
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
    """Whether the kind is in the table."""
    return kind in BY_NAME


def is_namespaced(kind: str) -> bool | None:
    """None when the kind is unknown, and so is its scope."""
    known = BY_NAME.get(kind)
    return None if known is None else known.namespaced


def creation_rank(kind: str) -> int:
    """The position of a kind in the order of initial creation; unknown kinds come last."""
    return _RANK.get(kind, len(KINDS))
