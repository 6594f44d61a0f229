"""Watches that are late or lose changes: acknowledged writes are not repeated, deletions are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.manifests import queue
from tests.controlplane.proxy import Exchange, Proxy, failure
from tests.e2e.controllers.conftest import BATCH, Jobs
from tests.e2e.daemons import Controllers

pytestmark = [pytest.mark.asyncio, pytest.mark.campaign]

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


async def test_a_job_that_is_deleted_while_the_watch_is_away_no_longer_blocks_its_cron_job(
    cluster: Cluster, proxy: Proxy, jobs: Jobs, tmp_path: Path
) -> None:
    """The version of the watch expires: no event shows the deletion, only the difference of two lists does."""
    spec = (await jobs.create("template", 1))["spec"]
    await cluster.delete("jobs.batch.volcano.sh", "template")
    body = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": spec}}
    metadata = {"name": "cron", "namespace": cluster.namespace}
    past: Manifest = {"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}}

    async def uids() -> set[str]:
        return {job["metadata"]["uid"] for job in await cluster.list("jobs.batch.volcano.sh")}

    async with Controllers(proxy.kubeconfig_for("admin"), tmp_path) as controllers:
        await controllers.logged("controllers started")
        await cluster.create({"apiVersion": BATCH, "kind": "CronJob", "metadata": metadata, "spec": body})
        await cluster.patch("cronjobs.batch.volcano.sh", "cron", past, subresource="status")
        await cluster.wait_until(uids, "the first Job", within=60)
        (job,) = await cluster.list("jobs.batch.volcano.sh")

        async def active() -> bool:
            found = await cluster.get("cronjobs.batch.volcano.sh", "cron")
            return [each["name"] for each in found["status"].get("active", ())] == [job["metadata"]["name"]]

        await cluster.wait_until(active, "the Job to be active", within=60)
        away = proxy.pause("v1alpha1/jobs$")
        await cluster.delete("jobs.batch.volcano.sh", job["metadata"]["name"])
        assert not await uids()
        expired: Manifest = {"type": "ERROR", "object": failure(410, "too old resource version")}
        assert await proxy.inject("v1alpha1/jobs$", expired) == 1
        away.resume()
        await cluster.patch("cronjobs.batch.volcano.sh", "cron", past, subresource="status")
        await cluster.wait_until(uids, "the next Job", within=90)
        assert job["metadata"]["uid"] not in await uids()
