"""The lists, snapshots and changes of a live cluster."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.cluster_source import Source, load_input, run_scenario
from capcard_sched.cli.main import run
from capcard_sched.simulation.manifests import as_list, to_json
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.e2e.asking import A10, H200, NO_CONF, LiveCommand, set_the_scene


@pytest.fixture
def run_live(cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> LiveCommand:
    return LiveCommand(control_plane.kubeconfig_for("scheduler-b"), cluster.namespace, capsys)


# --- snapshot -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_a_change_of_a_live_cluster_equals_a_simulation_of_the_changed_input(
    cluster: Cluster, run_live: LiveCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await set_the_scene(cluster)
    file = tmp_path / "changed.json"
    flags = ["--until", "1m", "--quota", f"q/{A10}=6", "--save", str(file), "-o", "json"]
    answer = await run_live("what-if", *flags)
    assert answer.status == 0
    assert [row["job"] for row in answer.document["starts"]] == [f"{cluster.namespace}/podgroup/waits"]
    row = answer.document["starts"][0]
    assert row["waitAfter"] < 600, "since its creation, by the clock of the cluster"
    usage = {(row["queue"], row["resource"]): row["after"] for row in answer.document["usage"]}
    assert usage["q", A10] == 6
    assert await asyncio.to_thread(run, ["simulate", "-f", str(file), "--until", "1m", "-o", "json"]) == 0
    simulated = capsys.readouterr().out
    given = load_input(Source(file=(str(file),), until="1m"))
    _, _, outcome = await asyncio.to_thread(run_scenario, given, Source(file=(str(file),), until="1m"), None)
    assert to_json(as_list(outcome.store)) == simulated
    bound = {
        item["metadata"]["name"]: item["spec"].get("nodeName")
        for item in json.loads(simulated)["items"]
        if item["kind"] == "Pod"
    }
    assert bound["waits-0"] == "n1", "the change is in the saved input"
    assert sorted(await cluster.bound()) == [f"runs-{member}" for member in range(4)], "nothing is written"


@pytest.mark.asyncio
async def test_the_namespace_of_the_kubeconfig_is_the_default(
    cluster: Cluster, control_plane: ControlPlane, run_live: LiveCommand
) -> None:
    await set_the_scene(cluster)
    config = control_plane.kubeconfig_for("scheduler-b", namespace=cluster.namespace, name="here")
    answer = await run_live("explain", "waits", kubeconfig=config)
    assert answer.out.startswith(f"{cluster.namespace}/podgroup/waits: ")
    answer = await run_live("pod", "list", "-o", "name", kubeconfig=config)
    assert len(answer.out.splitlines()) == 8
    assert (await run_live("explain", "waits", "-n", "default", kubeconfig=config)).status == 2


# --- lists ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_each_list_reads_the_live_cluster(cluster: Cluster, run_live: LiveCommand) -> None:
    await set_the_scene(cluster)
    expected = {
        "job": {"early", "fits", "runs", "waits"},
        "pod": {
            f"{gang}-{member}" for gang, size in (("runs", 4), ("waits", 2), ("fits", 2)) for member in range(size)
        },
        "queue": {"other", "q"},
        "card": {A10, H200},
        "node": {"n1", "n2"},
    }
    for kind, names in expected.items():
        scope = ["-n", cluster.namespace] if kind in {"job", "pod"} else []
        answer = await run_live(kind, "list", "-o", "json", *scope)
        assert (answer.status, answer.err) == (0, NO_CONF)
        assert {item["name"] for item in answer.document["items"]} == names
    rows = [line.split() for line in (await run_live("job", "list", "-n", cluster.namespace)).out.splitlines()]
    assert ["runs", "podgroup", "q", "Running", "4/4", "(4)"] in [row[:6] for row in rows]
    assert ["waits", "podgroup", "q", "Pending", "0/2", "(2)"] in [row[:6] for row in rows]
    elsewhere = await run_live("job", "list", "-n", "elsewhere")
    assert (elsewhere.status, elsewhere.out, elsewhere.err) == (
        0,
        "",
        f"{NO_CONF}No resources found in elsewhere namespace.\n",
    )


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


@pytest.mark.asyncio
async def test_watches_print_changes(cluster: Cluster, control_plane: ControlPlane) -> None:
    await set_the_scene(cluster)
    program, config = Path(sys.executable).with_name("capcard-sched"), control_plane.kubeconfig_for("scheduler-b")
    watches: dict[str, Watch] = {}
    try:
        for words, (value, _) in WATCHES.items():
            scope = [] if words.startswith(("queue", "card", "node")) else ["-n", cluster.namespace]
            flags = [*words.split(), *scope, "-w", "-o", "json", f"--kubeconfig={config}"]
            process = await asyncio.create_subprocess_exec(
                program, *flags, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
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
