"""The tests that execute a line: recorded by a pytest plugin with coverage's contexts, read by the mutation tests.

`-p tests.mutants.coverage_map` records a run into the file that `CAPCARD_COVERAGE_MAP` names. With xdist each worker
writes a file of its own, and the first process joins them.
"""

# The group `mutation` of pyproject.toml is installed by `make mutation` only.
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import coverage
import pytest

from tests.mutants.mutant import PACKAGES

VARIABLE: Final = "CAPCARD_COVERAGE_MAP"
#: Lines before and after a changed statement that distinguish the tests that execute it.
_AROUND: Final = 6
#: More than 0, less than any line counts: a test may execute no line around a statement that runs at import.
_LEAST_WEIGHT: Final = 1e-6


class _Recorder:
    """Switches the context to the test that runs, and measures its CPU time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        include = [f"{Path.cwd()}/{package}/*" for package in PACKAGES]
        self._coverage = coverage.Coverage(
            data_file=str(path.with_suffix(".coverage")), include=include, config_file=False, messages=False
        )
        self._coverage.erase()
        self._coverage.start()
        #: Node id to CPU seconds, of the test and the processes that it started.
        self._durations: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        began = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self._durations[item.nodeid] = sum(os.times()[:4]) - began
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        # Not when pytest is unconfigured: xdist ends a worker 10 seconds later, however large its map is.
        self._coverage.stop()
        self._coverage.save()
        data = self._coverage.get_data()
        # Without contexts of tests that fail without a mutant: their failure shows nothing.
        files = {
            name: {
                str(line): [test for test in contexts if test and test not in self._failed]
                for line, contexts in data.contexts_by_lineno(name).items()
            }
            for name in data.measured_files()
        }
        _write(self._path, self._durations, files)
        self._coverage.erase()


class _Joiner:
    """Joins the files of the workers of xdist."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_unconfigure(self) -> None:
        durations: dict[str, float] = {}
        files: dict[str, dict[str, list[str]]] = {}
        for path in sorted(self._path.parent.glob(f"{self._path.name}.gw*.json")):
            found = json.loads(path.read_text())
            durations |= dict(zip(found["tests"], found["durations"], strict=True))
            for name, lines in found["files"].items():
                joined = files.setdefault(name, {})
                for line, numbers in lines.items():
                    joined.setdefault(line, []).extend(found["tests"][number] for number in numbers)
            path.unlink()
        _write(self._path, durations, files)


def _write(path: Path, durations: dict[str, float], files: dict[str, dict[str, list[str]]]) -> None:
    tests = sorted(durations)
    numbers = {test: number for number, test in enumerate(tests)}
    by_number = {
        name: {line: [numbers[test] for test in found] for line, found in lines.items()}
        for name, lines in files.items()
    }
    path.write_text(json.dumps({"tests": tests, "durations": [durations[test] for test in tests], "files": by_number}))


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        joins = worker is None and bool(config.getoption("numprocesses", None))
        name = Path(f"{path}.{worker}.json") if worker else Path(path)
        config.pluginmanager.register(_Joiner(name) if joins else _Recorder(name))


class CoverageMap:
    """A recorded map."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text())
        self._tests: list[str] = found["tests"]
        self._durations: list[float] = found["durations"]
        self._numbers = {test: number for number, test in enumerate(self._tests)}
        self._files: dict[str, dict[str, list[int]]] = found["files"]

    def executed(self, file: str) -> Counter[str]:
        """The number of lines of a file that each test executes."""
        counts = Counter(number for numbers in self._lines_of(file).values() for number in numbers)
        return Counter({self._tests[number]: count for number, count in counts.items()})

    def particular(self, file: str, tests: Collection[str], lines: range) -> dict[str, float]:
        """How many of `lines` and the lines around them each of `tests` executes; a line counts 1 / its tests."""
        by_line, weights = self._lines_of(file), dict.fromkeys(tests, _LEAST_WEIGHT)
        for line in range(lines.start - _AROUND, lines.stop + _AROUND):
            numbers = by_line.get(str(line), ())
            for test in map(self._tests.__getitem__, numbers):
                if test in weights:
                    weights[test] += 1 / len(numbers)
        return weights

    def seconds(self, test: str) -> float:
        """CPU seconds of a test; 0 for one that was not recorded."""
        number = self._numbers.get(test)
        return self._durations[number] if number is not None else 0.0

    def covering(self, file: str, lines: range) -> list[str]:
        """The tests that execute one of the lines of a file, the fastest first."""
        by_line = self._lines_of(file)
        found = {number for line in lines for number in by_line.get(str(line), ())}
        return [self._tests[number] for number in sorted(found, key=lambda each: (self._durations[each], each))]

    def importing(self, file: str) -> list[str]:
        """The tests that execute some line of a file, the fastest first."""
        found = {number for numbers in self._lines_of(file).values() for number in numbers}
        return [self._tests[number] for number in sorted(found, key=lambda each: (self._durations[each], each))]

    def _lines_of(self, file: str) -> dict[str, list[int]]:
        return next((lines for name, lines in self._files.items() if name.endswith(f"/{file}")), {})
