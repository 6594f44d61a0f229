"""`python -m tests.mutants.sample`: random mutants of the core against the tests that execute the changed lines.

docs/mutation.md defines population, filter, sample and tests.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.mutants.coverage_map import VARIABLE, CoverageMap
from tests.mutants.live_patch import LivePatch
from tests.mutants.mutant import PACKAGES, ROOT
from tests.mutants.random_mutants import RandomMutant, first_difference, population, sample
from tests.mutants.workspace import Workspace

#: Folders of the recorded tests, and of the tests that run in any case, last.
_RECORDED: Final = (
    "tests/unit", "tests/scenarios", "tests/malformed", "tests/insight", "tests/daemon/dump",
    "--ignore-glob=*/test_live_*",
)  # fmt: skip
_ALWAYS: Final = ("tests/properties",)
#: The tests of generated pages, which read the tables that are made at import.
_PAGES: Final = "tests/architecture/test_docs.py"
#: Number of tests in the first two groups: few fast ones detect most mutants.
_FIRST: Final = 40
_SECOND: Final = 400
#: Seconds for the recording; CPU seconds for the tests of one mutant, without and with the last two groups.
_RECORDING_SECONDS: Final = 3600.0
_QUICK_SECONDS: Final = 60
_THOROUGH_SECONDS: Final = 600
#: Exit statuses of a child; a signal is an endless loop.
_SURVIVED: Final = 0
_KILLED: Final = 1
_UNPATCHABLE: Final = 3


def record(path: Path) -> None:
    """Run the recorded tests once and write the map. Raises SystemExit when one fails."""
    with tempfile.TemporaryDirectory(prefix="capcard-coverage-") as folder:
        arguments = ["-p", "tests.mutants.coverage_map", *_RECORDED]
        env = {VARIABLE: str(path.resolve())}
        status, output = Workspace(Path(folder)).run(arguments, _RECORDING_SECONDS, env=env)
    if status:
        sys.exit(f"{output}\na test fails without a mutant")


class Prober:
    """A plugin that runs, instead of the collected tests, one child process per mutant with the tests for it."""

    def __init__(
        self, mutants: Sequence[tuple[int, RandomMutant]], covering: CoverageMap, report: Path, *, jobs: int,
        thorough: bool,
    ) -> None:  # fmt: skip
        self._waiting = list(mutants)[::-1]
        self._covering = covering
        self._report = report
        self._jobs = jobs
        self._thorough = thorough
        #: Mutants that cannot be changed in place: they run when the module is imported.
        self.unpatchable: list[tuple[int, RandomMutant]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all mutants."""
        items = {item.nodeid: item for item in session.items}
        patch = LivePatch(ROOT)
        gc.freeze()  # children share the pages of the parent
        running: dict[int, tuple[int, RandomMutant]] = {}
        while self._waiting or running:
            while self._waiting and len(running) < self._jobs:
                number, mutant = self._waiting.pop()
                if mutant.at_import:
                    self.unpatchable.append((number, mutant))
                    continue
                child = os.fork()
                if not child:
                    self._probe(session, patch, mutant, self._tests(mutant, items))
                running[child] = number, mutant
            if running:
                child, status = os.wait()
                number, mutant = running.pop(child)
                if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _UNPATCHABLE:
                    self.unpatchable.append((number, mutant))
                else:
                    survived = os.WIFEXITED(status) and os.WEXITSTATUS(status) == _SURVIVED
                    note(self._report, number, mutant, "survived" if survived else "killed")
        return True

    def _tests(self, mutant: RandomMutant, items: dict[str, pytest.Item]) -> list[pytest.Item]:
        tests = [items[test] for test in order(self._covering, mutant, thorough=self._thorough) if test in items]
        if self._thorough:
            tests += [item for name, item in items.items() if name.startswith(_ALWAYS)]
        return tests

    def _probe(self, session: pytest.Session, patch: LivePatch, mutant: RandomMutant, items: list[pytest.Item]) -> None:
        """Run the tests up to the first failure; ends the process."""
        status = _KILLED
        try:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            limit = _THOROUGH_SECONDS if self._thorough else _QUICK_SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            if not patch.apply(mutant.file, (ROOT / mutant.file).read_text(), mutant.code):
                status = _UNPATCHABLE
            else:
                for item, following in zip(items, [*items[1:], None], strict=True):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    if session.testsfailed:
                        break
                else:
                    status = _SURVIVED
        finally:
            os._exit(status)


