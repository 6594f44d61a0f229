"""The kinds of the simulated API server: names, scope and the order of creation."""

from typing import Final

from capcard_sched.controllers.objects import JsonObject
from capcard_sched.model.kinds import KIND_BY_NAME, KINDS

NODE: Final = "Node"
NAMESPACE: Final = "Namespace"
RESOURCE_QUOTA: Final = "ResourceQuota"
DISRUPTION_BUDGET: Final = "PodDisruptionBudget"
STORAGE_CLASS: Final = "StorageClass"
VOLUME: Final = "PersistentVolume"

SIMULATION_API: Final = "simulation.capcard-sched.io/v1alpha1"
SCENARIO: Final = "Scenario"

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
    known = KIND_BY_NAME.get(kind)
    return kind if known is not None and known.api_version == api_version else f"{kind}.{api_version}"


def is_known(kind: str) -> bool:
    """Whether the kind is in the table."""
    return kind in KIND_BY_NAME


def is_namespaced(kind: str) -> bool | None:
    """None when the kind is unknown, and so is its scope."""
    known = KIND_BY_NAME.get(kind)
    return None if known is None else known.namespaced


def creation_rank(kind: str) -> int:
    """The position of a kind in the order of initial creation; unknown kinds come last."""
    return _RANK.get(kind, len(KINDS))
