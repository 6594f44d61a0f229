"""Progress of long commands on a terminal: the amount done, the rate and the estimated time left."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from capcard_sched.model.timestamps import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

#: Seconds: shorter commands show nothing.
_PATIENCE_SECONDS = 1.0
_REFRESH_SECONDS = 0.1
_MICROS = 1_000_000
#: Characters of the bar.
_CELLS = 20
#: To the beginning of the line, which is cleared.
_AGAIN = "\r\x1b[K"


@contextmanager
def shown_progress(verb: str) -> Iterator[Progress]:
    """The progress of a verb, `simulating`; it shows nothing where standard error is no terminal."""
    progress = Progress(verb, sys.stderr if sys.stderr.isatty() else None)
    try:
        yield progress
    finally:
        progress.close()


class Progress:
    """One line for commands that take longer than a second."""

    def __init__(self, verb: str, stream: IO[str] | None) -> None:
        """`stream`: a terminal; None shows nothing."""
        self._verb, self._stream = verb, stream
        self._started = self._drawn = time.monotonic()
        self._is_shown = False

    def simulated(self, now: int, horizon: int) -> None:
        """A simulation is at `now`; scheduled changes reach to `horizon` (virtual microseconds)."""

        def text(seconds: float) -> str:
            rate = now / _MICROS / seconds
            return f"{span(now / _MICROS)} of {span(horizon / _MICROS)}, {span(rate)} per second"

        self._draw(now, max(now, horizon), text)

    def counted(self, done: int, total: int, noun: str) -> None:
        """`done` objects of `total` are done; a total of 0 is unknown."""

        def text(seconds: float) -> str:
            return f"{done}{f' of {total}' if total else ''} {noun}, {done / seconds:.0f} per second"

        self._draw(done, total, text)

    def close(self) -> None:
        """Remove the line."""
        if self._stream is not None and self._is_shown:
            self._stream.write(_AGAIN)
            self._stream.flush()

    def _draw(self, done: float, total: float, text: Callable[[float], str]) -> None:
        if self._stream is None:
            return
        wall = time.monotonic()
        seconds = wall - self._started
        if seconds < _PATIENCE_SECONDS or wall - self._drawn < _REFRESH_SECONDS:
            return
        self._drawn, self._is_shown = wall, True
        share = min(1.0, done / total) if total else 0.0
        cells = round(share * _CELLS)
        bar = f"{'█' * cells}{'░' * (_CELLS - cells)} {share:4.0%} " if total else ""
        left = f", {span(round(seconds * (1 - share) / share))} left" if share else ""
        self._stream.write(f"{_AGAIN}{self._verb} {bar}{text(seconds)}{left}")
        self._stream.flush()
