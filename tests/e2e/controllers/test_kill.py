"""The controllers are killed after every single write of a Job's life, and replicas take over from each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.proxy import Fault, Proxy
from tests.e2e.controllers.conftest import Controllers, Jobs
from tests.e2e.daemons import QUICK_ELECTION

pytestmark = pytest.mark.asyncio

_WRITES = ("POST", "PATCH", "DELETE")


class FirstWrite(Fault):
    """The first write of a process: its answer never arrives."""

    def concerns(self, verb: str, path: str) -> bool:
        """Events and Leases do not change what is reconciled."""
        return verb in _WRITES and "/events" not in path and "/leases" not in path


class KilledAfterEachWrite:
    """Starts the controllers again and again; each process lives until the API server has taken its first write."""

    def __init__(self, proxy: Proxy, folder: Path) -> None:
        self._proxy = proxy
        self._folder = folder
        self.kills = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            fault = FirstWrite("POST", "", 1, None)
            taken = asyncio.Event()

            async def action(
                forward: Callable[[], Awaitable[web.Response]], taken: asyncio.Event = taken
            ) -> web.Response:
                answer = await forward()
                taken.set()
                await asyncio.Event().wait()  # the client is gone before it ends
                return answer

            self._proxy._add(fault, action)
            process = Controllers(self._proxy.kubeconfig_for("admin"), self._folder, name=f"killed-{self.kills}")
            async with process:
                await taken.wait()
                await process.kill()
            fault.lift()
            self.kills += 1


@pytest.mark.slow
@pytest.mark.timeout(420)
async def test_a_job_survives_a_kill_after_every_write(
    cluster: Cluster, proxy: Proxy, jobs: Jobs, tmp_path: Path
) -> None:
    killed = KilledAfterEachWrite(proxy, tmp_path)
    killing = asyncio.create_task(killed.run())
    created: set[str] = set()

    async def watch_pods() -> None:
        async for event in cluster.watch("pods", namespace=cluster.namespace):
            created.add(event["object"]["metadata"]["uid"])

    watching = asyncio.create_task(watch_pods())
    try:
        await jobs.create("j", 2, policies=[{"event": "PodEvicted", "action": "RestartJob"}])
        await jobs.phase("j", "Running", within=120)
        await cluster.delete("pods", "j-w-1", grace=1)

        async def restarted() -> bool:
            job = await jobs.get("j")
            return (job["status"]["state"]["phase"], job["status"].get("retryCount")) == ("Running", 1)

        await cluster.wait_until(restarted, "the Job to run again", within=150)
        await jobs.command("AbortJob", "j")
        await jobs.phase("j", "Aborted", within=100)
        assert await jobs.pods("j") == {}
        await jobs.command("ResumeJob", "j")
        job = await jobs.phase("j", "Running", within=120)
    finally:
        killing.cancel()
        watching.cancel()
        await asyncio.gather(killing, watching, return_exceptions=True)
    assert (job["status"]["retryCount"], job["status"]["version"]) == (2, 3)
    assert sorted(await jobs.pods("j")) == ["j-w-0", "j-w-1"]
    assert len(created) == 6, "two pods per run, three runs"
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
