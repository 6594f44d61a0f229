"""Deltas: changes in the cluster, as immutable messages to the core."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.kinds import KubernetesObject
from capcard_sched.model.usage import NodeUsage


class _Delta(msgspec.Struct, frozen=True, gc=False, tag=True, tag_field="delta"):
    """Base: tagged by `delta` in JSON, so that recordings can be decoded."""


class ObjectChanged(_Delta, frozen=True):
    """An object was added or updated. A pod with a new uid under a known name replaces the old pod."""

    object: KubernetesObject


class ObjectGone(_Delta, frozen=True):
    """An object was deleted. `uid`, of a pod or PodGroup: an object of another uid stays; "" matches any."""

    kind: str
    #: "" for cluster-scoped kinds.
    namespace: str
    name: str
    uid: str = ""


class NodeUsageChanged(_Delta, frozen=True):
    """The load of some nodes was measured, by node name; other nodes keep their last measurement."""

    nodes: dict[str, NodeUsage]


class NodeUsageGone(_Delta, frozen=True):
    """The load of a node is no longer measured."""

    name: str


class ObjectUnreadable(_Delta, frozen=True):
    """An object has a field of a wrong type: it keeps its last known facts, and the scheduler emits an event on it."""

    object: ObjectRef
    problem: str
    #: Node of a bound and unfinished pod, else "".
    node: str = ""


class BindFailed(_Delta, frozen=True):
    """The API server rejected a binding: the task is pending again.

    With `retry_after` (seconds) above 0 the task is in backoff until a `BindRetry`.
    """

    namespace: str
    name: str
    uid: str
    message: str
    retry_after: float = 0.0


class BindRetry(_Delta, frozen=True):
    """The backoff of a pod after a rejected binding ended."""

    namespace: str
    name: str
    uid: str


class Takeover(_Delta, frozen=True):
    """This scheduler became leader, and the state matches the API server.

    Bindings and evictions of an earlier term that the watch has not confirmed are dropped; backoffs end.
    """


class EvictFailed(_Delta, frozen=True):
    """The API server rejected an eviction: the task gets its former status again."""

    namespace: str
    name: str
    uid: str
    message: str


class CapacityRequestRefused(_Delta, frozen=True):
    """A ProvisioningRequest was not created."""

    namespace: str
    #: Of the request, and of the job.
    name: str
    group: str
    message: str
    #: No request can be created: the kind is not served, or the right is missing.
    is_unavailable: bool = False


Delta: TypeAlias = (
    ObjectChanged
    | ObjectGone
    | NodeUsageChanged
    | NodeUsageGone
    | ObjectUnreadable
    | BindFailed
    | BindRetry
    | Takeover
    | EvictFailed
    | CapacityRequestRefused
)
