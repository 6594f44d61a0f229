"""Time in tests: a clock that stands still, and waits with an end."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


class Clock:
    """Seconds that a test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = float(now)

    def __call__(self) -> float:
        return self.now


@overload
async def until(check: Callable[[], Awaitable[T]], what: str, *, within: float = 60.0) -> T: ...
@overload
async def until(check: Callable[[], T], what: str, *, within: float = 60.0) -> T: ...
async def until(check: Callable[[], Any], what: str, *, within: float = 60.0) -> Any:
    """Polls until the result is true and returns it.

    Raises:
        AssertionError: not `within` these seconds; names `what` and the last result.
    """
    deadline, pause = time.monotonic() + within, 0.002
    while True:
        found = check()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {within:g} s for {what}; the last answer was {value!r}"
        await asyncio.sleep(pause)
        pause = min(0.05, pause * 1.5)


async def seconds_until(check: Callable[[], object], what: str, *, within: float = 60.0) -> float:
    """The seconds that `until` takes."""
    started = time.monotonic()
    await until(check, what, within=within)
    return time.monotonic() - started
