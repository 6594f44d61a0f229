"""`capcard-sched trace openb` from outside."""

import json
from pathlib import Path

import pytest
import yaml

from capcard_sched.cli.main import run
from capcard_sched_trace.verb import openb

DATA = Path(__file__).parents[2] / "data" / "openb"
NODES, PODS = DATA / "nodes.csv", DATA / "pods.csv"


def test_the_ending_of_the_output_decides_its_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_yaml, as_json = tmp_path / "s.yaml", tmp_path / "s.json"
    assert openb(nodes=NODES, pods=PODS, output=as_yaml) == 0
    assert openb(nodes=NODES, pods=PODS, output=as_json) == 0
    documents = list(yaml.load_all(as_yaml.read_bytes(), Loader=yaml.CSafeLoader))
    assert documents == json.loads(as_json.read_bytes())["items"]
    assert capsys.readouterr().err.splitlines()[0] == (
        f"{as_yaml}: 5 nodes, 2 queues, 6 pods (5 with cards; 2 request part of a card: --sharing whole)"
    )


def test_a_trace_runs_and_shows_jobs_blocked_by_quota(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = str(tmp_path / "s.yaml")
    assert (
        run(["trace", "openb", "--nodes", str(NODES), "--pods", str(PODS), "-o", scenario, "--quota-share", ".5"]) == 0
    )
    assert run(["simulate", "-f", scenario, "--timeline"]) == 0
    _, _, timeline = capsys.readouterr().out.partition("Cards in use")
    # pod-3 wants the one P100 of queue ls that pod-2 holds from 100 s to 400 s.
    waits = next(line for line in timeline.splitlines() if "default/pod-3" in line)
    assert waits.split()[:3] == ["ls", "3", "0"]
    blocked = timeline.partition("Jobs blocked by quota")[2]
    assert blocked.splitlines()[2].split()[:5] == ["ls", "P100", "1", "1", "0"]


def test_a_trace_is_simulated_for_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "openb", "--nodes", str(NODES), "--pods", str(PODS), "-o", str(tmp_path / "s.json")]
    report = tmp_path / "trace.html"
    assert run([*words, "--quota-share", ".5", "--report", str(report)]) == 0
    page = report.read_text("utf-8")
    assert "P100" in page
    assert "<svg" in page
    assert "<script" not in page
    capsys.readouterr()
    assert run([*words, "--scheduler-conf", "config/examples/vgpu/conf/scheduler.yaml"]) == 2
    assert "--scheduler-conf: needs --report" in capsys.readouterr().err


def test_a_trace_of_shared_cards_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pods share one P100 that they hold one after the other when each gets a whole one."""
    scenario = str(tmp_path / "s.json")
    assert run(["trace", "openb", "--nodes", str(NODES), "--pods", str(PODS), "-o", scenario, "--sharing", "vgpu"]) == 0
    conf = "config/examples/vgpu/conf/scheduler.yaml"
    assert run(["simulate", "-f", scenario, "--timeline", "--scheduler-conf", conf, "-o", "json"]) == 0
    captured = capsys.readouterr()
    assert "Cards in use" in captured.err
    assert "NVIDIA-P100 of 2" in captured.err
    pods = {item["metadata"]["name"]: item for item in json.loads(captured.out)["items"] if item["kind"] == "Pod"}
    devices = {name: pod["metadata"]["annotations"].get("volcano.sh/vgpu-ids-new", "") for name, pod in pods.items()}
    uuids = {name: devices[name].partition(",")[0] for name in ("pod-2", "pod-3")}
    assert uuids["pod-2"] == uuids["pod-3"] == "GPU-node-e-1"
    assert [devices[name].split(",")[3] for name in ("pod-2", "pod-3")] == ["46:", "32:"]
    assert devices["pod-4"] == ""
