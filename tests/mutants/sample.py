"""`python -m tests.mutants.sample`: random mutants of the core against the tests that execute the changed lines.

docs/mutation.md defines population, filter, sample and tests.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.mutants.coverage_map import VARIABLE, CoverageMap
from tests.mutants.live_patch import LivePatch
from tests.mutants.mutant import PACKAGES, ROOT
from tests.mutants.random_mutants import RandomMutant, first_difference, population, sample
from tests.mutants.workspace import FAILED, Workspace

#: Folders of the recorded tests. Those of the second run last.
_RECORDED: Final = (
    "tests/unit", "tests/vectors", "tests/scenarios", "tests/malformed", "tests/insight", "tests/daemon/dump",
    "tests/properties",
    "--ignore-glob=*/test_live_*",
)  # fmt: skip
_LAST: Final = "tests/properties"
#: The tests of generated pages, which read the tables that are made at import.
_PAGES: Final = "tests/architecture/test_docs.py"
#: Seconds for the recording.
_RECORDING_SECONDS: Final = 4 * 3600.0
#: A test may take this many CPU seconds, and this multiple of what it took without a mutant.
_SPARE_SECONDS: Final = 10
_SPARE_FACTOR: Final = 5
#: Bytes of address space of a test: an endless loop may fill a list.
_MEMORY: Final = 8 << 30
#: Exit statuses of a child.
_SURVIVED: Final = 0
_KILLED: Final = 1
_UNPATCHABLE: Final = 3
#: Signals from outside: they show nothing about the mutant.
_FOREIGN: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
#: Times that a mutant may be ended from outside before the sample ends.
_ATTEMPTS: Final = 3


def record(path: Path, jobs: int) -> None:
    """Run the recorded tests once and write the map, without tests that fail. Raises SystemExit for a broken run."""
    with tempfile.TemporaryDirectory(prefix="capcard-coverage-") as folder:
        arguments = ["-p", "tests.mutants.coverage_map", "-n", str(jobs), "--maxfail=0", *_RECORDED]
        env = {VARIABLE: str(path.resolve())}
        status, output = Workspace(Path(folder)).run(arguments, _RECORDING_SECONDS, env=env)
    if status:
        sys.stderr.write(f"{output}\nnot in the map: tests that fail without a mutant\n")
    if status not in (0, FAILED):
        sys.exit("the recording broke off")


class _Child(NamedTuple):
    """A process that runs tests against a mutant, without one against the unchanged code."""

    number: int
    mutant: RandomMutant | None
    tests: list[str]
    #: The end of the pipe that gives the test that failed.
    failed: int


class Prober:
    """A plugin that runs, instead of the collected tests, one child process per mutant with the tests for it."""

    def __init__(
        self, mutants: Sequence[tuple[int, RandomMutant]], covering: CoverageMap, report: Path, *, jobs: int,
        seconds: float,
    ) -> None:  # fmt: skip
        self._waiting = list(mutants)[::-1]
        self._covering = covering
        self._report = report
        self._jobs = jobs
        self._seconds = seconds
        #: Mutants that cannot be changed in place: they run when the module is imported.
        self.unpatchable: list[tuple[int, RandomMutant]] = []
        #: The collected tests by node id.
        self.items: dict[str, pytest.Item] = {}
        #: Tests that detected a mutant and pass without one, and those that fail without one in a forked process.
        self._passing: set[str] = set()
        self._failing: set[str] = set()
        #: Mutants by the test that detected them, until it passed without a mutant.
        self._unconfirmed: dict[str, list[tuple[int, RandomMutant]]] = {}
        self._attempts: Counter[int] = Counter()
        #: Number of mutants by the function of the test that detected them.
        self._found_by: Counter[str] = Counter(function_of(row["test"]) for row in rows(report).values())

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all mutants. Raises RuntimeError for one that is ended from outside several times."""
        self.items = {item.nodeid: item for item in session.items}
        patch = LivePatch(ROOT)
        gc.freeze()  # children share the pages of the parent
        running: dict[int, _Child] = {}
        while self._waiting or running:
            while self._waiting and len(running) < self._jobs:
                number, mutant = self._waiting.pop()
                if mutant.at_import:
                    self.unpatchable.append((number, mutant))
                else:
                    tests = order(self._covering, mutant, self.items.keys() - self._failing, self._found_by)
                    self._start(running, session, patch, (number, mutant), tests)
            if running:
                pid, status = os.wait()
                child = running.pop(pid)
                with os.fdopen(child.failed) as stream:
                    failed = stream.read()
                self._found_by[function_of(failed)] += 1
                if child.mutant is None:
                    self._note_control(child.tests[0], passed=not status)
                elif failed and failed not in self._passing and os.waitstatus_to_exitcode(status) == _KILLED:
                    self._unconfirmed.setdefault(failed, []).append((child.number, child.mutant))
                    if len(self._unconfirmed[failed]) == 1:
                        self._start(running, session, patch, None, [failed])
                else:
                    self._note(child.number, child.mutant, os.waitstatus_to_exitcode(status), failed)
        return True

    def _start(
        self, running: dict[int, _Child], session: pytest.Session, patch: LivePatch,
        chosen: tuple[int, RandomMutant] | None, tests: list[str],
    ) -> None:  # fmt: skip
        number, mutant = chosen if chosen is not None else (-1, None)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            self._probe(session, patch, mutant, tests, writing)
        os.close(writing)
        running[child] = _Child(number, mutant, tests, reading)

    def _note_control(self, test: str, *, passed: bool) -> None:
        """A test ran alone without a mutant: what it detected counts only if it passed."""
        (self._passing if passed else self._failing).add(test)
        for number, mutant in self._unconfirmed.pop(test):
            if passed:
                note(self._report, number, mutant, "killed", test)
            else:
                self._waiting.append((number, mutant))

    def _note(self, number: int, mutant: RandomMutant, status: int, test: str) -> None:
        if status == _UNPATCHABLE:
            self.unpatchable.append((number, mutant))
        elif -status in _FOREIGN:
            self._attempts[number] += 1
            if self._attempts[number] == _ATTEMPTS:
                raise RuntimeError(f"signal {-status} ended the tests of mutant {number} {_ATTEMPTS} times")
            self._waiting.append((number, mutant))
        else:
            note(self._report, number, mutant, "survived" if status == _SURVIVED else "killed", test)

    def _probe(
        self, session: pytest.Session, patch: LivePatch, mutant: RandomMutant | None, tests: list[str], failed: int
    ) -> None:
        """Run the tests up to the first failure; ends the process. `failed` takes the one that failed."""
        status = _KILLED
        try:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            if mutant is not None and not patch.apply(mutant.file, (ROOT / mutant.file).read_text(), mutant.code):
                status = _UNPATCHABLE
                return
            for test, following in zip(tests, [*tests[1:], None], strict=True):
                end = int(time.process_time()) + limit(self._covering.seconds(test))
                resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
                item, nextitem = self.items[test], self.items[following] if following is not None else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                if session.testsfailed:
                    os.write(failed, test.encode())
                    return
                if time.process_time() > self._seconds:
                    break
            status = _SURVIVED
        finally:
            os._exit(status)


