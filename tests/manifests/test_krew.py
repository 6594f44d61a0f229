"""The plugin of krew that `make release` packs: krew accepts its manifest, its launcher installs and runs a wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What krew requires: fields of its kind Plugin to expressions.
FIELDS: Final = {
    "spec": {
        "version": r"v\d+\.\d+\.\d+([-+][0-9A-Za-z.-]+)?",
        "shortDescription": r"[^\n]{1,80}",
        "description": r"(?s).+",
        "caveats": r"(?s).+",
    },
    "platform": {
        "uri": r"https://\S+\.(tar\.gz|zip)",
        "sha256": r"[0-9a-f]{64}",
        "bin": r"[\w./-]+",
    },
}


def program() -> Any:
    """The program that `make release` runs."""
    spec = importlib.util.spec_from_file_location("krew", ROOT / "requirements" / "krew.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_wheels(folder: Path) -> Path:
    """A wheel with the same command and no requirements, and one of an optional distribution."""
    _optional_wheel(folder)
    wheel = folder / "capcard_sched-1.2.3-py3-none-any.whl"
    info = "capcard_sched-1.2.3.dist-info"
    files = {
        "capcard_small.py": (
            "import sys\nimport capcard_extra\n\n\ndef main() -> None:\n    print('runs', *sys.argv[1:])\n"
        ),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: capcard-sched\nVersion: 1.2.3\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nkubectl-capcard = capcard_small:main\n",
    }
    return _written(wheel, files, info)


def _optional_wheel(folder: Path) -> Path:
    info = "capcard_sched_extender-1.2.3.dist-info"
    files = {
        "capcard_extra.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: capcard-sched-extender\nVersion: 1.2.3\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return _written(folder / "capcard_sched_extender-1.2.3-py3-none-any.whl", files, info)


def _written(wheel: Path, files: dict[str, str], info: str) -> Path:
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return wheel


def test_krew_accepts_the_manifest_and_the_archive_is_that_of_its_sum(tmp_path: Path) -> None:
    small_wheels(tmp_path)
    archive, manifest = program().write_plugin(tmp_path, "https://releases.example.com/v1/")
    assert program().write_plugin(tmp_path, "https://releases.example.com/v1")[0].read_bytes() == archive.read_bytes()
    found = json.loads(manifest.read_text())
    assert manifest.stem == found["metadata"]["name"] == "capcard", "krew needs the name of the file"
    assert (found["apiVersion"], found["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    (platform,) = found["spec"]["platforms"]
    texts = {"spec": found["spec"], "platform": platform}
    for part, fields in FIELDS.items():
        assert set(texts[part]) - set(fields) <= {"platforms", "selector"}
        for name, form in fields.items():
            assert re.fullmatch(form, texts[part][name]), name
    assert platform["selector"]["matchExpressions"] == [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]
    assert platform["uri"] == f"https://releases.example.com/v1/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        modes = {entry.name: entry.mode for entry in packed.getmembers()}
    assert modes.pop(platform["bin"]) == 0o755
    wheels = {f"{name}-1.2.3-py3-none-any.whl" for name in ("capcard_sched", "capcard_sched_extender")}
    assert set(modes) == {*wheels, "run.lock", "LICENSE"}


def test_an_address_without_tls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the https:// URL"):
        program().write_plugin(tmp_path, "http://releases.example.com")


def test_the_launcher_installs_the_wheel_once_and_runs_it(tmp_path: Path) -> None:
    wheel = small_wheels(tmp_path)
    launcher, link = tmp_path / "kubectl-capcard", tmp_path / "bin" / "kubectl-capcard"
    launcher.write_bytes((ROOT / "requirements" / "krew.sh").read_bytes())
    launcher.chmod(0o755)
    link.parent.mkdir()
    link.symlink_to(launcher)  # as krew installs it
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "PYTHON": sys.executable, "PIP_NO_INDEX": "1"}

    def call() -> tuple[int, str, str]:
        done = subprocess.run([link, "queue", "list"], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    (tmp_path / "run.lock").write_text("missing==1.0 --hash=sha256:" + "0" * 64 + "\n")
    status, out, err = call()
    assert (status, out) == (1, "")
    assert err.endswith("error: kubectl capcard is not installed; the next call tries again\n")
    (tmp_path / "run.lock").write_text("")
    home = tmp_path / "data" / "capcard-sched" / wheel.stem
    assert call()[:2] == (0, "runs queue list\n")
    assert call() == (0, "runs queue list\n", ""), f"{home} is used again"
