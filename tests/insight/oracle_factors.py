"""Obstacles that a sentence can name, and how to remove each of them: edits of objects, or another scheduler-conf."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.insight.oracle_world import GROUP, Edit, Json, Waiting, World, notes

#: `queue a`, `overcommit`, `node nvidia.com/gpu`, ...
Factor = str
QUOTA = "volcano.sh/card.quota"
PLENTY = 100_000
_SPECS = ("template",)


class Removal(NamedTuple):
    """How to remove an obstacle."""

    edit: Edit
    #: Names of plugins that the scheduler-conf loses.
    plugins: tuple[str, ...] = ()


def pod_specs(objects: list[Json], job: Waiting | None = None) -> Iterator[Json]:
    """Specs of pods and templates; of one job, with its owners, where it is given."""
    wanted = None if job is None else job.name.partition("/")[2]
    for obj in objects:
        kind, spec = obj["kind"], obj.get("spec") or {}
        if kind == "Pod":
            if job is None or notes(obj).get(GROUP) == job.group or obj["metadata"]["name"] == wanted:
                yield spec
        elif kind == "Job":
            if job is None or job.name == f"job/{obj['metadata']['name']}":
                for task in spec.get("tasks") or ():
                    yield task["template"]["spec"]
        elif kind in {"Deployment", "ReplicaSet"}:
            name = obj["metadata"]["name"]
            if job is None or (job.name.startswith("deployment/") and (name + "-").startswith(f"{wanted}-")):
                yield spec["template"]["spec"]


def _queues(objects: list[Json]) -> dict[str, Json]:
    return {obj["metadata"]["name"]: obj for obj in objects if obj["kind"] == "Queue"}


def chain(world: World, name: str) -> list[str]:
    """A queue and its ancestors."""
    queues, found = _queues(world.objects), []
    while name in queues and name not in found:
        found.append(name)
        name = str((queues[name].get("spec") or {}).get("parent") or ("root" if name != "root" else ""))
    return found


def cards_named(objects: list[Json]) -> set[str]:
    """Cards that a pod, a template or a quota names."""
    found: set[str] = set()
    for obj in objects:
        text = json.dumps(obj)
        for value in re.findall(r'"volcano.sh/card.name": "([^"]*)"', text):
            found.update(value.split("|"))
        if obj["kind"] == "Queue" and QUOTA in notes(obj):
            try:
                found.update(json.loads(notes(obj)[QUOTA]))
            except ValueError:
                continue
        labels = obj["metadata"].get("labels") or {}
        if "nvidia.com/gpu.product" in labels:
            found.add(labels["nvidia.com/gpu.product"])
    return found


def unlimited(name: str) -> Edit:
    """A queue without limits, open and first come first served no more."""

    def edit(objects: list[Json]) -> None:
        queue = _queues(objects).get(name)
        if queue is None:
            return
        names = cards_named(objects) | {"nvidia.com/gpu"}
        queue["metadata"].setdefault("annotations", {})[QUOTA] = json.dumps(dict.fromkeys(sorted(names), PLENTY))
        spec = queue.setdefault("spec", {})
        spec.pop("capability", None)
        spec.pop("deserved", None)

    return edit


def _together(edits: list[Edit]) -> Edit:
    def edit(objects: list[Json]) -> None:
        for one in edits:
            one(objects)

    return edit


def _open(objects: list[Json]) -> None:
    for queue in _queues(objects).values():
        queue.setdefault("status", {})["state"] = "Open"


def _created(name: str) -> Edit:
    def edit(objects: list[Json]) -> None:
        api = next(iter(_queues(objects).values()))["apiVersion"]
        obj = {"apiVersion": api, "kind": "Queue", "metadata": {"name": name, "annotations": {}}, "spec": {}}
        objects.append(obj)
        unlimited(name)(objects)

    return edit


def _no_fifo(objects: list[Json]) -> None:
    for queue in _queues(objects).values():
        (queue.get("spec") or {}).pop("dequeueStrategy", None)


def _no_guarantees(objects: list[Json]) -> None:
    for queue in _queues(objects).values():
        (queue.get("spec") or {}).pop("guarantee", None)


def _without(kind: str) -> Edit:
    def edit(objects: list[Json]) -> None:
        objects[:] = [obj for obj in objects if obj["kind"] != kind]

    return edit


def _larger(resource: str) -> Edit:
    """A thousand times the resource on the nodes that have it, which no quota counts; on all nodes if none has."""

    def edit(objects: list[Json]) -> None:
        nodes = [obj for obj in objects if obj["kind"] == "Node"]
        having = [node for node in nodes if resource in node["status"]["allocatable"]] or nodes
        for node in having:
            amount = {"memory": "90000Gi", "volcano.sh/vgpu-number": "400"}.get(resource, "9000")
            node["status"]["allocatable"][resource] = amount
            node["status"].setdefault("capacity", {})[resource] = amount
            register = "volcano.sh/node-vgpu-register"
            if resource.startswith("volcano.sh/vgpu") and register in notes(node):
                devices = "".join(
                    f"{node['metadata']['name']}-x{i},10,80000,NVIDIA-T4,true,hami-core:" for i in range(40)
                )
                node["metadata"]["annotations"][register] += devices

    return edit


def _all_devices(objects: list[Json]) -> None:
    for resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.18gb"):
        if any(resource in obj["status"]["allocatable"] for obj in objects if obj["kind"] == "Node"):
            _larger(resource)(objects)
    _larger("volcano.sh/vgpu-number")(objects)


def _usable(objects: list[Json]) -> None:
    for obj in objects:
        if obj["kind"] == "Node":
            obj.setdefault("spec", {}).pop("unschedulable", None)
            obj["spec"].pop("taints", None)


def _drop(*fields: str, everyone: bool = False) -> Any:
    def of(job: Waiting) -> Edit:
        def edit(objects: list[Json]) -> None:
            for spec in pod_specs(objects, None if everyone else job):
                for field in fields:
                    spec.pop(field, None)
                if "ports" in fields:
                    for container in spec["containers"]:
                        container.pop("ports", None)

        return edit

    return of


def _no_affinity(job: Waiting) -> Edit:
    def edit(objects: list[Json]) -> None:
        for spec in pod_specs(objects):
            spec.pop("topologySpreadConstraints", None)
            for term in ("podAffinity", "podAntiAffinity"):
                (spec.get("affinity") or {}).pop(term, None)

    return edit


def _fewer_members(job: Waiting) -> Edit:
    def edit(objects: list[Json]) -> None:
        for obj in objects:
            if obj["kind"] == "PodGroup" and obj["metadata"]["name"] == job.group:
                obj["spec"]["minMember"] = 1
                obj["spec"].pop("minTaskMember", None)
            if obj["kind"] == "Job" and job.name == f"job/{obj['metadata']['name']}":
                obj["spec"]["minAvailable"] = 1
                for task in obj["spec"]["tasks"]:
                    task.pop("minAvailable", None)

    return edit


def _known_card(job: Waiting) -> Edit:
    """Nodes and quotas for the cards that the pods name."""

    def edit(objects: list[Json]) -> None:
        names = sorted({card.partition("/")[0] for card in cards_named(objects)})
        api = next(obj for obj in objects if obj["kind"] == "Node")["apiVersion"]
        for index, card in enumerate(names):
            labels = {
                "nvidia.com/gpu.product": card, "nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.count": "8",
                "kubernetes.io/hostname": f"more{index}",
            }  # fmt: skip
            amounts = {"cpu": "9000", "memory": "90000Gi", "pods": "1000", "nvidia.com/gpu": "9000"}
            if "H800" in card:
                amounts["nvidia.com/gpu.shared"] = "9000"
                labels["nvidia.com/gpu.replicas"] = "2"
            if card == "NVIDIA-H200":
                amounts["nvidia.com/mig-1g.18gb"] = "9000"
                labels |= {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig-1g.18gb.count": "9"}
            objects.append(
                {"apiVersion": api, "kind": "Node", "metadata": {"name": f"more{index}", "labels": labels},
                 "spec": {}, "status": {"allocatable": amounts, "capacity": amounts}}
            )  # fmt: skip
        for name in _queues(objects):
            unlimited(name)(objects)

    return edit


def _own_scheduler(job: Waiting) -> Edit:
    def edit(objects: list[Json]) -> None:
        for spec in pod_specs(objects, job):
            spec["schedulerName"] = "volcano"
        for obj in objects:
            if obj["kind"] == "Job" and job.name == f"job/{obj['metadata']['name']}":
                obj["spec"]["schedulerName"] = "volcano"

    return edit


def _nothing(objects: list[Json]) -> None:
    """No edit."""


def removal(factor: Factor, world: World, job: Waiting) -> Removal:
    """How to remove an obstacle of a job."""
    kind, _, subject = factor.partition(" ")
    match kind:
        case "queue":
            return Removal(unlimited(subject))
        case "queues":
            return Removal(_together([unlimited(name) for name in chain(world, job.queue)]))
        case "share":
            return Removal(_nothing, ("proportion", "capacity"))
        case "overcommit":
            return Removal(_nothing, ("overcommit",))
        case "resourcequota":
            return Removal(_without("ResourceQuota"))
        case "guarantees":
            return Removal(_no_guarantees)
        case "state":
            return Removal(_open)
        case "missing-queue":
            return Removal(_created(subject or job.queue))
        case "fifo":
            return Removal(_no_fifo)
        case "gates":
            return Removal(_drop("schedulingGates")(job))
        case "scheduler":
            return Removal(_own_scheduler(job))
        case "node":
            return Removal(_larger(subject))
        case "devices":
            return Removal(_all_devices)
        case "taints":
            return Removal(_usable)
        case "selector":
            return Removal(_drop("nodeSelector")(job))
        case "affinity":
            return Removal(_no_affinity(job))
        case "ports":
            return Removal(_drop("ports", "hostNetwork")(job))
        case "volumes":
            return Removal(_drop("volumes")(job))
        case "card":
            return Removal(_known_card(job))
        case "members":
            return Removal(_fewer_members(job))
    raise KeyError(factor)


#: All obstacles without a subject. `share`, `devices` and `queues` contain finer ones.
EVERY = (
    "queues", "share", "overcommit", "resourcequota", "guarantees", "state", "fifo", "gates", "scheduler", "devices",
    "node cpu", "node memory", "node pods", "taints", "selector", "affinity", "ports", "volumes", "members",
)  # fmt: skip


def without_plugins(conf: str, names: tuple[str, ...]) -> str:
    """A scheduler-conf in flow style without some plugins."""
    for name in names:
        conf = re.sub(rf"\{{name: {name}(, (?:[^{{}}]|\{{[^{{}}]*\}})*)?\}}(, )?", "", conf)
    return conf.replace(", ]", "]")
