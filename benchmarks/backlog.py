"""A backlog: gangs that wait without hope on a full cluster, and the sessions for small changes beside them.

Scene B1: every card of every node is in use by one running pod per node, and the gangs ask for more nodes than are
free; half of the queues have used up their card quota, so that their gangs are refused before any node is tried.
"""

from __future__ import annotations

import msgspec

from benchmarks.workloads import GPU, MODELS, Template, Workload, _gang, make_nodes, make_queue
from capcard_sched.model.objects import PodObject, PodStatus

_QUEUES = 40
#: Times each small change is repeated inside one run.
_CHANGES = 9
_GANG = 4


def backlog(nodes: int, gangs: int) -> tuple[Workload, list[PodObject]]:
    """The objects of the scene, and the running pods among them: one per node with cards."""
    workload = Workload("B1", make_nodes(nodes), [], [], [])
    models = list(MODELS)
    running: list[PodObject] = []
    held: dict[str, int] = dict.fromkeys(models, 0)
    for row in range(nodes):
        if row % 20 >= 18:
            continue
        model = models[row % len(models)]
        held[model] += 8
        _gang(workload, "busy", Template(8, 32, model, GPU, 8), 1, phase="Running")
        running.append(_on_node(workload.pods[-1], f"node-{row:05d}"))
    workload.pods[:] = running
    for number in range(gangs):
        template = Template(8 + number % 3, 32, models[number % len(models)], GPU, 8)
        _gang(workload, f"queue-{number % _QUEUES:02d}", template, _GANG)
    workload.queues = [make_queue("busy", {}), make_queue("late", {})]
    for number in range(_QUEUES):
        quota = dict.fromkeys(models, 8) if number % 2 else {}
        workload.queues.append(make_queue(f"queue-{number:02d}", quota))
    return workload, running


def _on_node(pod: PodObject, node: str, phase: str = "Running") -> PodObject:
    replace = msgspec.structs.replace
    return replace(pod, spec=replace(pod.spec, node_name=node), status=PodStatus(phase=phase))


class Waiting(msgspec.Struct, frozen=True):
    """Figures of one size; times are medians in seconds."""

    scene: str
    size: str
    nodes: int
    gangs: int
    #: The first session, which tries every gang.
    first_seconds: float
    #: One new pod that fits: applied, placed and committed.
    new_pod_seconds: float
    #: One running pod of the cluster that ends.
    ended_pod_seconds: float
