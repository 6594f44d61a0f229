"""The budget of one review: checks call `checkpoint` for each entry of a list that a user may make long."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Whether the budget of the present checks is spent; None without a budget.
_is_spent: Final[ContextVar[Callable[[], bool] | None]] = ContextVar("is_spent", default=None)


class BudgetError(Exception):
    """The checks of an object need more than their budget."""


@contextmanager
def budget(is_spent: Callable[[], bool]) -> Iterator[None]:
    """Ends the checks inside with a BudgetError at the first `checkpoint` for which `is_spent` is true."""
    token = _is_spent.set(is_spent)
    try:
        yield
    finally:
        _is_spent.reset(token)


def checkpoint() -> None:
    """Raises BudgetError beyond the budget of the present checks."""
    is_spent = _is_spent.get()
    if is_spent is not None and is_spent():
        raise BudgetError
