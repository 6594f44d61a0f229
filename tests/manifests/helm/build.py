"""Builds Helm, once per version, into the cache folder of the control plane's programs.

`python -m tests.manifests.helm.build` builds it if it is missing; a helm on PATH is not used, so that every checkout
renders the chart with the same one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.controlplane.build import UnavailableError, find_go, required

MODULE: Final = Path(__file__).resolve().parent
_PACKAGE: Final = "helm.sh/helm/v3/cmd/helm"
_VERSIONED_PACKAGES: Final = ("chartutil", "lint/rules")


def program() -> Path:
    """Path of Helm of the pinned version, built or not."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return root / "capcard-sched" / "helm" / _pinned("helm.sh/helm/v3") / "helm"


def _pinned(module: str) -> str:
    found = re.search(rf"{re.escape(module)} (v\S+)", (MODULE / "go.mod").read_text("utf-8"))
    assert found, f"go.mod does not name {module}"
    return found[1]


def locate() -> Path:
    """Helm, already built.

    Raises:
        UnavailableError: nothing was built yet.
    """
    if os.access(program(), os.X_OK):
        return program()
    raise UnavailableError(
        "helm is not built: `python -m tests.manifests.helm.build` builds it once, in 2 minutes, with Go"
    )


def build() -> Path:
    """Builds Helm unless it is there.

    Raises:
        UnavailableError: there is no Go, or the build failed.
    """
    target = program()
    if target.exists():
        return target
    go = find_go()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".helm.{os.getpid()}.unfinished")
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    # The Kubernetes version it renders for without a cluster, set as in its own releases.
    kubernetes = f"1.{_pinned('k8s.io/client-go').split('.')[1]}"
    reported = [
        f"-X helm.sh/helm/v3/pkg/{package}.k8sVersion{part}"
        for package in _VERSIONED_PACKAGES
        for part in ("Major", "Minor")
    ]
    flags = " ".join(
        ["-s -w", *map("=".join, zip(reported, kubernetes.split(".") * len(_VERSIONED_PACKAGES), strict=True))]
    )
    command: list[str | Path] = [
        go,
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        flags,
        "-o",
        unfinished,
        _PACKAGE,
    ]
    answer = subprocess.run(command, cwd=MODULE, env=environment, check=False)
    if answer.returncode:
        raise UnavailableError(f"{go} could not build {_PACKAGE}: see above")
    unfinished.replace(target)
    return target


def main() -> int:
    """Builds; fails where Helm is required and cannot be built, prints one line elsewhere."""
    try:
        sys.stderr.write(f"helm: {build()}\n")
    except UnavailableError as why:
        sys.stderr.write(f"no helm: {why}" + ("\n" if required() else "; the tests that need it will be skipped\n"))
        return 1 if required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
