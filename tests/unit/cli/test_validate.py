"""Streams that `validate` reads. What it finds: `commands/validate.yaml`."""

import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.validate import validate

QUEUE = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: q, annotations: {volcano.sh/card.quota: '%s'}}
"""
GROUP = """---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: dead, annotations: {volcano.sh/card.request: '{"A": 2}'}}
spec: {queue: q, minMember: 1}
"""


def findings(capsys: pytest.CaptureFixture[str], path: str) -> list[dict[str, Any]]:
    assert validate(file=(path,), output="json") == 2
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return found


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Stream:
        buffer = io.BytesIO((QUEUE % "x").encode())

    monkeypatch.setattr("sys.stdin", Stream)
    assert [row["file"] for row in findings(capsys, "-")] == ["-"]


def test_a_pipe_is_read_once_and_checked_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_text, args=(QUEUE % '{"A": 1}' + GROUP,))
    writer.start()
    try:
        found = findings(capsys, str(pipe))
    finally:
        writer.join(10)
    assert [row["message"] for row in found] == ["can never start: needs 2, quota is 1 (A of queue q)"]


def test_a_binary_file_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "file.yaml").write_bytes(b"\xff\xfe")
    (row,) = findings(capsys, str(path))
    assert row["file"] == str(path)
    assert str(path) not in row["message"]
