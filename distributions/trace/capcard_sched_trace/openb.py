"""An openb cluster trace as a scenario: its machines, a queue per class of service, and its pods at their times.

Decisions where the trace is silent:

* **Cards.** The trace's model string is the card name (label `nvidia.com/gpu.product`); every model is served as
  `nvidia.com/gpu`. Memory per card comes from `CARD_MEMORY_MIB`.
* **Sharing.** `whole`: a pod that requested a part of a card gets a whole one. `vgpu`: nodes register their cards as a
  device plugin does, and a pod requests its part as vGPU cores and memory percentage, rounded up to percent.
* **Models.** A pod that named no model takes any: its alternatives are all models of the cluster, the most numerous
  first, so that quotas apply to it as to other pods.
* **Quotas of shared cards.** vGPU resources have no model: the quota of a class is the sum over the models, in cores.
* **Queues.** One per class of service. The trace's cluster has far more cards than its pods ever hold at one time, so
  a quota of that size would block no pod. A class's quota of a model is therefore the largest of its pods,
  and `quota_share` of its peak beyond that without any waiting (a pod with alternatives counts for its
  first one), rounded down and no more than the cluster has.
* **Time.** A pod appears at its creation time and, once placed, runs as long as it ran in the trace; one that the trace
  never placed runs as long as it existed there. Pods that failed in the trace fail again.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, TypeAlias

import msgspec
import yaml

from capcard_sched.controllers.objects import SCHEDULING_API, JsonObject
from capcard_sched.model.annotations import (
    CARD_NAME,
    CARD_QUOTA,
    COUNT_SUFFIX,
    HOSTNAME,
    MEMORY_SUFFIX,
    NODE_VGPU_REGISTER,
    POD_QUEUE_NAME,
    PRODUCT_SUFFIX,
    SIMULATION_DURATION,
    SIMULATION_EXIT_CODE,
    USE_GPU_TYPE,
)
from capcard_sched.model.card_registration import HAMI_CORE, RegisteredCard, encode_registration
from capcard_sched.simulation.kinds import SCENARIO, SIMULATION_API

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched_trace.openb_rows import TraceNode, TracePod

_RESOURCE = "nvidia.com/gpu"
#: Pods per node; not in the trace.
_PODS_PER_NODE = 256
#: MiB per card, by model name; the others (`G2`, `G3`: undisclosed) get `DEFAULT_CARD_MEMORY_MIB`.
CARD_MEMORY_MIB = {"A10": 24576, "P100": 16384, "T4": 16384, "V100M16": 16384, "V100M32": 32768}
DEFAULT_CARD_MEMORY_MIB = 24576
#: Share of the peak: the steady load of the published trace runs at once, and its bursts wait.
DEFAULT_QUOTA_SHARE = 0.6


#: Shares of a card at a time: the default of the device plugin.
_SLOTS: Final = 10
_VGPU: Final = "volcano.sh/vgpu-"

Sharing: TypeAlias = Literal["whole", "vgpu"]


class TraceScenario(msgspec.Struct, frozen=True):
    """The documents of a scenario."""

    #: Nodes and queues.
    manifests: list[JsonObject]
    #: `{at, create}` in order of time.
    operations: list[JsonObject]

    def write_yaml(self, file: BinaryIO) -> None:
        """Multi-document YAML, UTF-8. Each operation is one line in flow style: small, and fast to write and read."""
        file.writelines(_flow(manifest) + b"---\n" for manifest in self.manifests)
        head = {"apiVersion": SIMULATION_API, "kind": SCENARIO, "metadata": {"name": "openb"}}
        file.write(yaml.dump(head, Dumper=yaml.CSafeDumper, sort_keys=False, encoding="utf-8"))
        file.write(b"spec:\n  operations:" + (b"\n" if self.operations else b" []\n"))
        file.writelines(b"  - " + _flow(operation) for operation in self.operations)

    def write_json(self, file: BinaryIO) -> None:
        """One `v1` `List`, UTF-8."""
        scenario = {
            "apiVersion": SIMULATION_API,
            "kind": SCENARIO,
            "metadata": {"name": "openb"},
            "spec": {"operations": self.operations},
        }
        file.write(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": [*self.manifests, scenario]}))
        file.write(b"\n")


def _flow(document: JsonObject) -> bytes:
    """One line of JSON, which is YAML's flow style."""
    return msgspec.json.encode(document) + b"\n"


def make_scenario(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    quota_share: float = DEFAULT_QUOTA_SHARE,
    sharing: Sharing = "whole",
) -> TraceScenario:
    """The trace as a scenario. Raises ValueError when `quota_share` is not a positive number."""
    if not (quota_share > 0 and math.isfinite(quota_share)):
        raise ValueError(f"quota share {quota_share} is not a number above 0")
    counts = cards_by_model(nodes)
    every_model = tuple(sorted(counts, key=lambda model: (-counts[model], model)))
    in_order = sorted(pods, key=lambda pod: (pod.created, pod.name))
    quotas = _quotas(in_order, counts, every_model, quota_share)
    manifests = [_node(node, sharing) for node in nodes]
    manifests += [_queue(name, quota, sharing) for name, quota in quotas.items()]
    operations = [{"at": f"{pod.created}s", "create": _pod(pod, every_model, sharing)} for pod in in_order]
    return TraceScenario(manifests, operations)


