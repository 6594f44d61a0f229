"""One controller behind a work queue: per-key order, backoff, timers, and paced writes of progress."""

from __future__ import annotations

import asyncio
import heapq
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.view import Create, Delete, Failure, Patch, Result
from capcard_sched.kube.controllers.object_cache import NotFetchedError
from capcard_sched.kube.controllers.write_executor import WriteFailedError
from capcard_sched.kube.errors import RequestError
from capcard_sched.kube.writes.leadership_gate import LeadershipLost
from capcard_sched.kube.writes.progress_pace import ProgressPace
from capcard_sched.kube.writes.status_rate_limiter import RatePolicy
from capcard_sched.kube.writes.work_queue import WorkQueue
from capcard_sched.kube.writes.write_call import WriteOutcome, WriteResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from capcard_sched.controllers.objects import JsonObject, Key
    from capcard_sched.controllers.view import Controller, Write
    from capcard_sched.kube.controllers.object_cache import ObjectCache
    from capcard_sched.kube.controllers.write_executor import WriteExecutor
    from capcard_sched.kube.writes.work_queue import WorkItem


def _namespace(key: Key) -> str:
    return key.namespace


#: Counts of one object are written a second apart, and five while they go on changing; a new phase does not wait.
_PROGRESS: Final[RatePolicy[Patch]] = RatePolicy(lambda write: write.patch["status"].get("state"), longest=5.0)
#: Objects that are read on demand in one pass: an owner, its owner, and room for a second try of each.
_MOST_FETCHES: Final = 8
#: Seconds between checks of due keys.
_TICK: Final = 0.1


def _decides(write: Write) -> bool:
    """Whether a write does more than show progress."""
    return isinstance(write, Create | Delete) or (isinstance(write, Patch) and not write.lazy)


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
        self._pace: ProgressPace[Key, Patch] = ProgressPace(_PROGRESS, _namespace, steady())

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
            writes = self._hold_back(key, result.writes)
            with self._pace.other_writes(self._steady) if any(map(_decides, writes)) else nullcontext():
                await self._executor.execute(writes, self._term)
        except LeadershipLost:
            raise
        except WriteFailedError as error:
            await self._failed(taken, error)
        except RequestError as error:
            self._again(taken, WriteOutcome.of(WriteResult.AGAIN, error))
        except Exception as error:  # noqa: BLE001 - a mistake about one object must not stop the others
            self._again(taken, WriteOutcome(WriteResult.AGAIN, message=f"{type(error).__name__}: {error}"))
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
                if write.lazy and not self._pace.take(key, write, now):
                    continue
                self._pace.record(key, write, now)
            kept.append(write)
        self._pace.end(key)
        return kept

    async def _failed(self, taken: WorkItem[Key, int], error: WriteFailedError) -> None:
        """Report to the controller, which may have writes of its own; a conflict is only repeated."""
        write, outcome = error.write, error.outcome
        if outcome.result is WriteResult.CONFLICT:
            self._queue.requeue(taken, self._steady() + self._executor.backoff.wait(1))
            return
        # A server that cannot be reached, or fails itself, is no reason to give an object up.
        last = outcome.result is WriteResult.REFUSED and 0 <= self._max_requeue <= taken.value
        failure = Failure(write, outcome.message, last=last)
        follow = self._controller.failed(self._cache, taken.key, self._clock(), failure)
        try:
            await self._executor.execute(follow.writes, self._term)
        except WriteFailedError as second:
            self._report(self.name, taken.key, str(second))
        self._again(taken, outcome)

    def _again(self, taken: WorkItem[Key, int], outcome: WriteOutcome) -> None:
        self._report(self.name, taken.key, outcome.message)
        again = msgspec.structs.replace(taken, value=taken.value + 1)
        self._queue.requeue(again, self._steady() + self._executor.backoff.wait(again.value, outcome.wait))
