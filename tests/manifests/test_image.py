"""The container image without an image build: its steps run by hand or are parsed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.manifests.documents import ROOT

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==\S+")


class Step(NamedTuple):
    """An instruction of the Dockerfile; `stage` counts from 0."""

    stage: int
    word: str
    text: str


def steps() -> list[Step]:
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
    found: list[Step] = []
    stage = -1
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            continue
        stage += word == "FROM"
        found.append(Step(stage, word, rest))
    return found


def copied() -> list[str]:
    """Paths from the tree, in order."""
    sources: list[str] = []
    for step in steps():
        if step.word == "COPY" and not step.text.startswith("--from"):
            *some, _ = step.text.split()
            sources += some
    return sources


def last_stage() -> list[Step]:
    final = max(step.stage for step in steps())
    return [step for step in steps() if step.stage == final]


def locked() -> dict[str, set[str]]:
    """Package to those that need it, from requirements/run.lock."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in (ROOT / "requirements" / "run.lock").read_text("utf-8").splitlines():
        if match := _PINNED.match(line):
            name = match[1]
            found.setdefault(name, set())
        elif comment := re.match(r"\s+#\s+(?:via\s*)?(.*)", line):
            found[name] |= {comment[1]} - {""}
    return found


def test_copied_paths_exist_and_reach_the_builder() -> None:
    allowed = {line.removeprefix("!") for line in _ignore_lines() if line.startswith("!")}
    assert "*" in _ignore_lines(), "the list names what is let in"
    assert set(copied()) == allowed
    assert all((ROOT / source).exists() for source in copied())


def _ignore_lines() -> list[str]:
    text = (ROOT / ".dockerignore").read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_both_stages_have_the_same_python_by_tag() -> None:
    bases = [step.text.split()[0] for step in steps() if step.word == "FROM"]
    assert bases == ["python:${PYTHON}-slim"] * 2, "an environment runs with the Python it was made by"
    (version,) = (step.text.partition("=")[2] for step in steps() if step.word == "ARG")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_everything_is_installed_by_hash() -> None:
    installs = [part for step in steps() if step.word == "RUN" for part in step.text.split("&&") if " install " in part]
    assert len(installs) == 2
    assert "--require-hashes -r requirements/run.lock" in installs[0]
    assert "--no-deps --no-build-isolation . ./distributions/extender" in installs[1], (
        "nothing is fetched beside the lock"
    )
    text = (ROOT / "requirements" / "run.lock").read_text("utf-8")
    packages = [line for line in text.splitlines() if _PINNED.match(line)]
    assert packages
    assert all(line.endswith("\\") for line in packages), "a hash follows"


def test_build_only_packages_and_no_others_are_removed() -> None:
    (uninstall,) = (
        part for step in steps() for part in step.text.split("&&") if " uninstall " in part and "--python" in part
    )
    removed = set(uninstall.split(" --yes ")[1].split())
    needed_by = locked()
    assert "hatchling" in removed
    expected = {"hatchling"}
    while more := {name for name, needing in needed_by.items() if needing and needing <= expected} - expected:
        expected |= more
    assert removed == expected
    assert needed_by["hatchling"] == {"capcard-sched (pyproject.toml:build)"}


def test_it_runs_as_nobody_and_starts_the_command_line() -> None:
    words = {step.word: step.text for step in last_stage()}
    assert words["USER"] == "65532:65532"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    script = next(iter(project["scripts"]))
    assert words["ENTRYPOINT"] == f'["/opt/capcard-sched/bin/{script}"]'
    assert words["COPY"] == "--from=build /opt/capcard-sched /opt/capcard-sched", "a venv cannot be moved"
    order = [step.word for step in last_stage()]
    assert order.index("USER") > max(place for place, word in enumerate(order) if word == "RUN")