def limit(seconds: float) -> int:
    """CPU seconds that tests may take which take `seconds` without a mutant."""
    return int(_SPARE_SECONDS + _SPARE_FACTOR * seconds) + 1


def order(covering: CoverageMap, mutant: RandomMutant, known: AbstractSet[str], found_by: Counter[str]) -> list[str]:
    """The tests of `known` that execute the statement.

    Functions take turns with their cases. A test comes the earlier the more of the file it executes, the more mutants
    its function detected (`found_by`) and the more lines around the statement it executes that few others do.
    """
    lines = range(mutant.line, mutant.end + 1)
    found = covering.importing(mutant.file) if mutant.at_import else covering.covering(mutant.file, lines)
    executed, particular = covering.executed(mutant.file), covering.particular(mutant.file, found, lines)
    spent: defaultdict[str, float] = defaultdict(float)
    keys: dict[str, tuple[bool, float]] = {}
    for test in sorted(found, key=lambda each: covering.seconds(each) / particular[each]):
        function = function_of(test)
        spent[function] += covering.seconds(test) / (1 + found_by[function]) / executed[test]
        keys[test] = test.startswith(_LAST), spent[function] / particular[test]
    return sorted((test for test in found if test in known), key=keys.__getitem__)


def function_of(test: str) -> str:
    """The test without its case."""
    return test.partition("[")[0]


