"""Defaults that an API server, its admission plugins and a new kubelet set when an object is created."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from capcard_sched.admission.jobs import default_job
from capcard_sched.admission.pods import wants_queue_gate, with_queue_gate
from capcard_sched.controllers.objects import (
    CLAIM,
    DEPLOYMENT,
    JOB,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE,
    REPLICA_SET,
    ROOT_QUEUE,
    STATEFUL_SET,
    JsonObject,
    annotations_of,
    labels_of,
    meta,
    spec,
    status,
)
from capcard_sched.model.annotations import HOSTNAME
from capcard_sched.model.volumes import CLASS_ANNOTATION, DEFAULT_CLASS
from capcard_sched.simulation.kinds import NODE, STORAGE_CLASS, VOLUME
from capcard_sched.simulation.store import merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.simulation.store import Store

#: PriorityClasses of every cluster, and their values.
_SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
#: Pods: the default capacity of a kubelet.
_PODS_PER_NODE = "110"
#: The condition of a pod with scheduling gates; schedulers ignore such pods.
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


class Admission:
    """Sets defaults, per kind. Present values are kept, `status` included."""

    def __init__(self, store: Store, scheduler_names: Sequence[str], default_queue: str) -> None:
        """`scheduler_names`: those of the scheduler, that of new pods of its Jobs first."""
        self._store = store
        self._scheduler_names = scheduler_names
        self._default_queue = default_queue
        #: PriorityClasses that objects name and that do not exist: an API server rejects such pods.
        self.missing_classes: dict[str, None] = {}

    def admit(self, kind: str, obj: JsonObject) -> JsonObject:
        """The object to store."""
        if kind == POD:
            return self._pod(obj)
        if kind == NODE:
            return _node(obj)
        if kind == QUEUE:
            return _queue(obj)
        if kind == POD_GROUP:
            self._note_class(spec(obj).get("priorityClassName"))
            queue = spec(obj).get("queue") or self._default_queue
            phase = status(obj).get("phase") or "Pending"
            return merged(obj, {"spec": {"queue": queue}, "status": {"phase": phase}})
        if kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET):
            return merged(obj, {"spec": {"replicas": spec(obj).get("replicas", 1)}})
        if kind == JOB:
            return self._job(obj)
        if kind == CLAIM:
            return self._claim(obj)
        if kind == VOLUME:
            phase = status(obj).get("phase") or ("Bound" if spec(obj).get("claimRef") else "Available")
            return merged(obj, {"status": {"phase": phase}})
        return obj

    def _claim(self, obj: JsonObject) -> JsonObject:
        patch: JsonObject = {"status": {"phase": status(obj).get("phase") or "Pending"}}
        named = CLASS_ANNOTATION in annotations_of(obj) or spec(obj).get("storageClassName") is not None
        if not named:
            # The newest default class applies, as in Kubernetes.
            defaults = [
                (meta(each)["creationTimestamp"], meta(each)["name"])
                for each in self._store.list(STORAGE_CLASS)
                if annotations_of(each).get(DEFAULT_CLASS) == "true"
            ]
            if defaults:
                patch["spec"] = {"storageClassName": max(defaults)[1]}
        return merged(obj, patch)

    def _pod(self, obj: JsonObject) -> JsonObject:
        found = spec(obj)
        patch: JsonObject = {
            "schedulerName": found.get("schedulerName") or "default-scheduler",
            "restartPolicy": found.get("restartPolicy") or "Always",
            "terminationGracePeriodSeconds": found.get("terminationGracePeriodSeconds", 30),
            **self._priority(found),
        }
        for group in ("containers", "initContainers"):
            if found.get(group):
                patch[group] = [_container(container) for container in found[group]]
        state: JsonObject = {"phase": status(obj).get("phase") or "Pending"}
        if not status(obj).get("conditions") and not found.get("nodeName"):
            if patch["schedulerName"] in self._scheduler_names and wants_queue_gate(obj):
                patch["schedulingGates"] = with_queue_gate(found.get("schedulingGates"))
            if patch.get("schedulingGates") or found.get("schedulingGates"):
                state["conditions"] = [dict(_GATED)]
        return merged(obj, {"spec": patch, "status": state})

    def _priority(self, found: JsonObject) -> JsonObject:
        """`spec.priority`, `priorityClassName` and `preemptionPolicy` from the pod's class or the global default."""
        if "priority" in found:
            return {}
        name = found.get("priorityClassName")
        chosen: JsonObject | None = None
        if name:
            chosen = self._store.get(PRIORITY_CLASS, "", name)
            if chosen is None and name in _SYSTEM_CLASSES:
                return {"priority": _SYSTEM_CLASSES[name]}
            if chosen is None:
                self._note_class(name)
                return {"priority": 0}
        else:
            defaults = [obj for obj in self._store.list(PRIORITY_CLASS) if obj.get("globalDefault")]
            chosen = max(defaults, key=lambda obj: int(obj["value"]), default=None)
            if chosen is None:
                return {"priority": 0}
        policy = found.get("preemptionPolicy") or chosen.get("preemptionPolicy") or "PreemptLowerPriority"
        return {
            "priority": int(chosen["value"]),
            "priorityClassName": meta(chosen)["name"],
            "preemptionPolicy": policy,
        }

    def _note_class(self, name: str | None) -> None:
        if name and name not in _SYSTEM_CLASSES and self._store.get(PRIORITY_CLASS, "", name) is None:
            self.missing_classes[name] = None

    def _job(self, obj: JsonObject) -> JsonObject:
        """The defaults of the admission webhook, over those of the CRD and of the default queue."""
        found = spec(obj)
        self._note_class(found.get("priorityClassName"))
        tasks = [{**deepcopy(task), "replicas": task.get("replicas", 1)} for task in found.get("tasks") or ()]
        phase = (status(obj).get("state") or {}).get("phase") or "Pending"
        patch: JsonObject = {"queue": found.get("queue") or self._default_queue, "tasks": tasks}
        stored = merged(obj, {"spec": patch, "status": {"state": {"phase": phase}}})
        default_job(stored, self._scheduler_names[0])
        return stored


def _container(container: JsonObject) -> JsonObject:
    """Absent requests default to limits."""
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    requests = resources.get("requests") or {}
    if all(name in requests for name in limits):
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **requests}}}


def _node(obj: JsonObject) -> JsonObject:
    capacity: dict[str, Any] = status(obj).get("capacity") or {}
    allocatable: dict[str, Any] = status(obj).get("allocatable") or capacity
    capacity = capacity or allocatable
    patch: JsonObject = {
        "metadata": {"labels": {HOSTNAME: labels_of(obj).get(HOSTNAME, meta(obj)["name"])}},
        "status": {
            "allocatable": {"pods": _PODS_PER_NODE, **allocatable},
            "capacity": {"pods": _PODS_PER_NODE, **capacity},
        },
    }
    return merged(obj, patch)


def _queue(obj: JsonObject) -> JsonObject:
    found = spec(obj)
    root = meta(obj)["name"] == ROOT_QUEUE
    patch: JsonObject = {
        "weight": found.get("weight", 1),
        "reclaimable": found.get("reclaimable", not root),
    }
    if not root and not found.get("parent"):
        patch["parent"] = ROOT_QUEUE
    return merged(obj, {"spec": patch, "status": {"state": status(obj).get("state") or "Open"}})
