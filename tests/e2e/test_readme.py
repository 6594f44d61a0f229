"""The cluster section of the README on a bare API server: one manifest, our three programs, its commands in order."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import deployment, node
from tests.controlplane.processes import output
from tests.e2e.admission.server import Admission
from tests.e2e.controllers.conftest import Jobs
from tests.e2e.daemons import QUICK_ELECTION, Controllers, Daemon
from tests.e2e.expectations import until, until_bound
from tests.e2e.rbac.installed import SYSTEM, Audit, account, flags_of, granted_by
from tests.manifests.documents import INSTALL, ROOT, by_key, read, scheduler_only

pytestmark = pytest.mark.campaign

_PROGRAMS = Path(sys.executable).parent


def commands() -> list[str]:
    """The commands of the section that need no image."""
    section = (ROOT / "README.md").read_text("utf-8").partition("## Cluster\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    (kubectl .*)$", section, re.MULTILINE)
    return [line.partition("#")[0].strip() for line in lines]


class User:
    """A shell with kubectl and our programs on its PATH."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        path = os.pathsep.join([str(_PROGRAMS), str(control_plane.programs), os.environ["PATH"]])
        config = control_plane.kubeconfig_for("admin", namespace=namespace, name="reader")
        self._environment = {**os.environ, "PATH": path, "KUBECONFIG": str(config)}

    async def run(self, command: str) -> str:
        """Standard output of a command that must succeed."""
        return await output(*command.split(), cwd=ROOT, env=self._environment)

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command that runs until it is interrupted."""
        return subprocess.Popen(command.split(), cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(300)
async def test_a_scheduler_is_upgraded_to_the_whole_product_and_the_commands_of_the_readme_work(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, workloads: None, tmp_path: Path
) -> None:
    await cluster.create_all(node(name, cpu="32", memory="64Gi") for name in ("n1", "n2"))
    user = User(control_plane, cluster.namespace)
    jobs = Jobs(cluster)
    await user.run(f"kubectl apply -f {scheduler_only(tmp_path)}")
    conf = by_key(read(INSTALL))[f"ConfigMap {SYSTEM}/capcard-sched-conf"]["data"]["scheduler.yaml"]
    async with AsyncExitStack() as stack:
        given = [*await flags_of(cluster, "capcard-sched"), *QUICK_ELECTION]
        config = await account(cluster, "capcard-sched")
        scheduler = await stack.enter_async_context(Daemon(config, tmp_path, *given, conf=conf))
        container = {"name": "main", "image": "serve", "resources": {"requests": {"cpu": "1"}}}
        template = {"spec": {"schedulerName": "capcard-sched", "containers": [container]}}
        await cluster.create(deployment("before", 2, template))
        before = await until_bound(cluster, 2)
        assert await cluster.list("podgroups") == []

        first, *steps = commands()
        assert first == "kubectl apply -f manifests/install.yaml"
        await user.run(first)
        audit = Audit(control_plane, f"system:serviceaccount:{SYSTEM}:capcard-sched-admission")
        admission = Admission(cluster, tmp_path)
        await admission.redirect()
        given = [*await flags_of(cluster, "capcard-sched-controllers"), *QUICK_ELECTION]
        config = await account(cluster, "capcard-sched-controllers")
        controllers = await stack.enter_async_context(Controllers(config, tmp_path, *given))
        await admission.start()
        stack.callback(admission.stop)
        await until(cluster, "pods", count=2, metadata={"annotations": {"scheduling.k8s.io/group-name": "*"}})
        assert await cluster.bound() == before

        watch = user.start("kubectl capcard job list -w")
        stack.callback(watch.kill)
        assert watch.stdout is not None
        table = stack.enter_context(watch.stdout)
        rows = [await asyncio.to_thread(table.readline) for _ in ("header", "before")]
        outputs = {}
        for step in steps:
            outputs[step.removeprefix("kubectl capcard ").split(" -")[0]] = await user.run(step)
            if step.startswith(("kubectl capcard job run", "kubectl capcard job resume")):
                await jobs.phase("hello", "Running", within=60)
            elif step.startswith("kubectl capcard job suspend"):
                await jobs.phase("hello", "Aborted", within=60)
                assert await jobs.pods("hello") == {}
        assert list(outputs) == [
            "queue create research",
            "job run hello",
            "job list",
            "pod list",
            "job suspend hello",
            "job resume hello",
            "job delete hello",
        ]
        assert outputs["job list"].splitlines()[1].split()[3] == "Running"
        assert {line.split()[2] for line in outputs["pod list"].splitlines()[1:]} == {"Running"}
        await until(cluster, "jobs.batch.volcano.sh", count=0)
        await until(cluster, "pods", count=2)
        watch.send_signal(signal.SIGINT)
        rows += (await asyncio.to_thread(table.read)).splitlines()
        assert await asyncio.to_thread(watch.wait, timeout=20) == 130
        assert rows[0].split()[:4] == ["NAME", "KIND", "QUEUE", "PHASE"]
        phases = [row.split()[3] for row in rows[1:] if row.split()[0] == "hello"]
        # The watch merges changes while it prints: it may leave out phases that pass in a moment, as Pending.
        assert {"Running", "Aborted"} <= {*phases}, rows
        assert await cluster.bound() == before, "nothing of this concerns the Deployment"
        for program in (scheduler, controllers):
            assert '"level":"error"' not in program.text, program.text[-3000:]

        assert not audit.denied()
        names = ("ClusterRole capcard-sched-admission", f"Role {SYSTEM}/capcard-sched-admission")
        granted = granted_by(role for name, role in by_key(read(INSTALL)).items() if name.startswith(names))
        assert audit.used() <= granted
        # An update renews the certificate; the API server of the tests lists through the watch.
        assert {right.verb for right in granted - audit.used()} <= {"update", "list", "get"}