def detect(workspace: Workspace, covering: CoverageMap, mutant: RandomMutant, known: AbstractSet[str]) -> str:
    """`killed` or `survived`, by a new process in a copy. Raises RuntimeError for one that is ended from outside."""
    text = workspace.read(mutant.file)
    tests = order(covering, mutant, known, Counter())
    names = workspace.folder / "tests.txt"
    names.write_text("\n".join(tests))
    seconds = sum(map(covering.seconds, tests))
    workspace.write(mutant.file, mutant.code)
    try:
        for _ in range(_ATTEMPTS):
            status, _ = workspace.run([_PAGES, f"@{names}"], None, cpu_seconds=limit(seconds))
            if -status not in _FOREIGN:
                return "killed" if status else "survived"  # also by an import that fails
    finally:
        workspace.write(mutant.file, text)
    raise RuntimeError(f"signal {-status} ended the tests of {mutant.file}:{mutant.line} {_ATTEMPTS} times")


def note(report: Path, number: int, mutant: RandomMutant, result: str, test: str = "") -> None:
    """Append one mutant to the report, with the test that detected it."""
    line, before, after = first_difference((ROOT / mutant.file).read_text(), mutant.code)
    row = {
        "number": number, "package": mutant.package, "file": mutant.file, "line": line, "before": before,
        "after": after, "result": result, "test": test,
    }  # fmt: skip
    with report.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def _detect_all(
    mutants: Sequence[tuple[int, RandomMutant]], covering: CoverageMap, known: AbstractSet[str], report: Path
) -> None:
    """Run mutants in a copy, one after the other."""
    with tempfile.TemporaryDirectory(prefix="capcard-mutation-") as folder:
        workspace = Workspace(Path(folder))
        for number, mutant in mutants:
            note(report, number, mutant, detect(workspace, covering, mutant, known))


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
    parser.add_argument("--seconds", type=float, default=math.inf, help="CPU seconds after which a mutant survives")
    parser.add_argument("--survivors", action="store_true", help="run the survivors of the report again")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    if not chosen.map.exists():
        record(chosen.map, chosen.jobs)
    covering = CoverageMap(chosen.map)
    mutants = list(enumerate(sample(population(), chosen.sample, chosen.seed)))
    done = {
        number for number, row in rows(chosen.report).items() if not (chosen.survivors and row["result"] == "survived")
    }
    open_mutants = [(number, mutant) for number, mutant in mutants if number not in done]
    prober = Prober(open_mutants, covering, chosen.report, jobs=chosen.jobs, seconds=chosen.seconds)
    pytest.main(["-q", "-p", "no:randomly", "-p", "no:cacheprovider", *_RECORDED], plugins=[prober])
    with ThreadPoolExecutor(chosen.jobs) as pool:
        lots = [prober.unpatchable[first :: chosen.jobs] for first in range(chosen.jobs)]
        runs = [pool.submit(_detect_all, lot, covering, prober.items.keys(), chosen.report) for lot in lots]
        for run in runs:
            run.result()
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
