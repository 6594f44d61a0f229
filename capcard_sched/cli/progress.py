"""Progress of long answers on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def shown_progress(label: str, *, of_time: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how much of a total is done, on standard error where it is a terminal.

    `of_time`: both are virtual microseconds.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from capcard_sched.reports.progress import ProgressBar, SimulationProgress

    bar = SimulationProgress(label=label) if of_time else ProgressBar(label)
    try:
        yield bar.update
    finally:
        bar.close()
