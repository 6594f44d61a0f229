"""A Job on an API server without Volcano: it runs, is suspended, resumed, completed, and deleted."""

from __future__ import annotations

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.kubelet import Kubelet
from tests.e2e.controllers.conftest import Jobs
from tests.e2e.daemons import Controllers

pytestmark = [pytest.mark.asyncio, pytest.mark.campaign]


async def test_a_job_runs_is_suspended_resumed_and_deleted(
    cluster: Cluster, controllers: Controllers, jobs: Jobs
) -> None:
    await jobs.create("j", 3, plugins={"env": [], "svc": [], "ssh": []})
    job = await jobs.phase("j", "Running")
    assert job["status"]["running"] == 3
    assert job["status"]["minAvailable"] == 3
    pods = await jobs.pods("j")
    assert sorted(pods) == ["j-w-0", "j-w-1", "j-w-2"]
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) >= 1
    secret = await cluster.get("secrets", "j-ssh")
    assert sorted(secret["data"]) == ["authorized_keys", "config", "id_rsa", "id_rsa.pub"]
    assert (await cluster.get("services", "j"))["spec"]["clusterIP"] == "None"

    await jobs.command("AbortJob", "j")
    job = await jobs.phase("j", "Aborted")
    assert await jobs.pods("j") == {}
    assert await cluster.list("podgroups") == []
    assert await cluster.list("commands") == []
    assert (job["status"]["version"], job["status"].get("retryCount", 0)) == (1, 0)
    assert await cluster.find("secrets", "j-ssh") is None

    await jobs.command("ResumeJob", "j")
    job = await jobs.phase("j", "Running")
    assert (job["status"]["version"], job["status"]["retryCount"]) == (2, 1)
    after = await jobs.pods("j")
    assert not {pod["metadata"]["uid"] for pod in pods.values()} & {pod["metadata"]["uid"] for pod in after.values()}

    await cluster.delete("jobs.batch.volcano.sh", "j")

    async def gone() -> bool:
        return not await cluster.list("pods") and not await cluster.list("podgroups")

    await cluster.wait_until(gone, "everything of the Job to be gone", within=60)
    assert controllers.lines("reconcile failed") == []


async def test_a_job_completes_and_is_counted_and_deleted_after_its_time(
    cluster: Cluster, controllers: Controllers, jobs: Jobs, kubelet: Kubelet
) -> None:
    await jobs.create("j", 2, ttlSecondsAfterFinished=3)
    await jobs.phase("j", "Running")
    for name in ("j-w-0", "j-w-1"):
        await kubelet.finish(name, namespace=cluster.namespace)
    job = await jobs.phase("j", "Completed")
    assert job["status"]["succeeded"] == 2
    text = await controllers.metrics()
    labels = f'job_name="{cluster.namespace}/j",queue_name="default"'
    assert f"volcano_job_completed_phase_count{{{labels}}} 1.0" in text

    async def gone() -> bool:
        return not await cluster.list("jobs.batch.volcano.sh")

    await cluster.wait_until(gone, "the Job to be deleted", within=30)