def cards_by_model(nodes: Sequence[TraceNode]) -> dict[str, int]:
    """Cards of the cluster per model, in sorted order."""
    counts: Counter[str] = Counter()
    for node in nodes:
        if node.cards:
            counts[node.model] += node.cards
    return dict(sorted(counts.items()))


def queue_name(qos: str) -> str:
    return qos.lower()


def _alternatives(pod: TracePod, every_model: tuple[str, ...]) -> tuple[str, ...]:
    """Card models the pod takes, preferred first; none without a request of cards."""
    return (pod.models or every_model) if pod.cards else ()


def _quotas(
    pods: Sequence[TracePod], counts: dict[str, int], every_model: tuple[str, ...], share: float
) -> dict[str, dict[str, int]]:
    """Quota per queue and model, queues and models in sorted order; every queue lists every model of the cluster."""
    changes: dict[tuple[str, str], list[tuple[int, int]]] = {}
    largest: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        for model in _alternatives(pod, every_model)[:1]:
            key = (queue_name(pod.qos), model)
            held = changes.setdefault(key, [])
            held.append((pod.created, pod.cards))
            if pod.duration_seconds is not None:
                held.append((pod.created + pod.duration_seconds, -pod.cards))
            largest[key] = max(largest[key], pod.cards)
    quotas: dict[str, dict[str, int]] = {}
    for queue in sorted({queue_name(pod.qos) for pod in pods}):
        quotas[queue] = {}
        for model, cards in counts.items():
            peak, least = _peak(changes.get((queue, model), [])), largest[queue, model]
            quotas[queue][model] = min(cards, least + math.floor(share * (peak - least)))
    return quotas


def _peak(changes: list[tuple[int, int]]) -> int:
    """The highest running sum; ends come before starts of the same time."""
    held = peak = 0
    for _, change in sorted(changes):
        held += change
        peak = max(peak, held)
    return peak


def _node(node: TraceNode, sharing: Sharing) -> JsonObject:
    metadata: JsonObject = {"name": node.name, "labels": {HOSTNAME: node.name}}
    amounts = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi", "pods": str(_PODS_PER_NODE)}
    memory = CARD_MEMORY_MIB.get(node.model, DEFAULT_CARD_MEMORY_MIB)
    if node.cards and sharing == "vgpu":
        metadata["annotations"] = {NODE_VGPU_REGISTER: _registration(node, memory)}
        amounts[f"{_VGPU}number"] = str(_SLOTS * node.cards)
        amounts[f"{_VGPU}memory"] = str(memory * node.cards)
        amounts[f"{_VGPU}cores"] = str(100 * node.cards)
    elif node.cards:
        metadata["labels"] |= {
            _RESOURCE + PRODUCT_SUFFIX: node.model,
            _RESOURCE + COUNT_SUFFIX: str(node.cards),
            _RESOURCE + MEMORY_SUFFIX: str(memory),
        }
        amounts[_RESOURCE] = str(node.cards)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def _registration(node: TraceNode, memory: int) -> str:
    return encode_registration(
        tuple(
            RegisteredCard(
                f"GPU-{node.name}-{index}", _SLOTS, memory, f"NVIDIA-{node.model}", healthy=True, mode=HAMI_CORE
            )
            for index in range(node.cards)
        )
    )


def _queue(name: str, quota: dict[str, int], sharing: Sharing) -> JsonObject:
    metadata: JsonObject = {"name": name}
    spec: JsonObject = {"weight": 1}
    if sharing == "vgpu":
        spec["capability"] = {f"{_VGPU}cores": str(100 * sum(quota.values()))}
    else:
        metadata["annotations"] = {CARD_QUOTA: msgspec.json.encode(quota).decode()}
    return {"apiVersion": SCHEDULING_API, "kind": "Queue", "metadata": metadata, "spec": spec}


def _pod(pod: TracePod, every_model: tuple[str, ...], sharing: Sharing) -> JsonObject:
    annotations = {POD_QUEUE_NAME: queue_name(pod.qos)}
    if pod.duration_seconds is not None:
        annotations[SIMULATION_DURATION] = f"{pod.duration_seconds}s"
    if pod.phase == "Failed":
        annotations[SIMULATION_EXIT_CODE] = "1"
    resources: JsonObject = {"requests": {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}}
    if pod.cards and sharing == "vgpu":
        percent = str(max(1, math.ceil(pod.share_milli / 10)))
        if pod.models:
            annotations[USE_GPU_TYPE] = ",".join(f"NVIDIA-{model}" for model in pod.models)
        resources["limits"] = {
            f"{_VGPU}number": str(pod.cards),
            f"{_VGPU}cores": percent,
            f"{_VGPU}memory-percentage": percent,
        }
    elif pod.cards:
        annotations[CARD_NAME] = "|".join(_alternatives(pod, every_model))
        resources["requests"][_RESOURCE] = str(pod.cards)
        resources["limits"] = {_RESOURCE: str(pod.cards)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": "default", "annotations": annotations},
        "spec": {
            "schedulerName": "capcard-sched",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "trace", "resources": resources}],
        },
    }
