"""Looks up known vulnerabilities of the pinned packages with pip-audit, and states when its database is not reachable.

The database is the JSON document of each release in the package index. Mirrors of an index often have none of them:
pip-audit then reports that it does not find the first package.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

_LOCKS: Final = ("run", "dev", "release")
#: Parts of the errors of pip-audit about a database that does not respond, or lacks a release.
_UNREACHABLE: Final = ("could not be audited", "Connection", "timed out", "Max retries")


def unreachable(errors: str) -> str:
    """The error of pip-audit by which the database cannot be used, "" if there is none."""
    lines = (line for line in errors.splitlines() if any(word in line for word in _UNREACHABLE))
    return next(lines, "")


def main() -> int:
    """0 without a known vulnerability, 1 with one, 2 if packages were not looked up."""
    folder, status = Path(__file__).parent, 0
    for lock in _LOCKS:
        command = [sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--require-hashes", "-r"]
        done = subprocess.run([*command, folder / f"{lock}.lock"], capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        problem = unreachable(done.stderr)
        if problem:
            sys.stderr.write("audit: the database of vulnerabilities is not reachable; nothing was looked up\n")
            return 2
        status = max(status, min(done.returncode, 1))
    return status


if __name__ == "__main__":
    sys.exit(main())
