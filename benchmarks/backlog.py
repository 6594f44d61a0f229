"""A backlog: gangs that wait without hope on a full cluster, and the sessions for small changes beside them.

One running pod per node holds all its cards, and 10,000 gangs of four such pods wait.

- B1: all of them are admitted; half of them wait for nodes, half of them because the card quota of their queue is
  smaller than the gang.
- B2: all of them are refused at admission, because running pods use most of the quota of their queue.
- B3: as B1, with the actions preempt and reclaim: the running pods are in another queue, and are no training.
- B4: as B3, and one running pod per queue has a low priority: each gang may preempt it, and needs three nodes more.
- B5: as B3, and all running pods have a low priority and are in the queues of the gangs: they would suffice, and a
  PodDisruptionBudget protects them.
"""

from __future__ import annotations

import statistics
from time import process_time
from typing import Final, NamedTuple

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
from capcard_sched.framework.conf.scheduler_conf import default_text
from capcard_sched.framework.core import Core
from capcard_sched.gc import settle_memory
from capcard_sched.insight.diagnosis.explain import Subject, explain
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.insight.trials.forked_copy import cpu_seconds
from capcard_sched.model.deltas import Delta, ObjectChanged
from capcard_sched.model.intents import Bind
from capcard_sched.model.kinds import KubernetesObject
from capcard_sched.model.limits import PodDisruptionBudgetObject
from capcard_sched.model.objects import ObjectMeta, PodObject, PodStatus, PriorityClassObject

BACKLOGS: Final = ("B1", "B2", "B3", "B4", "B5")
_EVICTING: Final = default_text().replace(
    '"enqueue, allocate, backfill"', '"enqueue, allocate, preempt, reclaim, backfill"'
)
_WITH_BUDGET: Final = _EVICTING.replace("  - name: predicates", "  - name: pdb\n  - name: predicates")
_CONFS: Final = {"B3": _EVICTING, "B4": _EVICTING, "B5": _WITH_BUDGET}
_QUEUES: Final = 40
_GANG: Final = 4
#: Selects every pod and allows no eviction.
_BUDGET: Final = msgspec.convert(
    {
        "metadata": {"name": "all", "namespace": "default"},
        "spec": {"selector": {"matchExpressions": [{"key": "job", "operator": "Exists"}]}},
        "status": {"disruptionsAllowed": 0},
    },
    PodDisruptionBudgetObject,
)
_LOW: Final = PriorityClassObject(metadata=ObjectMeta(name="low", uid="low"), value=-1)
#: Gangs per node.
_GANGS_PER_NODE: Final = 2
#: Times each small change is repeated inside one run.
_CHANGES: Final = 9


class Backlog(msgspec.Struct, frozen=True):
    """Figures of the scene at one size; medians over the repeats, in CPU seconds."""

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
    #: One running pod that ends, whose capacity starts a waiting job.
    started_job_seconds: float
    #: The diagnosis of a waiting gang, and of one with suggested fixes, after the first session.
    explain_seconds: float
    fix_seconds: float
    repeats: int


class _Sample(NamedTuple):
    first: float
    new_pod: float
    ended_pod: float
    started_job: float
    explain: float
    fix: float


def measure_backlog(scene: str, size: str, nodes: int, repeats: int) -> Backlog:
    """Sessions beside a backlog, `repeats` times from scratch. Raises RuntimeError when a hook failed."""
    gangs = _GANGS_PER_NODE * nodes
    samples = [_sample(scene, nodes, gangs) for _ in range(repeats)]
    found = _Sample(*(statistics.median(times) for times in zip(*samples, strict=True)))
    return Backlog(scene, size, nodes, gangs, *found, repeats)


