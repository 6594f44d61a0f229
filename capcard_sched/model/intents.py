"""What the core wants done: immutable messages for a backend to carry out."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from capcard_sched.model.objects import PodGroupCondition


class _Wish(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """Base: a message that says in JSON, under `kind`, which one it is; recordings are read back by it."""


class ClaimBinding(msgspec.Struct, frozen=True):
    """A claim that waits for its pod to be placed, and how it gets its volume."""

    #: Its name; the namespace is the pod's.
    claim: str
    uid: str
    #: The volume it gets; "" to have one made for the node.
    volume: str = ""
    #: Seconds until a claim that is still not bound fails the binding of the pod.
    timeout: int = 600


class Bind(_Wish, frozen=True):
    """Bind a pod to a node, with annotations to merge into it."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: dict[str, str] = {}
    #: Claims of the pod to be given their volumes before it is bound.
    volumes: tuple[ClaimBinding, ...] = ()


class Evict(_Wish, frozen=True):
    """Evict a pod."""

    namespace: str
    name: str
    uid: str
    #: The action that decided it.
    reason: str
    #: What follows "Pod is evicted, because of": the reason, and for whom.
    message: str
    #: Where it stands; the pod (`namespace/name`) that gets its room, and that pod's queue; "" when nobody does.
    node: str = ""
    by: str = ""
    queue: str = ""


class UpdatePodGroup(_Wish, frozen=True):
    """Write the status of a PodGroup."""

    namespace: str
    name: str
    uid: str
    phase: str
    running: int
    succeeded: int
    failed: int
    conditions: tuple[PodGroupCondition, ...]


class UpdateQueueStatus(_Wish, frozen=True):
    """Write `status.allocated` of a queue: Kubernetes resource names to quantities."""

    name: str
    allocated: dict[str, str]


class AnnotateQueue(_Wish, frozen=True):
    """Merge annotations into a queue; None removes a key."""

    name: str
    annotations: dict[str, str | None]


class AnnotatePodGroup(_Wish, frozen=True):
    """Merge annotations into a PodGroup; None removes a key."""

    namespace: str
    name: str
    uid: str
    annotations: dict[str, str | None]


class UpdatePodCondition(_Wish, frozen=True):
    """Set the `PodScheduled` condition of a pod, and its nominated node: None leaves it as it is, "" clears it."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    nominated_node: str | None = None


class ObjectRef(msgspec.Struct, frozen=True, order=True):
    """The object an event is about."""

    kind: Literal[
        "Pod",
        "PodGroup",
        "Queue",
        "Job",
        "Node",
        "PersistentVolumeClaim",
        "PersistentVolume",
        "StorageClass",
        "CSINode",
        "CSIStorageCapacity",
        "Numatopology",
        "HyperNode",
    ]
    namespace: str
    name: str
    uid: str = ""


class EmitEvent(_Wish, frozen=True):
    """Record an event on an object."""

    object: ObjectRef
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    #: Source component; "" is the scheduler's own name.
    component: str = ""


Intent: TypeAlias = (
    Bind
    | Evict
    | UpdatePodGroup
    | AnnotatePodGroup
    | UpdateQueueStatus
    | AnnotateQueue
    | UpdatePodCondition
    | EmitEvent
)
