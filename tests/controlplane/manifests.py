"""Manifests for tests against an API server: one function per kind, its arguments those of `tests.objects`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Manifest

_SCHEDULING = "scheduling.volcano.sh/v1beta1"


def node(
    name: str,
    *,
    cpu: Any = "8",
    memory: Any = "16Gi",
    pods: Any = "110",
    devices: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    """A node that is ready; `devices` are further resources, `spec` in camel case (`unschedulable=True`)."""
    offered = {"cpu": str(cpu), "memory": str(memory), "pods": str(pods)}
    offered |= {resource: str(amount) for resource, amount in (devices or {}).items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def gpu_node(name: str, card: str, count: int, *, memory_mib: int = 24_576, **rest: Any) -> Manifest:
    """A node with so many cards of one model, labelled as the GPU feature discovery does."""
    labels = {
        "nvidia.com/gpu.product": card,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": str(memory_mib),
        **rest.pop("labels", {}),
    }
    return node(name, devices={"nvidia.com/gpu": count, **rest.pop("devices", {})}, labels=labels, **rest)


def pod(
    name: str,
    *,
    group: str = "",
    queue: str = "",
    cards: str = "",
    requests: Mapping[str, Any] | None = None,
    scheduler: str = "capcard-sched",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "",
    grace: int = 0,
    **spec: Any,
) -> Manifest:
    """A pod of one container; `cards` is its `card.name` annotation. What can have no overcommit is a limit too."""
    named = {keys.GROUP_NAME: group, keys.POD_QUEUE_NAME: queue, keys.CARD_NAME: cards}
    notes = {**{key: value for key, value in named.items() if value}, **(annotations or {})}
    requested = {key: str(value) for key, value in ({"cpu": "1"} if requests is None else requests).items()}
    resources = {"requests": requested, "limits": {key: value for key, value in requested.items() if "/" in key}}
    meta: Manifest = {"name": name, "labels": dict(labels or {}), "annotations": notes}
    if namespace:
        meta["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": grace,
            "containers": [{"name": "main", "image": "registry.example/main:1", "resources": resources}],
            **spec,
        },
    }


def pod_group(
    name: str,
    *,
    queue: str = "default",
    members: int = 1,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "",
    **spec: Any,
) -> Manifest:
    """A PodGroup; `spec` in camel case."""
    meta: Manifest = {"name": name, "annotations": dict(annotations or {})}
    if namespace:
        meta["namespace"] = namespace
    return {
        "apiVersion": _SCHEDULING,
        "kind": "PodGroup",
        "metadata": meta,
        "spec": {"queue": queue, "minMember": members, **spec},
    }


def queue(
    name: str, *, cards: Mapping[str, int] | None = None, annotations: Mapping[str, str] | None = None, **spec: Any
) -> Manifest:
    """A Queue; `cards` is its quota by card name, `spec` in camel case."""
    quota = {} if cards is None else {keys.CARD_QUOTA: json.dumps(cards)}
    meta = {"name": name, "annotations": {**quota, **(annotations or {})}}
    return {"apiVersion": _SCHEDULING, "kind": "Queue", "metadata": meta, "spec": spec}


def gang(name: str, size: int, *, queue: str = "default", cards: str = "", **rest: Any) -> list[Manifest]:
    """A PodGroup that needs all its pods, and the pods `<name>-0` and so on."""
    members = [pod(f"{name}-{index}", group=name, cards=cards, **rest) for index in range(size)]
    return [pod_group(name, queue=queue, members=size), *members]
