"""A progress bar over virtual time."""

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


class SimulationProgress:
    """Draws a progress bar on standard error for runs longer than a second."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or EscapingConsole(stderr=True)
        self._started = self._drawn = time.monotonic()
        self._bar: Progress | None = None

    def update(self, now: int, horizon: int) -> None:
        """The run is at `now`; scheduled changes reach to `horizon` (virtual microseconds)."""
        wall = time.monotonic()
        if wall - self._started < _PATIENCE_SECONDS or wall - self._drawn < _REFRESH_SECONDS:
            return
        self._drawn = wall
        if self._bar is None:
            columns = (TextColumn("simulating"), BarColumn(), TextColumn("{task.fields[shown]}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True, auto_refresh=False)
            self._bar.add_task("simulating", total=None, shown="")
            self._bar.start()
        shown = f"{span(now / _MICROS)} of {span(horizon / _MICROS)}"
        self._bar.update(self._bar.task_ids[0], total=max(horizon, 1), completed=now, shown=shown)
        self._bar.refresh()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
