"""`capcard-sched simulate` from outside: streams, formats, exit statuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from capcard_sched.cli.main import run

SCENARIO = """
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {nvidia.com/gpu.product: NVIDIA-H200, nvidia.com/gpu.count: "8", nvidia.com/gpu.memory: "143771"}
status: {allocatable: {cpu: 64, memory: 256Gi, nvidia.com/gpu: 8}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: q1, annotations: {volcano.sh/card.quota: '{"NVIDIA-H200": 4}'}}
spec: {capability: {cpu: 64, memory: 256Gi}}
---
apiVersion: v1
kind: Pod
metadata:
  name: fits
  annotations: {volcano.sh/card.name: NVIDIA-H200, scheduling.volcano.sh/queue-name: q1}
spec:
  schedulerName: capcard-sched
  containers: [{name: main, resources: {requests: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 3}}}]
---
apiVersion: v1
kind: Pod
metadata:
  name: waits
  annotations: {volcano.sh/card.name: NVIDIA-H200, scheduling.volcano.sh/queue-name: q1}
spec:
  schedulerName: capcard-sched
  containers: [{name: main, resources: {requests: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 2}}}]
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def test_json_and_yaml_hold_the_same_list(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-f", str(scenario), "-o", "json"]) == 0
    as_json = capsys.readouterr()
    assert run(["simulate", "--file", str(scenario), "--output", "yaml"]) == 0
    document = json.loads(as_json.out)
    assert yaml.safe_load(capsys.readouterr().out) == document
    assert (document["apiVersion"], document["kind"]) == ("v1", "List")
    pods = {item["metadata"]["name"]: item for item in document["items"] if item["kind"] == "Pod"}
    assert pods["fits"]["spec"]["nodeName"] == "n1"
    assert "nodeName" not in pods["waits"]["spec"]
    assert as_json.err == (
        f"warning: {scenario}: document 5: kind Widget (example.com/v1) is not known: kept as it is, without effect\n"
    )


def test_the_order_of_documents_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = set()
    for name, step in (("forth", 1), ("back", -1)):
        path = tmp_path / f"{name}.yaml"
        path.write_text("\n---\n".join(SCENARIO.split("\n---\n")[::step]))
        assert run(["simulate", "-f", str(path), "-o", "json"]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


def test_the_table_is_the_default_and_shows_the_reason(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-f", str(scenario), "--until", "1m"]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "default pod/fits q1 Running 1/1 1 0s default pod/waits q1 Pending 0/1 1 1m" in table
    assert "Queue <q1> has insufficient <NVIDIA-H200> quota: requested <2000>, total would be <5000>" in table
    assert "NVIDIA-H200 3/4 ████████░░ 75%" in table
    assert "NVIDIA-H200 1 8 3 5" in table
    assert "After 1m: 1/2 jobs reached minAvailable; 1 pod pending." in table


BAD = [
    ([], "-f is required"),
    (["-f", "missing.yaml"], "missing.yaml: No such file or directory"),
    (["-f", ""], "an empty name: expected a file, a folder or - for standard input"),
    (["--until", "soon"], "--until: 'soon' is not a duration: expected a duration such as 30s"),
    (["--until", "-5s"], "--until: '-5s' is negative"),
    (["--schedule-period", "0s"], "--schedule-period: '0s': must be > 0"),
    (["--default-queue", ""], "--default-queue: must not be empty"),
    (["--scheduler-name", ""], "--scheduler-name: must not be empty"),
    (["-o", "xml"], 'Invalid value "xml"'),
    (["--nonsense"], "Unknown option"),
    (["--scheduler-conf", "missing.yaml"], "missing.yaml: No such file or directory"),
]


@pytest.mark.parametrize("arguments, message", [pytest.param(*case, id=" ".join(case[0]) or "nothing") for case in BAD])
def test_a_bad_command_line_is_status_2_with_the_reason(
    scenario: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    files = [] if not arguments or "-f" in arguments else ["-f", str(scenario)]
    assert run(["simulate", *files, *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_bad_input_is_status_2_and_prints_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: x}\n")
    assert run(["simulate", "-f", str(path), "-o", "json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (f'error: {path}: document 1: Pod a: spec.containers: expected a list, got the string "x"\n')


def test_a_scheduler_conf_that_cannot_be_used_is_status_2(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text("actions: [enqueue\n")
    assert run(["simulate", "-f", str(scenario), "--scheduler-conf", str(conf)]) == 2
    assert f"{conf}: invalid scheduler-conf" in capsys.readouterr().err


def test_our_own_failure_is_status_1(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("capcard_sched.simulation.run.SimulationRun.finish", explode)
    assert run(["simulate", "-f", str(scenario)]) == 1
    assert "internal error: RuntimeError: boom" in capsys.readouterr().err


def test_other_names_and_queues_are_used(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--scheduler-name", "mine", "--scheduler-name", "yours", "--default-queue", "main"]
    assert run(["simulate", "-f", str(scenario), "-o", "json", *flags]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert {item["metadata"]["name"] for item in items if item["kind"] == "Queue"} == {"root", "main", "q1"}
    assert [item for item in items if item["kind"] == "PodGroup"] == []


def program(arguments: list[str], stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from capcard_sched.cli.main import main; main()", *arguments],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, **environment},
    )


def test_standard_input_is_read_and_the_hash_seed_does_not_matter() -> None:
    outputs = {
        program(["simulate", "-f", "-", "-o", "json"], SCENARIO, PYTHONHASHSEED=seed).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1
    assert json.loads(outputs.pop())["kind"] == "List"


@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_output_is_utf_8_in_every_locale(output: str) -> None:
    text = SCENARIO + '\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {card: "\u663e\u5361"}\n'
    outputs = {
        program(
            ["simulate", "-f", "-", "-o", output], text, LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"
        ).stdout
        for locale in ("C", "C.UTF-8")
    }
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
    assert (done.returncode, done.stderr.splitlines()[1:]) == (0, [])


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_of_the_program_summarizes_each_command(arguments: list[str]) -> None:
    done = program(arguments)
    assert done.returncode == 0
    for verb, about in (
        ("simulate", "in-memory"),
        ("explain", "why a job"),
        ("validate", "Check"),
        ("trace", "Convert"),
    ):
        assert re.search(rf"{verb} +.*{about}", done.stdout)


WRONG = [
    (["simulate", "demo"], 'error: unexpected argument "demo": pass files and folders with -f'),
    (["simulat", "-f", "x"], 'error: Unknown command "simulat". Did you mean "simulate"?'),
    (["simulate", "--frob"], "error: Unknown option"),
    (["explain"], 'error: Command "explain" parameter NAME requires an argument.'),
]


@pytest.mark.parametrize("arguments, message", WRONG, ids=lambda value: " ".join(value) if value else "")
def test_an_invalid_command_line_is_one_error_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_closed_pipe_is_not_an_error(output: str, scenario: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from capcard_sched.cli.main import main; main()", "simulate", "-f", str(scenario)]
    done = subprocess.run([*command, "-o", output], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert "Error" not in done.stderr


_FAILING_PLUGIN = """
from capcard_sched.framework.api.plugin import Plugin

class Broken(Plugin):
    name = "broken"

    def open(self, session):
        raise KeyError("no such thing")
"""


@pytest.mark.parametrize("verb", [["simulate", "-o", "json"], ["explain", "waits"]])
def test_a_plugin_error_is_reported_and_sets_the_exit_status(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    plugins, conf = tmp_path / "plugins", tmp_path / "conf.yaml"
    plugins.mkdir()
    (plugins / "broken.py").write_text(_FAILING_PLUGIN)
    conf.write_text('actions: "enqueue, allocate"\ntiers: [{plugins: [{name: gang}, {name: broken}]}]\n')
    status = run([*verb, "-f", str(scenario), "--scheduler-conf", str(conf), "--plugins-dir", str(plugins)])
    captured = capsys.readouterr()
    assert status == 1
    assert "internal error: plugin broken, open: KeyError: 'no such thing' (" in captured.err
    assert captured.out, "results are still shown"


def test_a_misspelled_annotation_is_a_warning_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "queue.yaml"
    path.write_text(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\n"
        "metadata: {name: q, annotations: {volcano.sh/card.qouta: '{}'}}\n"
    )
    assert run(["simulate", "-f", str(path), "-o", "json"]) == 0
    assert capsys.readouterr().err == (
        f'warning: {path}: document 1: Queue q: metadata.annotations["volcano.sh/card.qouta"]: '
        'unknown annotation; did you mean "volcano.sh/card.quota"?\n'
    )


_REFUSED_PLUGIN = """
from capcard_sched.framework.api.plugin import OutsideError, Plugin

class Asking(Plugin):
    name = "asking"

    def job_ready(self, job):
        raise OutsideError("the other side says no")
"""


def test_an_error_of_an_external_system_is_a_warning(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins, conf = tmp_path / "plugins", tmp_path / "conf.yaml"
    plugins.mkdir()
    (plugins / "asking.py").write_text(_REFUSED_PLUGIN)
    conf.write_text('actions: "enqueue, allocate"\ntiers: [{plugins: [{name: gang}, {name: asking}]}]\n')
    arguments = ["-f", str(scenario), "--scheduler-conf", str(conf), "--plugins-dir", str(plugins)]
    assert run(["simulate", "-o", "json", *arguments]) == 0
    captured = capsys.readouterr()
    assert "warning: plugin asking, job_ready: OutsideError: the other side says no (" in captured.err
    assert all("nodeName" not in item["spec"] for item in json.loads(captured.out)["items"] if item["kind"] == "Pod")


def test_the_example_of_shared_cards_writes_pod_annotations(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("config/examples/vgpu")
    conf = str(folder / "conf/scheduler.yaml")
    assert run(["simulate", "-f", str(folder), "--scheduler-conf", conf, "--until", "1m", "-o", "json"]) == 0
    captured = capsys.readouterr()
    pods = {item["metadata"]["name"]: item for item in json.loads(captured.out)["items"] if item["kind"] == "Pod"}
    devices = {name: pod["metadata"]["annotations"].get("volcano.sh/vgpu-ids-new", "") for name, pod in pods.items()}
    assert captured.err == ""
    assert devices == {
        "test1": "GPU-l40s-6,NVIDIA,1024,0:",
        "simple-vgpu-training-worker-0": "GPU-l40s-5,NVIDIA,1024,0:",
        "simple-vgpu-training-worker-1": "GPU-l40s-5,NVIDIA,1024,0:",
        "simple-vgpu-training-worker-2": "GPU-l40s-4,NVIDIA,1024,0:",
        "notebook": "GPU-l40s-6,NVIDIA,512,10:",
        "exclusive": "GPU-l40s-7,NVIDIA,4914,100:",
        "pair": "GPU-l40s-6,NVIDIA,2457,0:GPU-l40s-5,NVIDIA,2457,0:",
        "slice-small": "GPU-a100-1[group2-3],NVIDIA,900,0:",
        "slice-medium": "GPU-a100-1[group2-0],NVIDIA,1800,0:",
        "too-many": "",
    }
