"""The pace of status writes that only show progress: at once while there are few, merged while there are many."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from capcard_sched.kube.writes.status_rate_limiter import StatusRateLimiter
from capcard_sched.kube.writes.work_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from capcard_sched.kube.writes.status_rate_limiter import RatePolicy

K = TypeVar("K", bound="Hashable")
S = TypeVar("S")

# `tests/kube/controllers/test_job_burst.py` counts the writes per pod until a burst of gangs of eight runs. Nine
# creations are 1.13 of them, and 1.3 are allowed. On servers of 15, 100 and 1,000 writes per second these values take
# 1.26, 1.20 and 1.16; no limit takes 1.58, 1.52 and 1.53, and one that ignores other writes 1.58, 1.32 and 1.16.
#: Writes per second. With 20, the second server takes 1.28.
RATE: Final = 5.0
#: Writes at once after a pause: what a user does by hand is shown at once.
BURST: Final = 10.0
#: Seconds after which an object gets its turn, whatever else is written. With 10, the first server takes 1.38.
LONGEST: Final = 30.0


class ProgressPace(Generic[K, S]):
    """Decides when the progress of an object is written.

    All objects share a bucket of tokens, which gets none while a controller makes other writes: a rate per second alone
    lets progress grow with the time that a burst takes. Groups of objects are served in turn. A status with a new phase
    precedes those that show counts: a Job without a status beside running pods appears unprocessed. Times are seconds
    of any clock.
    """

    def __init__(self, policy: RatePolicy[S], group_of: Callable[[K], Hashable], now: float) -> None:
        """`policy`: how often statuses of one object follow each other; its text is the new phase, if there is one."""
        self._policy = policy
        self._limiter = StatusRateLimiter[S](lambda _: policy)
        self._tokens = BURST
        self._filled = now
        #: Passes that make other writes at the moment.
        self._passes = 0
        #: Objects that wait for their turn: with a new phase, and with new counts only.
        self._phases: WorkQueue[K, None] = WorkQueue(lambda *_: None, group_of=group_of)
        self._counts: WorkQueue[K, None] = WorkQueue(lambda *_: None, group_of=group_of)
        #: Objects whose turn it is.
        self._granted: set[K] = set()

    def take(self, key: K, status: S, now: float) -> bool:
        """Whether a status may be written now; otherwise `release` returns its object later."""
        if key in self._granted:
            return True
        self._fill(now)
        until, phase = self._limiter.not_before(key, status), self._policy.text_of(status)
        ahead = self._phases.open or (self._counts.open and not phase)
        if not ahead and self._tokens >= 1 and until <= now:
            self._tokens -= 1
            return True
        if phase:
            self._counts.discard(key)
        if not (self._phases.is_waiting(key) or self._counts.is_waiting(key)):
            queue = self._phases if phase else self._counts
            queue.add(key, None, now)
            if until > now:
                queue.delay(key, until)
        return False

    def record(self, key: K, status: S, now: float) -> None:
        """A status was written, for whatever reason."""
        self._limiter.record(key, status, now)
        self._phases.discard(key)
        self._counts.discard(key)

    def end(self, key: K) -> None:
        """The pass is over: a grant that it did not use lapses."""
        self._granted.discard(key)

    @contextmanager
    def other_writes(self, clock: Callable[[], float]) -> Iterator[None]:
        """While a controller makes writes that are not about progress."""
        self._fill(clock())
        self._passes += 1
        try:
            yield
        finally:
            self._fill(clock())
            self._passes -= 1

    def release(self, now: float) -> Iterator[K]:
        """The objects to reconcile because `take` allows their write now."""
        self._fill(now)
        for queue in (self._phases, self._counts):
            while self._tokens >= 1 or now >= queue.first_added() + LONGEST:
                item = queue.get(now)
                if item is None:
                    break
                queue.done(item.key)
                self._tokens = max(0.0, self._tokens - 1)
                self._granted.add(item.key)
                yield item.key

    def _fill(self, now: float) -> None:
        if not self._passes:
            self._tokens = min(BURST, self._tokens + max(0.0, now - self._filled) * RATE)
        self._filled = now
