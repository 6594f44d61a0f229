"""The verbs `job`, `queue` and `pod` on an API server with our controllers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from capcard_sched.cli.main import run as run_verb
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.e2e.controllers.conftest import Jobs
from tests.e2e.daemons import Controllers
from tests.manifests.documents import MANIFESTS

pytestmark = pytest.mark.asyncio


class CommandLine:
    """Runs verbs in this process as a user with a kubeconfig."""

    def __init__(self, cluster: Cluster, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._given = ["--kubeconfig", str(config), "-n", cluster.namespace]
        self._capsys = capsys

    async def __call__(self, *words: str, status: int = 0) -> str:
        """Standard output, or standard error when another exit status than 0 is expected."""
        self._capsys.readouterr()
        done = await asyncio.to_thread(run_verb, [*words, *self._given])
        out, err = self._capsys.readouterr()
        assert done == status, out + err
        return err if status else out


async def test_a_user_runs_suspends_resumes_and_deletes_a_job(
    cluster: Cluster,
    control_plane: ControlPlane,
    controllers: Controllers,
    jobs: Jobs,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = CommandLine(cluster, control_plane.kubeconfig_for("admin"), capsys)
    assert await run("job", "run", "j", "-r", "2", "-m", "2") == "run job j successfully\n"
    await jobs.phase("j", "Running")
    headers, row = (await run("job", "list")).splitlines()
    assert headers.split() == ["NAME", "KIND", "QUEUE", "PHASE", "PODS", "(MIN)", "AGE"]
    assert row.split()[:-1] == ["j", "job", "default", "Running", "2/2", "(2)"]
    headers, row = (await run("job", "list", "-A", "-q", "default", "-o", "wide", "-S", "capcard-sched")).splitlines()
    assert headers.split()[0] == "NAMESPACE"
    assert row.split()[0] == cluster.namespace
    assert await run("job", "list", "-S", "volcano") == ""
    pods = (await run("pod", "list", "-j", "j")).splitlines()
    assert [line.split()[:4] for line in pods[1:]] == [
        ["j-task-0", "1/1", "Running", "0"],
        ["j-task-1", "1/1", "Running", "0"],
    ]
    headers, row = (await run("job", "get", "j")).splitlines()
    assert headers.split()[:5] == ["NAME", "QUEUE", "PHASE", "REPLICAS", "MIN"]
    assert row.split()[:5] == ["j", "default", "Running", "2", "2"]
    assert await run("job", "suspend", "j") == "suspend job j successfully\n"
    await jobs.phase("j", "Aborted")
    assert await run("job", "resume", "j") == "resume job j successfully\n"
    await jobs.phase("j", "Running")
    found = json.loads(await run("job", "get", "j", "-o", "json"))
    assert found["status"]["retryCount"] == 1
    assert await run("job", "list", "-o", "name") == "job.batch.volcano.sh/j\n"
    assert await run("job", "delete", "j") == "delete job j successfully\n"

    manifest = tmp_path / "job.yaml"
    manifest.write_text(json.dumps({"apiVersion": found["apiVersion"], "kind": "Job", "metadata": {"name": "f"},
                                    "spec": {**found["spec"], "minAvailable": 1}}))  # fmt: skip
    assert await run("job", "run", "-f", str(manifest)) == "run job f successfully\n"
    await jobs.phase("f", "Running")


async def test_the_role_of_editors_suffices_for_the_verbs_of_jobs_and_not_for_queues(
    cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.apply(MANIFESTS / "readers" / "jobs.yaml")
    subject = {"kind": "User", "name": "somebody", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "capcard-sched-job-editor", "apiGroup": "rbac.authorization.k8s.io"}
    await cluster.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "editor"},
            "roleRef": role,
            "subjects": [subject],
        }
    )
    run = CommandLine(cluster, control_plane.kubeconfig_for("somebody"), capsys)

    assert await run("job", "run", "j") == "run job j successfully\n"
    for verb in ("suspend", "resume", "delete"):
        assert await run("job", verb, "j") == f"{verb} job j successfully\n"
    targets = [(each["action"], each["target"]["name"]) for each in await cluster.list("commands")]
    assert sorted(targets) == [("AbortJob", "j"), ("ResumeJob", "j")]
    assert "forbidden" in await run("queue", "create", "q", status=2)


async def test_a_user_creates_closes_opens_and_deletes_a_queue(
    cluster: Cluster, control_plane: ControlPlane, controllers: Controllers, capsys: pytest.CaptureFixture[str]
) -> None:
    run = CommandLine(cluster, control_plane.kubeconfig_for("admin"), capsys)
    await cluster.create({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "root"}})
    assert await run("queue", "create", "q", "-w", "3") == "create queue q successfully\n"

    async def state(wanted: str) -> bool:
        headers, row = (await run("queue", "get", "q")).splitlines()
        assert headers.split()[:4] == ["NAME", "WEIGHT", "STATE", "PARENT"]
        return row.split()[:4] == ["q", "3", wanted, "root"]

    await cluster.wait_until(lambda: state("Open"), "the queue to be open", within=30)
    await run("queue", "close", "q")
    await cluster.wait_until(lambda: state("Closed"), "the queue to be closed", within=30)
    await run("queue", "open", "q")
    await cluster.wait_until(lambda: state("Open"), "the queue to be open again", within=30)
    assert await run("queue", "update", "q", "-w", "5") == "update queue q successfully\n"
    assert (await cluster.get("queues", "q"))["spec"]["weight"] == 5
    assert await run("queue", "delete", "q") == "delete queue q successfully\n"


@pytest.mark.parametrize(
    "words, message",
    [
        (["job", "run"], "job name cannot be left blank"),
        (["job", "run", "j", "-R", "cpu"], "'cpu': expected RESOURCE=QUANTITY, such as cpu=1,memory=1Gi"),
        (["job", "suspend", "absent"], 'jobs.batch.volcano.sh "absent" not found'),
        (["job", "get", ".."], "'..' is not a valid name of an object"),
        (["queue", "create", "q", "-w", "0"], "--weight: 0: accepted is 1 to 65535"),
        (["queue", "close", "absent"], 'queues.scheduling.volcano.sh "absent" not found'),
    ],
)
async def test_a_mistake_is_an_error_with_its_cause(
    cluster: Cluster, control_plane: ControlPlane, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = CommandLine(cluster, control_plane.kubeconfig_for("admin"), capsys)
    assert await run(*words, status=2) == f"error: {message}\n"


async def test_kubectl_completes_its_plugin(cluster: Cluster, control_plane: ControlPlane) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), str(control_plane.programs), os.environ["PATH"]])
    command = ["kubectl", "__complete", "capcard", "job", "s"]
    environment = {**os.environ, "PATH": path}
    out = await asyncio.to_thread(
        subprocess.check_output, command, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert out.split() == ["suspend", ":4"]
