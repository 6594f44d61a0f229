"""Fetches Prometheus and promtool from Debian's packages, once, into the cache folder of the control plane's programs.

`python -m tests.daemon.usage.build` fetches it if there is none on PATH and none in the cache. Nothing is installed:
the package is unpacked, and the package lists, where the system has none, are fetched into the cache folder too.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.controlplane.build import UnavailableError, cached, main
from tests.controlplane.progress import run


def program() -> Path:
    """Path of the fetched Prometheus, present or not."""
    return cached("prometheus") / "prometheus"


def locate() -> Path:
    """Prometheus on PATH, else the fetched one.

    Raises:
        UnavailableError: there is neither.
    """
    found = shutil.which("prometheus")
    if found is not None:
        return Path(found)
    if os.access(program(), os.X_OK):
        return program()
    raise UnavailableError(
        "no prometheus on PATH: `python -m tests.daemon.usage.build` fetches it once from Debian's packages"
    )


def locate_promtool() -> Path:
    """promtool on PATH, else the one beside the fetched Prometheus.

    Raises:
        UnavailableError: there is neither.
    """
    fetched, found = program().with_name("promtool"), shutil.which("promtool")
    if found is not None:
        return Path(found)
    if os.access(fetched, os.X_OK):
        return fetched
    raise UnavailableError(
        "no promtool on PATH: `python -m tests.daemon.usage.build` fetches it once from Debian's packages"
    )


def fetch() -> Path:
    """Prometheus, fetched with promtool unless both are there.

    Raises:
        UnavailableError: this is no Debian, or its packages cannot be fetched.
    """
    try:
        locate_promtool()
        return locate()
    except UnavailableError:
        pass
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"no prometheus and promtool on PATH, and no {tool} to fetch it with")
    target = program()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as parent:
        folder = Path(parent)
        package = _download(folder)
        _run(["dpkg-deb", "-x", str(package), str(folder / "unpacked")], folder)
        for name in ("promtool", target.name):
            (folder / "unpacked" / "usr" / "bin" / name).replace(target.with_name(name))
    return target


def _download(folder: Path) -> Path:
    """The package file; with package lists of our own when the system has none."""
    lists = [
        f"-oDir::State={folder / 'state'}",
        f"-oDir::Cache={folder / 'cache'}",
        "-oDir::State::status=/var/lib/dpkg/status",
    ]
    try:
        _run(["apt-get", "download", "prometheus"], folder)
    except UnavailableError:
        (folder / "state" / "lists" / "partial").mkdir(parents=True)
        (folder / "cache" / "archives" / "partial").mkdir(parents=True)
        _run(["apt-get", *lists, "update"], folder)
        _run(["apt-get", *lists, "download", "prometheus"], folder)
    found = sorted(folder.glob("prometheus_*.deb"))
    if not found:
        raise UnavailableError("apt-get download brought no package prometheus")
    return found[0]


def _run(command: list[str], folder: Path) -> None:
    finished = run("prometheus", command, folder=folder)
    if finished.status:
        raise UnavailableError(f"{' '.join(command[:1] + command[-2:])}: {(finished.output or ['it failed'])[-1]}")


if __name__ == "__main__":
    sys.exit(main("prometheus", fetch))
