"""Liveness and readiness of the daemon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Number of schedule periods, and seconds at least, without a finished cycle after which a leader counts as slow.
SLOW_PERIODS: Final = 10
SLOW_SECONDS: Final = 30.0
#: Seconds of the same before the initial lists are applied: large lists take long.
LIST_SECONDS: Final = 300.0


class HealthState:
    """Checks of one process. Without cycles, and with all its work in the event loop, it is alive while it responds."""

    def liveness_error(self) -> str:
        """Reason for a restart, or ""."""
        return ""

    def slow_cycle(self) -> str:
        """Report about a slow scheduling cycle, or ""."""
        return ""

    def readiness(self) -> Mapping[str, str]:
        """Steps before the replica can do its work: name to the reason why it is pending, or ""."""
        raise NotImplementedError


class Health(HealthState):
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
        #: Whether the scheduler thread runs.
        self.alive: Callable[[], bool] = lambda: True
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
        """Reason for a restart, "" without one: only a dead scheduler thread is one, however long sessions take."""
        return "" if self.alive() else "the scheduler thread is dead"

    def cycle_age(self) -> float:
        """Seconds since the last finished cycle of a leader; 0.0 on a standby."""
        return max(0.0, self.now() - self.last_cycle) if self.leading else 0.0

    def slow_cycle(self) -> str:
        """Report about a leader without a finished cycle for too long; "" otherwise."""
        age = self.cycle_age()
        if self.leading and not self.synced:
            if age <= LIST_SECONDS:
                return ""
            return f"the initial lists are not applied after {age:.0f} s (limit {LIST_SECONDS:.0f} s)"
        limit = max(SLOW_SECONDS, SLOW_PERIODS * self._period)
        if age <= limit:
            return ""
        return (
            f"no scheduling cycle completed for {age:.0f} s (limit {limit:.0f} s: {SLOW_PERIODS} schedule periods of "
            f"{self._period:g} s, at least {SLOW_SECONDS:.0f} s)"
        )

    def readiness(self) -> dict[str, str]:
        """Steps before this replica can schedule or take over: name to the reason why it is pending, "" when done.

        Leadership is not required. Must be called in the event loop, as `steps`.
        """
        if self.synced:
            return {**dict.fromkeys(self.steps(), ""), "lists-applied": ""}
        return {**self.steps(), "lists-applied": "the lists are not applied yet"}
