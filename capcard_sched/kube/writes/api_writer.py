"""Carrying out intents on a real API server: three lanes of different importance, and the workers that empty them.

Bindings and evictions leave at once, on as many connections as there are `binders`. Statuses wait until those are done,
and events until statuses are, each object or event once with its latest value. When a lower lane has waited for seconds
all the same, one of its writes at a time goes beside the bindings.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from capcard_sched.kube.writes import events, statuses
from capcard_sched.kube.writes.bind_queue import BindQueue
from capcard_sched.kube.writes.event_correlator import EventCorrelator
from capcard_sched.kube.writes.events import EventNames, EventWrite, EventWriter
from capcard_sched.kube.writes.leadership_gate import LeadershipGate, LeadershipLost
from capcard_sched.kube.writes.status_discovery import StatusDiscovery
from capcard_sched.kube.writes.status_rate_limiter import StatusRateLimiter
from capcard_sched.kube.writes.statuses import Statuses, StatusWrite, condition_key
from capcard_sched.kube.writes.uid_cache import UidCache
from capcard_sched.kube.writes.work_queue import WorkQueue
from capcard_sched.kube.writes.write_backoff import WriteBackoff
from capcard_sched.model.intents import Bind, EmitEvent, Evict, Intent
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.writes.binder import Settle
    from capcard_sched.kube.writes.event_correlator import Series, SeriesKey
    from capcard_sched.kube.writes.statuses import StatusKey
    from capcard_sched.kube.writes.work_queue import WorkItem
    from capcard_sched.kube.writes.write_outcome import WriteOutcome
    from capcard_sched.model.deltas import Delta

#: Connections for statuses and events.
LOW_WORKERS: Final = 8
#: Events that wait; the oldest are dropped beyond it.
MAX_EVENTS: Final = 20_000
#: After so many seconds a status, an event is written beside bindings.
_STATUS_PATIENCE, _EVENT_PATIENCE = 5.0, 10.0
#: How often what was put off is looked at, in seconds.
_TICK = 0.25
#: The longest a worker rests for when the server asks for fewer requests, in seconds; the write itself waits longer.
_MAX_REST = 1.0
_STATUS_BACKOFF = WriteBackoff(first=0.5, longest=60.0)
_EVENT_BACKOFF = WriteBackoff(first=1.0, longest=60.0)
#: The same while the server is busy or away: what stands in the cluster is to be true soon after it is back.
_AWAY_BACKOFF = WriteBackoff(first=0.5, longest=10.0)


class ApiWriter:
    """The writing half of the backend. Belongs to the event loop in which `run` runs.

    Args:
        client: Should allow for `binders` + `LOW_WORKERS` connections, and a few for the other users of it.
        deliver: Takes deltas about writes that failed.
        observer: Hears of everything.
        may_write: Whether this process leads right now; asked of every write, at the moment it leaves.
        binders: Connections for bindings and evictions.
        scheduler_name: Source of events, and part of conditions.
        use_eviction_api: Evict by the eviction subresource, so that disruption budgets count.
        fence: What to write on each Binding for the admission policy; None when there is no fence.
        settle: What has to be done before a pod with volumes is bound.
    """

    def __init__(
        self,
        client: Client,
        deliver: Callable[[Sequence[Delta]], None],
        observer: Observer,
        *,
        may_write: Callable[[], bool],
        binders: int = 32,
        scheduler_name: str,
        use_eviction_api: bool = False,
        fence: Callable[[], str | None] = lambda: None,
        settle: Settle | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._observer = observer
        self._clock = clock
        self._now = now
        self._permit = LeadershipGate(may_write)
        self._statuses: WorkQueue[StatusKey, StatusWrite] = WorkQueue(statuses.merge)
        self._pace = StatusRateLimiter()
        self._events: WorkQueue[SeriesKey, EventWrite] = WorkQueue(events.merge, MAX_EVENTS)
        self._correlator = EventCorrelator(scheduler_name, EventNames())
        self._status_writer = Statuses(client, self._permit, StatusDiscovery(client, clock), self._stamp)
        self._event_writer = EventWriter(client, self._permit, UidCache(client, clock), self._correlator)
        self._urgent = BindQueue(
            client,
            self._permit,
            deliver,
            observer,
            workers=binders,
            scheduler_name=scheduler_name,
            use_eviction_api=use_eviction_api,
            fence=fence,
            settle=settle,
            still=self._still,
            tell=self.submit,
            stamp=self._stamp,
            idle=self._wake_all,
            clock=clock,
        )
        #: Those who wait for the end of a condition's write, by its key.
        self._ends: dict[StatusKey, asyncio.Future[None]] = {}
        self._resting: deque[asyncio.Future[None]] = deque()
        #: Somebody of the lower lanes writes beside bindings.
        self._beside = False

    def submit(self, intents: Sequence[Intent]) -> None:
        """Take over what a session wants. Call it in the event loop; returns at once."""
        low = 0
        term, now = self._permit.term, self._clock()
        evicts: list[Evict] = []
        for intent in intents:
            if isinstance(intent, Bind):
                self._discard_condition(condition_key(intent.uid))
                self._status_writer.forget_pod(intent.uid)
                self._urgent.bind(intent)
            elif isinstance(intent, EmitEvent):
                series = self._correlator.observe(intent, self._now())
                low += series is not None
                if series is not None:
                    self._put_event(series, term, now)
            elif isinstance(intent, Evict):
                evicts.append(intent)
            else:
                key = statuses.key_of(intent)
                self._statuses.put(key, StatusWrite(intent, term), now)
                if self._pace.frees(key, intent, now):
                    self._statuses.hasten(key)
                low += 1
        self._urgent.evict(evicts)
        self._tell_lost()
        if low:
            self._wake(low)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for task in self._urgent.tasks():
                group.create_task(task)
            for _ in range(LOW_WORKERS):
                group.create_task(self._write_low())
            group.create_task(self._tick())

    async def drain(self, timeout: float) -> Mapping[str, int]:  # noqa: ASYNC109 -- what is left is told, not raised
        """Wait until all is written that can be, `timeout` seconds at most; returns what is left, by lane.

        In the last fifth of the time no binding or eviction is begun, so that those under way can end; a binding that
        may have been committed is still pursued.
        """
        deadline = self._clock() + timeout
        self._urgent.close(deadline - timeout / 5)
        while self._clock() < deadline and (self._urgent.open or self._statuses.open or self._events.open):  # noqa: ASYNC110 -- once, at the end
            await asyncio.sleep(min(0.02, timeout / 20))
        return self.backlog()

    def reset(self) -> None:
        """The leadership is lost: forget everything that was not sent; what is under way ends and tells nobody."""
        self._permit.revoke()
        self._urgent.clear()
        self._statuses.clear()
        self._pace.clear()
        self._events.clear()
        self._correlator.clear()

    def backlog(self) -> Mapping[str, int]:
        """Writes that wait or are under way, by lane."""
        return {**self._urgent.backlog(), "status": len(self._statuses), "event": len(self._events)}

    # --- statuses and events ----------------------------------------------------------------------------------------

    def _put_event(self, series: Series, term: int, now: float) -> None:
        dropped = self._events.put(series.key, EventWrite(series, term), now)
        if dropped:
            self._observer.dropped("Event", dropped)

    def _tell_lost(self) -> None:
        lost = self._correlator.drain_lost()
        if lost:
            self._observer.dropped("Event", lost)

    async def _tick(self) -> None:
        """Looks at what was put off; idle it costs a few microseconds."""
        while True:
            await asyncio.sleep(_TICK)
            held = self._correlator.due(self._now())
            term, now = self._permit.term, self._clock()
            for series in held:
                self._put_event(series, term, now)
            self._tell_lost()
            if self._statuses or self._events:
                self._wake(LOW_WORKERS)

    async def _write_low(self) -> None:
        while True:
            now = self._clock()
            busy = self._urgent.busy
            if busy and not self._is_overdue(now):
                await self._rest()
                continue
            self._beside |= busy
            try:
                wait = await self._write_one(now)
            finally:
                if busy:
                    self._beside = False
            if wait is None:
                await self._rest()
            elif wait > 0:
                await asyncio.sleep(min(wait, _MAX_REST))

    def _is_overdue(self, now: float) -> bool:
        """Whether something waited for so long that it goes beside bindings, if nobody else does already."""
        if self._beside:
            return False
        status, event = self._statuses.oldest(), self._events.oldest()
        return (status is not None and now - status > _STATUS_PATIENCE) or (
            event is not None and now - event > _EVENT_PATIENCE
        )

    async def _write_one(self, now: float) -> float | None:
        """Write what is next. Returns seconds to rest for, None when nothing waits."""
        event_since = self._events.oldest()
        # Endless statuses do not keep events waiting for ever either.
        if event_since is None or now - event_since <= _EVENT_PATIENCE:
            status = self._statuses.take(now)
            if status is not None:
                return await self._write_status(status)
        event = self._events.take(now)
        if event is not None:
            return await self._write_event(event)
        status = self._statuses.take(now)
        return None if status is None else await self._write_status(status)

    async def _write_status(self, taken: WorkItem[StatusKey, StatusWrite]) -> float:
        key, write = taken.key, taken.value
        until = self._pace.hold(key, write.intent, self._clock())
        if until is not None:
            self._statuses.retry(taken, until)
            return 0.0
        try:
            ending = await self._status_writer.write(write, self._clock() - taken.since)
        except LeadershipLost:
            ending = None
        self._end(taken.since, ending, key[0])
        if ending is not None and ending.retry:
            again = StatusWrite(write.intent, write.term, write.attempts + 1)
            backoff = _AWAY_BACKOFF if ending.throttled or ending.code >= 500 else _STATUS_BACKOFF
            at = self._clock() + backoff.wait(again.attempts, ending.wait)
            self._statuses.retry(taken._replace(value=again), at)
        else:
            if ending is not None and ending.written:
                self._pace.wrote(key, write.intent, self._clock())
            self._statuses.done(key)
        waiter = self._ends.pop(key, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return _rest_after(ending)

    async def _write_event(self, taken: WorkItem[SeriesKey, EventWrite]) -> float:
        write = taken.value
        try:
            ending = await self._event_writer.write(write)
        except LeadershipLost:
            ending = None
        self._end(taken.since, ending, "Event")
        if ending is not None and ending.retry:
            again = EventWrite(write.series, write.term, write.attempts + 1)
            at = self._clock() + _EVENT_BACKOFF.wait(again.attempts, ending.wait)
            self._events.retry(taken._replace(value=again), at)
        else:
            self._events.done(taken.key)
        return _rest_after(ending)

    def _end(self, since: float, ending: WriteOutcome | None, kind: str) -> None:
        if ending is None:
            return
        if ending.written:
            self._observer.written(kind, self._clock() - since)
        else:
            self._observer.write_failed(kind, ending.code, ending.message)

    async def _still(self, uid: str) -> None:
        """See to it that nobody writes the pod's condition: it would say `not scheduled` of a pod that is."""
        key = condition_key(uid)
        self._discard_condition(key)
        while self._statuses.is_in_flight(key):
            end = self._ends.setdefault(key, asyncio.get_running_loop().create_future())
            await asyncio.shield(end)

    def _discard_condition(self, key: StatusKey) -> None:
        self._statuses.discard(key)
        self._pace.forget(key)

    def _stamp(self) -> str:
        return format_timestamp(self._now())

    # --- turns ------------------------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._resting.append(future)
        await future

    def _wake(self, count: int) -> None:
        while count > 0 and self._resting:
            future = self._resting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    def _wake_all(self) -> None:
        if self._statuses or self._events:
            self._wake(LOW_WORKERS)


def _rest_after(ending: WriteOutcome | None) -> float:
    return max(ending.wait, 0.1) if ending is not None and ending.throttled else 0.0
