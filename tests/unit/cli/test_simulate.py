"""Streams and processes of `simulate`. Its output, its warnings and bad command lines: `commands/simulate.yaml`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from capcard_sched.cli.main import run
from tests.scenarios.notation import manifests

SCENARIO = "\n---\n".join(
    json.dumps(document)
    for document in manifests(
        """
node n1 8*NVIDIA-H200 cpu=64 memory=256Gi
queue q1 cards=NVIDIA-H200:4 cap=cpu:64,memory:256Gi
pod fits queue=q1 card=NVIDIA-H200 cpu=1 memory=1Gi gpu=3
pod waits queue=q1 card=NVIDIA-H200 cpu=1 memory=1Gi gpu=2
"""
    )
)
PROGRAM = [sys.executable, "-c", "from capcard_sched.cli.main import main; main()"]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def test_json_and_yaml_hold_the_same_list(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-f", str(scenario), "-o", "json"]) == 0
    as_json = capsys.readouterr().out
    assert run(["simulate", "--file", str(scenario), "--output", "yaml"]) == 0
    as_yaml = capsys.readouterr().out
    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    assert "&id" not in as_yaml, "no anchors"


def test_the_order_of_documents_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = set()
    for name, step in (("forth", 1), ("back", -1)):
        path = tmp_path / f"{name}.yaml"
        path.write_text("\n---\n".join(SCENARIO.split("\n---\n")[::step]))
        assert run(["simulate", "-f", str(path), "-o", "json"]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


def test_our_own_failure_is_status_1(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("capcard_sched.simulation.run.SimulationRun.finish", explode)
    assert run(["simulate", "-f", str(scenario)]) == 1
    assert "internal error: RuntimeError: boom" in capsys.readouterr().err


def program(arguments: list[str], stdin: str = "", **environment: str) -> str:
    """Standard output."""
    environment = {**os.environ, **environment}
    command = [*PROGRAM, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, encoding="utf-8", check=False, env=environment)
    return done.stdout


def test_standard_input_is_read_and_the_hash_seed_does_not_matter() -> None:
    flags = ["simulate", "-f", "-", "-o", "json"]
    outputs = {program(flags, SCENARIO, PYTHONHASHSEED=seed) for seed in ("0", "1", "77")}
    assert len(outputs) == 1
    assert json.loads(outputs.pop())["kind"] == "List"


@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_output_is_utf_8_in_every_locale(output: str) -> None:
    text = SCENARIO + '\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {card: "\u663e\u5361"}\n'
    flags = ["simulate", "-f", "-", "-o", output]
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    outputs = {program(flags, text, LC_ALL=locale, **plain) for locale in ("C", "C.UTF-8")}
    assert len(outputs) == 1
    assert outputs.pop()


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\nfrom capcard_sched.cli.main import run\n"
        "status = run(['simulate', '-f', '-', '-o', 'json'])\n"
        "heavy = {'kubernetes', 'kopf', 'aiohttp', 'prometheus_client', 'structlog', 'rich.progress'}\n"
        "sys.exit(status or ', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=SCENARIO, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (0, [])


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_closed_pipe_is_not_an_error(output: str, scenario: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*PROGRAM, "simulate", "-f", str(scenario), "-o", output]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert "Error" not in done.stderr
