"""Synthetic workloads as data: the same name, size and seed always give the same objects.

| Workload | Pods | Groups | Queues | Cards |
|---|---|---|---|---|
| W1 | flat, 10 templates, cpu and memory only | one per pod | 1 | none |
| W2 | 20 templates, half of them with one card | gangs of 8 | 4 | single-card |
| W3 | 200 templates | gangs of 1 to 64 | 40, four of them short of cards | 30 % `A|B`, 30 % single, 10 % MPS or MIG |

The pods of a gang exist because its group was admitted before: W2 and W3 begin in phase Inqueue. W1 begins in phase
Pending, as bare pods and Deployments do, and is admitted and placed in the same session.

Nodes are the same for all: six card models with eight cards each; of every twenty nodes one offers MPS shares and one
MIG slices instead of whole cards. Pods use about 45 % of cpu and 85 % of the cards, so nearly everything fits: what
does not place is held back by the card quota of one of `short_queues`, or its card model happens to be full.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec

from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import (
    Container,
    NodeObject,
    NodeStatus,
    ObjectMeta,
    PodGroupObject,
    PodGroupSpec,
    PodGroupStatus,
    PodObject,
    PodSpec,
    PodStatus,
    QueueObject,
    QueueSpec,
    QueueStatus,
    RawAmounts,
    ResourceRequirements,
)

#: A Kubernetes object as a dict.
Document: TypeAlias = dict[str, Any]

#: Size name to (nodes, pods).
SIZES = {"S1": (1_000, 10_000), "S5": (5_000, 50_000), "S20": (20_000, 200_000)}
WORKLOADS = ("W1", "W2", "W3")
#: Card model to memory per card in MiB.
MODELS = {
    "NVIDIA-H200": 143771,
    "NVIDIA-H100-80GB": 81559,
    "NVIDIA-A100-80GB": 81920,
    "NVIDIA-L40S": 46068,
    "NVIDIA-V100-32GB": 32768,
    "NVIDIA-GeForce-RTX-4090": 24564,
}
GPU = "nvidia.com/gpu"
MPS = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-1g.18gb"
MPS_CARD = "NVIDIA-A100-80GB/mps-80g*1/4"
MIG_CARD = "NVIDIA-H200/mig-1g.18gb-mixed"
#: Unix seconds at which the first group was created.
START = 1_760_000_000
_GANG_SIZES = (1, 1, 2, 4, 4, 8, 8, 16, 32, 64)


class Template(NamedTuple):
    """Requests of the pods of one template."""

    cpu: int
    memory_gib: int
    #: `A` or `A|B`; "" for a pod without cards.
    card: str = ""
    resource: str = GPU
    cards: int = 0


@dataclass
class Workload:
    """Objects to start from, in the order in which a cluster would have got them."""

    name: str
    nodes: list[NodeObject]
    queues: list[QueueObject]
    groups: list[PodGroupObject]
    pods: list[PodObject]
    #: Queues with a card quota below the requests of their pods.
    short_queues: list[str] = field(default_factory=list)

    def deltas(self) -> list[ObjectChanged]:
        """Every object as a fact for the core."""
        facts = [ObjectChanged(node) for node in self.nodes]
        facts += [ObjectChanged(queue) for queue in self.queues]
        facts += [ObjectChanged(group) for group in self.groups]
        facts += [ObjectChanged(pod) for pod in self.pods]
        return facts

    def documents(self) -> tuple[list[Document], list[Document], list[Document], list[Document]]:
        """The same objects as Kubernetes dicts: nodes, queues, groups and pods, as the plain scheduler takes them."""
        plain = msgspec.to_builtins
        return plain(self.nodes), plain(self.queues), plain(self.groups), plain(self.pods)


def make(name: str, nodes: int, pods: int, seed: int = 1) -> Workload:
    """The named workload at any size. Raises KeyError for an unknown name."""
    build = {"W1": _flat, "W2": _gangs, "W3": _mixed}[name]
    return build(nodes, pods, random.Random(f"{name}/{nodes}/{pods}/{seed}"))


# --- nodes and queues -----------------------------------------------------------------------------------------------


def make_nodes(count: int) -> list[NodeObject]:
    """Nodes of six card models; numbers 18 and 19 of every twenty offer MPS shares and MIG slices."""
    return [_node(row) for row in range(count)]


def _node(row: int) -> NodeObject:
    amounts: RawAmounts = {"cpu": "192", "memory": "2Ti", "pods": "110"}
    product = list(MODELS)[row % len(MODELS)]
    labels = {}
    if row % 20 == 18:
        product = "NVIDIA-A100-80GB"
        labels["nvidia.com/gpu.replicas"] = "4"
        amounts[MPS] = "32"
    elif row % 20 == 19:
        product = "NVIDIA-H200"
        amounts[MIG] = "56"
    else:
        amounts[GPU] = "8"
    labels |= {
        "kubernetes.io/hostname": f"node-{row:05d}",
        "topology.kubernetes.io/zone": f"zone-{row % 4}",
        f"{GPU}.product": product,
        f"{GPU}.count": "8",
        f"{GPU}.memory": str(MODELS[product]),
    }
    return NodeObject(
        metadata=ObjectMeta(
            name=f"node-{row:05d}", uid=f"node-uid-{row}", creation_timestamp=timestamp(0), labels=labels
        ),
        status=NodeStatus(allocatable=amounts, capacity=amounts),
    )


def make_queue(name: str, quota: dict[str, int], priority: int = 0, *, reclaimable: bool | None = None) -> QueueObject:
    """An open queue with a quota of cards (name to whole cards, shares or slices), none when it is empty."""
    return QueueObject(
        metadata=ObjectMeta(
            name=name,
            uid=f"queue-uid-{name}",
            creation_timestamp=timestamp(0),
            annotations={"volcano.sh/card.quota": json.dumps(quota)} if quota else None,
        ),
        spec=QueueSpec(weight=1, priority=priority, reclaimable=reclaimable),
        status=QueueStatus(state="Open"),
    )


def timestamp(seconds: int) -> str:
    """So many seconds after `START`, as Kubernetes writes it."""
    return datetime.fromtimestamp(START + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- groups and pods ------------------------------------------------------------------------------------------------


def add_gang(workload: Workload, queue: str, template: Template, size: int, phase: str = "Inqueue") -> None:
    """Add one group of `size` pods, all of which are needed, fifty groups a second."""
    number = len(workload.groups)
    name, created = f"job-{number:06d}", timestamp(number // 50)
    requests: RawAmounts = {"cpu": str(template.cpu), "memory": f"{template.memory_gib}Gi"}
    limits: RawAmounts = {}
    annotations = {"scheduling.k8s.io/group-name": name}
    if template.card:
        limits[template.resource] = requests[template.resource] = str(template.cards)
        annotations["volcano.sh/card.name"] = template.card
    least: RawAmounts = {"cpu": str(template.cpu * size), "memory": f"{template.memory_gib * size}Gi"}
    workload.groups.append(
        PodGroupObject(
            metadata=ObjectMeta(name=name, namespace="default", uid=f"group-uid-{number}", creation_timestamp=created),
            spec=PodGroupSpec(min_member=size, queue=queue, min_resources=least),
            status=PodGroupStatus(phase=phase),
        )
    )
    container = Container(
        name="main",
        image="registry.example/train:1",
        resources=ResourceRequirements(requests=requests, limits=limits or None),
    )
    spec = PodSpec(scheduler_name="capcard-sched", containers=(container,))
    for member in range(size):
        workload.pods.append(
            PodObject(
                metadata=ObjectMeta(
                    name=f"{name}-{member}",
                    namespace="default",
                    uid=f"pod-uid-{number}-{member}",
                    creation_timestamp=created,
                    labels={"job": name},
                    annotations=annotations,
                ),
                spec=spec,
                status=PodStatus(phase="Pending"),
            )
        )


def _flat(nodes: int, pods: int, rng: random.Random) -> Workload:
    templates = [Template(cpu, 4 * cpu) for cpu in (1, 2, 3, 4, 6, 8, 10, 12, 14, 16)]
    workload = Workload("W1", make_nodes(nodes), [make_queue("default", {})], [], [])
    for _ in range(pods):
        add_gang(workload, "default", rng.choice(templates), 1, phase="Pending")
    return workload


def _gangs(nodes: int, pods: int, rng: random.Random) -> Workload:
    models = list(MODELS)
    templates = [Template(6 + i % 4, 32 + i, models[i % 6], GPU, 1) for i in range(10)]
    templates += [Template(4 + i, 16 + 2 * i) for i in range(10)]
    workload = Workload("W2", make_nodes(nodes), [], [], [])
    demand: dict[str, dict[str, int]] = {f"queue-{i}": {} for i in range(4)}
    while len(workload.pods) < pods:
        template, queue = rng.choice(templates), rng.choice(list(demand))
        size = min(8, pods - len(workload.pods))
        add_gang(workload, queue, template, size)
        _ask(demand[queue], template, size)
    workload.queues = [make_queue(name, _quota(asked, 1.2)) for name, asked in demand.items()]
    return workload


def _mixed(nodes: int, pods: int, rng: random.Random) -> Workload:
    models = list(MODELS)
    templates = [_mixed_template(i, models, rng) for i in range(200)]
    workload = Workload("W3", make_nodes(nodes), [], [], [])
    demand: dict[str, dict[str, int]] = {f"queue-{i:02d}": {} for i in range(40)}
    while len(workload.pods) < pods:
        template, queue = rng.choice(templates), rng.choice(list(demand))
        size = min(rng.choice(_GANG_SIZES), pods - len(workload.pods))
        add_gang(workload, queue, template, size)
        _ask(demand[queue], template, size)
    workload.short_queues = list(demand)[::10]
    workload.queues = [
        make_queue(name, _quota(asked, 0.8 if name in workload.short_queues else 1.2), priority=i % 3)
        for i, (name, asked) in enumerate(demand.items())
    ]
    return workload


def _mixed_template(number: int, models: list[str], rng: random.Random) -> Template:
    """Of ten templates three request `A|B`, three one model, one a share or slice, three no card."""
    cpu, memory_gib = rng.randint(2, 14), rng.randint(8, 96)
    kind = number % 10
    first = (number // 10 * 3 + kind) % len(models)  # every model is requested equally often
    if kind < 3:
        other = models[(first + rng.randint(1, len(models) - 1)) % len(models)]
        return Template(cpu, memory_gib, f"{models[first]}|{other}", GPU, 1)
    if kind < 6:
        return Template(cpu, memory_gib, models[first], GPU, 2 if number % 50 == 4 else 1)
    if kind == 6:
        return Template(cpu, memory_gib, *((MPS_CARD, MPS) if number % 20 == 6 else (MIG_CARD, MIG)), 1)
    return Template(cpu, memory_gib)


def _ask(asked: dict[str, int], template: Template, size: int) -> None:
    """Add the requests of a gang: alternatives count evenly, rounded up."""
    names = template.card.split("|") if template.card else []
    for name in names:
        asked[name] = asked.get(name, 0) + math.ceil(size * template.cards / len(names))


def _quota(asked: dict[str, int], factor: float) -> dict[str, int]:
    return {card: max(1, int(count * factor)) for card, count in sorted(asked.items())}
