"""Runs a long command with a line about its progress every 15 seconds.

`python tests/controlplane/progress.py TITLE -- COMMAND…` needs nothing but Python: `make` installs packages with it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

#: Seconds between two lines.
INTERVAL: Final = 15.0
#: Lines of the output that are kept for a failure.
_KEPT: Final = 200
#: Pattern of an output line (of go, pip or apt-get) to the noun under which such lines are counted.
_COUNTED: Final = {
    r"go: downloading ": "modules downloaded",
    r"[\w.~/-]+$": "packages compiled",  # `go build -v` prints one path per package
    r" +(Downloading|Using cached) .*(\.whl|\.tar\.gz)\b": "packages downloaded",
    r"Get:\d+ ": "files downloaded",
}


class Finished(NamedTuple):
    """Exit status of a command, and the last lines of its output that were not counted."""

    status: int
    output: list[str]


def report(text: str) -> None:
    """Writes a line to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run(
    title: str,
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    interval: float = INTERVAL,
) -> Finished:
    """Runs a command to its end and writes elapsed time and counts every `interval` seconds.

    Raises:
        OSError: the program cannot be started.
    """
    counts: Counter[str] = Counter()
    output: deque[str] = deque(maxlen=_KEPT)
    ended, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not ended.wait(interval):
            found = [f"{number} {noun}" for noun, number in list(counts.items())]
            report(f"  {title}: {', '.join([f'{time.monotonic() - began:.0f} s', *found])}")

    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        assert process.stdout is not None
        for line in process.stdout:
            noun = next((noun for pattern, noun in _COUNTED.items() if re.match(pattern, line)), None)
            if noun is None:
                output.append(line.rstrip("\n"))
            else:
                counts[noun] += 1
    ended.set()
    ticker.join()
    return Finished(process.returncode, list(output))


def main(title: str, *command: str) -> int:
    """Runs a command; its output is written if it fails."""
    finished = run(title, command)
    if finished.status:
        report("\n".join(finished.output))
    return finished.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *sys.argv[3:]))
