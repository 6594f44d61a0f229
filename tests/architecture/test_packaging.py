"""The sdist and the wheel contain the files of the tree: the symbolic links must survive both."""

import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from capcard_sched import __version__
from capcard_sched.model.distributions import OPTIONAL

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist of the tree, and a wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def extras(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each optional distribution, by the name of its folder."""
    found = {}
    for folder in (ROOT / "distributions").iterdir():
        target = tmp_path_factory.mktemp(folder.name)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (found[folder.name],) = target.glob("*.whl")
    return found


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


def test_the_wheel_of_an_optional_distribution_has_its_modules_its_license_and_its_entry_point(
    extras: dict[str, Path],
) -> None:
    for extra, wheel in extras.items():
        folder = ROOT / "distributions" / extra
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
            (license_file,) = (name for name in names if name.endswith("LICENSE"))
            assert archive.read(license_file) == (ROOT / "LICENSE").read_bytes()
            entries = archive.read(entry_points).decode()
        modules = {str(path.relative_to(folder)) for path in folder.rglob("*.py")}
        assert {name for name in names if name.endswith(".py")} == modules
        (kind,) = (kind for kind, name in OPTIONAL if name == extra)
        assert f"[capcard_sched.{kind}s]\n{extra} = capcard_sched_{extra}." in entries


def test_every_optional_distribution_is_an_extra_of_the_same_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras == {name: [f"{distribution}=={__version__}"] for (_, name), distribution in OPTIONAL.items()}
    folders = {folder.name: folder for folder in (ROOT / "distributions").iterdir()}
    assert folders.keys() == extras.keys()
    for name, folder in folders.items():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert [f"{project['name']}=={project['version']}"] == extras[name]
        assert f"capcard-sched=={__version__}" in project["dependencies"]


def test_the_sdist_contains_the_files_for_development(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "README.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml", "requirements/dev.lock"} <= names
    assert "distributions/extender/capcard_sched_extender/plugin.py" in names


def test_a_part_of_an_optional_distribution_that_is_not_installed_is_reported_with_its_name(
    built: Path, tmp_path: Path
) -> None:
    alone, conf = tmp_path / "alone", tmp_path / "conf.yaml"
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(alone)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("capcard_sched", "_capcard_sched")):
            (alone / path.name).symlink_to(path)
    conf.write_text("actions: allocate\ntiers: [{plugins: [{name: gang}, {name: extender}]}]\n")
    code = f"import sys; sys.path.insert(0, {str(alone)!r}); from capcard_sched.cli.main import main; main()"

    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-S", "-c", code, *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        return done.returncode, done.stdout + done.stderr

    status, text = run("validate", "--scheduler-conf", str(conf))
    assert status == 0
    assert 'plugins[1].name (line 2): plugin "extender" is in the distribution capcard-sched-extender, which is' in text
    assert 'not installed; skipped; install it with pip install "capcard-sched[extender]"' in text
    status, text = run("trace", "openb", "--nodes", "x")
    assert status == 2
    assert text.startswith('error: command "trace" is in the distribution capcard-sched-trace, which is not installed;')
    assert text.endswith('; install it with pip install "capcard-sched[trace]"\n')


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
