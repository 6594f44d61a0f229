"""Manifests for tests against an API server: one function per kind, its arguments those of `tests.objects`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from capcard_sched.model import annotations as keys

#: An object in the API server's JSON form.
Manifest = dict[str, Any]
Manifests = list[Manifest]

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


def gang(name: str, size: int, *, queue: str = "default", cards: str = "", **rest: Any) -> Manifests:
    """A PodGroup that needs all its pods, and the pods `<name>-0` and so on."""
    members = [pod(f"{name}-{index}", group=name, cards=cards, **rest) for index in range(size)]
    return [pod_group(name, queue=queue, members=size), *members]


def plain(kind: str, name: str, api: str = "v1", *, namespace: str = "", **fields: Any) -> Manifest:
    """An object of any kind with these fields beside its metadata."""
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api, "kind": kind, "metadata": meta, **fields}


def job(name: str, replicas: int = 2, *, task: str = "w", **spec: Any) -> Manifest:
    """A Job of our scheduler with one task of pods that end after a second, unless `spec` has `tasks`."""
    container = {"name": "main", "image": "train", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    tasks = [{"name": task, "replicas": replicas, "template": template}]
    return plain(
        "Job", name, "batch.volcano.sh/v1alpha1", spec={"schedulerName": "capcard-sched", "tasks": tasks, **spec}
    )


def deployment(name: str, replicas: int, template: Manifest) -> Manifest:
    """A Deployment whose pods have the label `app` with its name."""
    labels = {"app": name}
    meta = {**template.get("metadata", {}), "labels": labels}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {**template, "metadata": meta}}
    return plain("Deployment", name, "apps/v1", spec=spec)


def binding(pod: str, node: str, **metadata: Any) -> Manifest:
    """The body with which a scheduler binds a pod."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, **metadata}, "target": target}


def granted(user: str, rules: Manifests, *, everywhere: bool = False) -> Manifests:
    """A role with these rules and its binding to a user, for all namespaces or one."""
    group = "rbac.authorization.k8s.io"
    kind, name = "ClusterRole" if everywhere else "Role", f"may-{user.replace(':', '-')}"
    ref = {"apiGroup": group, "kind": kind, "name": name}
    subjects = [{"apiGroup": group, "kind": "User", "name": user}]
    role = plain(kind, name, f"{group}/v1", rules=rules)
    return [role, plain(f"{kind}Binding", name, f"{group}/v1", roleRef=ref, subjects=subjects)]
