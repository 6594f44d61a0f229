"""A Job whose name has dots, over the whole chain on an API server: admission, controllers, scheduler and verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from capcard_sched.model.annotations import GROUP_NAME
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import job, plain
from tests.e2e.admission.server import Admission, serving
from tests.e2e.asking import LiveCommand
from tests.e2e.controllers.conftest import JOBS, Jobs
from tests.e2e.daemons import Controllers
from tests.e2e.expectations import until

NAME = "eu.train.v1"


@pytest.fixture
async def admission(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Admission]:
    async with serving(cluster, tmp_path) as server:
        yield server


async def test_a_job_with_dots_in_its_name_is_like_others(
    cluster: Cluster,
    control_plane: ControlPlane,
    admission: Admission,
    controllers: Controllers,
    jobs: Jobs,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def verb(*words: str) -> str:
        command = LiveCommand(control_plane.kubeconfig_for("admin"), cluster.namespace, capsys)
        answer = await command(*words, "-n", cluster.namespace)
        assert answer.status == 0, answer
        return answer.out

    # The Service of the plugin svc and its host names have the name of the Job: no dots.
    for plugin in ("svc", "pytorch"):
        made = job(NAME, 2, plugins={plugin: []})
        text = str(await cluster.rejection(made, dry_run=False))
        assert f'metadata.name: "{NAME}" is not the name of a Job (accepted: at most 63 ' in text, text
        assert "with plugin svc" in text
    await jobs.create(NAME, 2, plugins={"env": [], "ssh": []}, maxRetry=5)
    # The same with a dash is another Job: no name of an object of one is that of the other.
    await jobs.create(NAME.replace(".", "-"), 1, plugins={"ssh": []})
    for name in (NAME, NAME.replace(".", "-")):
        await jobs.phase(name, "Running")
    found = await jobs.get(NAME)
    group = f"{NAME}-{found['metadata']['uid']}"
    pods = await jobs.pods(NAME)
    (task,) = found["spec"]["tasks"]
    assert sorted(pods) == [f"{NAME}-{task['name']}-{index}" for index in (0, 1)]
    for made in pods.values():
        assert made["metadata"]["annotations"][GROUP_NAME] == group
        assert made["metadata"]["labels"]["volcano.sh/job-name"] == NAME
    await until(cluster, "podgroups.scheduling.volcano.sh", group, status={"phase": "Running"})
    secrets = [each["metadata"]["name"] for each in await cluster.list("secrets")]
    assert len({name for name in secrets if name.endswith("-ssh")}) == 2, secrets

    table = (await verb("job", "list")).splitlines()
    assert [row.split()[:6] for row in table if row.startswith(NAME)] == [
        [NAME, "vcjob", "default", "Running", "2/2", "2"]
    ]
    assert (await verb("job", "get", NAME)).splitlines()[1].split()[:3] == [NAME, "default", "Running"]
    listed = [row.split()[0] for row in (await verb("pod", "list", "-j", NAME)).splitlines()[1:]]
    assert listed == sorted(pods)
    for asked in (NAME, f"job/{NAME}", f"{cluster.namespace}/{NAME}", next(iter(pods))):
        assert NAME in await verb("explain", asked)

    assert await verb("job", "suspend", NAME) == f"suspend job {NAME} successfully\n"
    await jobs.phase(NAME, "Aborted")
    assert await jobs.pods(NAME) == {}
    assert await verb("job", "resume", NAME) == f"resume job {NAME} successfully\n"
    await jobs.phase(NAME, "Running")
    former = {each["metadata"]["uid"] for each in (await jobs.pods(NAME)).values()}
    await jobs.command("RestartJob", NAME)

    async def restarted() -> bool:
        now = {each["metadata"]["uid"] for each in (await jobs.pods(NAME)).values()}
        phase = (await jobs.get(NAME))["status"]["state"]["phase"]
        return phase == "Running" and len(now) == 2 and not now & former

    await cluster.wait_until(restarted, "the restarted pods", within=60)
    # Claims: one with dots in its name, and one that is made for the Job. A long name leaves no space for suffixes.
    long = f"eu.{'x' * 40}.v1"
    for name in ("eu.data.v1", long):
        made = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await cluster.apply(plain("PersistentVolumeClaim", "data.v1", "v1", spec=made))
        volumes = [{"mountPath": "/data", "volumeClaimName": "data.v1"}, {"mountPath": "/own", "volumeClaim": made}]
        await jobs.create(name, 1, volumes=volumes, plugins={"ssh": []})
        waiting = await until(cluster, "pods", f"{name}-w-0")
        claims = [each["persistentVolumeClaim"]["claimName"] for each in waiting["spec"]["volumes"][:2]]
        assert claims[0] == "data.v1"
        assert claims[1].startswith(f"{name}-pvc-")
        assert f"{cluster.namespace}/job/{name}: " in await verb("explain", name)
    # A Job that waits: its reason has its name as it is.
    large = job("eu.large.v1", 1)
    large["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "400"
    await cluster.create(large)
    await until(cluster, "podgroups.scheduling.volcano.sh", "eu.large.v1-*")
    assert f"{cluster.namespace}/job/eu.large.v1: Can never start" in await verb("explain", "eu.large.v1")

    assert await verb("job", "delete", NAME) == f"delete job {NAME} successfully\n"
    await until(cluster, JOBS, NAME, count=0)
    await until(cluster, "podgroups.scheduling.volcano.sh", f"{NAME}-*", count=0)
    assert (await jobs.get(NAME.replace(".", "-")))["status"]["state"]["phase"] == "Running"
