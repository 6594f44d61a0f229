"""Exit statuses, and the report of invalid input and of plugin errors, shared by all commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from capcard_sched.cli.output import put_error
from capcard_sched.model.quoting import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.framework.core import Core, StepResult
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent, ObjectRef
    from capcard_sched.model.refusal import Refusal

#: Exit status: the input or the command line is invalid.
BAD_INPUT: Final = 2
#: Exit status: a defect of the program.
INTERNAL_ERROR: Final = 1

#: After an error about missing rights to read.
READER_HINT: Final = "ask for ClusterRole capcard-sched-reader (manifests/readers)"


class BadInputError(Exception):
    """Invalid flag or file; the text is printed."""


def usage_error(text: str) -> int:
    """Print one error line per line of `text`. Returns the exit status."""
    for line in text.splitlines():
        put_error(f"error: {line}")
    return BAD_INPUT


class StepRecorder(Protocol):
    """Records the steps of a core."""

    def record(
        self,
        deltas: Sequence[Delta],
        now: float,
        intents: Sequence[Intent],
        refusals: Iterable[tuple[ObjectRef, Refusal]],
    ) -> None:
        """Record one step: what went in at `now` (Unix seconds), and what came out."""


class FailureWatch:
    """Steps the core, counts plugin errors by (plugin, hook, error), and keeps the warnings about queues."""

    def __init__(self, core: Core, *recorders: StepRecorder) -> None:
        """`recorders` record every step."""
        self._core, self._recorders = core, recorders
        self.failures: dict[tuple[str, str, str], int] = {}
        #: Errors of external systems, by the same key: reported, without effect on the exit status.
        self.outside: dict[tuple[str, str, str], int] = {}
        #: Warnings about queues, each once, in order.
        self.warnings: dict[str, None] = {}

    def step(self, deltas: Sequence[Delta], now: float) -> StepResult:
        """Step the core; exceptions pass through."""
        result = self._core.step(deltas, now)
        for recorder in self._recorders:
            recorder.record(deltas, now, result.intents, result.report.refusals)
        for failure in result.report.errors:
            key = (failure.plugin, failure.hook, failure.error)
            counts = self.outside if failure.outside else self.failures
            counts[key] = counts.get(key, 0) + 1
        for ref, message in result.report.warnings:
            self.warnings[f"{ref.kind} {ref.name}: {message}"] = None
        return result

    def full_session(self, now: float, *, read_only: bool) -> None:
        """One session that attempts every job, so that all figures are of one state; with `read_only` it attempts none.

        `now` in Unix seconds.
        """
        self._core.pause_actions(paused=read_only)
        if not read_only:
            self._core.keep_silent()
        self._core.resync()
        self.step((), now)

    def report(self) -> int:
        """Print one line per distinct error. Returns the exit status of the run."""
        for (plugin, hook, error), times in self.outside.items():
            put_error(f"warning: plugin {plugin}, {hook}: {error} ({plural(times, 'time')})")
        for (plugin, hook, error), times in self.failures.items():
            origin = f"plugin {plugin}, {hook}" if plugin else hook
            put_error(f"internal error: {origin}: {error} ({plural(times, 'time')}; the results may be incomplete)")
        return INTERNAL_ERROR if self.failures else 0
