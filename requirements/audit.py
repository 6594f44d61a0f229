"""Looks up known vulnerabilities of the pinned packages with pip-audit, if its database can be reached.

The database is the JSON document of each release on PyPI. Mirrors of packages often have none of them: pip-audit then
reports that it does not find the first package.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final

_DATABASE: Final = "https://pypi.org/pypi/pip/24.0/json"
_SECONDS: Final = 30
_LOCKS: Final = ("run", "dev", "release")


def unreachable(url: str = _DATABASE) -> str:
    """Why the database cannot be used, "" if it can."""
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as response:  # noqa: S310 - a fixed URL
            found = json.load(response)
    except (OSError, ValueError) as error:
        return str(error)
    return "" if "vulnerabilities" in found else "its response has no vulnerabilities"


def main() -> int:
    """0 without a known vulnerability, 1 with one, 2 if nothing could be looked up."""
    problem = unreachable()
    if problem:
        sys.stderr.write(
            f"audit: {_DATABASE}: {problem}\naudit: the database is not reachable, no package was looked up\n"
        )
        return 2
    folder = Path(__file__).parent
    flags = ("--strict", "--disable-pip", "--require-hashes")
    results = [
        subprocess.run(  # noqa: S603 - fixed words
            [sys.executable, "-m", "pip_audit", *flags, "-r", folder / f"{lock}.lock"], check=False
        ).returncode
        for lock in _LOCKS
    ]
    return max(min(each, 1) for each in results)


if __name__ == "__main__":
    sys.exit(main())
