"""`make test` and `make campaign` run every test, properties in both; the long tests are in the campaign."""

import ast
import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "tests").rglob("test_*.py"))


def recipe(target: str) -> str:
    """The commands of a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    found = re.search(rf"^{target}:[^\n]*\n((?:\t[^\n]*\n)+)", makefile, re.MULTILINE)
    assert found is not None, target
    return found[1]


def is_campaign(node: ast.AST) -> bool:
    return "mark.campaign" in ast.unparse(node)


@functools.cache
def lanes(module: Path) -> tuple[list[str], list[str]]:
    """The tests of a module that `make test` runs, and those of the campaign."""
    tree = ast.parse(module.read_text("utf-8"))
    marks = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    found: tuple[list[str], list[str]] = ([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found[any(map(is_campaign, (*marks, *node.decorator_list)))].append(node.name)
    return found


def test_the_lanes_are_complements_and_ci_runs_both() -> None:
    assert recipe("test") == '\t$(PYTEST) -m "not campaign"\n'
    # The properties run again, with all their examples.
    assert recipe("campaign") == '\tHYPOTHESIS_PROFILE=campaign $(PYTEST) --timeout=600 -m "campaign or hypothesis"\n'
    commands = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert {"step make test", "step make campaign"} <= {*commands}
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text("utf-8")
        assert "make test" in text, page
        assert "make campaign" in text, page


def run_ci(folder: Path, target: str, status: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script of CI with a `make` that does nothing and has this status for one target."""
    script, make = folder / ".ci" / "run", folder / "make"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "run", script)
    make.write_text(f'#!/bin/sh\n[ "$*" != "{target}" ] || exit {status}\n')
    make.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    return subprocess.run([script], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "built, elapsed, last",
    [
        (True, 0, "=== make compat: [0-9]+ s, exit status 0"),
        (True, 3000, "=== make compat: [0-9]+ s, exit status 0"),
        (False, 0, "=== make compat: [0-9]+ s, exit status 0"),
        (False, 3000, "=== make compat: skipped; its programs are not built, and CI has run for 50 of 45 minutes"),
    ],
)
def test_ci_builds_the_oldest_release_only_while_there_is_time(
    tmp_path: Path, built: bool, elapsed: int, last: str
) -> None:
    done = run_ci(tmp_path, "--silent compat-built", int(not built), SECONDS=str(elapsed))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:5]] == [
        "=== make packages",
        "=== make lint",
        "=== make test",
        "=== make campaign",
        "=== make soak MINUTES=2 SEED=1",
    ]
    assert len(lines) == 6
    assert re.match(last, lines[5])


def test_a_failed_step_ends_ci(tmp_path: Path) -> None:
    done = run_ci(tmp_path, "test", 2)
    assert done.returncode == 2
    assert re.fullmatch(
        r"=== make packages: .*\n=== make lint: .*\n=== make test: \d+ s, exit status 2 \(CI: \d+ s\)\n", done.stdout
    )


def test_make_test_has_tests_of_every_folder() -> None:
    folders = {module.parent for module in MODULES}
    assert folders == {module.parent for module in MODULES if lanes(module)[0]}


def test_a_part_of_the_tests_is_in_the_campaign() -> None:
    default, campaign = (sum(len(lanes(module)[lane]) for module in MODULES) for lane in (0, 1))
    assert 0 < campaign < default / 10
