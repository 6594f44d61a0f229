"""Time in tests: a clock that stands still, and waits with an end."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


class Clock:
    """Seconds that a test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = float(now)

    def __call__(self) -> float:
        return self.now


async def until(check: Callable[[], object | Awaitable[object]], what: str, *, within: float = 20.0) -> float:
    """Wait until it holds; returns the seconds it took."""
    started = time.monotonic()
    while True:
        found = check()
        if await found if inspect.isawaitable(found) else found:
            return time.monotonic() - started
        assert time.monotonic() - started < within, f"waited {within:g} s for {what}"
        await asyncio.sleep(0.005)
