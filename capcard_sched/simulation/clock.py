"""Virtual time: microseconds since the start of the run, timestamps, and timers.

The run starts at `EPOCH` (2026-01-01T00:00:00Z) whatever the wall clock, so that equal input gives equal bytes.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

#: Unix seconds of virtual time 0.
EPOCH = 1_767_225_600
SECOND = 1_000_000


class Timer:
    """One timer. `cancel` removes it."""

    __slots__ = ("action", "due", "live")

    def __init__(self, due: int, action: Callable[[], None]) -> None:
        self.due = due
        self.action = action
        self.live = True

    def cancel(self) -> None:
        """Cancel the timer; no effect when it has fired."""
        self.live = False


class VirtualClock:
    """The time of the run (`now`, microseconds since its start) and its timers."""

    def __init__(self, begin: int = 0) -> None:
        """`begin`: the first moment, microseconds; negative before `EPOCH`."""
        self.now = begin
        self._heap: list[tuple[int, int, Timer]] = []
        self._made = 0

    @property
    def unix(self) -> float:
        return EPOCH + self.now / SECOND

    def timestamp(self, moment: int | None = None) -> str:
        """Formats `moment` (default: now) as the API server does: RFC 3339, UTC, whole seconds."""
        return format_timestamp(EPOCH + (self.now if moment is None else moment) // SECOND)

    def after(self, delay: int, action: Callable[[], None]) -> Timer:
        """Call `action` in `delay` microseconds. Timers due at the same time fire in the order of their creation."""
        timer = Timer(self.now + delay, action)
        self._made += 1
        heapq.heappush(self._heap, (timer.due, self._made, timer))
        return timer

    def next_due(self) -> int | None:
        """The time of the next live timer, None without one."""
        while self._heap and not self._heap[0][2].live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire_next(self) -> None:
        """Advance to the next timer and fire it. There must be one (see `next_due`)."""
        due, _, timer = heapq.heappop(self._heap)
        self.now = max(self.now, due)
        timer.live = False
        timer.action()
