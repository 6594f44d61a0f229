"""Circuit breaker: stops calls to a webhook that keeps failing."""

from __future__ import annotations

from capcard_sched.framework.api.webhook import BreakerState


class Breaker:
    """Opens after failures in a row, allows one probe after a period, and closes when a call succeeds.

    Times are seconds of a monotonic clock. Not thread-safe.
    """

    def __init__(self, failures: int, period: float) -> None:
        """`failures` in a row open it (0: never) for `period` seconds."""
        self._most = failures
        self._period = period
        self._opened: float | None = None
        self._trying = False
        #: Failures since the last success.
        self.failures = 0

    def state(self, now: float) -> BreakerState:
        """The state at `now`."""
        if self._opened is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._opened + self._period else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a call may be sent; when half open, one at a time."""
        state = self.state(now)
        if state is BreakerState.HALF_OPEN and not self._trying:
            self._trying = True
            return True
        return state is BreakerState.CLOSED

    def succeeded(self) -> bool:
        """Note a response. Returns whether it closed the breaker."""
        closes = self._opened is not None
        self._opened, self._trying, self.failures = None, False, 0
        return closes

    def failed(self, now: float) -> bool:
        """Note a failure. Returns whether it opened the closed breaker."""
        self.failures += 1
        opens = self._opened is None and 0 < self._most <= self.failures
        if opens or self.state(now) is BreakerState.HALF_OPEN:
            self._opened = now
        self._trying = False
        return opens

    def abandoned(self) -> None:
        """Note a call that ended without a result."""
        self._trying = False
