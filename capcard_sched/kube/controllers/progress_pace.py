"""The pace of status writes that only show progress: at once while there are few, merged while there are many.

A rate per second lets these writes grow with the time that a burst takes. While the controller creates and deletes
objects, most of their number is a share of those writes. A write that shows a new phase precedes those that show
counts: a Job without a status beside running pods looks as if no controller had seen it.

No I/O, no tasks; times come as arguments, in seconds of any clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.controllers.objects import Key

#: Writes per second, without and with other writes, and writes at once after a pause.
_RATE, _RATE_BESIDE, _BURST = 5.0, 0.2, 10.0
#: Writes of progress per other write.
_SHARE: Final = 1 / 12
#: Seconds for which another write has effect: at least, and at most.
_LEAST, _MOST = 2.0, 30.0
#: Seconds after which an object gets its turn, however many wait, without and with other writes.
_LONGEST, _LONGEST_BESIDE = 30.0, 120.0
#: Seconds after which an object with a new phase gets its turn, with and without other writes.
_LONGEST_PHASE: Final = 20.0
#: Last writes that are remembered before outdated ones are dropped.
_REMEMBERED: Final = 4096


class ProgressPace:
    """A token bucket for all objects of a controller, and a pause between two writes of one object."""

    def __init__(self, gap: float, now: float) -> None:
        """`gap`: seconds between two writes of one object."""
        self._gap = gap
        self._tokens = _BURST
        self._filled = now
        #: Until when other writes have effect.
        self._busy_until = now
        #: Objects that wait for their turn, in order, and since when: with a new phase, and with new counts only.
        self._phases: dict[Key, float] = {}
        self._counts: dict[Key, float] = {}
        #: Objects whose turn it is.
        self._granted: set[Key] = set()
        self._written: dict[Key, float] = {}

    def take(self, key: Key, now: float, *, phase: bool = False) -> bool:
        """Whether the status of an object may be written now; otherwise `release` returns the object later.

        `phase`: the write shows a new phase.
        """
        if key in self._granted:
            return True
        self._fill(now)
        ahead = self._phases or (self._counts and not phase)
        if not ahead and self._tokens >= 1 and self._rested(key, now):
            self._tokens -= 1
            return True
        if phase:
            self._counts.pop(key, None)
            self._phases.setdefault(key, now)
        elif key not in self._phases:
            self._counts.setdefault(key, now)
        return False

    def wrote(self, key: Key, now: float) -> None:
        """A status was written, for whatever reason."""
        self._written[key] = now
        self._phases.pop(key, None)
        self._counts.pop(key, None)
        if len(self._written) > _REMEMBERED:
            self._written = {each: at for each, at in self._written.items() if now < at + self._gap}

    def worked(self, writes: int, seconds: float, now: float) -> None:
        """Other writes of a pass are made: how many, and how long it took."""
        self._fill(now)
        self._tokens = min(_BURST, self._tokens + writes * _SHARE)
        self._busy_until = max(self._busy_until, now + min(max(seconds, _LEAST), _MOST))

    def end(self, key: Key) -> None:
        """The pass is over: a grant that it did not use lapses."""
        self._granted.discard(key)

    def release(self, now: float) -> Iterator[Key]:
        """The objects to reconcile because `take` allows their write now."""
        self._fill(now)
        yield from self._release(self._phases, now, _LONGEST_PHASE)
        yield from self._release(self._counts, now, _LONGEST_BESIDE if now < self._busy_until else _LONGEST)

    def _release(self, waiting: dict[Key, float], now: float, longest: float) -> Iterator[Key]:
        while waiting:
            key, since = next(iter(waiting.items()))
            if not self._rested(key, now) or (self._tokens < 1 and now < since + longest):
                return  # those behind it began to wait later
            del waiting[key]
            self._tokens = max(0.0, self._tokens - 1)
            self._granted.add(key)
            yield key

    def _rested(self, key: Key, now: float) -> bool:
        return now >= self._written.get(key, -self._gap) + self._gap

    def _fill(self, now: float) -> None:
        passed = max(0.0, now - self._filled)
        calm = min(passed, max(0.0, now - self._busy_until))
        self._tokens = min(_BURST, self._tokens + calm * _RATE + (passed - calm) * _RATE_BESIDE)
        self._filled = now
