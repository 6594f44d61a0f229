"""Packs wheels as a plugin of krew: `kubectl-capcard-<version>.tar.gz` and its manifest `capcard.yaml`.

`python requirements/krew.py FOLDER URL`; the folder has the wheel of capcard-sched and those of the optional
distributions, the archive will be published below the URL.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def archive_of(wheels: list[Path]) -> bytes:
    """The launcher, the wheels, the lock of their packages, and the license. The same for the same files."""
    files = {
        "kubectl-capcard": (ROOT / "requirements" / "krew.sh", 0o755),
        **{wheel.name: (wheel, 0o644) for wheel in wheels},
        "run.lock": (ROOT / "requirements" / "run.lock", 0o644),
        "LICENSE": (ROOT / "LICENSE", 0o644),
    }
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for name, (source, mode) in files.items():
            content = source.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def manifest_of(version: str, uri: str, sha256: str) -> dict[str, Any]:
    """The manifest of the plugin."""
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "capcard"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Explain and list jobs, queues and cards of capcard-sched",
            "description": (
                "Shows why a job is pending and which change starts it, lists jobs, queues, cards and nodes,\n"
                "and reports card-hours, in clusters with the scheduler capcard-sched or Volcano.\n"
            ),
            "caveats": (
                "Needs Python 3.11 or newer. The first call installs the packages of run.lock, with checked hashes,\n"
                "into ~/.local/share/capcard-sched.\n"
            ),
            "platforms": [
                {
                    "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
                    "uri": uri,
                    "sha256": sha256,
                    "bin": "kubectl-capcard",
                }
            ],
        },
    }


def write_plugin(folder: Path, url: str) -> list[Path]:
    """Write archive and manifest beside the wheels of a folder. Raises ValueError for a URL that krew does not read."""
    if not url.startswith("https://"):
        raise ValueError(f"{url}: expected the https:// URL below which the archive is published")
    (wheel,) = folder.glob("capcard_sched-*.whl")
    version, packed = wheel.name.split("-")[1], archive_of(sorted(folder.glob("*.whl")))
    archive, manifest = folder / f"kubectl-capcard-{version}.tar.gz", folder / "capcard.yaml"
    archive.write_bytes(packed)
    document = manifest_of(version, f"{url.rstrip('/')}/{archive.name}", hashlib.sha256(packed).hexdigest())
    manifest.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return [archive, manifest]


if __name__ == "__main__":
    for written in write_plugin(Path(sys.argv[1]), sys.argv[2]):
        print(written)  # noqa: T201 - a program
