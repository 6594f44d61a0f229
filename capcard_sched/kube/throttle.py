"""A client-side limit on requests: `qps` on average, `burst` at once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Throttle:
    """A token bucket with debt: requests pass in FIFO order and wait no longer than the rate requires."""

    def __init__(self, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`qps`: requests per second, 0 for no limit. `burst`: requests that pass at once after a pause, at least 1."""
        self._qps = qps
        self._burst = float(max(burst, 1))
        self._clock = clock
        self._tokens = self._burst
        self._filled = clock()

    def reserve(self) -> float:
        """Take a token; returns seconds to wait before using it."""
        if self._qps <= 0:
            return 0.0
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._qps) - 1.0
        self._filled = now
        return max(0.0, -self._tokens / self._qps)

    async def wait(self) -> None:
        """Take a token and wait until it is valid."""
        delay = self.reserve()
        if delay > 0:
            await asyncio.sleep(delay)
