"""Selection of a release, and the progress of builds and downloads; nothing is built here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane import progress
from tests.controlplane.build import PROGRAMS, cache_folder, pinned, releases

ROOT = Path(__file__).parents[2]


def test_the_newest_release_is_the_default_and_every_release_has_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = {}
    for release in ("", *releases()):
        monkeypatch.setenv("CAPCARD_KUBERNETES", release)
        folders[release] = cache_folder().name
    assert list(releases()) == ["1.34.4", "1.37.2"]
    assert folders == {
        "": "kubernetes-v1.37.2-etcd-v3.7.0",
        "1.34.4": "kubernetes-v1.34.4-etcd-v3.6.4",
        "1.37.2": "kubernetes-v1.37.2-etcd-v3.7.0",
    }


def test_an_unknown_release_is_an_error_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPCARD_KUBERNETES", "1.33")
    with pytest.raises(
        ValueError, match=r"CAPCARD_KUBERNETES=1\.33: the tests run on Kubernetes 1\.34\.4 and 1\.37\.2"
    ):
        cache_folder()
    command = [sys.executable, "-m", "tests.controlplane.build"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1), answer.stderr


@pytest.mark.parametrize("release", releases())
def test_a_module_pins_all_programs_to_one_release(release: str) -> None:
    folder = releases()[release]
    text = (folder / "go.mod").read_text("utf-8")
    assert [package for package in PROGRAMS.values() if f"\t{package}\n" not in text] == []
    assert pinned("k8s.io/kubernetes", folder) == f"v{release}"
    replaced = [line.split()[-1] for line in text.splitlines() if " => k8s.io/" in line]
    assert {*replaced} == {f"v0{release.removeprefix('1')}"}


def test_a_long_command_reports_what_it_has_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    seen = tmp_path / "seen"

    def report(line: str) -> None:
        lines.append(line)
        if "2 packages compiled" in line:
            seen.touch()

    monkeypatch.setattr(progress, "report", report)
    program = f"""
import pathlib, time
print("go: downloading k8s.io/api v0.37.2")
print("k8s.io/api/core/v1")
print("golang.org/x/net/http2")
print("# k8s.io/api/core/v1")
print("types.go:1:1: a mistake", flush=True)
while not pathlib.Path({str(seen)!r}).exists():
    time.sleep(0.01)
raise SystemExit(3)
"""
    finished = progress.run("etcd", [sys.executable, "-c", program], interval=0.01)
    assert finished == (3, ["# k8s.io/api/core/v1", "types.go:1:1: a mistake"])
    assert lines[-1].startswith("  etcd: ")
    assert lines[-1].endswith(" s, 1 modules downloaded, 2 packages compiled")
