"""The kinds of the simulated API server: names, scope and the order of creation."""

from functools import cache
from typing import Final

from capcard_sched.controllers.owner_rules import built_in_rules
from capcard_sched.model.kinds import BATCH_JOB, KIND_BY_NAME, KINDS
from capcard_sched.model.kube_groups import KUBE_API

NODE: Final = "Node"
NAMESPACE: Final = "Namespace"
RESOURCE_QUOTA: Final = "ResourceQuota"
DISRUPTION_BUDGET: Final = "PodDisruptionBudget"
STORAGE_CLASS: Final = "StorageClass"
VOLUME: Final = "PersistentVolume"
RESOURCE_CLAIM: Final = "ResourceClaim"
RESOURCE_SLICE: Final = "ResourceSlice"
CLAIM_TEMPLATE: Final = "ResourceClaimTemplate"

SIMULATION_API: Final = "simulation.capcard-sched.io/v1alpha1"
SCENARIO: Final = "Scenario"

#: Templates of PodGroups: accepted, and read by no component. The scheduler reads the PodGroups alone.
_TEMPLATES: Final = frozenset({f"Workload.{KUBE_API}"})

_RANK = {kind.name: rank for rank, kind in enumerate(KINDS)}


@cache
def _owners() -> frozenset[str]:
    """The kinds of operators that the PodGroup controller reads."""
    return frozenset(kind.view_name for rule in built_in_rules() for kind in rule.owners)


def is_known(kind: str) -> bool:
    """Whether the kind is served: the scheduler or a controller reads it, or it is a template of PodGroups."""
    return kind in KIND_BY_NAME or kind == BATCH_JOB or kind in _owners() or kind in _TEMPLATES


def is_of_operator(kind: str) -> bool:
    """Whether an operator makes the pods of the kind, and the simulator does not simulate it: its numbers are read."""
    return kind in _owners() and kind not in KIND_BY_NAME and kind != BATCH_JOB


def is_namespaced(kind: str) -> bool | None:
    """None when the kind is unknown, and so is its scope."""
    known = KIND_BY_NAME.get(kind)
    if known is None:
        return True if is_known(kind) else None
    return known.namespaced


def creation_rank(kind: str) -> int:
    """The position of a kind in the order of initial creation; unknown kinds come last."""
    return _RANK.get(kind, len(KINDS))
