"""Output on a narrow terminal and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.processes

_ROOT: Final = Path(__file__).parents[3]
_PROGRAM: Final = Path(sys.executable).with_name("capcard-sched")
_EXPLAIN: Final = ("explain", "llm-tuning", "-f", "config/examples/demo", "--until", "1m", "--fix")


def on_a_terminal(*words: str, columns: int) -> list[str]:
    """The lines that the program prints on a terminal of this width, without control sequences."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    environment["TERM"] = "xterm"
    with subprocess.Popen([_PROGRAM, *words], cwd=_ROOT, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 1 << 16):
                parts.append(part)
        except OSError:  # Linux reports the end of a terminal so
            pass
        process.wait(60)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(parts).decode()).splitlines()


def piped(*words: str) -> list[str]:
    done = subprocess.run([_PROGRAM, *words], cwd=_ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_command_for_copying_is_one_line_on_a_narrow_terminal() -> None:
    commands = [line for line in piped(*_EXPLAIN) if line.startswith("  kubectl ")]
    assert max(map(len, commands)) > 100
    assert set(commands) <= set(on_a_terminal(*_EXPLAIN, columns=60))


def test_piped_tables_have_no_blanks_at_the_ends_of_lines() -> None:
    lines = piped("simulate", "-f", "config/examples/demo", "--until", "10m", "-o", "table", "--timeline")
    assert len(lines) > 30
    assert [line for line in lines if line != line.rstrip()] == []
