"""Backoff between attempts, and per rejected pod."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.kube.writes.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable

#: Number of doublings after which every wait is the longest one.
_MAX_DOUBLINGS = 32


class WriteBackoff(NamedTuple):
    """Exponential backoff in seconds: `first`, doubling, at most `longest`.

    Jitter shortens each wait by up to that share, so that writes that failed together are not retried together.
    """

    first: float
    longest: float
    draw: Callable[[], float] = random.random
    jitter: float = 0.25

    def wait(self, attempt: int, at_least: float = 0.0) -> float:
        """Seconds before the attempt after the `attempt`-th one (from 1), at least `at_least` (`Retry-After`)."""
        grown = min(self.longest, self.first * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS))
        return max(grown * (1.0 - self.jitter * self.draw()), at_least)


class _BackoffRecord:
    __slots__ = ("failures", "text", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        self.text = ""


class RefusedWrites:
    """Rejected pods by uid: number of consecutive rejections and last reported text.

    A pod is forgotten when it succeeds, is gone, or was not rejected for twice the longest wait after its last backoff.
    Bounded: the least recently used pods are evicted.
    """

    def __init__(self, backoff: WriteBackoff, clock: Callable[[], float], capacity: int = 65_536) -> None:
        self._backoff = backoff
        self._clock = clock
        self._records: Lru[str, _BackoffRecord] = Lru(capacity)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, uid: str) -> bool:
        """Whether the pod was rejected, until twice the longest wait after the end of its backoff."""
        record = self._records.get(uid)
        return record is not None and self._clock() <= record.until + 2 * self._backoff.longest

    def refused(self, uid: str, at_least: float = 0.0) -> float:
        """Count one rejection. Returns the backoff in seconds."""
        now = self._clock()
        record = self._records.get(uid)
        if record is None or uid not in self:
            record = _BackoffRecord()
            self._records.put(uid, record)
        record.failures += 1
        wait = self._backoff.wait(record.failures, at_least)
        record.until = now + wait
        return wait

    def is_new(self, uid: str, text: str) -> bool:
        """Whether the text differs from the last reported one, which it replaces."""
        record = self._records.get(uid)
        if record is None:
            record = _BackoffRecord()
            record.until = self._clock()
            self._records.put(uid, record)
        if record.text == text:
            return False
        record.text = text
        return True

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._records.pop(uid)

    def clear(self) -> None:
        self._records.clear()


class RetryBackoff:
    """Delays between `first` and `longest` seconds; jitter takes away up to half of the doubled delay."""

    def __init__(self, first: float = 0.2, longest: float = 30.0, rng: random.Random | None = None) -> None:
        self._first, self._failures = first, 0
        self._backoff = WriteBackoff(2 * first, longest, rng.random if rng is not None else random.random, jitter=0.5)

    def next(self) -> float:
        """Count one failure and return the delay before the next attempt, in seconds."""
        self._failures += 1
        return self._backoff.wait(self._failures, self._first)

    def reset(self) -> None:
        """Start from `first` again, after a success."""
        self._failures = 0
