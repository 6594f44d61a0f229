"""Writes intents to the API server: one dispatcher of calls with three priorities.

Bindings and evictions are sent at once, on `binders` connections. Statuses are sent when no binding waits, events when
no status waits; each object or event waits once, with its latest value. An entry of a lower queue that waits for
seconds is sent beside the bindings, one at a time. Admissions are statuses that do not wait for bindings: controllers
create the pods of a job when they see its phase.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from capcard_sched.kube.writes.bind_gang import BindGang
from capcard_sched.kube.writes.binder import BindCall, Binder
from capcard_sched.kube.writes.capacity_requests import CapacityCall, CapacityRequests
from capcard_sched.kube.writes.claim_releaser import ClaimReleaser, ReleaseCall
from capcard_sched.kube.writes.event_correlator import EventCorrelator
from capcard_sched.kube.writes.events import EventCall, EventNames, EventWriter
from capcard_sched.kube.writes.evictor import EvictionCall, EvictionGroup, PodEvictor
from capcard_sched.kube.writes.leadership_gate import LeadershipGate, LeadershipLost
from capcard_sched.kube.writes.status_rate_limiter import StatusRateLimiter, scheduler_policy
from capcard_sched.kube.writes.statuses import StatusCall, Statuses, condition_key
from capcard_sched.kube.writes.work_queue import IdleWorkers, WorkQueue
from capcard_sched.kube.writes.write_call import WriteCall, WriteOutcome, WriterContext, WriteResult, merge_calls
from capcard_sched.model.intents import (
    Bind,
    EmitEvent,
    Evict,
    Intent,
    ReleaseClaims,
    RequestCapacity,
    UpdatePodGroup,
    WithdrawRequest,
)
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.writes.binder import BindLock, PreBind
    from capcard_sched.kube.writes.claim_releaser import UndoPreBind
    from capcard_sched.kube.writes.event_correlator import Series
    from capcard_sched.kube.writes.statuses import StatusKey
    from capcard_sched.kube.writes.work_queue import WorkItem
    from capcard_sched.model.deltas import Delta

_Calls: TypeAlias = "WorkQueue[Hashable, WriteCall]"
_Item: TypeAlias = "WorkItem[Hashable, WriteCall]"

#: Number of workers, and connections, for statuses and events.
LOW_WORKERS: Final = 8
#: Number of pods whose volumes are bound concurrently: mostly waiting, minutes where volumes are provisioned.
PRE_BINDERS: Final = 64
#: Number of waiting events; beyond it the oldest are dropped.
MAX_EVENTS: Final = 20_000
#: Seconds after which a status, an event is written beside bindings.
_STATUS_SECONDS, _EVENT_SECONDS = 5.0, 10.0
#: Seconds between checks of delayed entries.
_POLL_SECONDS = 0.25
#: Seconds between attempts at a binding that may have been committed, during shutdown.
_CLOSING_RETRY = 0.2
#: Seconds by which a worker is woken late: a rounded timer must not wake it early.
_TIMER_SLACK = 0.002


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
        pre_bind: runs before a pod with volumes or ResourceClaims is bound; `undo_pre_bind` if it is not bound.
        bind_lock: excludes other schedulers while a pod with shared devices is bound.
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
        bind_lock: BindLock | None = None,
        undo_pre_bind: UndoPreBind | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._deliver = deliver
        self._observer = observer
        self._binders = binders
        self._use_eviction_api = use_eviction_api
        self._clock = clock
        self._now = now
        self._gate = LeadershipGate(time_left)
        self._urgent: _Calls = WorkQueue(merge_calls)
        self._pre_binds: _Calls = WorkQueue(merge_calls)
        self._statuses: _Calls = WorkQueue(merge_calls)
        self._events: _Calls = WorkQueue(merge_calls, MAX_EVENTS)
        self._urgent_idle, self._pre_bind_idle, self._low_idle = IdleWorkers(), IdleWorkers(), IdleWorkers()
        self._rate_limiter = StatusRateLimiter(scheduler_policy)
        self._correlator = EventCorrelator(scheduler_name, EventNames())
        self.context = base = WriterContext(client, self._gate, observer, clock, self._deliver_after, self.submit)
        self._binder = Binder(
            base,
            fence=fence,
            quiesce=self._quiesce,
            server_seconds=server_seconds,
            pre_bind=pre_bind,
            bind_lock=bind_lock,
            undo_pre_bind=undo_pre_bind,
            resume=self._put_urgent,
        )
        self._claim_releaser = ClaimReleaser(base, undo_pre_bind)
        self._evictor = PodEvictor(
            base,
            scheduler_name=scheduler_name,
            use_eviction_api=use_eviction_api,
            stamp=lambda: format_timestamp(now()),
            resume=self._put_urgent,
        )
        self._status_writer = Statuses(base, self._rate_limiter, lambda: format_timestamp(now()))
        self._capacity_writer = CapacityRequests(base)
        self._event_writer = EventWriter(base, self._correlator)
        #: Bindings and evictions without an outcome.
        self._open = {"bind": 0, "evict": 0}
        self._in_flight = 0
        #: Bindings that may have been committed, between two attempts.
        self._uncertain: set[WriteCall] = set()
        #: Time from which nothing new is sent, in seconds of the clock.
        self._closing: float | None = None
        #: Timers of deltas.
        self._timers: set[asyncio.TimerHandle] = set()
        #: Futures that wait for the end of a condition's write, by its key.
        self._condition_waiters: dict[Hashable, asyncio.Future[None]] = {}
        #: A worker of the lower queues writes beside bindings.
        self._low_beside_binds = False

    def submit(self, intents: Sequence[Intent]) -> None:
        """Queue the intents of a session. Called in the event loop; returns at once."""
        low = 0
        term, now = self._gate.term, self._clock()
        evicts = [intent for intent in intents if isinstance(intent, Evict)]
        members = Counter(intent.gang for intent in intents if isinstance(intent, Bind) and intent.gang)
        gangs: dict[str, BindGang[BindCall]] = {str(gang): BindGang(count) for gang, count in members.items()}
        for intent in intents:
            if isinstance(intent, Bind):
                self._discard_condition(condition_key(intent.uid))
                self._status_writer.forget_pod(intent.uid)
                self._put_bind(intent, term, gangs.get(intent.gang or ""))
            elif isinstance(intent, EmitEvent):
                series = self._correlator.observe(intent, self._now())
                if series is not None:
                    self._put_event(series, term, now)
                    low += 1
            elif isinstance(intent, ReleaseClaims):
                self._put_pre_bind(ReleaseCall(self._claim_releaser, intent, term))
            elif isinstance(intent, RequestCapacity | WithdrawRequest):
                request = CapacityCall(self._capacity_writer, intent, term)
                self._statuses.add(request.key, request, now)
                low += 1
            elif not isinstance(intent, Evict):
                call = StatusCall(self._status_writer, intent, term)
                admitted = isinstance(intent, UpdatePodGroup) and intent.admitted
                self._statuses.add(call.key, call, now, urgent=admitted)
                if self._rate_limiter.may_advance(call.key, intent, now):
                    self._statuses.advance(call.key)
                low += 1
        # With the eviction API, the victims of one preemptor are evicted all or none.
        counts = Counter(evict.by for evict in evicts if self._use_eviction_api and evict.by)
        groups = {by: EvictionGroup() for by, count in counts.items() if count > 1}
        for evict in evicts:
            self._open["evict"] += 1
            self._put_urgent(EvictionCall(self._evictor, evict, term, groups.get(evict.by)))
        self._report_lost()
        self._low_idle.wake(low)

    async def perform(self, call: WriteCall) -> WriteOutcome:
        """Send a call once, in the task of its caller, who decides on another attempt. Raises LeadershipLost.

        Statuses and events wait meanwhile, as for a binding. Returns after the pause of the outcome.
        """
        call.since = self._clock()
        self._in_flight += 1
        try:
            outcome = await call.writer.send(call)
        finally:
            self._in_flight -= 1
            if not self._busy:
                self._wake_low()
        await asyncio.sleep(outcome.pause)
        return outcome

    async def run(self) -> None:
        """Run the workers until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll_delayed())
            counts = {self._write_urgent: self._binders, self._write_low: LOW_WORKERS, self._run_pre_binds: PRE_BINDERS}
            for worker in Counter(counts).elements():
                group.create_task(worker())

    async def drain(self, timeout: float) -> Mapping[str, int]:  # noqa: ASYNC109 -- returns the rest instead of raising
        """Write what is queued, for at most `timeout` seconds; returns the number of unsent writes by queue.

        In the last fifth of the time no new binding or eviction is sent, so that those in flight can end; a binding
        that may have been committed is still resolved, without delay.
        """
        deadline = self._clock() + timeout
        self._closing = deadline - timeout / 5
        for call in self._uncertain:
            self._urgent.advance(call.key, first=True)
        self._urgent_idle.wake(len(self._uncertain))
        while self._clock() < deadline:
            binds = self.unresolved_binds if self._is_closing() else sum(self._open.values())
            if not (binds or self._statuses.open or self._events.open):
                break
            await asyncio.sleep(min(0.02, timeout / 20))
        return self.backlog()

    def reset(self) -> None:
        """Drop all unsent writes after a loss of leadership; outcomes of requests in flight are ignored."""
        self._gate.revoke()
        for queue in (self._urgent, self._pre_binds, self._statuses, self._events):
            queue.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._uncertain.clear()
        self._open.update(bind=0, evict=0)
        for writer in (self._binder, self._evictor):
            writer.refusals.clear()
        self._rate_limiter.clear()
        self._correlator.clear()

    @property
    def unresolved_binds(self) -> int:
        """Number of bindings and evictions in flight, and of bindings that may have been committed."""
        return self._in_flight + len(self._uncertain)

    def backlog(self) -> Mapping[str, int]:
        """Number of waiting and in-flight writes by queue."""
        return {**self._open, "status": len(self._statuses), "event": len(self._events)}

    def _put_bind(self, bind: Bind, term: int, gang: BindGang[BindCall] | None) -> None:
        self._open["bind"] += 1
        call = BindCall(self._binder, bind, term, needs_pre_bind=self._binder.needs_pre_bind(bind), gang=gang)
        (self._put_pre_bind if call.needs_pre_bind else self._put_urgent)(call)

    def _put_pre_bind(self, call: WriteCall) -> None:
        self._pre_binds.add(call, call, self._clock())
        self._pre_bind_idle.wake()

    def _put_urgent(self, call: WriteCall) -> None:
        self._urgent.add(call.key, call, call.since or self._clock())
        self._urgent_idle.wake()

    def _put_event(self, series: Series, term: int, now: float) -> None:
        call = EventCall(self._event_writer, series, term)
        if self._events.add(call.key, call, now):
            self._observer.dropped("Event", 1)

    def _report_lost(self) -> None:
        if lost := self._correlator.drain_lost():
            self._observer.dropped("Event", lost)

    async def _poll_delayed(self) -> None:
        """Move delayed entries to their queue when they are ready; idle, it costs a few microseconds."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for series in self._correlator.pop_ready(self._now()):
                self._put_event(series, self._gate.term, self._clock())
            self._report_lost()
            self._wake_low()

    def _quiesce(self, uid: str) -> Awaitable[None] | None:
        """Discard the pod's condition: a bound pod must not get PodScheduled=False.

        Returns the wait for its write in flight, None without one.
        """
        key = condition_key(uid)
        self._discard_condition(key)
        return self._condition_written(key) if self._statuses.is_in_flight(key) else None

    async def _condition_written(self, key: StatusKey) -> None:
        while self._statuses.is_in_flight(key):
            end = self._condition_waiters.setdefault(key, asyncio.get_running_loop().create_future())
            await asyncio.shield(end)

    def _discard_condition(self, key: StatusKey) -> None:
        self._statuses.discard(key)
        self._rate_limiter.forget(key)

    def _deliver_after(self, seconds: float, delta: Delta) -> None:
        """Deliver a delta after `seconds`, unless `reset` comes first."""
        if seconds <= 0:
            self._deliver([delta])
            return

        def fire() -> None:
            self._timers.discard(timer)
            self._deliver([delta])

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)

    async def _write_urgent(self) -> None:
        while True:
            item = self._next_urgent()
            if item is None:
                await self._urgent_idle.wait()
                continue
            self._in_flight += 1
            try:
                pause = await self._send(self._urgent, item, self._urgent_idle)
            finally:
                self._in_flight -= 1
            if not self._busy:
                self._wake_low()
            if pause:
                await asyncio.sleep(pause)

    def _wake_low(self) -> None:
        self._low_idle.wake(LOW_WORKERS if self._statuses or self._events else 0)

    def _next_urgent(self) -> _Item | None:
        """The next call; while closing, only bindings that may have been committed. The others stay in the backlog."""
        item = self._urgent.get(self._clock())
        while item is not None and self._is_closing() and item.value not in self._uncertain:
            self._urgent.done(item.key)
            item = self._urgent.get(self._clock())
        if item is not None:
            self._uncertain.discard(item.value)
        return item

    async def _run_pre_binds(self) -> None:
        while True:
            item = None if self._is_closing() else self._pre_binds.get(self._clock())
            if item is None:
                await self._pre_bind_idle.wait()
            else:
                await self._send(self._pre_binds, item, self._pre_bind_idle)

    async def _write_low(self) -> None:
        while True:
            admission = self._statuses.get_urgent()
            busy = self._busy and admission is None
            found = self._next_low(self._clock()) if admission is None else (self._statuses, admission)
            if found is None:
                await self._low_idle.wait()
                continue
            self._low_beside_binds |= busy
            try:
                pause = await self._send(*found)
            finally:
                if busy:
                    self._low_beside_binds = False
            if pause:
                await asyncio.sleep(pause)

    def _next_low(self, now: float) -> tuple[_Calls, _Item] | None:
        """The next status, else the next event; beside bindings, one that is overdue, unless another one is sent."""
        late_events = _is_overdue(self._events, now, _EVENT_SECONDS)
        if self._busy and (
            self._low_beside_binds or not (late_events or _is_overdue(self._statuses, now, _STATUS_SECONDS))
        ):
            return None
        # An overdue event precedes statuses, so that it does not starve.
        first, last = (self._events, self._statuses) if late_events else (self._statuses, self._events)
        for queue in (first, last):
            item = queue.get(now)
            if item is not None:
                return queue, item
        return None

    async def _send(self, queue: _Calls, item: _Item, idle: IdleWorkers | None = None) -> float:
        """One attempt at a call. Returns seconds to pause. `idle`: woken when the next attempt is due."""
        call, writer = item.value, item.value.writer
        until = writer.not_before(call)
        if until is not None:
            queue.requeue(item, until)
            return 0.0
        call.since = item.since
        try:
            outcome = await writer.send(call)
        except LeadershipLost:
            outcome = None
        if outcome is None:
            queue.done(item.key)
        elif outcome.result is WriteResult.AGAIN:
            self._retry(queue, item, writer.wait(call, outcome), idle)
            writer.end(call, outcome)
        else:
            queue.done(item.key)
            if call.lane and outcome.result is not WriteResult.ALLOWED:
                self._open[call.lane] -= 1
            writer.end(call, outcome)
        if self._condition_waiters:
            waiter = self._condition_waiters.pop(item.key, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        return 0.0 if outcome is None else outcome.pause

    def _retry(self, queue: _Calls, item: _Item, wait: float, idle: IdleWorkers | None) -> None:
        call = item.value
        uncertain = isinstance(call, BindCall) and call.uncertain
        if uncertain:
            self._uncertain.add(call)
        if self._closing is not None and isinstance(call, BindCall):
            wait = min(wait, _CLOSING_RETRY)
        queue.requeue(item, self._clock() + wait, first=uncertain)
        if idle is not None:
            asyncio.get_running_loop().call_later(wait + _TIMER_SLACK, idle.wake)

    @property
    def _busy(self) -> bool:
        """Whether lower queues must wait: calls are queued, or many connections are in use."""
        return self._in_flight > self._binders // 4 or self._urgent.oldest() is not None

    def _is_closing(self) -> bool:
        return self._closing is not None and self._clock() >= self._closing


def _is_overdue(queue: _Calls, now: float, seconds: float) -> bool:
    """Whether a ready call waits for more than `seconds`."""
    since = queue.oldest()
    return since is not None and now - since > seconds