def _sample(scene: str, nodes: int, gangs: int) -> _Sample:
    workload = _workload(scene, nodes, gangs)
    running = [pod for pod in workload.pods if pod.spec.node_name]
    core, work = started_core(encode(workload), _CONFS.get(scene))
    core.apply(ObjectChanged(_LOW))
    core.apply(ObjectChanged(_BUDGET))
    take_in(core, work)
    settle_memory()

    def step(news: list[Delta], at: float) -> tuple[float, int]:
        start = process_time()
        result = core.step(news, NOW + at)
        seconds = process_time() - start
        if result.report.errors:
            raise RuntimeError(f"a hook failed: {result.report.errors[0]}")
        return seconds, sum(isinstance(intent, Bind) for intent in result.intents)

    def end(pod: PodObject, at: float) -> tuple[float, int]:
        return step([ObjectChanged(_on_node(pod, "Succeeded"))], at)

    first, _ = step([], 0)
    objects: list[KubernetesObject] = [*workload.nodes, *workload.queues, *workload.groups, *workload.pods]
    view = DeltaObjects(map(ObjectChanged, objects))
    explained = [_explain(core, view, fix=fix) for fix in (False, True)]
    step(_late_pod(0), 1)
    settle_memory()
    new_pods = [step(_late_pod(number), 1 + number) for number in range(1, 1 + _CHANGES)]
    started = [end(pod, 20 + number) for number, pod in enumerate(running[:_CHANGES])]
    ended = [end(pod, 40 + number) for number, pod in enumerate(running[_CHANGES : 2 * _CHANGES])]
    if [count for _, count in (*new_pods, *started)] != [1] * 2 * _CHANGES or any(count for _, count in ended):
        raise RuntimeError("the scene binds other pods than those meant to be")
    return _Sample(first, _median(new_pods), _median(ended), _median(started), *explained)


def _explain(core: Core, view: DeltaObjects, *, fix: bool) -> float:
    """CPU seconds of the diagnosis of a gang without nodes, with those of its trials."""
    job = next(job for _, job in sorted(core.snapshot().state.jobs.items()) if job.queue == "queue-02" and job.pending)
    start = cpu_seconds()
    found = explain(core, view, Subject(job, None), NOW, fix=fix)
    if fix != (found.fixes is not None):
        raise RuntimeError("the gang needs no fix")
    return cpu_seconds() - start


def _median(steps: list[tuple[float, int]]) -> float:
    return statistics.median(seconds for seconds, _ in steps)


def _workload(scene: str, nodes: int, gangs: int) -> Workload:
    workload = Workload(scene, make_nodes(nodes), [], [], [])
    models = list(MODELS)
    everything = dict.fromkeys(models, 8 * nodes)
    workload.queues += [make_queue("late", {}), make_queue("busy", everything), make_queue("next", everything)]
    whole = [node for node in workload.nodes if GPU in (node.status.allocatable or {})]
    held: dict[str, dict[str, int]] = {f"queue-{number:02d}": dict.fromkeys(models, 0) for number in range(_QUEUES)}
    on_nodes: list[Template] = []
    for number, node in enumerate(whole):
        model = (node.metadata.labels or {})[f"{GPU}.product"]
        is_victim = scene == "B5" or (scene == "B4" and number >= len(whole) - _QUEUES)
        queue = f"queue-{number % _QUEUES:02d}" if scene == "B2" or is_victim else "busy"
        if queue in held:
            held[queue][model] += 8
        on_nodes.append(Template(8, 32, model, GPU, 8))
        add_gang(workload, queue, on_nodes[-1], 1, phase="Running")
        workload.pods[-1] = _on_node(workload.pods[-1], "Running", node.metadata.name)
        if is_victim:
            group = workload.groups[-1]
            spec = msgspec.structs.replace(group.spec, priority_class_name=_LOW.metadata.name)
            workload.groups[-1] = msgspec.structs.replace(group, spec=spec)
    phase = "Inqueue" if scene != "B2" else "Pending"
    for number in range(gangs):
        template = Template(8 + number % 3, 32, models[number % len(models)], GPU, 8)
        add_gang(workload, f"queue-{number % _QUEUES:02d}", template, _GANG, phase=phase)
    for template in on_nodes[:_CHANGES]:  # each waits for a node of the kind that is freed
        add_gang(workload, "next", template, 1)
    for number, (name, used) in enumerate(held.items()):
        spare = 16 if scene == "B2" or number % 2 else 8 * nodes
        workload.queues.append(make_queue(name, {model: amount + spare for model, amount in used.items()}))
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
