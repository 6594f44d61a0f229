"""The tests that execute a line: recorded by a pytest plugin with coverage's contexts, read by the mutation tests.

`-p tests.mutants.coverage_map` records a run into the file that `CAPCARD_COVERAGE_MAP` names.
"""

# The group `mutation` of pyproject.toml is installed by `make mutation` only.
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import coverage
import pytest

from tests.mutants.mutant import PACKAGES

VARIABLE: Final = "CAPCARD_COVERAGE_MAP"


class _Recorder:
    """Switches the context to the test that runs, and measures its time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        include = [f"{Path.cwd()}/{package}/*" for package in PACKAGES]
        self._coverage = coverage.Coverage(
            data_file=str(path.with_suffix(".coverage")), include=include, config_file=False, messages=False
        )
        self._coverage.erase()
        self._coverage.start()
        #: Node id to seconds.
        self._durations: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            self._durations[item.nodeid] = time.perf_counter() - began
            self._coverage.switch_context("")

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        data = self._coverage.get_data()
        tests = sorted(self._durations)
        numbers = {test: number for number, test in enumerate(tests)}
        files = {
            name: {
                str(line): [numbers[test] for test in contexts if test]
                for line, contexts in data.contexts_by_lineno(name).items()
            }
            for name in data.measured_files()
        }
        durations = [self._durations[test] for test in tests]
        self._path.write_text(json.dumps({"tests": tests, "durations": durations, "files": files}))


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        config.pluginmanager.register(_Recorder(Path(path)))


class CoverageMap:
    """A recorded map."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text())
        self._tests: list[str] = found["tests"]
        self._durations: list[float] = found["durations"]
        self._files: dict[str, dict[str, list[int]]] = found["files"]

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
