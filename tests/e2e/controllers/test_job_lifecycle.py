"""A Job on an API server without Volcano: it runs, is suspended, resumed, restarted by an eviction, and deleted."""

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


async def test_an_eviction_restarts_the_gang_once(cluster: Cluster, controllers: Controllers, jobs: Jobs) -> None:
    await jobs.create("j", 3, policies=[{"event": "PodEvicted", "action": "RestartJob"}])
    await jobs.phase("j", "Running")
    before = await jobs.pods("j")
    await cluster.delete("pods", "j-w-1", grace=1)

    async def replaced() -> bool:
        job = await jobs.get("j")
        pods = await jobs.pods("j")
        new = {pod["metadata"]["uid"] for pod in pods.values()} - {pod["metadata"]["uid"] for pod in before.values()}
        return job["status"]["state"]["phase"] == "Running" and len(new) == 3

    await cluster.wait_until(replaced, "the gang to be replaced", within=60)
    assert (await jobs.get("j"))["status"]["retryCount"] == 1
    events = [event["message"] for event in await cluster.list("events") if event["reason"] == "ExecuteAction"]
    assert events == ["Start to execute action RestartJob "]
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


async def test_a_deployment_gets_one_podgroup_and_its_pods_run(
    cluster: Cluster, controllers: Controllers, jobs: Jobs
) -> None:
    container = {"name": "main", "image": "serve", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"schedulerName": "capcard-sched", "containers": [container]},
    }
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "x"}}, "template": template}
    metadata = {
        "name": "d",
        "namespace": cluster.namespace,
        "annotations": {"volcano.sh/service.type": "inference"},
    }
    await cluster.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})

    async def running() -> bool:
        pods = await cluster.list("pods")
        return len(pods) == 3 and all(pod["status"].get("phase") == "Running" for pod in pods)

    await cluster.wait_until(running, "three pods to run", within=60)
    (group,) = await cluster.list("podgroups")
    assert group["metadata"]["annotations"]["volcano.sh/service.type"] == "inference"
    (owner,) = await cluster.list("replicasets")
    assert group["metadata"]["name"] == f"podgroup-{owner['metadata']['uid']}"
    names = {pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for pod in await cluster.list("pods")}
    assert names == {group["metadata"]["name"]}
    await cluster.patch("deployments", "d", {"spec": {"replicas": 0}})

    async def gone() -> bool:
        return not await cluster.list("podgroups")

    await cluster.wait_until(gone, "the PodGroup to be deleted", within=30)
    assert controllers.lines("reconcile failed") == []
