"""The sdist and the wheel contain the files of the tree: the symbolic links must survive both."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist of the tree, and a wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def in_tree(*suffixes: str) -> set[str]:
    package = ROOT / "capcard_sched"
    found = set()
    for base in (package, *(path for path in package.iterdir() if path.is_symlink())):
        for path in base.resolve().rglob("*"):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                target = Path("capcard_sched") if base == package else Path("capcard_sched") / base.name
                found.add(str(target / path.relative_to(base.resolve())))
    return found


def in_wheel(built: Path, *suffixes: str) -> set[str]:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if Path(name).suffix in suffixes}


def test_the_wheel_made_from_the_sdist_has_every_module(built: Path) -> None:
    assert in_wheel(built, ".py") == in_tree(".py")
    assert "capcard_sched/plugins/gang.py" in in_wheel(built, ".py")
    assert "capcard_sched/actions/allocate.py" in in_wheel(built, ".py")


def test_the_wheel_has_the_built_in_conf_and_the_examples(built: Path) -> None:
    shipped = in_wheel(built, ".yaml")
    assert shipped == in_tree(".yaml")
    assert "capcard_sched/config/scheduler.yaml" in shipped


def test_the_wheel_names_its_entry_points(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        text = archive.read(name).decode()
    assert "gang = capcard_sched.plugins.gang:Gang" in text
    assert "capcard-sched = capcard_sched.cli.main:main" in text


def test_the_sdist_contains_the_files_for_development(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "README.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml", "requirements/dev.lock"} <= names


def test_the_wheel_runs_without_the_tree(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from capcard_sched.framework.conf.scheduler_conf import default_conf\n"
        "from capcard_sched.framework.conf.registry import Registry\n"
        "import capcard_sched; print(capcard_sched.__file__); print(default_conf(Registry.load()).actions)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    place, actions = done.stdout.splitlines()
    assert place.startswith(str(tmp_path))
    assert actions == "('enqueue', 'allocate', 'backfill')"
