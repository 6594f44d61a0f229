"""What is sent, as bytes: one function per request, on structs that msgspec encodes in about a microsecond."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from capcard_sched.model.annotations import FENCE
from capcard_sched.model.objects import PodGroupCondition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.kube.writes.event_correlator import Series
    from capcard_sched.model.intents import Bind, UpdatePodGroup

MERGE: Final = "application/merge-patch+json"
#: Merges lists of built-in kinds by key: conditions by type. Custom resources do not take it.
STRATEGIC: Final = "application/strategic-merge-patch+json"

_encode = msgspec.json.Encoder().encode
_API_VERSIONS: Final = {
    "Pod": "v1",
    "Node": "v1",
    "PodGroup": "scheduling.volcano.sh/v1beta1",
    "Queue": "scheduling.volcano.sh/v1beta1",
    "HyperNode": "topology.volcano.sh/v1alpha1",
    "PersistentVolumeClaim": "v1",
    "PersistentVolume": "v1",
    "StorageClass": "storage.k8s.io/v1",
    "CSINode": "storage.k8s.io/v1",
    "CSIStorageCapacity": "storage.k8s.io/v1",
    "Numatopology": "nodeinfo.volcano.sh/v1alpha1",
}
#: Where events about objects without a namespace live.
CLUSTER_EVENTS: Final = "default"


class _Wire(msgspec.Struct, rename="camel", frozen=True):
    """Base: camelCase on the wire, every field written."""


class _BodyMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Target(msgspec.Struct, frozen=True):
    name: str
    kind: str = "Node"


class _Binding(_Wire, frozen=True):
    metadata: _BodyMeta
    target: _Target
    api_version: str = "v1"
    kind: str = "Binding"


def binding(bind: Bind, fence: str | None) -> bytes:
    """A Binding: the uid makes it refused for a pod of the same name, its annotations are merged into the pod.

    `fence` is the holder and term of the lease, which an admission policy may check.
    """
    annotations = bind.annotations
    if fence is not None:
        annotations = {**annotations, FENCE: fence}
    return _encode(_Binding(_BodyMeta(bind.name, bind.namespace, bind.uid, annotations or None), _Target(bind.node)))


# --- eviction -------------------------------------------------------------------------------------------------------


class _Preconditions(msgspec.Struct, frozen=True):
    uid: str


class _DeleteOptions(_Wire, frozen=True):
    preconditions: _Preconditions
    api_version: str = "v1"
    kind: str = "DeleteOptions"


class _EvictionBody(_Wire, frozen=True):
    metadata: _BodyMeta
    delete_options: _DeleteOptions
    api_version: str = "policy/v1"
    kind: str = "Eviction"


def deletion(uid: str) -> bytes:
    """Delete options: this pod and no other of its name, with its own grace period."""
    return _encode(_DeleteOptions(_Preconditions(uid)))


def eviction(namespace: str, name: str, uid: str) -> bytes:
    """A request to the eviction subresource, which asks the disruption budgets."""
    return _encode(_EvictionBody(_BodyMeta(name, namespace), _DeleteOptions(_Preconditions(uid))))


# --- conditions and statuses ----------------------------------------------------------------------------------------


class PodCondition(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A condition of a pod. Without a transition time the one on the server stays."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _PodStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    conditions: tuple[PodCondition, ...]
    nominated_node_name: str | msgspec.UnsetType | None = msgspec.UNSET


class _PodPatch(msgspec.Struct, frozen=True):
    metadata: _BodyMeta
    status: _PodStatus


def pod_conditions(uid: str, conditions: tuple[PodCondition, ...], nominated_node: str | None = None) -> bytes:
    """A strategic merge patch for `pods/status`: these conditions, and the nominated node where it is to change.

    `nominated_node`: "" clears it.
    """
    node = msgspec.UNSET if nominated_node is None else nominated_node or None
    return _encode(_PodPatch(_BodyMeta(uid=uid), _PodStatus(conditions, node)))


class _GroupStatus(msgspec.Struct, frozen=True):
    phase: str
    #: None takes the field away, as the reference leaves out zeros.
    running: int | None
    succeeded: int | None
    failed: int | None
    conditions: tuple[PodGroupCondition, ...] | None


class _GroupPatch(msgspec.Struct, frozen=True):
    metadata: _BodyMeta
    status: _GroupStatus


def group_status(update: UpdatePodGroup) -> bytes:
    """A merge patch with nothing but the status, and the uid as precondition (core reference W-39)."""
    status = _GroupStatus(
        update.phase,
        update.running or None,
        update.succeeded or None,
        update.failed or None,
        update.conditions or None,
    )
    return _encode(_GroupPatch(_BodyMeta(uid=update.uid), status))


def queue_status(allocated: Mapping[str, str | None]) -> bytes:
    """A merge patch of `status.allocated`; None takes a resource away."""
    return _encode({"status": {"allocated": allocated}})


def annotation_changes(changes: Mapping[str, str | None], uid: str = "") -> bytes:
    """A merge patch of annotations; None takes a key away. `uid` is the precondition where it is given."""
    metadata: dict[str, object] = {"annotations": changes}
    if uid:
        metadata["uid"] = uid
    return _encode({"metadata": metadata})


# --- events ---------------------------------------------------------------------------------------------------------


class _Involved(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    kind: str
    name: str
    uid: str
    api_version: str
    namespace: str = ""


class _EventSource(msgspec.Struct, frozen=True):
    component: str


class _EventBody(_Wire, frozen=True):
    metadata: _BodyMeta
    involved_object: _Involved
    reason: str
    message: str
    type: str
    count: int
    first_timestamp: str
    last_timestamp: str
    source: _EventSource
    reporting_component: str
    #: Present and empty: with a time in `eventTime` the API server asks for the fields of the newer kind of event.
    event_time: None = None
    reporting_instance: str = ""
    api_version: str = "v1"
    kind: Literal["Event"] = "Event"


class _Repeat(_Wire, frozen=True):
    count: int
    last_timestamp: str
    message: str


def event_namespace(series: Series) -> str:
    """Where the Event object lives: beside its object."""
    return series.object.namespace or CLUSTER_EVENTS


def event(series: Series, uid: str, first: str, last: str) -> bytes:
    """A core/v1 Event. `uid` is the involved object's, without which `kubectl describe` does not find the event."""
    about = series.object
    return _encode(
        _EventBody(
            metadata=_BodyMeta(series.name, event_namespace(series)),
            involved_object=_Involved(about.kind, about.name, uid, _API_VERSIONS[about.kind], about.namespace),
            reason=series.reason,
            message=series.message,
            type=series.type,
            count=series.count,
            first_timestamp=first,
            last_timestamp=last,
            source=_EventSource(series.component),
            reporting_component=series.component,
        )
    )


def repeat(series: Series, last: str) -> bytes:
    """A merge patch for an Event that happened again."""
    return _encode(_Repeat(series.count, last, series.message))
