"""Watches that are late or lose changes: acknowledged writes are not repeated, deletions are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest, plain, queue
from tests.controlplane.proxy import Exchange, Proxy, failure
from tests.e2e.controllers.conftest import BATCH, JOBS, Jobs
from tests.e2e.daemons import Controllers
from tests.e2e.expectations import until

pytestmark = pytest.mark.campaign

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
        await until(cluster, "pods", count=3, status={"phase": "Running"})
        before = len(proxy.exchanges)
        for number in range(3):
            await cluster.patch(JOBS, "j", {"metadata": {"annotations": {"touched": str(number)}}})
        await jobs.command("SyncJob", "j")
        await until(cluster, "commands", count=0)
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
        await until(cluster, "queues", "q", spec={"parent": "root"})  # the controller has seen it
        target = {"apiVersion": _SCHEDULING, "kind": "Queue", "name": "q", "uid": created["metadata"]["uid"]}
        proxy.pause("/queues$")
        before = len(_writes(proxy, "/queues/q/status"))
        for name in ("first", "second", "third"):
            command = plain("Command", name, "bus.volcano.sh/v1alpha1", action="CloseQueue", target=target)
            await cluster.create(command)
        await until(cluster, "commands", count=0)
        await until(cluster, "queues", "q", status={"state": "Closed"})
        assert [each.status for each in _writes(proxy, "/queues/q/status")[before:]] == [200]
        assert controllers.lines("reconcile failed") == []


async def test_a_job_that_is_deleted_while_the_watch_is_away_no_longer_blocks_its_cron_job(
    cluster: Cluster, proxy: Proxy, jobs: Jobs, tmp_path: Path
) -> None:
    """The version of the watch expires: no event shows the deletion, only the difference of two lists does."""
    spec = (await jobs.create("template", 1))["spec"]
    await cluster.delete(JOBS, "template")
    body = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": spec}}
    past: Manifest = {"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}}

    async with Controllers(proxy.kubeconfig_for("admin"), tmp_path) as controllers:
        await controllers.logged("controllers started")
        await cluster.create(plain("CronJob", "cron", BATCH, spec=body))
        await cluster.patch("cronjobs.batch.volcano.sh", "cron", past, subresource="status")
        job = await until(cluster, JOBS, count=1)
        active = {"active": [{"name": job["metadata"]["name"]}]}
        await until(cluster, "cronjobs.batch.volcano.sh", "cron", status=active)
        away = proxy.pause("v1alpha1/jobs$")
        await cluster.delete(JOBS, job["metadata"]["name"])
        assert not await cluster.list(JOBS)
        expired: Manifest = {"type": "ERROR", "object": failure(410, "too old resource version")}
        assert await proxy.inject("v1alpha1/jobs$", expired) == 1
        away.resume()
        await cluster.patch("cronjobs.batch.volcano.sh", "cron", past, subresource="status")
        await until(cluster, JOBS, within=90)
        assert job["metadata"]["uid"] not in {each["metadata"]["uid"] for each in await cluster.list(JOBS)}
