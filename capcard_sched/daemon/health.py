"""Whether the daemon does its work (W-46), and whether it knows the cluster (W-22)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: A leader without a finished turn of the loop for so many periods, and no less than so many seconds, is unwell.
STALE_PERIODS: Final = 10
STALE_SECONDS: Final = 30.0
#: The same before the initial lists are applied: lists of big clusters take their time, and a restart begins anew.
LIST_SECONDS: Final = 300.0


class Health:
    """Told by the service, asked by the HTTP server. Every method may be called from any thread."""

    def __init__(self, period: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`period`: the longest gap between turns of the loop, seconds."""
        self._period = period
        self.now = clock
        #: Every initial list has been applied.
        self.synced = False
        #: It had been, before a new leader listed afresh.
        self._lists_afresh = False
        self.leading = False
        #: What comes before the lists are applied, in order: name to why it is not done, "" when it is.
        self.steps: Callable[[], Mapping[str, str]] = dict
        #: When the loop last finished a turn, or this replica began to lead; by the clock.
        self.last_cycle = clock()

    def leads(self, leading: bool) -> None:
        """This replica leads from now on, or does not."""
        if leading and not self.leading:
            self.last_cycle = self.now()
        self.leading = leading
        if not leading and self._lists_afresh:
            # It lost the lead in the middle: what it knew before does for a standby, and the watches go on.
            self.lists_applied()

    def lists_applied(self) -> None:
        """The state holds all that the API server had when it was listed."""
        if not self.synced:
            self.last_cycle = self.now()
        self.synced = True
        self._lists_afresh = False

    def lists_outdated(self) -> None:
        """A new leader lists the cluster afresh: what it knows may be incomplete until that is applied."""
        if self.synced:
            self.last_cycle = self.now()
            self._lists_afresh = True
        self.synced = False

    def cycle_done(self) -> None:
        """The loop finished a turn, idle or not."""
        self.last_cycle = self.now()

    def liveness_error(self) -> str:
        """Why a restart might help; "" when all is well. A standby replica is well."""
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
        """What this replica must have done to schedule or take over: name to why it is not, "" when it is.

        Leading is not asked for. To be called where `steps` may be.
        """
        if self.synced:
            return {**dict.fromkeys(self.steps(), ""), "lists-applied": ""}
        return {**self.steps(), "lists-applied": "what was listed is not applied yet"}
