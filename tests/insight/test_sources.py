"""The same state gives the same diagnosis, from manifests and from a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.daemon.diagnosis.recording import Recording
from capcard_sched.simulation.clock import EPOCH, SECOND
from tests.insight.scenes import WAITING, core_of, recorded_run


def explained(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["explain", "waits", "-o", "json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_recording_is_explained_as_the_manifests_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifests, file = tmp_path / "cluster.yaml", tmp_path / "recording.jsonl"
    manifests.write_text(WAITING)
    core = core_of()
    recording = Recording(file, core.conf, scheduler_names=("volcano",), default_queue="default", clock=lambda: EPOCH)
    end = recorded_run(str(manifests), core, recording, until=30 * SECOND)
    recording.close(timeout=30.0)
    assert end == 30 * SECOND
    simulated = explained(["-f", str(manifests), "--until", "30s"], capsys)
    recorded = explained(["--recording", str(file)], capsys)
    for field in ("stage", "summary", "queue", "capacity", "pending", "scheduled", "pods"):
        assert recorded[field] == simulated[field], field
    assert simulated["stage"] == "OverQuota"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--recording", "nowhere.jsonl"], "error: nowhere.jsonl: No such file or directory\n"),
        (["--recording", "cluster.yaml", "-f", "cluster.yaml"], "error: -f and --recording: give one of them\n"),
    ],
    ids=["no file", "two sources"],
)
def test_a_useless_source_is_one_error_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(WAITING)
    assert run(["explain", "waits", *words]) == 2
    assert capsys.readouterr() == ("", message)
