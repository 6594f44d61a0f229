"""Writes the SBOM of a wheel: the package with its version and hash, and the pinned packages that it runs with.

`python requirements/sbom.py FOLDER`; the folder has one wheel.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LOCK = ROOT / "requirements" / "run.lock"


def write_sbom(folder: Path) -> Path:
    """Write `<wheel>.cdx.json` (CycloneDX 1.6) beside the wheel of a folder; the same bytes for the same wheel."""
    (wheel,) = folder.glob("*.whl")
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", str(_LOCK)]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--sv", "1.6", "--of", "JSON", "--output-reproducible"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - no input of others
    found = json.loads(done.stdout)
    pinned = {
        line.partition("==")[0] for line in _LOCK.read_text("utf-8").splitlines() if "==" in line and line[0] != " "
    }
    listed = {each["name"] for each in found["components"]}
    assert listed == pinned, listed ^ pinned
    component = found["metadata"]["component"]
    name, version = wheel.name.split("-")[:2]
    component["version"] = version
    component["purl"] = f"pkg:pypi/{name.replace('_', '-')}@{version}"
    component["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    target = wheel.with_suffix(".cdx.json")
    target.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    return target


if __name__ == "__main__":
    print(write_sbom(Path(sys.argv[1])))  # noqa: T201 - a program
