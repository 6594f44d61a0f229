"""Failures that the core contained during a run: a wrong answer must not look like a right one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from capcard_sched.cli.exit_codes import INTERNAL_ERROR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import Core, StepResult
    from capcard_sched.model.deltas import Delta
    from capcard_sched.reports.recording import Recorder


class FailureWatch:
    """Steps the core and keeps what failed inside: (plugin, hook, error) to how often it did."""

    def __init__(self, core: Core | Recorder[StepResult]) -> None:
        self._core = core
        self.failures: dict[tuple[str, str, str], int] = {}
        #: The same of what others failed in or refused: told, but the run is right.
        self.outside: dict[tuple[str, str, str], int] = {}

    def step(self, deltas: Sequence[Delta], now: float) -> StepResult:
        """Step the core; exceptions pass through."""
        result = self._core.step(deltas, now)
        for failure in result.report.errors:
            key = (failure.plugin, failure.hook, failure.error)
            counts = self.outside if failure.outside else self.failures
            counts[key] = counts.get(key, 0) + 1
        return result

    def report(self) -> int:
        """Say what failed, a line each. Returns the exit status of the run."""
        for (plugin, hook, error), times in self.outside.items():
            print(f"warning: plugin {plugin}, {hook}: {error} ({times} times)", file=sys.stderr)
        for (plugin, hook, error), times in self.failures.items():
            who = f"plugin {plugin}, {hook}" if plugin else hook
            print(f"internal error: {who}: {error} ({times} times; the results may be incomplete)", file=sys.stderr)
        return INTERNAL_ERROR if self.failures else 0
