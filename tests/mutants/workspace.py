"""A copy of the repository in which files are changed and tests are run."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutants.mutant import ROOT

#: Exit status of pytest when a test failed; other statuses but 0 are errors of the run.
FAILED: Final = 1
#: Exit status of a run that exceeds its time limit.
TIMEOUT: Final = -1
_PYTEST: Final = ("-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider")


class Workspace:
    """The tracked and untracked files of the repository, ignored ones excluded, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            source, target = ROOT / name, folder / name
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        #: Number of writes: each gives its file a time of its own, or Python would use the bytecode of another version.
        self._writes = 0

    def read(self, file: str) -> str:
        """The text of a file."""
        return (self.folder / file).read_text()

    def write(self, file: str, text: str) -> None:
        """Replace the text of a file."""
        path = self.folder / file
        path.write_text(text)
        self._writes += 1
        os.utime(path, (self._writes, self._writes))

    def run(
        self, arguments: Sequence[str], seconds: float | None, *, env: dict[str, str] | None = None,
        cpu_seconds: int | None = None,
    ) -> tuple[int, str]:  # fmt: skip
        """Run pytest up to the first failure: exit status and output. TIMEOUT after `seconds`.

        SIGXCPU ends it after `cpu_seconds`.
        """
        with subprocess.Popen(
            [sys.executable, *_PYTEST, *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                # Before the paths of the editable installations.
                "PYTHONPATH": os.pathsep.join(map(str, [self.folder, *self.folder.glob("distributions/*")])),
                "CAPCARD_REQUIRE_CONTROLPLANE": "1",
                **(env or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            if cpu_seconds is not None:
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_seconds, resource.RLIM_INFINITY))
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return TIMEOUT, f"no result in {seconds:g} s\n"
            return process.returncode, output
