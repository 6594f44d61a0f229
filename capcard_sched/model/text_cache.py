"""A cache of results for texts of users, bounded in bytes: long texts are computed anew, or few of them are kept."""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Characters of the arguments of a call up to which its result is kept.
SHORT: Final = 1024


def text_cache(maxsize: int, *, short: int = SHORT, longer: int = 0) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """An `lru_cache` for functions of texts, and of tuples of them.

    Args:
        maxsize: Number of results for short arguments.
        short: Characters of short arguments.
        longer: Number of results for longer ones.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        cached: Any = lru_cache(maxsize)(function)
        long: Any = lru_cache(longer)(function) if longer else function

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            size = len(args[0]) if len(args) == 1 and isinstance(args[0], str) else length_of(args)  # most have one
            found: _R = (cached if size <= short else long)(*args, **kwargs)
            return found

        return call

    return decorate


def length_of(value: object) -> int:
    """Characters of the texts in a value; a tuple has one more per item."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, tuple):
        return len(value) + sum(map(length_of, value))
    return 0
