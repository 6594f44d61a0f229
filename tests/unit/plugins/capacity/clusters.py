"""Small clusters for the tests of capacity and proportion, and their answers in names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capcard_sched.framework.api.plugin import VictimDecision
from capcard_sched.plugins.capacity import Capacity
from capcard_sched.testing import Harness

GPU = "nvidia.com/gpu"


def cluster(cpu: str = "10", *, tree: bool = False, name: str = "capacity", **node: Any) -> Harness:
    """One node, and a conf with a plugin alone."""
    switch = ", enableHierarchy: true" if tree else ""
    h = Harness(f'actions: "enqueue, allocate"\ntiers: [{{plugins: [{{name: {name}{switch}}}]}}]')
    h.node("n1", cpu=cpu, pods=10_000, **node)
    return h


def work(h: Harness, queue: str, *, runs: int = 0, waits: int = 0, each: str = "1", **more: Any) -> None:
    """A group named as its queue, with running and pending pods of `each` cpu and `more` requests."""
    h.group(queue, queue=queue)
    for i in range(runs):
        h.pod(f"{queue}-runs{i}", group=queue, node="n1", requests={"cpu": each, **more})
    for i in range(waits):
        h.pod(f"{queue}-waits{i}", group=queue, requests={"cpu": each, **more})


def capacity(h: Harness) -> Capacity:
    plugin: Capacity = h.plugin("capacity")
    return plugin


def reclaim(h: Harness, task: str, candidates: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Names of victims, and what protects the others."""
    answer = h.plugin("capacity").reclaimable(h.task(task), [h.task(name) for name in candidates])
    assert isinstance(answer, VictimDecision)
    assert answer.protected is not None
    assert answer.victims is not None
    causes = {h.state.tasks[uid].name: cause for uid, cause in answer.protected.items()}
    return [task.name for task in answer.victims], causes
