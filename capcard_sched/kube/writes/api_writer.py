"""Writes intents to the API server from three queues of falling priority.

Bindings and evictions are sent at once, on `binders` connections. Statuses are sent when no binding waits, events when
no status waits; each object or event waits once, with its latest value. An entry of a lower queue that waits for
seconds is sent beside the bindings, one at a time. Admissions are statuses that do not wait for bindings: controllers
create the pods of a job when they see its phase.
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
from capcard_sched.model.intents import Bind, EmitEvent, Evict, Intent, UpdatePodGroup
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.writes.binder import PreBind
    from capcard_sched.kube.writes.event_correlator import Series, SeriesKey
    from capcard_sched.kube.writes.statuses import StatusKey
    from capcard_sched.kube.writes.work_queue import WorkItem
    from capcard_sched.kube.writes.write_outcome import WriteOutcome
    from capcard_sched.model.deltas import Delta

#: Number of workers, and connections, for statuses and events.
LOW_WORKERS: Final = 8
#: Number of waiting events; beyond it the oldest are dropped.
MAX_EVENTS: Final = 20_000
#: Seconds after which a status, an event is written beside bindings.
_STATUS_SECONDS, _EVENT_SECONDS = 5.0, 10.0
#: Seconds between checks of delayed entries.
_POLL_SECONDS = 0.25
#: Seconds; longest pause of a worker after a 429; the write itself may wait longer.
_MAX_PAUSE = 1.0
_STATUS_BACKOFF = WriteBackoff(first=0.5, longest=60.0)
_EVENT_BACKOFF = WriteBackoff(first=1.0, longest=60.0)
#: Used while the server is overloaded or unreachable, so that statuses are current soon after it returns.
_AWAY_BACKOFF = WriteBackoff(first=0.5, longest=10.0)


class ApiWriter:
    """Writes intents to the API server. Belongs to the event loop in which `run` runs.

    Args:
        client: allows `binders` + `LOW_WORKERS` connections, and a few for its other users.
        deliver: receives deltas about failed writes.
        observer: receives every outcome.
        time_left: seconds until the Lease can change hands, 0.0 for a standby; called for every write right before it
            is sent, and the deadline of its response.
        binders: connections for bindings and evictions.
        scheduler_name: source of events, and part of conditions.
        use_eviction_api: evict by the eviction subresource, so that disruption budgets apply.
        fence: returns the token of a Binding for the admission policy; None without a fence.
        server_seconds: limit for the processing of a binding on the API server, None for its default.
        pre_bind: runs before a pod with volumes is bound.
    """

    def __init__(
        self,
        client: Client,
        deliver: Callable[[Sequence[Delta]], None],
        observer: Observer,
        *,
        time_left: Callable[[], float],
        binders: int = 32,
        scheduler_name: str,
        use_eviction_api: bool = False,
        fence: Callable[[], str | None] = lambda: None,
        server_seconds: float | None = None,
        pre_bind: PreBind | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._observer = observer
        self._clock = clock
        self._now = now
        self._gate = LeadershipGate(time_left)
        self._statuses: WorkQueue[StatusKey, StatusWrite] = WorkQueue(statuses.merge)
        self._rate_limiter = StatusRateLimiter()
        self._events: WorkQueue[SeriesKey, EventWrite] = WorkQueue(events.merge, MAX_EVENTS)
        self._correlator = EventCorrelator(scheduler_name, EventNames())
        self._status_writer = Statuses(client, self._gate, StatusDiscovery(client, clock), self._stamp)
        self._event_writer = EventWriter(client, self._gate, UidCache(client, clock), self._correlator)
        self._bind_queue = BindQueue(
            client,
            self._gate,
            deliver,
            observer,
            workers=binders,
            scheduler_name=scheduler_name,
            use_eviction_api=use_eviction_api,
            fence=fence,
            server_seconds=server_seconds,
            pre_bind=pre_bind,
            quiesce=self._quiesce,
            submit=self.submit,
            stamp=self._stamp,
            on_idle=self._wake_all,
            clock=clock,
        )
        #: Futures that wait for the end of a condition's write, by its key.
        self._condition_waiters: dict[StatusKey, asyncio.Future[None]] = {}
        self._idle_workers: deque[asyncio.Future[None]] = deque()
        #: A worker of the lower queues writes beside bindings.
        self._low_beside_binds = False

    def submit(self, intents: Sequence[Intent]) -> None:
        """Queue the intents of a session. Called in the event loop; returns at once."""
        low = 0
        term, now = self._gate.term, self._clock()
        evicts: list[Evict] = []
        for intent in intents:
            if isinstance(intent, Bind):
                self._discard_condition(condition_key(intent.uid))
                self._status_writer.forget_pod(intent.uid)
                self._bind_queue.bind(intent)
            elif isinstance(intent, EmitEvent):
                series = self._correlator.observe(intent, self._now())
                low += series is not None
                if series is not None:
                    self._put_event(series, term, now)
            elif isinstance(intent, Evict):
                evicts.append(intent)
            else:
                key = statuses.key_of(intent)
                admitted = isinstance(intent, UpdatePodGroup) and intent.admitted
                self._statuses.add(key, StatusWrite(intent, term), now, urgent=admitted)
                if self._rate_limiter.may_advance(key, intent, now):
                    self._statuses.advance(key)
                low += 1
        self._bind_queue.evict(evicts)
        self._report_lost()
        if low:
            self._wake(low)

    async def run(self) -> None:
        """Run the workers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for task in self._bind_queue.workers():
                group.create_task(task)
            for _ in range(LOW_WORKERS):
                group.create_task(self._write_low())
            group.create_task(self._poll_delayed())

    async def drain(self, timeout: float) -> Mapping[str, int]:  # noqa: ASYNC109 -- returns the rest instead of raising
        """Write what is queued, for at most `timeout` seconds; returns the number of unsent writes by queue.

        In the last fifth of the time no new binding or eviction is sent, so that those in flight can end; a binding
        that may have been committed is still resolved.
        """
        deadline = self._clock() + timeout
        self._bind_queue.close(deadline - timeout / 5)
        while self._clock() < deadline and (self._bind_queue.open or self._statuses.open or self._events.open):  # noqa: ASYNC110 -- once, at shutdown
            await asyncio.sleep(min(0.02, timeout / 20))
        return self.backlog()

    def reset(self) -> None:
        """Drop all unsent writes after a loss of leadership; outcomes of requests in flight are ignored."""
        self._gate.revoke()
        self._bind_queue.clear()
        self._statuses.clear()
        self._rate_limiter.clear()
        self._events.clear()
        self._correlator.clear()

    @property
    def unresolved_binds(self) -> int:
        """Number of bindings and evictions in flight, and of bindings that may have been committed."""
        return self._bind_queue.unresolved

    def backlog(self) -> Mapping[str, int]:
        """Number of waiting and in-flight writes by queue."""
        return {**self._bind_queue.backlog(), "status": len(self._statuses), "event": len(self._events)}

    # --- statuses and events ----------------------------------------------------------------------------------------

    def _put_event(self, series: Series, term: int, now: float) -> None:
        dropped = self._events.add(series.key, EventWrite(series, term), now)
        if dropped:
            self._observer.dropped("Event", dropped)

    def _report_lost(self) -> None:
        lost = self._correlator.drain_lost()
        if lost:
            self._observer.dropped("Event", lost)

    async def _poll_delayed(self) -> None:
        """Move delayed entries to their queue when they are ready; idle, it costs a few microseconds."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            ready = self._correlator.pop_ready(self._now())
            term, now = self._gate.term, self._clock()
            for series in ready:
                self._put_event(series, term, now)
            self._report_lost()
            if self._statuses or self._events:
                self._wake(LOW_WORKERS)

    async def _write_low(self) -> None:
        while True:
            now = self._clock()
            urgent = self._statuses.get_urgent()
            if urgent is not None:
                await asyncio.sleep(min(await self._write_status(urgent), _MAX_PAUSE))
                continue
            busy = self._bind_queue.busy
            if busy and not self._is_overdue(now):
                await self._wait_for_work()
                continue
            self._low_beside_binds |= busy
            try:
                wait = await self._write_one(now)
            finally:
                if busy:
                    self._low_beside_binds = False
            if wait is None:
                await self._wait_for_work()
            elif wait > 0:
                await asyncio.sleep(min(wait, _MAX_PAUSE))

    def _is_overdue(self, now: float) -> bool:
        """Whether an entry has waited long enough to be sent beside bindings, and no other one is."""
        if self._low_beside_binds:
            return False
        status, event = self._statuses.oldest(), self._events.oldest()
        return (status is not None and now - status > _STATUS_SECONDS) or (
            event is not None and now - event > _EVENT_SECONDS
        )

    async def _write_one(self, now: float) -> float | None:
        """Write the next entry. Returns seconds to pause, None when nothing waits."""
        event_since = self._events.oldest()
        # An overdue event precedes statuses, so that it does not starve.
        if event_since is None or now - event_since <= _EVENT_SECONDS:
            status = self._statuses.get(now)
            if status is not None:
                return await self._write_status(status)
        event = self._events.get(now)
        if event is not None:
            return await self._write_event(event)
        status = self._statuses.get(now)
        return None if status is None else await self._write_status(status)

    async def _write_status(self, item: WorkItem[StatusKey, StatusWrite]) -> float:
        key, write = item.key, item.value
        until = self._rate_limiter.delay_until(key, write.intent, self._clock())
        if until is not None:
            self._statuses.requeue(item, until)
            return 0.0
        try:
            outcome = await self._status_writer.write(write, self._clock() - item.since)
        except LeadershipLost:
            outcome = None
        self._end(item.since, outcome, key[0])
        if outcome is not None and outcome.retry:
            again = StatusWrite(write.intent, write.term, write.attempts + 1)
            backoff = _AWAY_BACKOFF if outcome.throttled or outcome.code >= 500 else _STATUS_BACKOFF
            at = self._clock() + backoff.wait(again.attempts, outcome.wait)
            self._statuses.requeue(item._replace(value=again), at)
        else:
            if outcome is not None and outcome.written:
                self._rate_limiter.record(key, write.intent, self._clock())
            self._statuses.done(key)
        waiter = self._condition_waiters.pop(key, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return _pause_after(outcome)

    async def _write_event(self, item: WorkItem[SeriesKey, EventWrite]) -> float:
        write = item.value
        try:
            outcome = await self._event_writer.write(write)
        except LeadershipLost:
            outcome = None
        self._end(item.since, outcome, "Event")
        if outcome is not None and outcome.retry:
            again = EventWrite(write.series, write.term, write.attempts + 1)
            at = self._clock() + _EVENT_BACKOFF.wait(again.attempts, outcome.wait)
            self._events.requeue(item._replace(value=again), at)
        else:
            self._events.done(item.key)
        return _pause_after(outcome)

    def _end(self, since: float, outcome: WriteOutcome | None, kind: str) -> None:
        if outcome is None:
            return
        if outcome.written:
            self._observer.written(kind, self._clock() - since)
        else:
            self._observer.write_failed(kind, outcome.code, outcome.message)

    async def _quiesce(self, uid: str) -> None:
        """Discard the pod's condition and wait for its write in flight: a bound pod must not get PodScheduled=False."""
        key = condition_key(uid)
        self._discard_condition(key)
        while self._statuses.is_in_flight(key):
            end = self._condition_waiters.setdefault(key, asyncio.get_running_loop().create_future())
            await asyncio.shield(end)

    def _discard_condition(self, key: StatusKey) -> None:
        self._statuses.discard(key)
        self._rate_limiter.forget(key)

    def _stamp(self) -> str:
        return format_timestamp(self._now())

    # --- idle workers -----------------------------------------------------------------------------------------------

    async def _wait_for_work(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._idle_workers.append(future)
        await future

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle_workers:
            future = self._idle_workers.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    def _wake_all(self) -> None:
        if self._statuses or self._events:
            self._wake(LOW_WORKERS)


def _pause_after(outcome: WriteOutcome | None) -> float:
    return max(outcome.wait, 0.1) if outcome is not None and outcome.throttled else 0.0
