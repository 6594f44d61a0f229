"""One controller behind a work queue: per-key order, backoff, timers, and paced writes of progress."""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.view import Create, Delete, Failure, Patch, Result
from capcard_sched.kube.controllers.object_cache import NotFetchedError
from capcard_sched.kube.controllers.write_executor import WriteFailedError
from capcard_sched.kube.errors import RequestError
from capcard_sched.kube.writes.leadership_gate import LeadershipLost
from capcard_sched.kube.writes.ready_keys import ReadyKeys
from capcard_sched.kube.writes.work_queue import WorkQueue
from capcard_sched.kube.writes.write_backoff import WriteBackoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from capcard_sched.controllers.objects import JsonObject, Key
    from capcard_sched.controllers.view import Controller, Write
    from capcard_sched.kube.controllers.object_cache import ObjectCache
    from capcard_sched.kube.controllers.write_executor import WriteExecutor
    from capcard_sched.kube.writes.work_queue import WorkItem

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


def _namespace(key: Key) -> str:
    return key.namespace


class _Waiting:
    """Objects that wait for their turn, and since when."""

    def __init__(self) -> None:
        self._since: OrderedDict[Key, float] = OrderedDict()
        self._turns: ReadyKeys[Key] = ReadyKeys(_namespace)

    def __bool__(self) -> bool:
        return bool(self._since)

    def __contains__(self, key: Key) -> bool:
        return key in self._since

    def add(self, key: Key, now: float) -> None:
        """An object waits from now on, unless it waits already."""
        if key not in self._since:
            self._since[key] = now
            self._turns.append(key)

    def remove(self, key: Key) -> None:
        """An object waits no more."""
        if self._since.pop(key, None) is not None and len(self._turns) > 2 * len(self._since) + _REMEMBERED:
            self._turns.retain(self._since.__contains__)

    def oldest(self) -> tuple[Key, float]:
        """The object that has waited longest, and since when."""
        return next(iter(self._since.items()))

    def next(self) -> Key:
        """The object whose namespace has its turn; it stays the next one until it is removed."""
        while True:
            key = self._turns.pop()
            assert key is not None, "every object that waits has a turn"
            if key in self._since:
                self._turns.appendleft(key)
                return key


class ProgressPace:
    """The pace of status writes that only show progress: at once while there are few, merged while there are many.

    A token bucket for all objects of a controller, and a pause between two writes of one object. A rate per second lets
    these writes grow with the time that a burst takes. While the controller creates and deletes objects, most of their
    number is a share of those writes. Namespaces are served in turn. A write that shows a new phase precedes those that
    show counts: a Job without a status beside running pods appears unprocessed. Times are seconds of
    any clock.
    """

    def __init__(self, gap: float, now: float) -> None:
        """`gap`: seconds between two writes of one object."""
        self._gap = gap
        self._tokens = _BURST
        self._filled = now
        #: Until when other writes have effect.
        self._busy_until = now
        #: Objects that wait for their turn, in order, and since when: with a new phase, and with new counts only.
        self._phases, self._counts = _Waiting(), _Waiting()
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
            self._counts.remove(key)
            self._phases.add(key, now)
        elif key not in self._phases:
            self._counts.add(key, now)
        return False

    def wrote(self, key: Key, now: float) -> None:
        """A status was written, for whatever reason."""
        self._written[key] = now
        self._phases.remove(key)
        self._counts.remove(key)
        if len(self._written) > _REMEMBERED:
            self._written = {each: at for each, at in self._written.items() if now < at + self._gap}

    def note_pass(self, writes: int, seconds: float, now: float) -> None:
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

    def _release(self, waiting: _Waiting, now: float, longest: float) -> Iterator[Key]:
        while waiting:
            key, since = waiting.oldest()
            if now < since + longest:
                if self._tokens < 1:
                    return
                key = waiting.next()
            if not self._rested(key, now):
                return  # those behind it were written later
            waiting.remove(key)
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


#: Seconds: 5 ms, doubled with each failure, at most three minutes.
_BACKOFF: Final = WriteBackoff(first=0.005, longest=180.0)
#: Objects that are read on demand in one pass: an owner, its owner, and room for a second try of each.
_MOST_FETCHES: Final = 8
#: Seconds between checks of due keys.
_TICK: Final = 0.1


class NotReadyError(Exception):
    """A pass needs something that takes long to make; `make` does it outside of the pass."""

    def __init__(self, make: Callable[[], Awaitable[None]]) -> None:
        super().__init__("not ready")
        self.make = make


