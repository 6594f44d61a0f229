"""The verbs `job`, `queue` and `pod` on an API server with our controllers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import pod_group, queue
from tests.e2e.asking import LiveCommand
from tests.e2e.controllers.conftest import Jobs
from tests.e2e.daemons import Controllers
from tests.manifests.documents import MANIFESTS

Verbs = Callable[..., Awaitable[str]]


@pytest.fixture
def verbs(cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> Verbs:
    """Runs verbs: standard output, or standard error when another exit status than 0 is expected."""

    async def run(*words: str, status: int = 0, user: str = "admin") -> str:
        command = LiveCommand(control_plane.kubeconfig_for(user), cluster.namespace, capsys)
        answer = await command(*words, "-n", cluster.namespace)
        assert answer.status == status, answer
        return answer.err if status else answer.out

    return run


@pytest.mark.compat
async def test_a_user_runs_suspends_resumes_and_deletes_a_job(
    verbs: Verbs, cluster: Cluster, controllers: Controllers, jobs: Jobs, tmp_path: Path
) -> None:
    assert await verbs("job", "run", "j", "-r", "2", "-m", "2") == "run job j successfully\n"
    await jobs.phase("j", "Running")
    headers, row = (await verbs("job", "list")).splitlines()
    assert headers.split() == ["NAME", "KIND", "QUEUE", "PHASE", "PODS", "MIN", "AGE", "WAIT", "REASON"]
    assert row.split()[:6] == ["j", "vcjob", "default", "Running", "2/2", "2"]
    headers, row = (await verbs("job", "list", "-A", "-q", "default", "-o", "wide", "-S", "capcard-sched")).splitlines()
    assert headers.split()[0] == "NAMESPACE"
    assert row.split()[0] == cluster.namespace
    assert await verbs("job", "list", "-S", "volcano") == ""
    pods = (await verbs("pod", "list", "-j", "j")).splitlines()
    assert [line.split()[:4] for line in pods[1:]] == [
        ["j-task-0", "1/1", "Running", "0"],
        ["j-task-1", "1/1", "Running", "0"],
    ]
    headers, row = (await verbs("job", "get", "j")).splitlines()
    assert headers.split()[:5] == ["NAME", "QUEUE", "PHASE", "REPLICAS", "MIN"]
    assert row.split()[:5] == ["j", "default", "Running", "2", "2"]
    assert await verbs("job", "suspend", "j") == "suspend job j successfully\n"
    await jobs.phase("j", "Aborted")
    assert await verbs("job", "resume", "j") == "resume job j successfully\n"
    await jobs.phase("j", "Running")
    found = json.loads(await verbs("job", "get", "j", "-o", "json"))
    assert found["status"]["retryCount"] == 1
    assert await verbs("job", "list", "-o", "name") == "job.batch.volcano.sh/j\n"
    assert await verbs("job", "delete", "j") == "delete job j successfully\n"

    manifest = tmp_path / "job.yaml"
    manifest.write_text(json.dumps({"apiVersion": found["apiVersion"], "kind": "Job", "metadata": {"name": "f"},
                                    "spec": {**found["spec"], "minAvailable": 1}}))  # fmt: skip
    assert await verbs("job", "run", "-f", str(manifest)) == "run job f successfully\n"
    await jobs.phase("f", "Running")


async def test_the_role_of_editors_suffices_for_the_verbs_of_jobs_and_not_for_queues(
    verbs: Verbs, cluster: Cluster
) -> None:
    await cluster.apply(MANIFESTS / "readers" / "jobs.yaml")
    await cluster.allow("somebody", (await cluster.get("clusterroles", "capcard-sched-job-editor"))["rules"])
    run = partial(verbs, user="somebody")

    assert await run("job", "run", "j") == "run job j successfully\n"
    for verb in ("suspend", "resume", "delete"):
        assert await run("job", verb, "j") == f"{verb} job j successfully\n"
    targets = [(each["action"], each["target"]["name"]) for each in await cluster.list("commands")]
    assert sorted(targets) == [("AbortJob", "j"), ("ResumeJob", "j")]
    assert "forbidden" in await run("queue", "create", "q", status=2)


async def test_a_user_creates_closes_opens_and_deletes_a_queue(
    verbs: Verbs, cluster: Cluster, controllers: Controllers
) -> None:
    await cluster.create(queue("root"))
    assert await verbs("queue", "create", "q", "-w", "3") == "create queue q successfully\n"

    async def state(wanted: str) -> bool:
        headers, row = (await verbs("queue", "get", "q")).splitlines()
        assert headers.split()[:4] == ["NAME", "WEIGHT", "STATE", "PARENT"]
        return row.split()[:4] == ["q", "3", wanted, "root"]

    await cluster.wait_until(lambda: state("Open"), "the queue to be open", within=60)
    await verbs("queue", "close", "q")
    await cluster.wait_until(lambda: state("Closed"), "the queue to be closed", within=60)
    await verbs("queue", "open", "q")
    await cluster.wait_until(lambda: state("Open"), "the queue to be open again", within=60)
    assert await verbs("queue", "update", "q", "-w", "5") == "update queue q successfully\n"
    assert (await cluster.get("queues", "q"))["spec"]["weight"] == 5
    await cluster.patch("queues", "q", {"status": {"allocated": {"pods": "9", "cpu": "9"}}}, subresource="status")
    refused = "error: queue q has 9 pods on nodes: delete them first, or pass --force\n"
    assert await verbs("queue", "delete", "q", status=2) == refused
    assert await verbs("queue", "delete", "q", "--force") == "delete queue q successfully\n"


async def test_a_namespace_queue_is_shown_by_its_reference_and_by_its_id(verbs: Verbs, cluster: Cluster) -> None:
    body = {"kind": "NamespaceQueue", "metadata": {"name": "team"}, "spec": {"parent": "cluster/research"}}
    path = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{cluster.namespace}/namespacequeues"
    await cluster.request("POST", path, body={"apiVersion": "scheduling.volcano.sh/v1beta1", **body})
    await cluster.create(pod_group("g", queue="namespace/team"))
    await cluster.create(pod_group("other", queue="team"))
    for name in ("namespace/team", f"{cluster.namespace}/team"):
        headers, row = (await verbs("queue", "get", name)).splitlines()
        assert headers.split()[-6:-3] == ["PARENT", "INQUEUE", "PENDING"]
        assert [*row.split()[:2], *row.split()[-6:-3]] == [
            f"{cluster.namespace}/team",
            "-",
            "cluster/research",
            "0",
            "1",
        ]
    assert 'namespacequeues.scheduling.volcano.sh "no" not found' in await verbs("queue", "get", "other/no", status=2)


@pytest.mark.parametrize(
    "words, message",
    [
        (["job", "run"], "job name cannot be left blank"),
        (["job", "run", "j", "-R", "cpu"], "'cpu': expected RESOURCE=QUANTITY, such as cpu=1,memory=1Gi"),
        (["job", "suspend", "absent"], 'jobs.batch.volcano.sh "absent" not found'),
        (["job", "get", ".."], "'..' is not a valid name of an object"),
        (["queue", "create", "q", "-w", "0"], "--weight: 0: accepted is 1 to 65535"),
        (["queue", "delete", "absent"], 'queues.scheduling.volcano.sh "absent" not found'),
        (
            ["queue", "close", "root"],
            "queue root cannot be closed; close its child queues",
        ),
        (["queue", "delete", "root"], "queue root cannot be deleted"),
        (["queue", "close", "absent"], 'queues.scheduling.volcano.sh "absent" not found'),
    ],
)
async def test_a_mistake_is_an_error_with_its_cause(verbs: Verbs, words: list[str], message: str) -> None:
    assert await verbs(*words, status=2) == f"error: {message}\n"
