"""Progress bars with a rate and the estimated time that remains."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from capcard_sched.model.timestamps import span
from capcard_sched.reports.terminal import EscapingConsole

if TYPE_CHECKING:
    from rich.console import Console

#: Seconds: shorter runs show no bar.
_PATIENCE_SECONDS = 1.0
_REFRESH_SECONDS = 0.1
_MICROS = 1_000_000


class ProgressBar:
    """Draws a progress bar on standard error for work that takes longer than a second."""

    def __init__(self, label: str, console: Console | None = None) -> None:
        self._label, self._console = label, console or EscapingConsole(stderr=True)
        self._started = self._drawn = time.monotonic()
        self._bar: Progress | None = None

    def update(self, done: int, total: int) -> None:
        """`done` of `total` parts are done."""
        wall = time.monotonic()
        if wall - self._started < _PATIENCE_SECONDS or wall - self._drawn < _REFRESH_SECONDS:
            return
        self._drawn = wall
        if self._bar is None:
            columns = (TextColumn(self._label), BarColumn(), TextColumn("{task.fields[shown]}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True, auto_refresh=False)
            self._bar.add_task(self._label, total=None, shown="")
            self._bar.start()
        rate = done / (wall - self._started)
        shown = f"{self._shown(done, total, rate)}, {span((total - done) / rate) if rate else '?'} left"
        self._bar.update(self._bar.task_ids[0], total=max(total, 1), completed=done, shown=shown)
        self._bar.refresh()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _shown(self, done: int, total: int, rate: float) -> str:
        """The numbers, and the rate per second."""
        return f"{done} of at most {total}, {rate:.1f}/s"


class SimulationProgress(ProgressBar):
    """A progress bar over virtual time, in microseconds."""

    def __init__(self, console: Console | None = None, *, label: str = "simulating") -> None:
        super().__init__(label, console)

    def _shown(self, done: int, total: int, rate: float) -> str:
        return f"{span(done / _MICROS)} of {span(total / _MICROS)}, {span(rate / _MICROS)}/s"
