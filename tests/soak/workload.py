"""Churn of a soak: nodes, queues, and jobs that come, run, finish and are deleted."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any, Final

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, gpu_node, plain, pod, pod_group, queue

NAMESPACE: Final = "soak"
CARDS: Final = ("NVIDIA-A10", "NVIDIA-H100")
#: Queue to quota. The sum exceeds the cluster: nodes are contended, too.
QUOTAS: Final[dict[str, dict[str, int]]] = {
    "serving": {"NVIDIA-A10": 16, "NVIDIA-H100": 6},
    "training": {"NVIDIA-A10": 24, "NVIDIA-H100": 8},
    "batch": {"NVIDIA-A10": 12, "NVIDIA-H100": 4},
}
_SERVICE_TYPES: Final = {"serving": "inference", "training": "training", "batch": ""}
_PRIORITIES: Final = {"low": 1000, "middle": 5000, "high": 9000}
#: Jobs: above this number, churn deletes before it creates.
_MOST_JOBS: Final = 30
#: Seconds between two actions.
_TICK: Final = 0.15


def node_manifests() -> list[Manifest]:
    """Four nodes with eight A10, two with four H100."""
    small = [gpu_node(f"a10-{index}", "NVIDIA-A10", 8, cpu=32, memory="128Gi") for index in range(4)]
    large = [gpu_node(f"h100-{index}", "NVIDIA-H100", 4, cpu=32, memory="128Gi") for index in range(2)]
    return [*small, *large]


def queue_manifests() -> list[Manifest]:
    """The queues, of which serving is not reclaimable."""
    return [
        queue(
            name,
            cards=quota,
            reclaimable=name != "serving",
            priority=9000 if name == "serving" else 1000,
            capability={"cpu": "128", "memory": "512Gi"},
        )
        for name, quota in QUOTAS.items()
    ]


def priority_classes() -> list[Manifest]:
    """PriorityClasses of jobs."""
    return [
        plain("PriorityClass", name, "scheduling.k8s.io/v1", value=value, preemptionPolicy="PreemptLowerPriority")
        for name, value in _PRIORITIES.items()
    ]


class Job:
    """One gang and the names of its pods."""

    def __init__(self, name: str, queue_name: str, pods: list[str]) -> None:
        self.name = name
        self.queue = queue_name
        self.pods = pods


class Churn:
    """Creates, finishes and deletes jobs at random. `jobs` are those that exist, the oldest first."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet, seed: int) -> None:
        self.jobs: list[Job] = []
        self.created = 0
        self._cluster = cluster
        self._kubelet = kubelet
        self._rng = random.Random(seed + 1)

    async def run(self) -> None:
        """Act until cancelled. An API server that restarts fails single requests only."""
        while True:
            with contextlib.suppress(RequestError, OSError, TimeoutError):
                await self._act()
            await asyncio.sleep(_TICK)

    async def _act(self) -> None:
        roll = self._rng.random()
        if len(self.jobs) < _MOST_JOBS and roll < 0.6:
            await self.create()
        elif self.jobs and roll < 0.9:
            await self.finish(self.jobs[0])  # the oldest: turnover
        elif self.jobs:
            job = self.jobs[self._rng.randrange(len(self.jobs))]
            if roll < 0.95:
                await self.delete(job)
            else:
                await self._delete_pod(self._rng.choice(job.pods))

    async def create(self, *, size: int = 0, cards: str | None = None, **pod_fields: Any) -> Job:
        """Create one job; random unless specified."""
        rng = self._rng
        self.created += 1
        queue_name = rng.choice(list(QUOTAS))
        size = size or rng.choice((1, 1, 2, 3, 4, 6, 8))
        named = rng.choice((*CARDS, *CARDS, "|".join(CARDS), "|".join(reversed(CARDS)))) if cards is None else cards
        name = f"{queue_name}-{self.created}"
        requests = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": rng.choice((1, 1, 2))}
        minimum = size if queue_name != "serving" else 1
        priority = rng.choice(list(_PRIORITIES))
        kind = _SERVICE_TYPES[queue_name]
        notes = {"volcano.sh/service.type": kind} if kind else {}
        fields: dict[str, Any] = {"priorityClassName": priority, "grace": rng.choice((0, 1, 2)), **pod_fields}
        members = [
            pod(f"{name}-{index}", group=name, cards=named, requests=requests, namespace=NAMESPACE, **fields)
            for index in range(size)
        ]
        group = pod_group(
            name,
            queue=queue_name,
            members=minimum,
            annotations=notes,
            namespace=NAMESPACE,
            priorityClassName=priority,
        )
        job = Job(name, queue_name, [member["metadata"]["name"] for member in members])
        self.jobs.append(job)
        await self._cluster.create(group)
        await self._cluster.create_all(members)
        return job

    async def finish(self, job: Job) -> None:
        """The pods succeed; then the job is deleted."""
        for name in job.pods:
            found = await self._cluster.find("pods", name)
            if found is not None and found["spec"].get("nodeName"):
                with contextlib.suppress(RequestError):
                    await self._kubelet.finish(name, namespace=NAMESPACE)
        await self.delete(job)

    async def delete(self, job: Job) -> None:
        """Delete the pods, then the PodGroup: the order that the admission policies require of tenants."""
        if job in self.jobs:
            self.jobs.remove(job)
        for name in job.pods:
            await self._delete_pod(name)
        await self._delete("podgroups", job.name)

    async def _delete_pod(self, name: str) -> None:
        await self._delete("pods", name, grace=None)

    async def _delete(self, kind: str, name: str, grace: int | None = 0) -> None:
        try:
            await self._cluster.delete(kind, name, grace=grace)
        except RequestError as error:
            if error.status != 404:
                raise
