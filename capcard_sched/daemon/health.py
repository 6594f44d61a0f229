"""Liveness and readiness of the daemon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Number of schedule periods, and seconds at least, without a finished cycle after which a leader is not alive.
STALE_PERIODS: Final = 10
STALE_SECONDS: Final = 30.0
#: Seconds of the same before the initial lists are applied: large lists take long, and a restart begins them again.
LIST_SECONDS: Final = 300.0


class Health:
    """State behind the probes: the service updates it, the HTTP server reads it. Thread-safe."""

    def __init__(self, period: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`period`: longest gap between cycles, in seconds."""
        self._period = period
        self.now = clock
        #: Every initial list is applied.
        self.synced = False
        #: The lists were applied before a new leader listed again.
        self._relisting = False
        self.leading = False
        #: Steps before the lists are applied, in order: name to the reason why it is pending, "" when done.
        self.steps: Callable[[], Mapping[str, str]] = dict
        #: Time of the last finished cycle, or of the begin of leadership; by the clock.
        self.last_cycle = clock()

    def leads(self, leading: bool) -> None:
        """Record a change of leadership."""
        if leading and not self.leading:
            self.last_cycle = self.now()
        self.leading = leading
        if not leading and self._relisting:
            # Leadership was lost during the relist: the earlier state suffices for a standby, and watches continue.
            self.lists_applied()

    def lists_applied(self) -> None:
        """Record that the state contains every initial list."""
        if not self.synced:
            self.last_cycle = self.now()
        self.synced = True
        self._relisting = False

    def lists_outdated(self) -> None:
        """Record that a new leader lists again: the state may be stale until that is applied."""
        if self.synced:
            self.last_cycle = self.now()
            self._relisting = True
        self.synced = False

    def cycle_done(self) -> None:
        """Record a finished cycle, idle or not."""
        self.last_cycle = self.now()

    def liveness_error(self) -> str:
        """Reason for a restart, "" without one. A standby is always alive."""
        if not self.leading:
            return ""
        silent = self.now() - self.last_cycle
        if not self.synced:
            if silent <= LIST_SECONDS:
                return ""
            return f"leading, and the initial lists are not applied after {silent:.0f} s (limit {LIST_SECONDS:.0f} s)"
        limit = max(STALE_SECONDS, STALE_PERIODS * self._period)
        if silent <= limit:
            return ""
        return (
            f"leading, and no scheduling cycle was completed for {silent:.0f} s "
            f"(limit {limit:.0f} s: {STALE_PERIODS} schedule periods of {self._period:g} s, "
            f"no less than {STALE_SECONDS:.0f} s)"
        )

    def readiness(self) -> dict[str, str]:
        """Steps before this replica can schedule or take over: name to the reason why it is pending, "" when done.

        Leadership is not required. Must be called in the event loop, as `steps`.
        """
        if self.synced:
            return {**dict.fromkeys(self.steps(), ""), "lists-applied": ""}
        return {**self.steps(), "lists-applied": "the lists are not applied yet"}
