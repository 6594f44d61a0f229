"""A work queue in which each key waits once, with its merged value, and the workers that wait for entries.

No I/O, no tasks; times come as arguments, in seconds of any monotonic clock.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from capcard_sched.kube.writes.ready_keys import ReadyKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

#: Number of stale keys in the queue before it is compacted.
_STALE_KEYS = 256


class WorkItem(msgspec.Struct, Generic[K, V], frozen=True):
    """An entry. One in flight is ended with `done` or `requeue`."""

    key: K
    value: V
    #: Time at which it was added.
    since: float


class WorkQueue(Generic[K, V]):
    """Values by key, in FIFO order, at most one write per key in flight.

    `merge(old, new)` combines two waiting values of one key. With `capacity`, new entries replace the oldest ones.
    Urgent entries may be taken before the others. With `group_of`, groups of keys are served in turn, and at most
    `most_per_group` entries of a group are in flight.
    """

    def __init__(
        self,
        merge: Callable[[V, V], V],
        capacity: int | None = None,
        *,
        group_of: Callable[[K], Hashable] | None = None,
        most_per_group: int | None = None,
    ) -> None:
        self._merge = merge
        self._capacity = capacity
        self._group_of = group_of
        self._most_per_group = most_per_group
        #: Group to the number of its entries in flight.
        self._flying: Counter[Hashable] = Counter()
        #: Ordered: the first entry of a dict is found behind the places of all removed ones.
        self._waiting: OrderedDict[K, WorkItem[K, V]] = OrderedDict()
        #: Keys in order; stale keys are skipped.
        self._ready: ReadyKeys[K] = ReadyKeys(group_of)
        self._delays: list[tuple[float, int, K]] = []
        #: Number of the delay, and whether the entry precedes ready ones afterwards.
        self._delayed: dict[K, tuple[int, bool]] = {}
        #: Keys of urgent entries, in order; stale keys are skipped.
        self._urgent: OrderedDict[K, None] = OrderedDict()
        self._in_flight: set[K] = set()
        #: Keys in flight whose write is not retried.
        self._discarded: set[K] = set()
        self._sequence = 0

    def __len__(self) -> int:
        """Number of waiting and in-flight entries."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def open(self) -> int:
        """Number of entries that are ready or in flight: all but the delayed ones."""
        return len(self._waiting) - len(self._delayed) + len(self._in_flight)

    def is_in_flight(self, key: K) -> bool:
        return key in self._in_flight

    def is_waiting(self, key: K) -> bool:
        """Whether an entry of this key waits, ready or delayed."""
        return key in self._waiting

    def first_added(self) -> float:
        """Time at which the first waiting entry was added, delayed ones included; infinite without one."""
        return next((entry.since for entry in self._waiting.values()), math.inf)

    def add(self, key: K, value: V, now: float, *, urgent: bool = False) -> int:
        """Add a value, or merge it into the waiting one. Returns the number of dropped entries."""
        if urgent:
            self._urgent[key] = None
        present = self._waiting.get(key)
        if present is not None:
            self._waiting[key] = msgspec.structs.replace(present, value=self._merge(present.value, value))
            return 0
        self._waiting[key] = WorkItem(key, value, now)
        if key not in self._in_flight:
            self._ready.append(key)
            if len(self._ready) > 2 * len(self._waiting) + _STALE_KEYS:
                self._ready.retain(self._waiting.__contains__)
        if self._capacity is None or len(self._waiting) <= self._capacity:
            return 0
        oldest = next(iter(self._waiting))
        self.discard(oldest)
        return 1

    def get(self, now: float) -> WorkItem[K, V] | None:
        """Remove and return the next ready entry; None without one."""
        while self._delays and self._delays[0][0] <= now:
            _, sequence, key = heapq.heappop(self._delays)
            delay = self._delayed.get(key)
            if delay is not None and delay[0] == sequence:
                self.advance(key, first=delay[1])
        admits = None if self._most_per_group is None else self._admits
        while (found := self._ready.pop(admits=admits)) is not None:
            entry = self._take(found)
            if entry is not None:
                return entry
        return None

    def _admits(self, group: Hashable) -> bool:
        return self._most_per_group is None or self._flying[group] < self._most_per_group

    def get_urgent(self) -> WorkItem[K, V] | None:
        """Remove and return the first urgent entry that is ready; None without one."""
        while self._urgent:
            # A value whose predecessor is in flight waits for the end of that write.
            key = next((each for each in self._urgent if each not in self._in_flight), None)
            if key is None:
                return None
            entry = self._take(key)
            if entry is not None:
                return entry
            self._urgent.pop(key, None)
        return None

    def _take(self, key: K) -> WorkItem[K, V] | None:
        """Remove and return a waiting entry; None unless it is ready."""
        if key in self._in_flight or key in self._delayed:
            return None
        entry = self._waiting.pop(key, None)
        if entry is not None:
            self._urgent.pop(key, None)
            self._in_flight.add(key)
            if self._group_of is not None:
                self._flying[self._group_of(key)] += 1
        return entry

    def _land(self, key: K) -> None:
        """The write of a key is over."""
        if key in self._in_flight and self._group_of is not None:
            group = self._group_of(key)
            self._flying[group] -= 1
            if not self._flying[group]:
                del self._flying[group]
        self._in_flight.discard(key)

    def done(self, key: K) -> None:
        """End a write; a value added since becomes ready."""
        self._land(key)
        self._discarded.discard(key)
        if key in self._waiting:
            self._ready.append(key)

    def requeue(self, item: WorkItem[K, V], at: float, *, first: bool = False) -> None:
        """Retry a write at `at`, merged with a value added since; unless the key was discarded.

        `first`: before all ready entries then.
        """
        key = item.key
        if key in self._discarded:
            self.done(key)
            return
        self._land(key)
        newer = self._waiting.get(key)
        if newer is not None:
            item = msgspec.structs.replace(newer, value=self._merge(item.value, newer.value))
        self._waiting[key] = item
        self.delay(key, at, first=first)

    def delay(self, key: K, at: float, *, first: bool = False) -> None:
        """Hold a waiting entry back until `at`; `first`: before all ready entries then."""
        self._sequence += 1
        self._delayed[key] = self._sequence, first
        heapq.heappush(self._delays, (at, self._sequence, key))

    def advance(self, key: K, *, first: bool = False) -> None:
        """Make a delayed entry ready; `first`: before the others."""
        if self._delayed.pop(key, None) is not None:
            (self._ready.appendleft if first else self._ready.append)(key)

    def oldest(self) -> float | None:
        """Time at which the first ready entry was added; None without one."""
        while self._ready:
            times = [self._waiting[key].since for key in self._ready.heads() if self._is_ready(key)]
            if times:
                return min(times)
            self._ready.retain(self._is_ready)
        return None

    def _is_ready(self, key: K) -> bool:
        return key in self._waiting and key not in self._in_flight and key not in self._delayed

    def discard(self, key: K) -> None:
        """Remove the waiting entry; a write in flight continues and is not retried."""
        self._waiting.pop(key, None)
        self._urgent.pop(key, None)
        self._delayed.pop(key, None)
        if key in self._in_flight:
            self._discarded.add(key)

    def clear(self) -> None:
        """Remove all waiting entries; writes in flight continue and are not retried."""
        self._discarded |= self._in_flight
        self._waiting.clear()
        self._urgent.clear()
        self._ready.clear()
        self._delays.clear()
        self._delayed.clear()


class IdleWorkers:
    """Workers that wait for work, woken in order."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return after a `wake`."""
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future

    def wake(self, count: int = 1) -> None:
        """Wake at most `count` of those that wait."""
        while count > 0 and self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1
