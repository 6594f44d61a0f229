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
from capcard_sched.simulation.output import as_list, to_json
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
    assert (elsewhere.status, elsewhere.out, elsewhere.err) == (0, "", f"{NO_CONF}No resources found\n")


async def _bind(cluster: Cluster) -> None:
    await cluster.bind("fits-0", "n1")


async def _bind_of_q(cluster: Cluster) -> None:
    await cluster.bind("waits-0", "n1")


async def _make_ready(cluster: Cluster) -> None:
    row = {"name": "main", "image": "i", "imageID": "i", "ready": True, "restartCount": 2}
    await cluster.patch("pods", "runs-0", {"status": {"containerStatuses": [row]}}, subresource="status")


async def _weigh(cluster: Cluster) -> None:
    await cluster.patch("queues", "q", {"spec": {"weight": 7}})


@pytest.mark.parametrize(
    "words, value, before, change, after",
    [
        ("queue list q", lambda queue: queue["cards"][0]["allocated"], 4, _bind_of_q, 5),
        (f"card list {A10}", lambda card: card["used"], 4, _bind, 5),
        ("node list n1", lambda node: node["used"], 4, _bind, 5),
        ("job list fits -n {namespace}", lambda job: job["scheduled"], 0, _bind, 1),
        ("pod list fits-0 -n {namespace}", lambda pod: pod["node"], "", _bind, "n1"),
        ("pod list runs-0 -n {namespace}", lambda pod: (pod["ready"], pod["restarts"]), (0, 0), _make_ready, (1, 2)),
        ("queue get q", lambda queue: queue["spec"]["weight"], 1, _weigh, 7),
    ],
    ids=["queue", "card", "node", "job", "pod", "container", "queue get"],
)
@pytest.mark.asyncio
async def test_a_watch_prints_changes(
    words: str,
    value: Callable[[Any], object],
    before: object,
    change: Callable[[Cluster], Awaitable[None]],
    after: object,
    cluster: Cluster,
    control_plane: ControlPlane,
) -> None:
    await set_the_scene(cluster)
    program = Path(sys.executable).with_name("capcard-sched")
    config = control_plane.kubeconfig_for("scheduler-b")
    command = [str(program), *words.format(namespace=cluster.namespace).split(), "-w", "-o", "json"]
    command.append(f"--kubeconfig={config}")
    watch = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert watch.stdout is not None
    decoder, text = json.JSONDecoder(), ""

    async def shown() -> object:
        nonlocal text
        while True:
            try:
                document, end = decoder.raw_decode(text)
            except ValueError:
                assert watch.stdout is not None
                text += (await watch.stdout.readline()).decode()
                continue
            text = text[end:].lstrip()
            return value(document)

    try:
        async with asyncio.timeout(60):
            assert await shown() == before
            await change(cluster)
            assert await shown() == after
    finally:
        watch.terminate()
        await watch.wait()
