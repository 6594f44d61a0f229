"""Deltas for tests of the state: one function per kind, arguments in the words of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model import deltas
from capcard_sched.model.kinds import kind_of_object
from capcard_sched.model.objects import (
    NamespaceObject,
    NodeObject,
    ObjectMeta,
    PodGroupObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)


def change_of(delta: deltas.Delta) -> str:
    """The kind of an object and its change: `PodChanged`, `PodGone`; for other deltas the name of their type."""
    match delta:
        case deltas.ObjectChanged(obj):
            return f"{kind_of_object(obj)}Changed"
        case deltas.ObjectGone(kind):
            return f"{kind}Gone"
        case _:
            return type(delta).__name__


def stamp(second: int) -> str:
    """A creation time: so many seconds after midnight of 2026-01-01, UTC."""
    return f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"


def node(
    name: str,
    *,
    cpu: Any = "8",
    memory: Any = "16Gi",
    pods: Any = "110",
    devices: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
) -> deltas.ObjectChanged:
    """A node."""
    offered = {"cpu": cpu, "memory": memory, "pods": pods, **(devices or {})}
    body = {
        "metadata": {"name": name, "uid": f"{name}-uid", "labels": dict(labels or {})},
        "status": {"allocatable": offered, "capacity": offered},
    }
    return deltas.ObjectChanged(msgspec.convert(body, NodeObject))


def pod(
    name: str,
    *,
    uid: str = "",
    namespace: str = "default",
    group: str = "",
    queue: str = "",
    role: str = "",
    requests: Mapping[str, Any] | None = None,
    node: str = "",
    phase: str = "",
    deleting: bool = False,
    gated: bool = False,
    scheduler: str = "capcard-sched",
    created: int = 0,
    owner: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    nominated: str = "",
    **spec: Any,
) -> deltas.ObjectChanged:
    """A pod of one container; Running when it has a node, unless `phase` is given."""
    named = {keys.GROUP_NAME: group, keys.QUEUE_NAME: queue, keys.TASK_SPEC: role}
    notes = {**(annotations or {}), **{key: value for key, value in named.items() if value}}
    meta: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"{name}-uid",
        "creationTimestamp": stamp(created),
        "annotations": notes,
        "labels": dict(labels or {}),
    }
    if deleting:
        meta["deletionTimestamp"] = stamp(created + 1)
    if owner:
        meta["ownerReferences"] = [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]
    requested = {"cpu": "1"} if requests is None else dict(requests)
    body: dict[str, Any] = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "resources": {"requests": requested}}],
        **spec,
    }
    if node:
        body["nodeName"] = node
    if gated:
        body["schedulingGates"] = [{"name": "wait"}]
    status = {"phase": phase or ("Running" if node else "Pending"), "nominatedNodeName": nominated or None}
    return deltas.ObjectChanged(msgspec.convert({"metadata": meta, "spec": body, "status": status}, PodObject))


def group(
    name: str,
    *,
    uid: str = "",
    queue: str | None = "q",
    phase: str = "",
    created: int = 0,
    annotations: Mapping[str, str] | None = None,
    roles: Mapping[str, int] | None = None,
    **spec: Any,
) -> deltas.ObjectChanged:
    """A PodGroup; `roles` are its `minTaskMember`, `spec` in camel case (`minMember=2`)."""
    if roles is not None:
        spec["minTaskMember"] = dict(roles)
    body = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"{name}-group",
            "creationTimestamp": stamp(created),
            "annotations": dict(annotations or {}),
        },
        "spec": {"queue": queue, "minMember": 1, **spec},
        "status": {"phase": phase} if phase else {},
    }
    return deltas.ObjectChanged(msgspec.convert(body, PodGroupObject))


def queue(name: str, *, status: Mapping[str, Any] | None = None, **spec: Any) -> deltas.ObjectChanged:
    """A queue; `spec` in camel case."""
    body = {"metadata": {"name": name}, "spec": spec, "status": dict(status or {"state": "Open"})}
    return deltas.ObjectChanged(msgspec.convert(body, QueueObject))


def namespace(name: str, labels: Mapping[str, str], default_queue: str = "") -> deltas.ObjectChanged:
    """A namespace; `default_queue`: the queue of PodGroups that name none."""
    notes = {keys.POD_QUEUE_NAME: default_queue} if default_queue else None
    return deltas.ObjectChanged(NamespaceObject(ObjectMeta(name=name, labels=dict(labels), annotations=notes)))


def priority_class(name: str, value: int, *, default: bool = False) -> deltas.ObjectChanged:
    """A PriorityClass."""
    body = {"metadata": {"name": name}, "value": value, "globalDefault": default}
    return deltas.ObjectChanged(msgspec.convert(body, PriorityClassObject))
