"""Progress of long answers on a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from capcard_sched.reports.progress import progress_on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def shown_simulation(verb: str = "simulating") -> Iterator[Callable[[int, int], None] | None]:
    """A function for the progress of a simulation, shown where standard error is a terminal; None elsewhere."""
    progress = progress_on_terminal(verb)
    try:
        yield None if progress is None else progress.simulated
    finally:
        if progress is not None:
            progress.close()


@contextmanager
def shown_count(verb: str, noun: str) -> Iterator[Callable[[int, int], None]]:
    """A function for the number of `noun` that are done, and their total, shown as by `shown_simulation`."""
    progress = progress_on_terminal(verb)
    try:
        yield lambda done, total: None if progress is None else progress.counted(done, total, noun)
    finally:
        if progress is not None:
            progress.close()
