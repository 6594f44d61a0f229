"""The pace of status writes that only show progress: at once while there are few, merged while there are many.

No I/O, no tasks; times come as arguments, in seconds of any clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.controllers.objects import Key

#: Writes per second, and writes at once after a pause.
_RATE, _BURST = 5.0, 10.0
#: Seconds after which an object gets its turn, however many wait.
_LONGEST: Final = 30.0
#: Last writes that are remembered before outdated ones are dropped.
_REMEMBERED: Final = 4096


class ProgressPace:
    """A token bucket for all objects of a controller, and a pause between two writes of one object."""

    def __init__(self, gap: float, now: float) -> None:
        """`gap`: seconds between two writes of one object."""
        self._gap = gap
        self._tokens = _BURST
        self._filled = now
        #: Objects that wait for their turn, in order, and since when.
        self._waiting: dict[Key, float] = {}
        #: Objects whose turn it is.
        self._granted: set[Key] = set()
        self._written: dict[Key, float] = {}

    def take(self, key: Key, now: float) -> bool:
        """Whether the status of an object may be written now; otherwise `release` returns the object later."""
        if key in self._granted:
            return True
        self._fill(now)
        if not self._waiting and self._tokens >= 1 and self._rested(key, now):
            self._tokens -= 1
            return True
        self._waiting.setdefault(key, now)
        return False

    def wrote(self, key: Key, now: float) -> None:
        """A status was written, for whatever reason."""
        self._written[key] = now
        self._waiting.pop(key, None)
        if len(self._written) > _REMEMBERED:
            self._written = {each: at for each, at in self._written.items() if now < at + self._gap}

    def end(self, key: Key) -> None:
        """The pass is over: a grant that it did not use lapses."""
        self._granted.discard(key)

    def release(self, now: float) -> Iterator[Key]:
        """The objects to reconcile because `take` allows their write now."""
        self._fill(now)
        while self._waiting:
            key, since = next(iter(self._waiting.items()))
            if not self._rested(key, now) or (self._tokens < 1 and now < since + _LONGEST):
                return  # those behind it began to wait later
            del self._waiting[key]
            self._tokens = max(0.0, self._tokens - 1)
            self._granted.add(key)
            yield key

    def _rested(self, key: Key, now: float) -> bool:
        return now >= self._written.get(key, -self._gap) + self._gap

    def _fill(self, now: float) -> None:
        self._tokens = min(_BURST, self._tokens + max(0.0, now - self._filled) * _RATE)
        self._filled = now