class ControllerLoop:
    """Reconciles the objects of one controller with several workers; one object is never reconciled twice at a time.

    Args:
        name: For logs and metrics.
        controller: Fresh for each term of leadership: `start` replays the cache to it.
        lazy_seconds: Between two writes that only show progress, per object.
        report: Called with the name, the key and the error of a pass that failed.
    """

    def __init__(
        self,
        name: str,
        controller: Controller,
        cache: ObjectCache,
        executor: WriteExecutor,
        *,
        term: int,
        workers: int,
        max_requeue: int,
        lazy_seconds: float,
        clock: Callable[[], float],
        steady: Callable[[], float],
        report: Callable[[str, Key, str], None],
    ) -> None:
        self.name = name
        self._controller = controller
        self._cache = cache
        self._executor = executor
        self._term = term
        self._workers = workers
        self._max_requeue = max_requeue
        self._clock = clock
        self._steady = steady
        self._report = report
        # Large objects of one namespace leave a quarter of the workers to the others.
        most = max(1, workers - max(1, workers // 4))
        self._queue: WorkQueue[Key, int] = WorkQueue(max, group_of=_namespace, most_per_group=most)
        self._wake = asyncio.Event()
        #: Unix seconds at which an object wants to be reconciled; the heap may hold outdated entries.
        self._alarms: dict[Key, float] = {}
        self._alarm_heap: list[tuple[float, Key]] = []
        self._pace = ProgressPace(lazy_seconds, steady())

    def __len__(self) -> int:
        """Objects that wait or are reconciled."""
        return len(self._queue)

    def observe(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Queue the objects that a change concerns."""
        if kind not in self._controller.watches:
            return
        for key in self._controller.keys(kind, old, new):
            self._put(key)

    def replays(self, kind: str) -> bool:
        """Whether the controller must see all objects of the kind when it starts."""
        return kind in self._controller.replays

    async def run(self) -> None:
        """Work until cancelled, or until leadership is lost."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ring())
            for _ in range(self._workers):
                group.create_task(self._work())

    def _put(self, key: Key) -> None:
        self._queue.add(key, 0, self._steady())
        self._queue.advance(key)
        self._wake.set()

    async def _ring(self) -> None:
        """Queue what is due."""
        while True:
            now = self._clock()
            while self._alarm_heap and self._alarm_heap[0][0] <= now:
                moment, key = heapq.heappop(self._alarm_heap)
                if self._alarms.get(key) == moment:
                    del self._alarms[key]
                    self._put(key)
            for key in self._pace.release(self._steady()):
                self._put(key)
            if len(self._queue):  # what failed may be due again
                self._wake.set()
            await asyncio.sleep(_TICK)

    def _set_alarm(self, key: Key, moment: float | None) -> None:
        if moment is None:
            self._alarms.pop(key, None)
        elif self._alarms.get(key) != moment:
            self._alarms[key] = moment
            heapq.heappush(self._alarm_heap, (moment, key))

    async def _work(self) -> None:
        while True:
            taken = self._queue.get(self._steady())
            if taken is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._serve(taken)
            except LeadershipLost:
                return
            # A pass without writes does not wait: thousands of them must not hold up the watches and the Lease.
            await asyncio.sleep(0)

    async def _serve(self, taken: WorkItem[Key, int]) -> None:
        key = taken.key
        try:
            result = await self._reconcile(key)
            self._set_alarm(key, result.at)
            writes, began = self._hold_back(key, result.writes), self._steady()
            await self._executor.execute(writes, self._term)
            self._note_work(writes, began)
        except LeadershipLost:
            raise
        except WriteFailedError as error:
            await self._failed(taken, error)
        except RequestError as error:
            self._again(taken, str(error))
        except Exception as error:  # noqa: BLE001 - a mistake about one object must not stop the others
            self._again(taken, f"{type(error).__name__}: {error}")
        else:
            self._queue.done(key)
        self._wake.set()

    async def _reconcile(self, key: Key) -> Result:
        for _ in range(_MOST_FETCHES):
            try:
                return self._controller.reconcile(self._cache, key, self._clock())
            except NotFetchedError as missing:
                self._cache.fetched(missing.key, await self._executor.fetch(missing.key))
            except NotReadyError as missing:
                await missing.make()
        return self._controller.reconcile(self._cache, key, self._clock())

    def _hold_back(self, key: Key, writes: Sequence[Write]) -> Sequence[Write]:
        """Leave out writes of progress whose turn has not come; a later pass makes them, merged."""
        now = self._steady()
        kept = []
        for write in writes:
            if isinstance(write, Patch) and write.subresource == "status":
                if write.lazy and not self._pace.take(key, now, phase="state" in write.patch["status"]):
                    continue
                self._pace.wrote(key, now)
            kept.append(write)
        self._pace.end(key)
        return kept

    def _note_work(self, writes: Sequence[Write], began: float) -> None:
        """Report the writes of a pass that are not about its progress to the pace."""
        count = sum(isinstance(each, Create | Delete) or (isinstance(each, Patch) and not each.lazy) for each in writes)
        if count:
            now = self._steady()
            self._pace.note_pass(count, now - began, now)

    async def _failed(self, taken: WorkItem[Key, int], error: WriteFailedError) -> None:
        """Report to the controller, which may have writes of its own; a conflict is only repeated."""
        if error.is_conflict and not isinstance(error.write, Create):
            self._queue.requeue(taken, self._steady() + _BACKOFF.wait(1))
            return
        # A server that cannot be reached, or fails itself, is no reason to give an object up.
        last = error.is_refusal and 0 <= self._max_requeue <= taken.value
        failure = Failure(error.write, error.text, last=last)
        follow = self._controller.failed(self._cache, taken.key, self._clock(), failure)
        try:
            await self._executor.execute(follow.writes, self._term)
        except WriteFailedError as second:
            self._report(self.name, taken.key, second.text)
        self._again(taken, error.text)

    def _again(self, taken: WorkItem[Key, int], text: str) -> None:
        self._report(self.name, taken.key, text)
        attempts = taken.value + 1
        again = taken._replace(value=attempts)
        self._queue.requeue(again, self._steady() + _BACKOFF.wait(attempts))
