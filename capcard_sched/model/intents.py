"""What the core wants done: immutable messages for a backend to carry out."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from capcard_sched.model.objects import PodGroupCondition


class Bind(msgspec.Struct, frozen=True):
    """Bind a pod to a node, with annotations to merge into it."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: dict[str, str] = {}


class Evict(msgspec.Struct, frozen=True):
    """Evict a pod."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str


class UpdatePodGroup(msgspec.Struct, frozen=True):
    """Write the status of a PodGroup."""

    namespace: str
    name: str
    uid: str
    phase: str
    running: int
    succeeded: int
    failed: int
    conditions: tuple[PodGroupCondition, ...]


class UpdateQueueStatus(msgspec.Struct, frozen=True):
    """Write `status.allocated` of a queue: Kubernetes resource names to quantities."""

    name: str
    allocated: dict[str, str]


class AnnotateQueue(msgspec.Struct, frozen=True):
    """Merge annotations into a queue; None removes a key."""

    name: str
    annotations: dict[str, str | None]


class UpdatePodCondition(msgspec.Struct, frozen=True):
    """Set the `PodScheduled` condition of a pod and, where given, its nominated node."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    nominated_node: str = ""


class ObjectRef(msgspec.Struct, frozen=True, order=True):
    """The object an event is about."""

    kind: Literal["Pod", "PodGroup", "Queue", "Node"]
    namespace: str
    name: str
    uid: str = ""


class EmitEvent(msgspec.Struct, frozen=True):
    """Record an event on an object."""

    object: ObjectRef
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    #: Source component; "" is the scheduler's own name.
    component: str = ""


Intent: TypeAlias = Bind | Evict | UpdatePodGroup | UpdateQueueStatus | AnnotateQueue | UpdatePodCondition | EmitEvent
