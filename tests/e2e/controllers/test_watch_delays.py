"""Watches that are late: a write that the API server acknowledged is not made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.manifests import queue
from tests.controlplane.proxy import Exchange, Proxy
from tests.e2e.controllers.conftest import Controllers, Jobs

pytestmark = pytest.mark.asyncio

_SCHEDULING = "scheduling.volcano.sh/v1beta1"


def _writes(proxy: Proxy, end: str) -> list[Exchange]:
    return [each for each in proxy.exchanges if each.verb in {"POST", "PATCH", "DELETE"} and each.path.endswith(end)]


async def test_pods_that_the_watch_does_not_show_are_created_once(
    cluster: Cluster, proxy: Proxy, jobs: Jobs, tmp_path: Path
) -> None:
    async with Controllers(proxy.kubeconfig_for("admin"), tmp_path) as controllers:
        await controllers.logged("controllers started")
        late = proxy.pause("/v1/pods$")
        await jobs.create("j", 3)

        async def run() -> bool:
            pods = await jobs.pods("j")
            return [pod["status"].get("phase") for pod in pods.values()] == ["Running"] * 3

        await cluster.wait_until(run, "the pods to run", within=60)
        before = len(proxy.exchanges)
        for number in range(3):
            note = {"metadata": {"annotations": {"touched": str(number)}}}
            await cluster.patch("jobs.batch.volcano.sh", "j", note)
        await jobs.command("SyncJob", "j")

        async def consumed() -> bool:
            return not await cluster.list("commands")

        await cluster.wait_until(consumed, "the command to be consumed", within=60)
        assert [each for each in proxy.exchanges[before:] if each.verb == "POST" and "/pods" in each.path] == []
        assert (await jobs.get("j"))["status"]["state"]["phase"] == "Pending", "as far as the watch shows"
        late.resume()
        await jobs.phase("j", "Running", within=60)
        assert [each.status for each in _writes(proxy, "/pods")] == [201] * 3
        statuses = [each.body for each in _writes(proxy, "/jobs/j/status")]
        assert len(set(statuses)) == len(statuses)
        assert controllers.lines("reconcile failed") == []


async def test_the_state_of_a_queue_is_written_once(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> None:
    async with Controllers(proxy.kubeconfig_for("admin"), tmp_path) as controllers:
        await controllers.logged("controllers started")
        created = await cluster.create(queue("q"))

        async def is_in(state: str) -> bool:
            found = await cluster.get("queues", "q")
            return bool(found.get("status", {}).get("state") == state)

        await cluster.wait_until(lambda: is_in("Open"), "the queue to be open", within=60)
        target = {"apiVersion": _SCHEDULING, "kind": "Queue", "name": "q", "uid": created["metadata"]["uid"]}
        command: Manifest = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "action": "CloseQueue"}
        proxy.pause("/queues$")
        before = len(_writes(proxy, "/queues/q/status"))
        for name in ("first", "second", "third"):
            await cluster.create({**command, "metadata": {"name": name}, "target": target})

        async def consumed() -> bool:
            return not await cluster.list("commands")

        await cluster.wait_until(consumed, "the commands to be consumed", within=60)
        assert await is_in("Closed")
        assert [each.status for each in _writes(proxy, "/queues/q/status")[before:]] == [200]
        assert controllers.lines("reconcile failed") == []
