"""Tests on a real API server, of several programs or of threads run again when they fail: docs/flaky.md."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")
#: Folders of tests without an API server.
DETERMINISTIC = ("architecture", "malformed", "properties", "scenarios", "unit", "vectors")
CONCURRENT = ("tests/web/", "tests/daemon/", "tests/kube/", "tests/unit/extender/")

COLLECTS = """
import json, os, pathlib

def pytest_collection_finish(session):
    rows = [[item.nodeid, "programs" in getattr(item, "fixturenames", ()), [mark.name for mark in item.iter_markers()]]
            for item in session.items]
    pathlib.Path(os.environ["ROWS"]).write_text(json.dumps(rows))
"""


@pytest.mark.timeout(300)
def test_the_tests_of_several_programs_have_the_marker_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "collects.py").write_text(COLLECTS)
    rows = tmp_path / "rows"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "ROWS": str(rows)}
    command = [*PYTEST, "-n", "0", "--collect-only", "-p", "collects", "tests"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    found = json.loads(rows.read_text())
    rerun = {name for name, on_server, marks in found if on_server or "processes" in marks}
    rerun |= {name for name, _, _ in found if name.startswith(CONCURRENT)}
    assert {name for name, _, marks in found if "flaky" in marks} == rerun
    assert [row for row in found if row[1] != ("controlplane" in row[2])] == []
    assert [name for name, on_server, _ in found if on_server and name.split("/")[1] in DETERMINISTIC] == []
    assert sum(on_server for _, on_server, _ in found) > 100
    compat = {name for name, on_server, marks in found if on_server and "compat" in marks}
    assert compat == {name for name, _, marks in found if "compat" in marks}
    for subject in ("test_daemon", "controllers/", "admission/", "election/test_fence", "election/test_election"):
        assert any(subject in name for name in compat), subject


def test_every_control_plane_of_a_test_is_that_of_the_fixtures() -> None:
    """The marker follows the fixture `programs`: nothing else leads to the programs."""
    without = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "soak" not in file.parts:
                calls = [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]
                named = {each.arg for each in node.args.args}
                if "ControlPlane" in calls and not named & {"programs", "control_plane"}:
                    without.append(f"{file.relative_to(ROOT)}::{node.name}")
    assert without == []


MODULE = """
import pytest, pytest_asyncio
from tests.controlplane import deprecations

attempts = dict.fromkeys(("once", "ever", "other", "deprecated", "setup"), 0)


@pytest.fixture(scope="session")
def programs():
    return None  # there is no API server here


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(programs):
    made = [0]
    yield made
    made[0] = 99


@pytest.fixture(scope="module")
def derived(world):
    assert world[0] < 99
    return [world]


@pytest_asyncio.fixture
async def own(programs):
    made = [0]
    yield made
    assert made == [1]


@pytest.fixture
def refuses_once(programs):
    attempts["setup"] += 1
    assert attempts["setup"] > 1


async def test_fails_once(derived, own):
    attempts["once"] += 1
    derived[0][0] += 1
    own[0] += 1
    assert derived == [[1]]
    assert attempts["once"] == 2, "a race"


def test_shares_that_state(derived):
    assert derived in ([[0]], [[1]])  # another process has a state of its own


def test_setup_fails_once(refuses_once, derived):
    assert derived == [[0]]


def test_fails_always(programs):
    attempts["ever"] += 1
    raise AssertionError(f"attempt {attempts['ever']}")


def test_deterministic():
    attempts["other"] += 1
    raise AssertionError(f"deterministic {attempts['other']}")


def test_uses_a_deprecated_api(programs):
    attempts["deprecated"] += 1
    deprecations.record("kubectl", f"v1 A is deprecated, use {attempts['deprecated']}")
    deprecations.record("kubectl", "cards: no node has this card")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [("-n", "0"), ("-n", "3", "--dist", "worksteal")])
def test_a_test_runs_again_from_a_new_state(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    command = [*PYTEST, "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", *workers, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    text = done.stdout
    assert re.search(r"2 failed, 4 passed, 1 error, 4 rerun in ", text), text
    _, _, summary = text.partition("rerun test summary info")
    assert "AssertionError: a race" in summary
    assert re.search(r"^RERUN \S+::test_fails_once$", summary, re.MULTILINE), text
    assert "AssertionError: attempt 3" in text
    assert "deterministic 2" not in text
    assert "kubectl: v1 A is deprecated, use 1" in text
    assert "use 2" not in text
    assert "no node has this card" not in text


def test_the_list_of_reruns_has_the_rule_and_a_cause_per_test() -> None:
    page = (ROOT / "docs" / "flaky.md").read_text("utf-8")
    assert "is fixed or deleted" in page
    rows = re.findall(r"^\| (tests/\S+) \| (.*) \|$", page, re.MULTILINE)
    assert [name for name, cause in rows if not cause.strip()] == []
    assert [name for name, _ in rows if not (ROOT / name.partition("::")[0]).exists()] == []
