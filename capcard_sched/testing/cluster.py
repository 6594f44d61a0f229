"""Nodes, queues, groups and pods for the harness: created, changed and deleted by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model import deltas
from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.kinds import BATCH_API
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, PriorityClassObject, QueueObject
from capcard_sched.testing.storage import StorageObjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.deltas import Delta


def _timestamp(second: int) -> str:
    hours, rest = divmod(second, 3600)
    return f"2026-01-{1 + hours // 24:02d}T{hours % 24:02d}:{rest // 60:02d}:{rest % 60:02d}Z"


class ClusterObjects(StorageObjects):
    """The part of the harness that creates objects. Objects of the same name replace each other."""

    def __init__(self) -> None:
        super().__init__()
        self._pods: dict[str, dict[str, Any]] = {}
        self._created = 0
        self._births: dict[str, int] = {}

    def _meta(self, name: str, namespace: str | None, **extra: Any) -> dict[str, Any]:
        uid = f"{namespace or 'cluster'}-{name}-uid"
        if uid not in self._births:  # a changed object keeps its creation time
            self._created += 1
            self._births[uid] = self._created
        meta = {
            "name": name,
            "uid": uid,
            "creationTimestamp": _timestamp(self._births[uid]),
            **{key: value for key, value in extra.items() if value},
        }
        if namespace is not None:
            meta["namespace"] = namespace
        return meta

    def node(
        self,
        name: str,
        *,
        cpu: str = "64",
        memory: str = "256Gi",
        pods: int = 110,
        resources: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, str]] = (),
        unschedulable: bool = False,
        images: Iterable[Mapping[str, Any]] = (),
        features: Iterable[str] = (),
    ) -> None:
        """Add or replace a node. `features`: those that it declares."""
        allocatable = {"cpu": cpu, "memory": memory, "pods": str(pods), **(resources or {})}
        obj = {
            "metadata": self._meta(
                name,
                None,
                labels={"kubernetes.io/hostname": name, **(labels or {})},
                annotations=dict(annotations or {}),
            ),
            "spec": {"taints": list(taints), "unschedulable": unschedulable},
            "status": {
                "allocatable": allocatable,
                "capacity": allocatable,
                "images": list(images),
                "declaredFeatures": list(features),
            },
        }
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, NodeObject)))

    def gpu_node(
        self,
        name: str,
        card: str = "NVIDIA-H200",
        count: int = 8,
        *,
        memory_mib: int = 143771,
        cpu: str = "192",
        memory: str = "2Ti",
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Add a node with whole NVIDIA cards of one model."""
        self.node(
            name,
            cpu=cpu,
            memory=memory,
            labels={
                "nvidia.com/gpu.product": card,
                "nvidia.com/gpu.memory": str(memory_mib),
                "nvidia.com/gpu.count": str(count),
                **(labels or {}),
            },
            resources={"nvidia.com/gpu": count, **(resources or {})},
            **more,
        )

    def hyper_node(
        self,
        name: str,
        tier: int,
        *,
        nodes: Iterable[str] = (),
        hyper_nodes: Iterable[str] = (),
        members: Iterable[Mapping[str, Any]] = (),
        tier_name: str | None = None,
    ) -> None:
        """Add or replace a HyperNode of nodes and HyperNodes by name; `members` are copied verbatim."""
        named = [("Node", member) for member in nodes] + [("HyperNode", member) for member in hyper_nodes]
        written = [{"type": of, "selector": {"exactMatch": {"name": member}}} for of, member in named]
        spec = {"tier": tier, "tierName": tier_name, "members": [*written, *members]}
        obj = {"metadata": self._meta(name, None), "spec": spec}
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, HyperNodeObject)))

    def delete_hyper_node(self, name: str) -> None:
        """Delete a HyperNode."""
        self._deltas.append(deltas.ObjectGone("HyperNode", "", name))

    def queue(
        self,
        name: str,
        *,
        cards: Mapping[str, int] | str | None = None,
        capability: Mapping[str, Any] | None = None,
        guarantee: Mapping[str, Any] | None = None,
        deserved: Mapping[str, Any] | None = None,
        weight: int = 1,
        priority: int | None = None,
        reclaimable: bool | None = None,
        state: str = "Open",
        annotations: Mapping[str, str] | None = None,
        parent: str | None = None,
        affinity: Mapping[str, Any] | None = None,
        dequeue: str | None = None,
        allowed: Iterable[str] | None = None,
    ) -> None:
        """Add or replace a queue; `allowed`: its `allowedNamespaces`.

        `cards` as a mapping is written as JSON, as a string verbatim.
        """
        notes = dict(annotations or {})
        if cards is not None:
            notes[keys.CARD_QUOTA] = cards if isinstance(cards, str) else json.dumps(dict(cards))
        spec: dict[str, Any] = {
            "weight": weight,
            "capability": capability,
            "deserved": deserved,
            "priority": priority,
            "reclaimable": reclaimable,
            "parent": parent,
            "affinity": affinity,
            "dequeueStrategy": dequeue,
            "allowedNamespaces": None if allowed is None else list(allowed),
            "guarantee": {"resource": dict(guarantee)} if guarantee is not None else None,
        }
        obj = {"metadata": self._meta(name, None, annotations=notes), "spec": spec, "status": {"state": state}}
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, QueueObject)))

    def group(
        self,
        name: str,
        *,
        queue: str = "q",
        min_member: int = 1,
        phase: str = "Inqueue",
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        min_resources: Mapping[str, Any] | None = None,
        min_task_member: Mapping[str, int] | None = None,
        priority_class: str = "",
        namespace: str = "default",
        conditions: Iterable[Mapping[str, Any]] = (),
        owner_kind: str = "",
        topology: Mapping[str, Any] | None = None,
        policies: Iterable[Mapping[str, Any]] = (),
        apart: Mapping[str, Any] | None = None,
    ) -> None:
        """Add or replace a PodGroup.

        `topology`: `spec.networkTopology`; `policies`: `spec.subGroupPolicy`; `apart`: the terms of
        `spec.topologyAffinity.podGroupAntiAffinity`.
        """
        spec: dict[str, Any] = {"queue": queue, "minMember": min_member}
        if min_resources is not None:
            spec["minResources"] = dict(min_resources)
        if min_task_member is not None:
            spec["minTaskMember"] = dict(min_task_member)
        if priority_class:
            spec["priorityClassName"] = priority_class
        if topology is not None:
            spec["networkTopology"] = dict(topology)
        if policies:
            spec["subGroupPolicy"] = [dict(policy) for policy in policies]
        if apart is not None:
            spec["topologyAffinity"] = {"podGroupAntiAffinity": dict(apart)}
        owners = [{"kind": owner_kind, "name": name, "uid": f"{name}-owner", "controller": True}] if owner_kind else []
        obj = {
            "metadata": self._meta(
                name, namespace, annotations=dict(annotations or {}), labels=dict(labels or {}), ownerReferences=owners
            ),
            "spec": spec,
            "status": {"phase": phase, "conditions": list(conditions)},
        }
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PodGroupObject)))

    def pod(
        self,
        name: str,
        *,
        group: str | None = "g",
        requests: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        card: str | None = None,
        cards: int = 0,
        node: str | None = None,
        phase: str | None = None,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        role: str = "",
        priority: int | None = None,
        scheduler: str = "capcard-sched",
        owner_kind: str = "",
        conditions: Iterable[Mapping[str, Any]] = (),
        **spec: Any,
    ) -> None:
        """Add or replace a pod of one container. `card`, `cards`: card.name and that many `nvidia.com/gpu`."""
        notes = dict(annotations or {})
        if group:
            notes.setdefault(keys.GROUP_NAME, group)
        if role:
            notes.setdefault(keys.TASK_SPEC, role)
        wanted = dict(requests if requests is not None else {"cpu": "1"})
        limited = dict(limits or {})
        if card is not None:
            notes.setdefault(keys.CARD_NAME, card)
        if cards:
            wanted.setdefault("nvidia.com/gpu", cards)
            limited.setdefault("nvidia.com/gpu", cards)
        body: dict[str, Any] = {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "resources": {"requests": wanted, "limits": limited}}],
            **spec,
        }
        if node is not None:
            body["nodeName"] = node
        if priority is not None:
            body["priority"] = priority
        owner = {"apiVersion": BATCH_API, "kind": owner_kind, "name": name, "uid": f"{name}-owner", "controller": True}
        owners = [owner] if owner_kind else []
        obj = {
            "metadata": self._meta(
                name, namespace, annotations=notes, labels=dict(labels or {}), ownerReferences=owners
            ),
            "spec": body,
            "status": {
                "phase": phase or ("Running" if node is not None else "Pending"),
                "conditions": [dict(condition) for condition in conditions],
            },
        }
        self._pods[f"{namespace}/{name}"] = obj
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PodObject)))

    def priority_class(self, name: str, value: int, *, global_default: bool = False) -> None:
        """Add or replace a PriorityClass."""
        obj = {"metadata": self._meta(name, None), "value": value, "globalDefault": global_default}
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PriorityClassObject)))

    def set_phase(
        self, name: str, phase: str, *, namespace: str = "default", conditions: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        """Change the status of a pod."""
        obj = self._pods[f"{namespace}/{name}"]
        obj["status"] = {"phase": phase, "conditions": [dict(condition) for condition in conditions]}
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PodObject)))

    def nominate(self, name: str, node: str, *, namespace: str = "default") -> None:
        """Set the nominated node of a pod."""
        obj = self._pods[f"{namespace}/{name}"]
        obj["status"]["nominatedNodeName"] = node
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PodObject)))

    def terminate(self, name: str, *, namespace: str = "default") -> None:
        """Set the deletion timestamp of a pod."""
        obj = self._pods[f"{namespace}/{name}"]
        obj["metadata"]["deletionTimestamp"] = _timestamp(self._created)
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PodObject)))

    def delete_pod(self, name: str, *, namespace: str = "default") -> None:
        """Delete a pod."""
        self._pods.pop(f"{namespace}/{name}", None)
        self._deltas.append(deltas.ObjectGone("Pod", namespace, name))

    def delete_node(self, name: str) -> None:
        """Delete a node."""
        self._deltas.append(deltas.ObjectGone("Node", "", name))

    def delete_group(self, name: str, *, namespace: str = "default") -> None:
        """Delete a PodGroup."""
        self._deltas.append(deltas.ObjectGone("PodGroup", namespace, name))

    def delete_queue(self, name: str) -> None:
        """Delete a queue."""
        self._deltas.append(deltas.ObjectGone("Queue", "", name))

    def apply(self, *more: Delta) -> None:
        """Add deltas to the next step."""
        self._deltas.extend(more)
