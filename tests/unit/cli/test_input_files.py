"""Files that users name: regular files, pipes and devices, each with a limit."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from threading import Thread

import pytest

from capcard_sched import input_files
from capcard_sched.cli.main import run
from capcard_sched.daemon.diagnosis import recording
from capcard_sched.input_files import read_input


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_pipe_without_a_writer_is_an_error(pipe: Path) -> None:
    with pytest.raises(OSError, match=r"no data within 0\.1 s: no process writes to it"):
        read_input(pipe, silence=0.1)


def test_a_pipe_is_read_to_its_end(pipe: Path) -> None:
    text = b"x" * 300_000
    writer = Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    assert read_input(pipe, silence=60) == text
    writer.join()


@pytest.mark.parametrize("argument", ["-f", "--scheduler-conf"])
def test_an_endless_device_is_an_error(
    argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "_MOST_PIPED", 1 << 20)
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
    assert run(["simulate", "-f", str(nodes), argument, "/dev/zero"]) == 2
    assert "/dev/zero: larger than 1 MiB" in capsys.readouterr().err


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than 1024 MiB"):
        read_input(path)


@pytest.mark.parametrize("verb", [["replay"], ["job", "list", "--recording"]])
def test_a_recording_with_an_endless_line_is_an_error(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_LONGEST_LINE", 1 << 20)
    path = tmp_path / "endless.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"record":"Header","format":2' + b" " * (1 << 22))
    assert run([*verb, str(path)]) == 2
    assert f"{path}: line 1: larger than 1 MiB" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["replay"], ["job", "list", "--recording"]])
def test_a_recording_is_a_regular_file(verb: list[str], pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*verb, str(pipe)]) == 2
    assert f"{pipe}: not a regular file" in capsys.readouterr().err
