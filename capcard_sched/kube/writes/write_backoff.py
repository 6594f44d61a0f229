"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.kube.writes.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable

#: Beyond this many doublings every wait is the longest one.
_MAX_DOUBLINGS = 32


class WriteBackoff(NamedTuple):
    """Waits that double, in seconds: `first`, then twice as long each time, never above `longest`.

    Each is shortened by up to a quarter at random, so that those who failed together do not return together.
    """

    first: float
    longest: float
    draw: Callable[[], float] = random.random

    def wait(self, attempt: int, at_least: float = 0.0) -> float:
        """Seconds before the attempt after the `attempt`-th one (from 1), and no sooner than the server asked."""
        grown = min(self.longest, self.first * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS))
        return max(grown * (1.0 - 0.25 * self.draw()), at_least)


class _BackoffRecord:
    __slots__ = ("failures", "text", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        self.text = ""


class RefusedWrites:
    """Pods that were refused, by uid: how often in a row, and what was told about it.

    A pod is forgotten when it succeeds, goes, or was not refused again for twice the longest wait after its last one
    ended. Bounded: of very many, the oldest are forgotten and start anew.
    """

    def __init__(self, backoff: WriteBackoff, clock: Callable[[], float], capacity: int = 65_536) -> None:
        self._backoff = backoff
        self._clock = clock
        self._records: Lru[str, _BackoffRecord] = Lru(capacity)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, uid: str) -> bool:
        """Whether the pod was refused a while ago."""
        record = self._records.get(uid)
        return record is not None and self._clock() <= record.until + 2 * self._backoff.longest

    def refused(self, uid: str, at_least: float = 0.0) -> float:
        """Count one refusal. Returns seconds to leave the pod alone."""
        now = self._clock()
        record = self._records.get(uid)
        if record is None or uid not in self:
            record = _BackoffRecord()
            self._records.put(uid, record)
        record.failures += 1
        wait = self._backoff.wait(record.failures, at_least)
        record.until = now + wait
        return wait

    def is_news(self, uid: str, text: str) -> bool:
        """Whether this differs from what was last told about the pod; it counts as told from now on."""
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
        """The pod is bound, gone, or somebody else's now."""
        self._records.pop(uid)

    def clear(self) -> None:
        """Forget all."""
        self._records.clear()