def order(covering: CoverageMap, mutant: RandomMutant, *, thorough: bool) -> list[str]:
    """The tests that execute the statement: few fast ones first, then others from everywhere."""
    lines = range(mutant.line, mutant.end + 1)
    tests = covering.importing(mutant.file) if mutant.at_import else covering.covering(mutant.file, lines)
    first, rest = tests[:_FIRST], tests[_FIRST:]
    spread = random.Random(0).sample(rest, min(_SECOND, len(rest)))
    return [*first, *spread, *([test for test in rest if test not in set(spread)] if thorough else [])]


def detect(workspace: Workspace, covering: CoverageMap, mutant: RandomMutant, *, thorough: bool) -> str:
    """`killed` or `survived`, by a new process in a copy."""
    text = workspace.read(mutant.file)
    workspace.write(mutant.file, mutant.code)
    tests = workspace.folder / "tests.txt"
    tests.write_text("\n".join(order(covering, mutant, thorough=thorough)))
    arguments = [_PAGES, f"@{tests}", *(_ALWAYS if thorough else ())]
    try:
        status, _ = workspace.run(arguments, 10.0 * (_THOROUGH_SECONDS if thorough else _QUICK_SECONDS))
    finally:
        workspace.write(mutant.file, text)
    return "killed" if status else "survived"  # also by an import that fails


def note(report: Path, number: int, mutant: RandomMutant, result: str) -> None:
    """Append one mutant to the report."""
    line, before, after = first_difference((ROOT / mutant.file).read_text(), mutant.code)
    row = {
        "number": number, "package": mutant.package, "file": mutant.file, "line": line, "before": before,
        "after": after, "result": result,
    }  # fmt: skip
    with report.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def rows(report: Path) -> dict[int, dict[str, Any]]:
    """The report by number; the last row of a mutant counts."""
    if not report.exists():
        return {}
    return {row["number"]: row for row in map(json.loads, report.read_text().splitlines())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sample; figures go to stdout, one row per mutant to `--report`. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.sample", description=__doc__)
    parser.add_argument("--sample", type=int, default=400, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants at a time")
    parser.add_argument("--map", type=Path, default=Path(".mutation-map.json"), help="recorded when it does not exist")
    parser.add_argument("--report", type=Path, default=Path(".mutation-report.jsonl"), help="continued when it exists")
    parser.add_argument("--quick", action="store_true", help="at most 440 tests for a mutant, no property tests")
    parser.add_argument("--survivors", action="store_true", help="run the survivors of the report again")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    if not chosen.map.exists():
        record(chosen.map)
    covering = CoverageMap(chosen.map)
    mutants = list(enumerate(sample(population(), chosen.sample, chosen.seed)))
    done = {
        number for number, row in rows(chosen.report).items() if not (chosen.survivors and row["result"] == "survived")
    }
    open_mutants = [(number, mutant) for number, mutant in mutants if number not in done]
    prober = Prober(open_mutants, covering, chosen.report, jobs=chosen.jobs, thorough=not chosen.quick)
    folders = _RECORDED if chosen.quick else (*_RECORDED, *_ALWAYS)
    pytest.main(["-q", "-p", "no:randomly", "-p", "no:cacheprovider", *folders], plugins=[prober])
    with tempfile.TemporaryDirectory(prefix="capcard-mutation-") as folder:
        workspace = Workspace(Path(folder))
        for number, mutant in prober.unpatchable:
            note(chosen.report, number, mutant, detect(workspace, covering, mutant, thorough=not chosen.quick))
    found = rows(chosen.report)
    figures = Counter((found[number]["package"], found[number]["result"]) for number, _ in mutants)
    for package in PACKAGES:
        killed, survived = figures[package, "killed"], figures[package, "survived"]
        sys.stdout.write(f"{package}: {killed} of {killed + survived} killed\n")
    killed = sum(count for (_, result), count in figures.items() if result == "killed")
    share = 100 * killed / max(1, len(mutants))
    sys.stdout.write(f"{killed} of {len(mutants)} killed ({share:.1f} %), {time.monotonic() - began:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
