"""The budget of CPU time of one review: checks call `checkpoint` for each entry of a list that a user may make long."""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: CPU time of the thread, in seconds, at which the checks end; None without a budget.
_end: Final[ContextVar[float | None]] = ContextVar("end", default=None)


class BudgetError(Exception):
    """The checks of an object need more CPU time than their budget."""


@contextmanager
def budget(seconds: float) -> Iterator[None]:
    """Ends the checks inside with a BudgetError at the first `checkpoint` after so much CPU time of this thread."""
    token = _end.set(time.thread_time() + seconds)
    try:
        yield
    except BudgetError:
        raise BudgetError(f"the checks take more than {seconds * 1000:.0f} ms") from None
    finally:
        _end.reset(token)


def checkpoint() -> None:
    """Raises BudgetError beyond the budget of the present checks."""
    end = _end.get()
    if end is not None and time.thread_time() > end:
        raise BudgetError
