"""The same state gives the same answers, from manifests, a saved state and a recording; changes are simulated alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.cli.main import run
from capcard_sched.cli.sources.load import input_of
from capcard_sched.cli.sources.source import Source
from capcard_sched.cli.what_if import WORSE
from capcard_sched.daemon.diagnosis.recording import Recording, RecordingReader, conf_document, read_state
from capcard_sched.daemon.diagnosis.saved_state import SavedSettings, document_text, manifests_of, read_saved_state
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.manifests import as_list, to_json
from tests.insight.scenes import MIXED_CARDS, WAITING, core_of, recorded_run


class Files:
    """One state, 30 seconds after the start, as manifests, as a recording and as a saved state."""

    def __init__(self, folder: Path, text: str = WAITING) -> None:
        self.manifests, self.recording = folder / "cluster.yaml", folder / "recording.jsonl"
        self.saved = folder / "objects-1767225630.json"
        self.manifests.write_text(text)
        core = core_of()
        recording = Recording(
            self.recording,
            core.snapshot().conf,
            scheduler_names=("volcano",),
            default_queue="default",
            clock=lambda: EPOCH,
        )
        assert recorded_run(str(self.manifests), core, recording, until=30 * SECOND) == 30 * SECOND
        recording.close(timeout=30.0)
        state = read_state(RecordingReader(self.recording))
        conf = json.dumps(conf_document(core.snapshot().conf))
        settings = SavedSettings(format_timestamp(state.now), ("volcano",), "default", conf)
        self.saved.write_bytes(document_text(settings, manifests_of(state.deltas)))

    @property
    def flags(self) -> dict[str, list[str]]:
        return {
            "manifests": ["-f", str(self.manifests), "--until", "30s"],
            "recording": ["--recording", str(self.recording)],
            "saved state": ["-f", str(self.saved)],
        }


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def document(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*words, "-o", "json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_each_source_is_explained_alike(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    simulated, *others = [document(capsys, "explain", "waits", *flags) for flags in files.flags.values()]
    assert simulated["stage"] == "OverQuota"
    for other in others:
        for field in ("stage", "summary", "queue", "capacity", "pending", "scheduled", "pods"):
            assert other[field] == simulated[field], field


def test_each_source_has_the_same_fixes(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    simulated, *others = [document(capsys, "explain", "waits", "--fix", *flags) for flags in files.flags.values()]
    texts = [change["text"] for fix in simulated["fixes"]["fixes"] for change in fix["changes"]]
    assert texts[0] == "quota of NVIDIA-H200 in queue team: 4 → 6 (+2)"
    for other in others:
        assert other["fixes"] == simulated["fixes"]


@pytest.mark.parametrize("kind", ["job", "pod", "queue", "card", "node"])
def test_each_source_is_listed_alike(kind: str, files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    simulated, *others = [document(capsys, kind, "list", *flags)["items"] for flags in files.flags.values()]
    passing = {"ageSeconds", "waitSeconds", "labels", "scheduler", "jobPhase"} if kind == "job" else {"ageSeconds"}

    def lasting(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without time, and without what only the Job knows, which the scheduler does not read."""
        return [{key: value for key, value in item.items() if key not in passing} for item in items]

    assert simulated
    for other in others:
        assert lasting(other) == lasting(simulated)


def test_each_source_has_the_same_shared_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Files(tmp_path, MIXED_CARDS)
    for kind in ("card", "node"):
        simulated, *others = [document(capsys, kind, "list", *flags)["items"] for flags in files.flags.values()]
        for other in others:
            assert other == simulated
    assert simulated[0]["usedVgpus"] == 1


#: Name of a source to the flags of `what-if`, and the input that it changes.
_CHANGES: dict[str, Callable[[Files], tuple[list[str], Source]]] = {
    "manifests": lambda files: (["-f", str(files.manifests)], Source(file=(str(files.manifests),), until="2m")),
    "recording": lambda files: (
        ["--recording", str(files.recording)],
        Source(recording=files.recording, until="2m"),
    ),
    "saved state": lambda files: (["-f", str(files.saved)], Source(file=(str(files.saved),), until="2m")),
}


