"""Expected starts on a real API server: `job list` and `explain` agree; mistakes are one clear line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.model.annotations import RUNNING_ESTIMATE
from capcard_sched.model.timestamps import format_timestamp, parse_timestamp
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.insight.test_expected_start import cells_of, node, queue, simulated, vcjob
from tests.insight.test_live_situations import create_as_they_are

_KINDS = ("Queue", "Node", "Job", "PodGroup", "Pod")


async def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = await asyncio.to_thread(run, list(words))
    return status, *capsys.readouterr()


@pytest.mark.asyncio
async def test_a_list_and_a_diagnosis_have_the_start_that_follows_from_declared_durations(
    cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    running = vcjob("a", None, cards=4, runningEstimate="2h")
    waiting = vcjob("b", None, cards=4)
    waiting["metadata"]["annotations"] = {RUNNING_ESTIMATE: "30m"}
    given_objects = [node("n1"), queue(4), running, waiting, vcjob("c", None, cards=4), vcjob("d", None, cards=4)]
    store = simulated(given_objects, 30).store
    await create_as_they_are(cluster, json.loads(json.dumps([obj for kind in _KINDS for obj in store.list(kind)])))
    (pod,) = [pod for pod in await cluster.list("pods") if pod["spec"].get("nodeName")]
    created = parse_timestamp(pod["metadata"]["creationTimestamp"])
    started = {"status": {"phase": "Running", "startTime": format_timestamp(created - 600)}}
    await cluster.patch("pods", pod["metadata"]["name"], started, subresource="status")
    config = f"--kubeconfig={control_plane.kubeconfig_for('scheduler-b')}"

    words = ("job", "list", "--expected-start", "-n", cluster.namespace, config)
    status, text, err = await printed(capsys, *words)
    assert status == 0, err
    rows = cells_of(text)
    assert rows["a"]["EXPECTED START"] == "-"
    assert rows["b"]["EXPECTED START"] in {"1h48m", "1h49m", "1h50m"}
    assert rows["b"]["BASIS"] == "runningEstimate"
    assert rows["c"]["BASIS"] == RUNNING_ESTIMATE
    assert rows["d"]["BASIS"] == f"no estimate of the end of {cluster.namespace}/job/c"

    status, text, _ = await printed(capsys, *words, "-o", "json")
    listed = {job["name"]: job["expectedStart"] for job in json.loads(text)["items"]}
    assert listed["a"] is None
    assert listed["d"]["p50"] is None
    for name, after in {"b": 2 * 3600, "c": 2.5 * 3600}.items():
        _, text, _ = await printed(capsys, "explain", name, "-n", cluster.namespace, config, "-o", "json")
        for found in (listed[name], json.loads(text)["expectedStart"]):
            start = parse_timestamp(found["computedAt"]) + found["p50"]
            assert created - 600 + after <= start <= created - 600 + after + 4, name
            assert found["p10"] == found["p50"] == found["p90"]


@pytest.mark.asyncio
async def test_without_the_rights_to_read_the_cluster_a_list_has_no_expected_starts(
    cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    config = f"--kubeconfig={control_plane.kubeconfig_for('somebody')}"
    words = ("job", "list", "--expected-start", "-n", cluster.namespace, config)
    status, text, err = await printed(capsys, *words)
    assert (status, text) == (2, "")
    assert err.splitlines()[-1].startswith(f"error: {control_plane.server}: 403 Forbidden: ")


BAD: dict[str, tuple[list[str], str]] = {
    "watched": (["--expected-start", "--watch"], "error: --expected-start: not with --watch"),
    "alone": (["--history", "/no/such.jsonl"], "error: --history: only with --expected-start"),
    "no recording": (["--expected-start", "--history", "/no/such.jsonl"], "error: /no/such.jsonl: No such file"),
}


@pytest.mark.parametrize("words, message", BAD.values(), ids=BAD)
@pytest.mark.asyncio
async def test_bad_flags_are_one_clear_line(
    words: list[str], message: str, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    config: Path = control_plane.kubeconfig_for("scheduler-b")
    found: Any = await printed(capsys, "job", "list", *words, f"--kubeconfig={config}")
    assert found[:2] == (2, "")
    assert found[2].splitlines()[-1].startswith(message)
