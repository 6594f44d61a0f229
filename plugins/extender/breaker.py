"""When the webhook is left alone because it keeps failing."""

from __future__ import annotations

from enum import IntEnum


class BreakerState(IntEnum):
    """As the metric tells it."""

    CLOSED = 0
    #: One call may try whether the webhook is back.
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """Opens after failures in a row, lets one call through after a while, and closes when that succeeds.

    Moments are seconds of any clock that only goes forward. Not safe to be used by two threads.
    """

    def __init__(self, failures: int, period: float) -> None:
        """`failures` in a row open it, 0 never; `period` in seconds is how long it stays open."""
        self._most = failures
        self._period = period
        self._opened: float | None = None
        self._trying = False
        #: Failures since the last success.
        self.failures = 0

    def state(self, now: float) -> BreakerState:
        """Whether calls may be made at `now`."""
        if self._opened is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._opened + self._period else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether one more call may be made; when half open, only one until it ends."""
        state = self.state(now)
        if state is BreakerState.HALF_OPEN and not self._trying:
            self._trying = True
            return True
        return state is BreakerState.CLOSED

    def succeeded(self) -> bool:
        """A call had an answer. True when that closed the breaker."""
        closes = self._opened is not None
        self._opened, self._trying, self.failures = None, False, 0
        return closes

    def failed(self, now: float) -> bool:
        """A call had none. True when that opened the breaker, which was closed."""
        self.failures += 1
        opens = self._opened is None and 0 < self._most <= self.failures
        if opens or self.state(now) is BreakerState.HALF_OPEN:
            self._opened = now
        self._trying = False
        return opens

    def abandoned(self) -> None:
        """A call ended before it could show anything."""
        self._trying = False
