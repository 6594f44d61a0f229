"""Encoded request bodies: one function per request, on structs that msgspec encodes in about a microsecond."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from capcard_sched.model.annotations import FENCE
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.objects import PodConditionObject, PodGroupCondition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.kube.writes.event_correlator import Series
    from capcard_sched.model.intents import Bind, UpdatePodGroup

MERGE: Final = "application/merge-patch+json"
#: Content type: merges lists of built-in kinds by key, conditions by type. Custom resources do not support it.
STRATEGIC: Final = "application/strategic-merge-patch+json"

_encode = msgspec.json.Encoder().encode
#: Namespace of events about cluster-scoped objects.
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
    """A Binding. Its uid makes the API server reject it for a pod of the same name; its annotations go to the pod.

    `fence`: holder and term of the Lease, which an admission policy checks.
    """
    annotations = bind.pod_annotations()
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
    """Delete options: only the pod with this uid, with its own grace period."""
    return _encode(_DeleteOptions(_Preconditions(uid)))


def eviction(namespace: str, name: str, uid: str) -> bytes:
    """A request to the eviction subresource, which checks the disruption budgets."""
    return _encode(_EvictionBody(_BodyMeta(name, namespace), _DeleteOptions(_Preconditions(uid))))


# --- conditions and statuses ----------------------------------------------------------------------------------------


class _PodStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    conditions: tuple[PodConditionObject, ...]
    nominated_node_name: str | msgspec.UnsetType | None = msgspec.UNSET


class _PodPatch(msgspec.Struct, frozen=True):
    metadata: _BodyMeta
    status: _PodStatus


def pod_conditions(uid: str, conditions: tuple[PodConditionObject, ...], nominated_node: str | None = None) -> bytes:
    """A strategic merge patch for `pods/status`: these conditions, and the nominated node.

    `nominated_node`: None keeps it, "" clears it. Of a condition without a transition time, the API server keeps it.
    """
    node = msgspec.UNSET if nominated_node is None else nominated_node or None
    return _encode(_PodPatch(_BodyMeta(uid=uid), _PodStatus(conditions, node)))


class _GroupStatus(msgspec.Struct, frozen=True):
    phase: str
    #: None removes the field: Volcano omits zeros.
    running: int | None
    succeeded: int | None
    failed: int | None
    conditions: tuple[PodGroupCondition, ...] | None


class _GroupPatch(msgspec.Struct, frozen=True):
    metadata: _BodyMeta
    status: _GroupStatus


def group_status(update: UpdatePodGroup) -> bytes:
    """A merge patch of the status only, with the uid as precondition, so that changes of others to the spec stay."""
    status = _GroupStatus(
        update.phase,
        update.running or None,
        update.succeeded or None,
        update.failed or None,
        update.conditions or None,
    )
    return _encode(_GroupPatch(_BodyMeta(uid=update.uid), status))


def queue_status(allocated: Mapping[str, str | None]) -> bytes:
    """A merge patch of `status.allocated`; None removes a resource."""
    return _encode({"status": {"allocated": allocated}})


def annotation_changes(changes: Mapping[str, str | None], uid: str = "", version: str = "") -> bytes:
    """A merge patch of annotations; None removes a key. `uid` and `version`, if given, are preconditions (409)."""
    given = {field: value for field, value in (("uid", uid), ("resourceVersion", version)) if value}
    return _encode({"metadata": {"annotations": changes, **given}})


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
    #: Null: with a time in `eventTime` the API server requires the fields of events.k8s.io/v1.
    event_time: None = None
    reporting_instance: str = ""
    api_version: str = "v1"
    kind: Literal["Event"] = "Event"


class _Repeat(_Wire, frozen=True):
    count: int
    last_timestamp: str
    message: str


def event_namespace(series: Series) -> str:
    """Namespace of the Event object: that of its object."""
    return series.object.namespace or CLUSTER_EVENTS


def event(series: Series, uid: str, first: str, last: str) -> bytes:
    """A core/v1 Event. `kubectl describe` finds it by `uid`, that of the involved object."""
    about = series.object
    return _encode(
        _EventBody(
            metadata=_BodyMeta(series.name, event_namespace(series)),
            involved_object=_Involved(
                about.kind, about.name, uid, KIND_BY_NAME[about.kind].api_version, about.namespace
            ),
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
    """A merge patch for a repeated Event."""
    return _encode(_Repeat(series.count, last, series.message))
