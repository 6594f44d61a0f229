"""Pages of docs/ on an API server: their commands, in the order of the page, as a user of a shell runs them."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import deployment, gang, gpu_node, job, plain, queue
from tests.docs.pages import ROOT, commands_of, matches
from tests.e2e.admission.server import Admission
from tests.e2e.asking import H200
from tests.e2e.rbac.installed import SYSTEM
from tests.manifests.documents import INSTALL

pytestmark = pytest.mark.campaign

_LIVE: Final[dict[str, list[str]]] = yaml.safe_load((ROOT / "tests/docs/commands.yaml").read_text("utf-8"))["live"]
#: Seconds: the commands of a page on a loaded machine.
_SECONDS: Final = 240


def live_commands(page: str) -> list[tuple[str, str | None]]:
    """The commands of a page that need a cluster, with their output, in order."""
    found = [(each.text, each.output) for each in commands_of(ROOT / page) if each.text in _LIVE[page]]
    assert [text for text, _ in found] == _LIVE[page], "tests/docs/commands.yaml has the commands of the page in order"
    return found


class Shell:
    """A shell with kubectl and our programs on its PATH, in a folder with manifests/."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        (folder / "manifests").symlink_to(ROOT / "manifests")
        path = os.pathsep.join([str(Path(sys.executable).parent), str(control_plane.programs), os.environ["PATH"]])
        config = str(control_plane.kubeconfig)
        self.folder = folder
        self._environment = {**os.environ, "PATH": path, "KUBECONFIG": config, "XDG_RUNTIME_DIR": str(folder)}

    async def __call__(self, script: str) -> tuple[int, str, str]:
        """Exit status and outputs."""
        run = functools.partial(
            subprocess.run,
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        done = await asyncio.to_thread(run)
        return done.returncode, done.stdout, done.stderr

    async def succeed(self, script: str) -> str:
        """Standard output of a script that must succeed."""
        status, out, err = await self(script)
        assert status == 0, f"{script}\n{out}{err}"
        return out


@pytest.fixture
def shell(control_plane: ControlPlane, tmp_path: Path) -> Shell:
    folder = tmp_path / "shell"
    folder.mkdir()
    return Shell(control_plane, folder)


@pytest.fixture
async def namespace_controller(control_plane: ControlPlane) -> AsyncIterator[None]:
    """`kubectl delete` waits until a namespace is gone."""
    await asyncio.to_thread(control_plane.start_controller_manager, "namespace-controller")
    yield
    await asyncio.to_thread(control_plane.stop_controller_manager)


@pytest.mark.timeout(300)
async def test_the_installation_is_updated_reduced_and_removed(
    cluster: Cluster, shell: Shell, namespace_controller: None
) -> None:
    names = {each["metadata"]["name"] for each in yaml.safe_load_all(INSTALL.read_text("utf-8")) if each}
    reduced = False
    for text, _ in live_commands("docs/install.md"):
        await shell.succeed(text)
        if text.endswith("/admission/server"):
            assert await cluster.list("validatingwebhookconfigurations") == []
            kept = {each["metadata"]["name"] for each in await cluster.list("deployments", namespace=SYSTEM)}
            assert kept == {"capcard-sched", "capcard-sched-controllers"}
        elif text == "kubectl delete -k manifests/controllers" and not reduced:
            reduced = True  # the next section of the page begins with the installation
            await shell.succeed("kubectl apply -f manifests/install.yaml")
    left = [each["metadata"]["name"] for each in await cluster.list("validatingadmissionpolicies")]
    assert not {*left} & names
    assert await cluster.list("customresourcedefinitions"), "queues and jobs outlive the programs"


async def test_volcano_is_checked_and_its_scheduler_stopped(cluster: Cluster, shell: Shell) -> None:
    await cluster.make_namespace("volcano-system")
    conf = 'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: gang\n'
    data = {"volcano-scheduler.conf": conf}
    template = {"spec": {"containers": [{"name": "main", "image": "volcano"}]}}
    scheduler = deployment("volcano-scheduler", 1, template)
    scheduler["metadata"]["namespace"] = "volcano-system"
    await cluster.create_all(
        [
            plain("ConfigMap", "volcano-scheduler-configmap", namespace="volcano-system", data=data),
            scheduler,
            queue("q"),
        ]
    )
    printed = [await shell.succeed(text) for text, _ in live_commands("docs/migrating-from-volcano.md")]
    assert printed[1] == "checked 0 objects and 1 scheduler-conf: no problems found\n"
    assert (shell.folder / "conf.yaml").read_text() == conf
    assert "kind: Queue" in (shell.folder / "objects.yaml").read_text()
    assert "1 differs\n" in (shell.folder / "migration.txt").read_text()
    assert (await cluster.get("deployments", "volcano-scheduler", namespace="volcano-system"))["spec"]["replicas"] == 0


async def test_a_cache_and_a_snapshot_give_the_answers_of_the_cluster(cluster: Cluster, shell: Shell) -> None:
    await cluster.make_namespace("team-a")
    await cluster.create_all([gpu_node("n1", H200, 8), queue("team-a", cards={H200: 8})])
    train = gang("train", 2, queue="team-a", cards=H200, requests={"cpu": "1", "nvidia.com/gpu": "8"})
    await cluster.create_all([{**each, "metadata": {**each["metadata"], "namespace": "team-a"}} for each in train])
    (begin, _), (variable, _), *rest = live_commands("docs/what-if.md")
    lines = [
        f"{begin.removesuffix('&')} > cache.log 2>&1 &",
        "until grep -q 'in sync' cache.log; do sleep 0.2; done",
        variable,
    ]
    lines += [f"echo '<{text}>'; {text}; echo \"<exit $?>\"" for text, _ in rest]
    printed = await shell.succeed("\n".join(["set -u", *lines, "kill %1"]))
    answers = re.split(r"^<(?!exit).*>$", printed, flags=re.MULTILINE)[1:]
    assert len(answers) == len(rest)
    for (text, _), answer in zip(rest, answers, strict=True):
        assert answer.endswith("<exit 0>\n"), text
    live, saved = answers[0], answers[3]
    assert live.splitlines()[1].startswith("team-a/podgroup/train: ")
    assert saved.splitlines()[1] == live.splitlines()[1]


async def test_a_rejection_names_every_invalid_field(cluster: Cluster, shell: Shell, tmp_path: Path) -> None:
    await cluster.make_namespace(SYSTEM)
    await cluster.create_all([queue("root"), queue("default"), queue("research")])
    invalid = job("train", queue="reserch", policies=[{"event": "PodFailed", "action": "Restart"}])
    (shell.folder / "job.yaml").write_text(yaml.safe_dump(invalid))
    server = Admission(cluster, tmp_path)
    await server.install()
    await server.start()
    ((text, output),) = live_commands("docs/admission.md")
    assert output is not None
    try:

        async def rejected() -> bool:  # once the API server has the caBundle
            return "denied the request" in (await shell(text))[2]

        await cluster.wait_until(rejected, "the webhooks")
        _, _, err = await shell(text)
    finally:
        server.stop()
    assert matches(err, output), err
