"""Objects of the benchmark: nodes with eight cards, queues with card quotas, gangs of eight."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, NamedTuple

from capcard_sched.model import annotations as keys

#: A Kubernetes object.
Document = dict[str, Any]

GANG: Final = 8
CARDS_PER_NODE: Final = 8
QUEUES: Final = tuple(f"team-{number}" for number in range(4))
#: Card model to memory per card in MiB.
MODELS: Final = {
    "NVIDIA-H100-80GB": 81559,
    "NVIDIA-A100-80GB": 81920,
    "NVIDIA-L40S": 46068,
    "NVIDIA-V100-32GB": 32768,
}
NAMESPACE: Final = "bench"
#: Namespace of the pods of the raw run, which name no running scheduler.
RAW_NAMESPACE: Final = "bench-raw"
#: Conditions of a pod that runs.
READY: Final = ({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},)
#: The scheduler-conf: capacity-card decides by quota, the rest as in the built-in one.
CONF: Final = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: capacity-card}, {name: nodeorder}, {name: binpack}]
"""
_GPU: Final = "nvidia.com/gpu"
_SCHEDULING: Final = "scheduling.volcano.sh/v1beta1"


class Gang(NamedTuple):
    """One group and its pods."""

    group: Document
    pods: list[Document]


def card_of(node_number: int) -> str:
    return list(MODELS)[node_number % len(MODELS)]


def nodes(count: int) -> list[Document]:
    """Ready nodes, the card models in turn."""
    return [_node(number) for number in range(count)]


def _node(number: int) -> Document:
    name, card = f"node-{number:05d}", card_of(number)
    amounts = {"cpu": "96", "memory": "768Gi", "pods": "110", "ephemeral-storage": "900Gi", _GPU: str(CARDS_PER_NODE)}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": f"zone-{number % 4}",
        f"{_GPU}.product": card,
        f"{_GPU}.count": str(CARDS_PER_NODE),
        f"{_GPU}.memory": str(MODELS[card]),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions("2026-01-01T00:00:00Z")},
    }


def conditions(heartbeat: str) -> list[Document]:
    """The node status of a kubelet at the time `heartbeat` (RFC 3339)."""
    kinds = {
        "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    }
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": heartbeat,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind, (status, reason, message) in kinds.items()
    ]


def gangs(
    pods: int, *, prefix: str = "train", namespace: str = NAMESPACE, scheduler: str = "capcard-sched"
) -> list[Gang]:
    """Gangs of eight over the queues in turn, one card a pod; three of ten take either of two models."""
    models = list(MODELS)
    found = []
    for number in range(-(-pods // GANG)):
        first = models[number // len(QUEUES) % len(models)]
        second = models[(number // len(QUEUES) + 1 + number % 3) % len(models)]
        card = f"{first}|{second}" if number % 10 < 3 else first
        size = min(GANG, pods - number * GANG)
        found.append(_gang(f"{prefix}-{number:05d}", size, QUEUES[number % len(QUEUES)], card, namespace, scheduler))
    return found


def _gang(name: str, size: int, queue: str, card: str, namespace: str, scheduler: str) -> Gang:
    requests = {"cpu": "8", "memory": "64Gi", _GPU: "1"}
    group = {
        "apiVersion": _SCHEDULING,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"queue": queue, "minMember": size},
    }
    spec = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": "registry.example/ml/trainer:2026.1",
                "command": ["torchrun", "--nnodes=8", "--nproc-per-node=1", "train.py"],
                "env": [
                    {"name": "MASTER_ADDR", "value": f"{name}-0.{name}"},
                    {"name": "MASTER_PORT", "value": "29500"},
                    {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                "resources": {"requests": requests, "limits": requests},
            }
        ],
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{member}",
                "namespace": namespace,
                "labels": {"app": "trainer", "job": name},
                "annotations": {keys.GROUP_NAME: name, keys.CARD_NAME: card},
            },
            "spec": spec,
        }
        for member in range(size)
    ]
    return Gang(group, pods)


def quotas(made: list[Gang]) -> dict[str, dict[str, int]]:
    """Queue to card to quota: so that every gang fits, also when all that have a choice choose the same model."""
    asked: dict[str, Counter[str]] = {queue: Counter() for queue in QUEUES}
    for gang in made:
        for card in gang.pods[0]["metadata"]["annotations"][keys.CARD_NAME].split("|"):
            asked[gang.group["spec"]["queue"]][card] += len(gang.pods)
    return {queue: dict(cards) for queue, cards in asked.items()}


def queues(quota: dict[str, dict[str, int]]) -> list[Document]:
    """The queues, each with its quota by card."""
    return [
        {
            "apiVersion": _SCHEDULING,
            "kind": "Queue",
            "metadata": {"name": name, "annotations": {keys.CARD_QUOTA: json.dumps(cards)}},
            "spec": {"weight": 1},
        }
        for name, cards in quota.items()
    ]


def violations(pods: list[Document], made: list[Gang], quota: dict[str, dict[str, int]]) -> list[str]:
    """Violations of capacity, cards and quotas by the bound pods."""
    queue_of = {gang.group["metadata"]["name"]: gang.group["spec"]["queue"] for gang in made}
    size_of = {gang.group["metadata"]["name"]: len(gang.pods) for gang in made}
    on_node: Counter[str] = Counter()
    in_queue: Counter[tuple[str, str]] = Counter()
    in_gang: Counter[str] = Counter()
    found = []
    for pod in pods:
        node = pod["spec"].get("nodeName", "")
        if not node:
            continue
        meta = pod["metadata"]
        card, group = card_of(int(node.removeprefix("node-"))), meta["annotations"][keys.GROUP_NAME]
        if card not in meta["annotations"][keys.CARD_NAME].split("|"):
            found.append(f"{meta['name']} accepts {meta['annotations'][keys.CARD_NAME]} and is on {node} with {card}")
        on_node[node] += 1
        in_gang[group] += 1
        if group in queue_of:
            in_queue[queue_of[group], card] += 1
    found += [f"{node} has {count} pods with a card each" for node, count in on_node.items() if count > CARDS_PER_NODE]
    found += [
        f"{name} has {in_gang[name]} of {size} pods bound" for name, size in size_of.items() if in_gang[name] != size
    ]
    found += [
        f"queue {queue} has {count} {card} of {quota[queue].get(card, 0)}"
        for (queue, card), count in in_queue.items()
        if count > quota[queue].get(card, 0)
    ]
    return found
