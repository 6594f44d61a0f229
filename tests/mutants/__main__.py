"""`python -m tests.mutants [ID ...]`: applies each mutant of the list and expects its test to fail.

The exit status is 1 if a test does not detect its mutant, or fails without it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutants.mutant import load
from tests.mutants.workspace import FAILED, Workspace

#: Seconds for all tests without a mutant, and for one test with its mutant.
_UNCHANGED_SECONDS: Final = 1200.0
_TEST_SECONDS: Final = 180.0


def main(ids: Sequence[str]) -> int:
    """Run the mutants with these ids, all without ids. Returns the exit status."""
    mutants = [mutant for mutant in load() if not ids or mutant.id in ids]
    unknown = set(ids) - {mutant.id for mutant in mutants}
    if unknown:
        sys.stderr.write(f"unknown mutants: {', '.join(sorted(unknown))}\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="capcard-mutants-") as folder:
        workspace = Workspace(Path(folder))
        began = time.monotonic()
        status, output = workspace.run(sorted({mutant.test for mutant in mutants}), _UNCHANGED_SECONDS)
        if status:
            sys.stderr.write(f"{output}\na test fails without a mutant\n")
            return 1
        missed = []
        for mutant in mutants:
            text = workspace.read(mutant.file)
            workspace.write(mutant.file, mutant.mutate(text))
            status, output = workspace.run([mutant.test], _TEST_SECONDS)
            workspace.write(mutant.file, text)
            detected = status == FAILED
            sys.stdout.write(f"{'detected' if detected else 'MISSED'}  {mutant.id}\n")
            sys.stdout.flush()
            if not detected:
                missed.append(mutant.id)
                sys.stderr.write(output if status else "")
    seconds = time.monotonic() - began
    sys.stdout.write(f"{len(mutants) - len(missed)} of {len(mutants)} detected in {seconds:.0f} s\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
