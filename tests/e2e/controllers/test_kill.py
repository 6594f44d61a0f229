"""The controllers are killed at every write in the lives of several Jobs, and replicas take over from each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.proxy import Proxy
from tests.e2e.controllers.conftest import JOBS, Jobs
from tests.e2e.controllers.killing import NthWrite
from tests.e2e.daemons import QUICK_ELECTION, Controllers
from tests.e2e.expectations import until

pytestmark = pytest.mark.campaign

#: Most writes of a process before it is killed.
_LONGEST = 5


class KilledAtEveryWrite:
    """Starts the controllers again and again; each process ends at its nth write, for n = 1, 2 ... and again from 1.

    In turn the API server has taken that write, whose answer never arrives, or never receives it.
    """

    def __init__(self, proxy: Proxy, folder: Path) -> None:
        self._proxy = proxy
        self._folder = folder
        self.kills = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            round_, nth = divmod(self.kills, _LONGEST)
            fault = NthWrite(nth + 1, taken=(round_ + nth) % 2 == 0)
            fault.strike(self._proxy)
            process = Controllers(self._proxy.kubeconfig_for("admin"), self._folder, name=f"killed-{self.kills}")
            async with process:
                await fault.reached.wait()
                await process.kill()
            fault.lift()
            self.kills += 1


class Lives:
    """The lives of several Jobs, and the pods that each ever had."""

    def __init__(self, cluster: Cluster, jobs: Jobs, kubelet: Kubelet) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._kubelet = kubelet
        self.created: dict[str, set[str]] = {}

    async def watch_pods(self) -> None:
        """Until cancelled."""
        async for event in self._cluster.watch("pods", namespace=self._cluster.namespace):
            metadata = event["object"]["metadata"]
            self.created.setdefault(metadata["labels"]["volcano.sh/job-name"], set()).add(metadata["uid"])

    async def _reach(self, name: str, phase: str, **status: int) -> None:
        counts = {field: value or None for field, value in status.items()}
        await until(self._cluster, JOBS, name, within=200, status={"state": {"phase": phase}, **counts})

    async def restarted_aborted_resumed(self) -> None:
        await self._jobs.create("gang", 2, policies=[{"event": "PodEvicted", "action": "RestartJob"}])
        await self._reach("gang", "Running")
        await self._cluster.delete("pods", "gang-w-1", grace=1)
        await self._reach("gang", "Running", retryCount=1, version=1)
        await self._jobs.command("AbortJob", "gang")
        await self._reach("gang", "Aborted", retryCount=1, version=2)
        assert await self._jobs.pods("gang") == {}
        await self._jobs.command("ResumeJob", "gang")
        await self._reach("gang", "Running", retryCount=2, version=3)
        assert sorted(await self._jobs.pods("gang")) == ["gang-w-0", "gang-w-1"]

    async def task_restarted(self) -> None:
        policies = [{"event": "PodEvicted", "action": "RestartTask"}]
        tasks = [{"name": "a", "replicas": 2, "policies": policies}, {"name": "b", "replicas": 1}]
        template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "train"}]}}
        await self._jobs.create("task", tasks=[{**task, "template": template} for task in tasks])
        await self._reach("task", "Running", running=3)
        await self._cluster.delete("pods", "task-a-0", grace=1)
        await self._reach("task", "Running", running=3, retryCount=1, version=0)

    async def completed_and_expired(self) -> None:
        plugins: dict[str, list[str]] = {"svc": [], "env": []}
        await self._jobs.create("done", 2, plugins=plugins, ttlSecondsAfterFinished=1)
        await self._reach("done", "Running")
        for name in ("done-w-0", "done-w-1"):
            await self._kubelet.finish(name, namespace=self._cluster.namespace)
        for kind in (JOBS, "services", "configmaps", "podgroups", "pods"):  # by the garbage collector, in any order
            await until(self._cluster, kind, "done*", count=0, within=200)

    async def scaled(self) -> None:
        job = await self._jobs.create("size", 3, minAvailable=1)
        (task,) = job["spec"]["tasks"]
        await self._reach("size", "Running", running=3)
        for replicas in (1, 2):
            tasks = [{**task, "replicas": replicas, "minAvailable": 1}]
            await self._cluster.patch(JOBS, "size", {"spec": {"tasks": tasks}})
            await self._reach("size", "Running", running=replicas, terminating=0, retryCount=0)


@pytest.mark.timeout(420)
async def test_jobs_survive_a_kill_at_every_write(
    cluster: Cluster, proxy: Proxy, jobs: Jobs, kubelet: Kubelet, tmp_path: Path
) -> None:
    """No pod is left over, none is made twice, and no retry counts twice."""
    lives = Lives(cluster, jobs, kubelet)
    killed = KilledAtEveryWrite(proxy, tmp_path)
    running = [asyncio.create_task(killed.run()), asyncio.create_task(lives.watch_pods())]
    try:
        await asyncio.gather(
            lives.restarted_aborted_resumed(), lives.task_restarted(), lives.completed_and_expired(), lives.scaled()
        )
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert {name: len(uids) for name, uids in lives.created.items()} == {"gang": 6, "task": 5, "done": 2, "size": 4}
    left = {pod["metadata"]["name"] for pod in await cluster.list("pods")}
    assert left == {"gang-w-0", "gang-w-1", "task-a-0", "task-a-1", "task-b-0", "size-w-0", "size-w-1"}
    assert len(await cluster.list("podgroups")) == 3
    assert await cluster.list("commands") == []
    assert killed.kills >= 15


async def test_a_standby_takes_over(cluster: Cluster, control_plane: ControlPlane, jobs: Jobs, tmp_path: Path) -> None:
    flags = (*QUICK_ELECTION, f"--leader-elect-resource-namespace={cluster.namespace}")
    config = control_plane.kubeconfig_for("admin")
    async with (
        Controllers(config, tmp_path, *flags, name="first") as first,
        Controllers(config, tmp_path, *flags, name="second") as second,
    ):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running", within=60)
        leader, standby = (first, second) if first.lines("became leader") else (second, first)
        assert standby.lines("became leader") == []
        await leader.kill()
        await jobs.command("AbortJob", "j")
        await jobs.phase("j", "Aborted", within=60)
        assert len(standby.lines("became leader")) == 1
        assert await standby.stop() == 0
