"""Lists, snapshots and watches of a live cluster, under the scheduler-conf that is installed in it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.cli.sources.source import INSTALLED_CONF
from tests.controlplane import deprecations
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, plain, pod, queue
from tests.e2e.asking import A10, CARD, H200, LiveCommand, set_the_scene
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.expectations import until


@pytest.fixture
def run_live(cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> LiveCommand:
    return LiveCommand(control_plane.kubeconfig_for("scheduler-b"), cluster.namespace, capsys)


# --- snapshot -------------------------------------------------------------------------------------------------------


async def test_a_snapshot_gives_the_results_of_the_cluster(
    cluster: Cluster,
    run_live: LiveCommand,
    control_plane: ControlPlane,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await set_the_scene(cluster)
    live = (await run_live.explain("waits", "-o", "json")).document
    file = tmp_path / "cluster.json"
    arguments = ["snapshot", "-o", str(file), "--kubeconfig", str(control_plane.kubeconfig_for("scheduler-b"))]
    assert await asyncio.to_thread(run, arguments) == 0
    assert f"objects to {file}" in capsys.readouterr().err
    arguments = ["explain", "waits", "-n", cluster.namespace, "-f", str(file), "-o", "json"]
    assert await asyncio.to_thread(run, arguments) == 0
    saved = json.loads(capsys.readouterr().out)
    for field in ("stage", "summary", "podGroup", "minAvailable"):
        assert saved[field] == live[field], field
    assert saved["queue"]["limits"] == live["queue"]["limits"]


async def _install(cluster: Cluster, content: Mapping[str, str]) -> None:
    """The ConfigMap with the scheduler-conf, where manifests/ put it."""
    namespace, _, name = INSTALLED_CONF.partition("/")
    await cluster.make_namespace(namespace)
    await cluster.create(plain("ConfigMap", name, namespace=namespace, data=dict(content)))


async def test_queue_list_agrees_with_the_daemon(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, run_live: LiveCommand, tmp_path: Path
) -> None:
    either = f"{H200}|{A10}"
    await cluster.create_all([gpu_node("n1", A10, 8), gpu_node("n2", H200, 1), queue("q", cards={A10: 3, H200: 8})])
    await cluster.create_all(
        [*gang("job", 3, queue="q", cards=either, requests=CARD), pod("shy", queue="q", cards="|")]
    )
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await until(cluster, "podgroups", "job", status={"phase": "Running"})
        (only,) = (await run_live("queue", "list", "q", "-o", "json")).document["items"]
        for row in only["cards"]:
            for figure, metric in {"allocated": "allocated", "quota": "capacity", "inqueue": "inqueue"}.items():
                await daemon.until_metric(f"volcano_queue_card_{metric}", row[figure], queue_name="q", card=row["card"])
        assert {row["card"]: row["allocated"] for row in only["cards"]} == {A10: 2, H200: 1}
        await daemon.stop()


# --- the scheduler-conf ---------------------------------------------------------------------------------------------


async def test_the_installed_scheduler_conf_decides(cluster: Cluster, run_live: LiveCommand, tmp_path: Path) -> None:
    await set_the_scene(cluster)
    await cluster.create(pod("unnamed", queue="q", requests=CARD))
    deny = CARD_CONF.replace("{name: capacity-card}", "{name: capacity-card, arguments: {unnamedCards: deny}}")
    await _install(cluster, {"scheduler.yaml": deny})
    answer = await run_live.explain("unnamed")
    assert answer.err == ""
    assert ": Can never start: card resource nvidia.com/gpu requested without annotation" in answer.out
    given = tmp_path / "conf.yaml"
    given.write_text(CARD_CONF)
    answer = await run_live.explain("unnamed", f"--scheduler-conf={given}")
    assert ": The next session binds 1 pod to " in answer.out, "the conf that is given goes first"
    answer = await run_live.explain("unnamed", "--installed-conf=capcard-system/another")
    assert "ConfigMap capcard-system/another: not found; using the built-in scheduler-conf\n" in answer.err


@pytest.mark.parametrize(
    "content, status, message",
    [
        ({"other.yaml": ""}, 0, f"note: ConfigMap {INSTALLED_CONF} has no key scheduler.yaml; using the built-in"),
        (
            {"scheduler.yaml": "actions: ["},
            2,
            f"error: ConfigMap {INSTALLED_CONF}: invalid scheduler-conf\n",
        ),
    ],
    ids=["another key", "not readable"],
)
async def test_an_invalid_installed_scheduler_conf_is_reported(
    cluster: Cluster, run_live: LiveCommand, content: Mapping[str, str], status: int, message: str
) -> None:
    await cluster.create(queue("q"))
    await _install(cluster, content)
    answer = await run_live("queue", "list")
    assert answer.status == status
    assert message in answer.err


# --- lists ----------------------------------------------------------------------------------------------------------


async def _make_ready(cluster: Cluster) -> None:
    row = {"name": "main", "image": "i", "imageID": "i", "ready": True, "restartCount": 2}
    await cluster.patch("pods", "runs-0", {"status": {"containerStatuses": [row]}}, subresource="status")


class Watch:
    """A command with -w, and the values of one field of the documents that it prints."""

    def __init__(self, process: asyncio.subprocess.Process, value: Callable[[Any], object]) -> None:
        self.process = process
        self._value = value
        self._text = ""

    async def shown(self, former: object = None) -> object:
        """The next value that differs from the former one."""
        assert self.process.stdout is not None
        while True:
            try:
                document, end = json.JSONDecoder().raw_decode(self._text)
            except ValueError:
                line = await self.process.stdout.readline()
                assert line, f"ended after {self._text!r}"
                self._text += line.decode()
                continue
            self._text = self._text[end:].lstrip()
            if self._value(document) != former:
                return self._value(document)


#: Commands with the field that is looked at and its first value.
WATCHES: dict[str, tuple[Callable[[Any], object], object]] = {
    "queue get q": (lambda queue: queue["spec"]["weight"], 1),
    "pod list runs-0": (lambda pod: (pod["ready"], pod["restarts"]), (0, 0)),
    f"card list {A10}": (lambda card: card["used"], 4),
    "node list n1": (lambda node: node["used"], 4),
    "job list fits": (lambda job: job["scheduled"], 0),
    "job list waits --sort-by REASON": (lambda job: bool(job["reason"]), True),
    "pod list fits-0": (lambda pod: pod["node"], ""),
    "queue list q": (lambda queue: queue["cards"][0]["allocated"], 4),
}
#: Changes in turn, with the values that follow.
CHANGES: list[tuple[Callable[[Cluster], Awaitable[object]], dict[str, object]]] = [
    (lambda cluster: cluster.patch("queues", "q", {"spec": {"weight": 7}}), {"queue get q": 7}),
    (_make_ready, {"pod list runs-0": (1, 2)}),
    (
        lambda cluster: cluster.bind("fits-0", "n1"),
        {f"card list {A10}": 5, "node list n1": 5, "job list fits": 1, "pod list fits-0": "n1"},
    ),
    (lambda cluster: cluster.bind("waits-0", "n1"), {"queue list q": 5}),
]


async def test_watches_print_changes(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> None:
    await set_the_scene(cluster)
    program, config = Path(sys.executable).with_name("capcard-sched"), control_plane.kubeconfig_for("scheduler-b")
    watches: dict[str, Watch] = {}
    log = tmp_path / "watches.log"
    deprecations.watch(log)
    try:
        for words, (value, _) in WATCHES.items():
            scope = [] if words.startswith(("queue", "card", "node")) else ["-n", cluster.namespace]
            flags = [*words.split(), *scope, "-w", "-o", "json", f"--kubeconfig={config}"]
            with log.open("ab") as errors:
                process = await asyncio.create_subprocess_exec(program, *flags, stdout=subprocess.PIPE, stderr=errors)
            watches[words] = Watch(process, value)
        async with asyncio.timeout(100):
            assert {words: await watch.shown() for words, watch in watches.items()} == {
                words: before for words, (_, before) in WATCHES.items()
            }
            for change, after in CHANGES:
                await change(cluster)
                assert {words: await watches[words].shown(WATCHES[words][1]) for words in after} == after
    finally:
        for watch in watches.values():
            watch.process.terminate()
            await watch.process.wait()
