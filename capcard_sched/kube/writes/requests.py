"""Encoded request bodies: one function per request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.annotations import FENCE, QUEUE_ALLOCATION_GATE
from capcard_sched.model.involved_object import involved_object
from capcard_sched.model.kube_groups import INITIALLY_SCHEDULED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.kube.writes.event_correlator import Series
    from capcard_sched.model.intents import Bind, UpdatePodGroup, WriteConfigMap
    from capcard_sched.model.objects import PodConditionObject

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
#: Content type: merges lists of built-in kinds by key, conditions by type. Custom resources do not support it.
STRATEGIC: Final = "application/strategic-merge-patch+json"

#: Content type of server-side apply: creates the object, or sets the fields of the body.
APPLY: Final = "application/apply-patch+yaml"
APPLY_PARAMS: Final = {"fieldManager": "capcard-sched", "force": "true"}

_encode = msgspec.json.Encoder().encode
#: Namespace of events about cluster-scoped objects.
CLUSTER_EVENTS: Final = "default"


def binding(bind: Bind, fence: str | None) -> bytes:
    """A Binding. Its uid makes the API server reject it for a pod of the same name; its annotations go to the pod.

    `fence`: holder and term of the Lease, which an admission policy checks.
    """
    annotations = bind.pod_annotations()
    if fence is not None:
        annotations = {**annotations, FENCE: fence}
    metadata: dict[str, Any] = {"name": bind.name, "namespace": bind.namespace, "uid": bind.uid}
    if annotations:
        metadata["annotations"] = annotations
    target = {"kind": "Node", "name": bind.node}
    return _encode({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target})


def config_map(intent: WriteConfigMap) -> bytes:
    """A ConfigMap as server-side apply takes it."""
    metadata = {"name": intent.name, "namespace": intent.namespace, "labels": intent.labels}
    return _encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": intent.data})


# --- eviction -------------------------------------------------------------------------------------------------------


def _delete_options(uid: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}


def deletion(uid: str) -> bytes:
    """Delete options: only the pod with this uid, with its own grace period."""
    return _encode(_delete_options(uid))


def eviction(namespace: str, name: str, uid: str) -> bytes:
    """A request to the eviction subresource, which checks the disruption budgets."""
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": _delete_options(uid)}
    return _encode(body)


# --- conditions and statuses ----------------------------------------------------------------------------------------


def pod_conditions(uid: str, conditions: tuple[PodConditionObject, ...], nominated_node: str | None = None) -> bytes:
    """A strategic merge patch for `pods/status`: these conditions, and the nominated node.

    `nominated_node`: None keeps it, "" clears it. Of a condition without a transition time, the API server keeps it.
    """
    status: dict[str, Any] = {"conditions": conditions}
    if nominated_node is not None:
        status["nominatedNodeName"] = nominated_node or None
    return _encode({"metadata": {"uid": uid}, "status": status})


def gate_removal(uid: str) -> bytes:
    """A strategic merge patch that removes the queue allocation gate of a pod, if it is there."""
    gate = {"$patch": "delete", "name": QUEUE_ALLOCATION_GATE}
    return _encode({"metadata": {"uid": uid} if uid else {}, "spec": {"schedulingGates": [gate]}})


def group_status(update: UpdatePodGroup) -> bytes:
    """A merge patch of the status only, with the uid as precondition, so that changes of others to the spec stay.

    None removes a field: Volcano omits zeros.
    """
    status = {
        "phase": update.phase,
        "running": update.running or None,
        "succeeded": update.succeeded or None,
        "failed": update.failed or None,
        "conditions": update.conditions or None,
    }
    return _encode({"metadata": {"uid": update.uid} if update.uid else {}, "status": status})


def kube_group_condition(
    uid: str, condition: tuple[str, str, str], stamp: str, kind: str = INITIALLY_SCHEDULED
) -> bytes:
    """A strategic merge patch of a condition of a PodGroup of `scheduling.k8s.io`: status, reason, message."""
    status, reason, message = condition
    row = {"type": kind, "status": status, "reason": reason, "message": message}
    return _encode({"metadata": {"uid": uid}, "status": {"conditions": [{**row, "lastTransitionTime": stamp}]}})


def queue_status(allocated: Mapping[str, str | None]) -> bytes:
    """A merge patch of `status.allocated`; None removes a resource."""
    return _encode({"status": {"allocated": allocated}})


def annotation_removal(key: str, value: str) -> bytes:
    """A JSON patch that removes an annotation with this value; another value makes the API server reject it (422)."""
    path = f"/metadata/annotations/{key.replace('~', '~0').replace('/', '~1')}"
    return _encode([{"op": "test", "path": path, "value": value}, {"op": "remove", "path": path}])


def annotation_changes(changes: Mapping[str, str | None], uid: str = "", version: str = "") -> bytes:
    """A merge patch of annotations; None removes a key. `uid` and `version`, if given, are preconditions (409)."""
    given = {field: value for field, value in (("uid", uid), ("resourceVersion", version)) if value}
    return _encode({"metadata": {"annotations": changes, **given}})


# --- events ---------------------------------------------------------------------------------------------------------


def event_namespace(series: Series) -> str:
    """Namespace of the Event object: that of its object."""
    return series.object.namespace or CLUSTER_EVENTS


def event(series: Series, uid: str, first: str, last: str) -> bytes:
    """A core/v1 Event. `kubectl describe` finds it by `uid`, that of the involved object."""
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": series.name, "namespace": event_namespace(series)},
        "involvedObject": involved_object(series.object, uid),
        "reason": series.reason,
        "message": series.message,
        "type": series.type,
        "count": series.count,
        "firstTimestamp": first,
        "lastTimestamp": last,
        "source": {"component": series.component},
        "reportingComponent": series.component,
        "reportingInstance": "",
        # With a time here the API server requires the fields of events.k8s.io/v1.
        "eventTime": None,
    }
    return _encode(body)


def repeat(series: Series, last: str) -> bytes:
    """A merge patch for a repeated Event."""
    return _encode({"count": series.count, "lastTimestamp": last, "message": series.message})
