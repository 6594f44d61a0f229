"""A backlog: gangs that wait without hope on a full cluster, and the sessions for small changes beside them.

Scene B1: one running pod per node holds all its cards, and 10,000 gangs of four such pods wait: half of them for nodes,
half of them because the card quota of their queue is smaller than the gang.
"""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import Final

import msgspec

from benchmarks.measure import NOW, encode, started_core, take_in
from benchmarks.workloads import (
    GPU,
    MODELS,
    Template,
    Workload,
    add_gang,
    make_nodes,
    make_queue,
    timestamp,
)
from capcard_sched.gc import settle_memory
from capcard_sched.model.deltas import Delta, ObjectChanged
from capcard_sched.model.intents import Bind
from capcard_sched.model.objects import ObjectMeta, PodObject, PodStatus

BACKLOGS: Final = ("B1",)
_QUEUES: Final = 40
_GANG: Final = 4
#: Gangs per node.
_GANGS_PER_NODE: Final = 2
#: Times each small change is repeated inside one run.
_CHANGES: Final = 9


class Backlog(msgspec.Struct, frozen=True):
    """Figures of the scene at one size; medians over the repeats, in seconds."""

    scene: str
    size: str
    nodes: int
    gangs: int
    #: The session that attempts every gang for the first time.
    first_seconds: float
    #: One new pod that fits: applied, placed and committed.
    new_pod_seconds: float
    #: One running pod that ends, whose capacity satisfies no gang.
    ended_pod_seconds: float
    repeats: int


def measure_backlog(scene: str, size: str, nodes: int, repeats: int) -> Backlog:
    """Sessions beside a backlog, `repeats` times from scratch. Raises RuntimeError when a hook failed."""
    gangs = _GANGS_PER_NODE * nodes
    samples = [_sample(nodes, gangs) for _ in range(repeats)]
    first, new_pod, ended_pod = (statistics.median(times) for times in zip(*samples, strict=True))
    return Backlog(scene, size, nodes, gangs, first, new_pod, ended_pod, repeats)


def _sample(nodes: int, gangs: int) -> tuple[float, float, float]:
    workload = _workload(nodes, gangs)
    running = [pod for pod in workload.pods if pod.spec.node_name]
    core, work = started_core(encode(workload))
    take_in(core, work)
    settle_memory()

    def step(news: list[Delta], at: float) -> tuple[float, int]:
        start = perf_counter()
        result = core.step(news, NOW + at)
        seconds = perf_counter() - start
        if result.report.errors:
            raise RuntimeError(f"a hook failed: {result.report.errors[0]}")
        return seconds, sum(isinstance(intent, Bind) for intent in result.intents)

    first, _ = step([], 0)
    step(_late_pod(0), 1)
    settle_memory()
    new_pods = [step(_late_pod(number), 1 + number) for number in range(1, 1 + _CHANGES)]
    ended = [
        step([ObjectChanged(_on_node(pod, "Succeeded"))], 20 + number) for number, pod in enumerate(running[:_CHANGES])
    ]
    if [count for _, count in new_pods] != [1] * _CHANGES or any(count for _, count in ended):
        raise RuntimeError("the scene binds other pods than its late ones")
    return first, _median(new_pods), _median(ended)


def _median(steps: list[tuple[float, int]]) -> float:
    return statistics.median(seconds for seconds, _ in steps)


def _workload(nodes: int, gangs: int) -> Workload:
    workload = Workload("B1", make_nodes(nodes), [make_queue("busy", {}), make_queue("late", {})], [], [])
    models = list(MODELS)
    whole = [node for node in workload.nodes if GPU in (node.status.allocatable or {})]
    everything = dict.fromkeys(models, 8 * nodes)
    workload.queues[0] = make_queue("busy", everything)
    for node in whole:
        model = (node.metadata.labels or {})[f"{GPU}.product"]
        add_gang(workload, "busy", Template(8, 32, model, GPU, 8), 1, phase="Running")
        workload.pods[-1] = _on_node(workload.pods[-1], "Running", node.metadata.name)
    for number in range(gangs):
        template = Template(8 + number % 3, 32, models[number % len(models)], GPU, 8)
        add_gang(workload, f"queue-{number % _QUEUES:02d}", template, _GANG)
    for number in range(_QUEUES):
        quota = dict.fromkeys(models, 16) if number % 2 else everything
        workload.queues.append(make_queue(f"queue-{number:02d}", quota))
    return workload


def _on_node(pod: PodObject, phase: str, node: str = "") -> PodObject:
    replace = msgspec.structs.replace
    spec = replace(pod.spec, node_name=node) if node else pod.spec
    return replace(pod, spec=spec, status=PodStatus(phase=phase))


def _late_pod(number: int) -> list[Delta]:
    """A new single pod without cards, in a queue of its own."""
    workload = Workload("late", [], [], [], [])
    add_gang(workload, "late", Template(1, 1), 1)
    group, pod = workload.groups[0], workload.pods[0]
    replace, name = msgspec.structs.replace, f"late-{number}"
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", creation_timestamp=timestamp(0))
    annotations = {"scheduling.k8s.io/group-name": name}
    return [
        ObjectChanged(replace(group, metadata=meta)),
        ObjectChanged(replace(pod, metadata=replace(meta, uid=f"uid-{name}-0", annotations=annotations))),
    ]
