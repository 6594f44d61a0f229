"""A queue in which each object waits once, with the latest of what is to be written about it.

Pure bookkeeping: no I/O, no tasks; times come as arguments, in seconds of any steady clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

#: So many keys that no longer wait may stand in the line before it is cleaned.
_SPARE = 256


class WorkItem(NamedTuple, Generic[K, V]):
    """One entry that somebody writes now: give it back with `done` or `retry`."""

    key: K
    value: V
    #: When it began to wait.
    since: float


class _Waiting(Generic[V]):
    __slots__ = ("since", "value")

    def __init__(self, value: V, since: float) -> None:
        self.value = value
        self.since = since


class WorkQueue(Generic[K, V]):
    """Values by key, first come first served, one write per key at a time.

    `merge(old, new)` says what is left of two values that wait together. With `capacity`, the entries that wait longest
    are dropped for new ones.
    """

    def __init__(self, merge: Callable[[V, V], V], capacity: int | None = None) -> None:
        self._merge = merge
        self._capacity = capacity
        self._waiting: dict[K, _Waiting[V]] = {}
        #: Keys to look at next; may name keys that no longer wait, which are skipped.
        self._ready: deque[K] = deque()
        self._due: list[tuple[float, int, K]] = []
        self._delayed: dict[K, int] = {}
        self._in_flight: set[K] = set()
        #: Keys in flight whose value is not to be repeated.
        self._void: set[K] = set()
        self._sequence = 0

    def __len__(self) -> int:
        """Entries that wait, and those in flight."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def open(self) -> int:
        """Entries that can be written now or are being written: all but those put off."""
        return len(self._waiting) - len(self._delayed) + len(self._in_flight)

    def is_in_flight(self, key: K) -> bool:
        """Whether somebody writes this key now."""
        return key in self._in_flight

    def put(self, key: K, value: V, now: float) -> int:
        """Add a value, or merge it into the one that waits. Returns how many entries were dropped for it."""
        present = self._waiting.get(key)
        if present is not None:
            present.value = self._merge(present.value, value)
            return 0
        self._waiting[key] = _Waiting(value, now)
        if key not in self._in_flight:
            self._ready.append(key)
            if len(self._ready) > 2 * len(self._waiting) + _SPARE:
                self._ready = deque(key for key in dict.fromkeys(self._ready) if key in self._waiting)
        if self._capacity is None or len(self._waiting) <= self._capacity:
            return 0
        oldest = next(iter(self._waiting))
        self.discard(oldest)
        return 1

    def take(self, now: float) -> WorkItem[K, V] | None:
        """The entry that waits longest of those that may be written now."""
        while self._due and self._due[0][0] <= now:
            _, sequence, key = heapq.heappop(self._due)
            if self._delayed.get(key) == sequence:
                del self._delayed[key]
                self._ready.append(key)
        while self._ready:
            key = self._ready.popleft()
            if key in self._in_flight or key in self._delayed:
                continue
            entry = self._waiting.pop(key, None)
            if entry is not None:
                self._in_flight.add(key)
                return WorkItem(key, entry.value, entry.since)
        return None

    def done(self, key: K) -> None:
        """The write ended for good; what came in meanwhile is next in turn."""
        self._in_flight.discard(key)
        self._void.discard(key)
        if key in self._waiting:
            self._ready.append(key)

    def retry(self, taken: WorkItem[K, V], at: float) -> None:
        """The write is to be repeated, not before `at`; with what came in meanwhile. Not when it was discarded."""
        key = taken.key
        if key in self._void:
            self.done(key)
            return
        self._in_flight.discard(key)
        newer = self._waiting.get(key)
        if newer is not None:
            newer.value = self._merge(taken.value, newer.value)
        else:
            self._waiting[key] = _Waiting(taken.value, taken.since)
        self._sequence += 1
        self._delayed[key] = self._sequence
        heapq.heappush(self._due, (at, self._sequence, key))

    def hasten(self, key: K) -> None:
        """What was put off under this key may be written now."""
        if self._delayed.pop(key, None) is not None:
            self._ready.append(key)

    def oldest(self) -> float | None:
        """Since when the next entry in turn has waited; None when none may be written now."""
        while self._ready:
            key = self._ready[0]
            entry = self._waiting.get(key)
            if entry is not None and key not in self._in_flight and key not in self._delayed:
                return entry.since
            self._ready.popleft()
        return None

    def discard(self, key: K) -> None:
        """Forget what waits under this key; a write in flight goes on, and is not repeated."""
        self._waiting.pop(key, None)
        self._delayed.pop(key, None)
        if key in self._in_flight:
            self._void.add(key)

    def clear(self) -> None:
        """Forget all that waits; writes in flight go on, and are not repeated."""
        self._void |= self._in_flight
        self._waiting.clear()
        self._ready.clear()
        self._due.clear()
        self._delayed.clear()