def test_the_copied_paths_suffice_to_build_the_package(tmp_path: Path) -> None:
    tree = tmp_path / "src"
    for source in copied():
        target = tree / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)
    names: set[str] = set()
    for folder in (tree, tree / "distributions" / "extender"):
        words: list[str | Path] = ["-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", folder]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    for wheel in (tmp_path / "dist").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names |= set(archive.namelist())
    for module in ("cli/main.py", "plugins/gang.py", "actions/allocate.py", "config/scheduler.yaml", "kube/client.py"):
        assert f"capcard_sched/{module}" in names
    assert "capcard_sched_extender/plugin.py" in names, "existing scheduler-confs name the plugin"


def sbom() -> Any:
    """The program that `make release` runs."""
    return _program("sbom")


@pytest.mark.parametrize(
    "errors, is_reachable",
    [
        ("ERROR:pip_audit._cli:a: Dependency not found on the index and could not be audited: a (1.0)", False),
        ("ERROR:pip_audit._cli:Max retries exceeded with url", False),
        ("Found 1 known vulnerability in 1 package", True),
        ("", True),
    ],
)
def test_an_audit_without_its_database_is_none(errors: str, is_reachable: bool) -> None:
    assert _program("audit").unreachable(errors) == ("" if is_reachable else errors)


def _program(name: str) -> Any:
    """A program of the folder of requirements."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "requirements" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wheel_document(lock: str) -> dict[str, Any]:
    """An SBOM of a wheel, as cyclonedx-py writes it: every line of the lock is a component."""
    lines = re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE)
    components = [
        {"bom-ref": f"requirements-L{number}", "name": name, "version": version}
        for number, (name, version) in enumerate(lines)
    ]
    package = {"bom-ref": "root-component", "name": "capcard-sched", "version": "0.1.0"}
    edges = [{"ref": each["bom-ref"]} for each in [*components, package]]
    return {"metadata": {"component": package}, "components": components, "dependencies": edges}


def _distribution(folder: Path, name: str) -> Path:
    wheel = folder / f"capcard_sched_{name}-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    return wheel


def test_the_sbom_of_the_image_has_what_the_dockerfile_installs(tmp_path: Path) -> None:
    program, lock = sbom(), (ROOT / "requirements" / "run.lock").read_text("utf-8")
    plan = program.plan_of((ROOT / "Dockerfile").read_text("utf-8"))
    optional = [program.component_of(_distribution(tmp_path, name)) for name in ("extender", "trace")]
    found = program.image_document(_wheel_document(lock), plan, lock, optional)
    names = [each["name"] for each in found["components"]]
    expected = {*locked(), "capcard-sched", "capcard-sched-extender", "python"} - plan.removed
    assert sorted(names) == sorted(expected), "one numpy, no hatchling, no trace"
    assert {"hatchling", "packaging"} <= plan.removed
    (base,) = (each for each in found["components"] if each["name"] == "python")
    assert base["purl"] == f"pkg:docker/python@{plan.python}-slim"
    image = found["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == ("container", "capcard-sched", "0.1.0")
    assert found["dependencies"][0] == {
        "ref": "image",
        "dependsOn": ["base-image", "root-component", "capcard-sched-extender"],
    }
    assert {each["ref"] for each in found["dependencies"]} <= {
        "image",
        *(each["bom-ref"] for each in found["components"]),
    }
    assert found["compositions"] == [{"aggregate": "incomplete", "assemblies": ["base-image"]}]


def test_an_sbom_that_lacks_a_package_of_the_image_is_refused() -> None:
    program, lock = sbom(), (ROOT / "requirements" / "run.lock").read_text("utf-8")
    plan = program.plan_of((ROOT / "Dockerfile").read_text("utf-8"))
    document = _wheel_document(lock)
    document["components"] = [each for each in document["components"] if each["name"] != "aiohttp"]
    with pytest.raises(ValueError, match="aiohttp"):
        program.image_document(document, plan._replace(distributions=()), lock, ())
    with pytest.raises(ValueError, match="expected wheels of capcard-sched-extender"):
        program.image_document(_wheel_document(lock), plan, lock, ())
    with pytest.raises(ValueError, match="expected ARG PYTHON"):
        program.plan_of("FROM scratch")