@pytest.mark.parametrize("name", _CHANGES)
def test_a_change_of_each_source_equals_a_simulation_of_the_changed_input(
    name: str, files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, source = _CHANGES[name](files)
    saved, quota = tmp_path / "changed.json", "team/NVIDIA-H200=6"
    flags = ["what-if", *words, "--until", "2m", "--quota", quota]
    report = document(capsys, *flags, "--save", str(saved))
    assert [row["job"] for row in report["starts"]] == ["default/job/waits"]
    assert report["starts"][0]["waitAfter"] <= (1 if name == "manifests" else 31)
    assert (report["endBefore"], report["endAfter"]) == (120, 120)
    assert run(["simulate", "-f", str(saved), "--until", "2m", "-o", "json"]) == 0
    simulated = capsys.readouterr().out

    given = input_of(source)
    scenario = given.scenario()
    (queue,) = [entry.object for entry in scenario.entries if entry.object["metadata"]["name"] == "team"]
    queue["metadata"]["annotations"]["volcano.sh/card.quota"] = json.dumps({"NVIDIA-H200": 6})
    _, outcome = given.simulate(scenario, given.core(None))
    assert to_json(as_list(outcome.store)) == simulated, "byte for byte"
    again = document(capsys, "what-if", "-f", str(saved), "--until", "2m", "--quota", quota)
    assert not again["starts"], "the saved input has the change"
    assert again["endAfter"] == report["endAfter"]


def test_a_saved_state_is_under_its_own_scheduler_conf(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(files.saved.read_text())
    content["savedState"]["schedulerConf"] = 'actions: "enqueue, allocate"\ntiers: [{plugins: [{name: gang}]}]\n'
    files.saved.write_text(json.dumps(content))
    found = document(capsys, "explain", "waits", "-f", str(files.saved))
    assert found["stage"] == "Schedulable", "no plugin checks card quotas"
    content["savedState"]["schedulerNames"] = ["another"]
    files.saved.write_text(json.dumps(content))
    found = document(capsys, "explain", "waits", "-f", str(files.saved))
    assert found["stage"] == "Incomplete", "the pods are those of another scheduler"


def test_a_saved_state_has_a_line_per_object_and_is_read_in_any_layout(files: Files) -> None:
    state = read_saved_state(files.saved)
    assert state is not None
    lines = files.saved.read_text().splitlines()
    found = manifests_of(state.deltas)
    assert [json.loads(line.removesuffix(","))["kind"] for line in lines[1:-1]] == [each["kind"] for each in found]
    content = json.loads(files.saved.read_text())
    files.saved.write_text(json.dumps({"savedState": content.pop("savedState"), **content}, indent=2))
    again = read_saved_state(files.saved)
    assert again is not None
    assert (again.settings, manifests_of(again.deltas)) == (state.settings, found)


def test_a_saved_state_with_objects_that_controllers_process_is_simulated(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(files.saved.read_text())
    job = yaml.safe_load(WAITING.split("---")[-1])
    content["items"].append({**job, "metadata": {"name": "more", "namespace": "default"}})
    files.saved.write_text(json.dumps(content))
    found = document(capsys, "explain", "job/more", "-f", str(files.saved))
    assert (found["stage"], found["pods"]) == ("OverQuota", 2)


def test_unreadable_input_is_named_and_not_simulated(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(files.saved.read_text())
    content["savedState"]["unreadable"] = ["nodes", "queues"]
    content["items"] = [item for item in content["items"] if item["kind"] in {"Pod", "PodGroup"}]
    files.saved.write_text(json.dumps(content))
    found = document(capsys, "explain", "waits", "-f", str(files.saved))
    assert any("Not readable: nodes, queues" in fact for fact in found["facts"])
    hint = "ask for ClusterRole capcard-sched-reader (manifests/readers)"
    for verb in (["what-if", "--drain", "n1"], ["simulate"]):
        assert run([*verb, "-f", str(files.saved)]) == 2
        assert capsys.readouterr().err == f"error: access denied: nodes, queues; a simulation needs them: {hint}\n"
    assert run(["node", "list", "-f", str(files.saved)]) == 2
    assert capsys.readouterr().err == f"error: access denied: nodes; node list reads them: {hint}\n"


BAD = {
    "no file": (["--recording", "nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
    "two sources": (["--recording", "cluster.yaml", "-f", "cluster.yaml"], "-f and --recording: give one of them"),
    "a dump": (["-f", "dump.json"], "dump.json: document 1: apiVersion: is required"),
    "settings of a wrong type": (
        ["-f", "types.json"],
        "types.json: savedState.time: expected a string, got the number 1",
    ),
    "no time": (["-f", "time.json"], "time.json: savedState.time: expected a time such as 2026-01-01T00:00:00Z"),
    "a malformed object": (["-f", "object.json"], "object.json: "),
}


@pytest.mark.parametrize("verb", [["explain", "waits"], ["queue", "list"], ["what-if", "--drain", "n1"]])
@pytest.mark.parametrize("words, message", BAD.values(), ids=BAD)
def test_a_useless_source_is_one_error_line(
    words: list[str],
    message: str,
    verb: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"time": "2026-01-01T00:00:00Z", "schedulerNames": ["volcano"], "defaultQueue": "default"}
    head = {"apiVersion": "v1", "kind": "List"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": 1}
    (tmp_path / "cluster.yaml").write_text(WAITING)
    for name, content in {
        "dump": {"time": "2026-01-01T00:00:00Z", "schedulerConf": {}},
        "types": {**head, "savedState": {**settings, "time": 1}, "items": []},
        "time": {**head, "savedState": {**settings, "time": "now"}, "items": []},
        "object": {**head, "savedState": settings, "items": [node]},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert run([*verb, *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
    assert ("items[0]: Node" in captured.err) == ("object.json" in words)
    assert len(captured.err.splitlines()) == 1


def test_a_recording_without_the_cards_of_a_job_is_worse(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["what-if", "--recording", str(files.recording), "--until", "2m", "--drain", "n1"]
    report = document(capsys, *words, status=WORSE)
    assert [row["job"] for row in report["blocked"]] == ["default/deployment/runs"]
