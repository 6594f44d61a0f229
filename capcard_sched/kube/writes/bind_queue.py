"""The queue of bindings and evictions, its workers, and the reports about their outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from capcard_sched.kube.client import ApiError, Unreachable
from capcard_sched.kube.writes import binder, evictor
from capcard_sched.kube.writes.binder import BindCall, Binder
from capcard_sched.kube.writes.evictor import EvictionCall, EvictionGroup, PodEvictor, eviction_message
from capcard_sched.kube.writes.leadership_gate import GatedClient, LeadershipLost
from capcard_sched.kube.writes.retry_class import RetryClass, code_of, retry_after_of, retry_class, text_of
from capcard_sched.kube.writes.write_backoff import RefusedWrites, WriteBackoff
from capcard_sched.model.deltas import BindFailed, BindRetry, EvictFailed, ObjectGone
from capcard_sched.model.intents import EmitEvent, ObjectRef, UpdatePodCondition
from capcard_sched.model.reasons import FAILED_SCHEDULING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.writes.binder import PreBind
    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Bind, Evict, Intent

T = TypeVar("T")

#: Seconds between attempts at the same binding or eviction.
_ATTEMPTS = WriteBackoff(first=0.1, longest=10.0)
#: Seconds of backoff of a rejected pod.
_REFUSALS = WriteBackoff(first=1.0, longest=300.0)
#: Seconds after which the core learns of a repeatedly rejected eviction.
_EVICTIONS = WriteBackoff(first=1.0, longest=60.0)
#: Seconds of backoff of a pod that another client bound, until the watch delivers that.
_ELSEWHERE_SECONDS = 1.0
#: Seconds; longest pause of a worker after a 429; the pod itself may wait longer.
_MAX_PAUSE = 1.0
#: Seconds; shortest pause of a worker after a 429.
_MIN_PAUSE = 0.1
#: Number of inconclusive attempts after which the pod gets an event.
_REPORT_AFTER = 5
#: Seconds between reads of a binding that may have been committed, during shutdown.
_CLOSING_RETRY = 0.2
#: Number of pods whose volumes are bound concurrently: mostly waiting, minutes where volumes are provisioned.
PRE_BINDERS: Final = 64
#: Reason of the condition of a pod whose binding failed.
_SCHEDULER_ERROR = "SchedulerError"


class BindQueue:
    """Bindings and evictions, in order of submission. `ApiWriter` describes the arguments.

    `quiesce(uid)` waits for other writes to a pod, `submit(intents)` queues conditions and events, `on_idle()` is
    called when lower queues may send.
    """

    def __init__(
        self,
        client: Client,
        gate: LeadershipGate,
        deliver: Callable[[Sequence[Delta]], None],
        observer: Observer,
        *,
        workers: int,
        scheduler_name: str,
        use_eviction_api: bool,
        fence: Callable[[], str | None],
        server_seconds: float | None,
        pre_bind: PreBind | None,
        quiesce: Callable[[str], Awaitable[None]],
        submit: Callable[[Sequence[Intent]], None],
        stamp: Callable[[], str],
        on_idle: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._gate = gate
        self._deliver = deliver
        self._observer = observer
        self._workers = workers
        self._use_eviction_api = use_eviction_api
        self._pre_bind = pre_bind
        self._submit = submit
        self._on_idle = on_idle
        self._clock = clock
        self._binder = Binder(client, gate, fence, quiesce, server_seconds)
        self._evictor = PodEvictor(
            client,
            gate,
            scheduler_name=scheduler_name,
            use_eviction_api=use_eviction_api,
            stamp=stamp,
            on_condition_error=lambda code, message: observer.write_failed("PodCondition", code, message),
        )
        self._calls: deque[BindCall | EvictionCall] = deque()
        self._pre_bind_queue: deque[BindCall] = deque()
        self._idle_workers: deque[asyncio.Future[None]] = deque()
        self._idle_pre_binders: deque[asyncio.Future[None]] = deque()
        #: Timers of calls between two attempts, and of pods in backoff.
        self._timers: set[asyncio.TimerHandle] = set()
        self._open = {"bind": 0, "evict": 0}
        self._in_flight = 0
        #: Bindings that may have been committed, between two attempts, and the timers of their next one.
        self._uncertain: dict[BindCall, asyncio.TimerHandle | None] = {}
        self._refusals = RefusedWrites(_REFUSALS, clock)
        self._evict_refusals = RefusedWrites(_EVICTIONS, clock)
        self._closing: float | None = None

    # --- submission -------------------------------------------------------------------------------------------------

    def bind(self, bind: Bind) -> None:
        """Submit a binding."""
        call = BindCall(bind, self._gate.term, self._clock())
        self._open["bind"] += 1
        if self._pre_bind is not None and (bind.volumes or bind.node_lock):
            self._pre_bind_queue.append(call)
            _wake(self._idle_pre_binders)
        else:
            self._calls.append(call)
            _wake(self._idle_workers)

    def evict(self, evicts: Sequence[Evict]) -> None:
        """Submit evictions. With the eviction API, the victims of one preemptor are evicted all or none."""
        counts = Counter(evict.by for evict in evicts if self._use_eviction_api and evict.by)
        groups = {by: EvictionGroup() for by, count in counts.items() if count > 1}
        for evict in evicts:
            self._open["evict"] += 1
            self._calls.append(EvictionCall(evict, self._gate.term, groups.get(evict.by)))
            _wake(self._idle_workers)

    def close(self, at: float) -> None:
        """Send nothing new after `at`, in seconds of the clock; resolve possibly committed bindings without delay."""
        self._closing = at
        for call, timer in list(self._uncertain.items()):
            if timer is not None:
                timer.cancel()
                self._timers.discard(timer)
                self._uncertain[call] = None
                self._resubmit(call)

    @property
    def busy(self) -> bool:
        """Whether lower queues must wait: calls are queued, or many connections are in use."""
        return bool(self._calls) or self._in_flight > self._workers // 4

    @property
    def open(self) -> int:
        """Number of bindings and evictions without an outcome; while closing, only those that may still get one."""
        return self.unresolved if self._is_closing() else sum(self._open.values())

    @property
    def unresolved(self) -> int:
        """Number of requests in flight, and of bindings that may have been committed."""
        return self._in_flight + len(self._uncertain)

    def backlog(self) -> Mapping[str, int]:
        """Number of bindings and evictions without an outcome."""
        return self._open

    def clear(self) -> None:
        """Drop everything that is not in flight. The gate must be revoked before."""
        self._calls.clear()
        self._pre_bind_queue.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._uncertain.clear()
        self._refusals.clear()
        self._evict_refusals.clear()
        self._open.update(bind=0, evict=0)

    def workers(self) -> Iterator[Coroutine[None, None, None]]:
        """The coroutines of the workers; they run until cancelled."""
        for _ in range(self._workers):
            yield self._work()
        if self._pre_bind is not None:
            for _ in range(PRE_BINDERS):
                yield self._run_pre_bind(self._pre_bind)

    # --- workers ----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            call = self._next()
            if call is None:
                await _wait_for_work(self._idle_workers)
                continue
            self._in_flight += 1
            try:
                pause = await (self._bind(call) if isinstance(call, BindCall) else self._evict(call))
            except LeadershipLost:
                pause = 0.0
            finally:
                self._in_flight -= 1
            if not self.busy:
                self._on_idle()
            if pause:
                # The server is overloaded: the worker pauses, so that the rate falls as 429s become frequent.
                await asyncio.sleep(pause)

    def _next(self) -> BindCall | EvictionCall | None:
        """The next call; while closing, only bindings that may have been committed, which are in front then."""
        if not self._calls or (self._is_closing() and self._calls[0] not in self._uncertain):
            return None
        call = self._calls.popleft()
        if isinstance(call, BindCall):
            self._uncertain.pop(call, None)
        return call

    async def _bind(self, call: BindCall) -> float:
        bind = call.bind
        outcome = await self._binder.attempt(call)
        result = outcome.result
        if result is binder.BindResult.BOUND:
            self._observer.bound(bind, self._clock() - call.since)
            self._refusals.forget(bind.uid)
        if call.term != self._gate.term:
            return 0.0
        if result is binder.BindResult.AGAIN:
            if call.attempts >= _REPORT_AFTER:
                self._report_refusal(bind, outcome.code, outcome.message)
            wait = _ATTEMPTS.wait(call.attempts, outcome.wait)
            wait = wait if self._closing is None else min(wait, _CLOSING_RETRY)
            timer = self._later(wait, self._resubmit, call)
            if call.uncertain:
                self._uncertain[call] = timer
            return min(max(outcome.wait, _MIN_PAUSE), _MAX_PAUSE) if outcome.throttled else 0.0
        self._open["bind"] -= 1
        if result is binder.BindResult.GONE:
            self._refusals.forget(bind.uid)
            self._deliver([ObjectGone("Pod", bind.namespace, bind.name, bind.uid)])
        elif result is binder.BindResult.ELSEWHERE:
            self._refusals.forget(bind.uid)
            self._observer.bind_failed(bind, outcome.code, outcome.message)
            self._return_to_core(bind, outcome.message, _ELSEWHERE_SECONDS)
        elif result is binder.BindResult.REFUSED:
            self._refuse(bind, outcome.code, outcome.message, _bind_text(bind, outcome.message), outcome.wait)
        return 0.0

    async def _evict(self, call: EvictionCall) -> float:
        evict = call.evict
        dry_run = call.needs_dry_run
        outcome = await self._evictor.attempt(call)
        result = outcome.result
        if result is evictor.EvictionResult.EVICTED:
            self._observer.evicted(evict)
        if call.term != self._gate.term:
            return 0.0
        if result is evictor.EvictionResult.AGAIN:
            self._later(_ATTEMPTS.wait(call.attempts, outcome.wait), self._resubmit, call)
            return min(max(outcome.wait, _MIN_PAUSE), _MAX_PAUSE) if outcome.throttled else 0.0
        if dry_run and call.group is not None:
            for one in call.group.record(call, outcome):
                self._resubmit(one)
        if result is evictor.EvictionResult.ALLOWED:
            return 0.0
        self._open["evict"] -= 1
        if result is evictor.EvictionResult.REFUSED:
            self._observer.evict_failed(evict, outcome.code, outcome.message)
            # A repeated rejection reaches the core with a delay, or core and server would loop.
            repeats = evict.uid in self._evict_refusals
            wait = self._evict_refusals.refused(evict.uid)
            failed = EvictFailed(evict.namespace, evict.name, evict.uid, outcome.message)
            self._later(wait if repeats else 0.0, self._deliver, [failed])
            return 0.0
        self._evict_refusals.forget(evict.uid)
        if result is evictor.EvictionResult.GONE:
            self._deliver([ObjectGone("Pod", evict.namespace, evict.name, evict.uid)])
            return 0.0
        pod = ObjectRef("Pod", evict.namespace, evict.name, evict.uid)
        intents: list[Intent] = [EmitEvent(pod, "Warning", "Evict", eviction_message(evict))]
        # The framework emits one event per preempted job; other evictions get theirs here.
        if not evict.by and call.live_pod is not None and call.live_pod.group:
            group = ObjectRef("PodGroup", evict.namespace, call.live_pod.group)
            intents.append(EmitEvent(group, "Normal", "Evict", evict.reason))
        self._submit(intents)
        return 0.0

    async def _run_pre_bind(self, pre_bind: PreBind) -> None:
        while True:
            if not self._pre_bind_queue or self._is_closing():
                await _wait_for_work(self._idle_pre_binders)
                continue
            call = self._pre_bind_queue.popleft()
            call.attempts += 1
            bind = call.bind
            try:
                await pre_bind(cast("Client", GatedClient(self._client, self._gate, call.term)), bind)
            except LeadershipLost:
                continue
            except msgspec.DecodeError as error:
                if call.term == self._gate.term:
                    self._refuse_volumes(call, 0, f"an object cannot be decoded: {error}", 0.0)
                continue
            except (ApiError, Unreachable) as error:
                if call.term != self._gate.term:
                    continue
                if retry_class(error) in (RetryClass.LATER, RetryClass.UNKNOWN):
                    self._later(_ATTEMPTS.wait(call.attempts, retry_after_of(error)), self._requeue_pre_bind, call)
                    continue
                self._refuse_volumes(call, code_of(error), text_of(error), retry_after_of(error))
                continue
            if call.term == self._gate.term:
                call.attempts = 0
                self._calls.append(call)
                _wake(self._idle_workers)

    # --- reports ----------------------------------------------------------------------------------------------------

    def _refuse(self, bind: Bind, code: int, message: str, text: str, retry_after: float) -> None:
        self._observer.bind_failed(bind, code, message)
        wait = self._refusals.refused(bind.uid, retry_after)
        self._return_to_core(bind, message, wait)
        self._report(bind, text)

    def _refuse_volumes(self, call: BindCall, code: int, message: str, retry_after: float) -> None:
        self._open["bind"] -= 1
        text = f"execute preBind for pod {call.bind.name} failed: {message}, resync the task"
        self._refuse(call.bind, code, message, text, retry_after)

    def _return_to_core(self, bind: Bind, message: str, wait: float) -> None:
        """Return the pod to the core with a backoff of `wait` seconds."""
        self._deliver([BindFailed(bind.namespace, bind.name, bind.uid, message, wait)])
        self._later(wait, self._deliver, [BindRetry(bind.namespace, bind.name, bind.uid)])

    def _report_refusal(self, bind: Bind, code: int, message: str) -> None:
        """Report a binding that is still retried."""
        if self._report(bind, _bind_text(bind, message)):
            self._observer.bind_failed(bind, code, message)

    def _report(self, bind: Bind, message: str) -> bool:
        """Write condition and event of the pod, once per text; whether the text was new."""
        if not self._refusals.is_new(bind.uid, message):
            return False
        pod = ObjectRef("Pod", bind.namespace, bind.name, bind.uid)
        row = FAILED_SCHEDULING
        self._submit(
            [
                UpdatePodCondition(bind.namespace, bind.name, bind.uid, _SCHEDULER_ERROR, message),
                EmitEvent(pod, row.type, row.code, row.render(detail=message)),
            ]
        )
        return True

    # --- timers -----------------------------------------------------------------------------------------------------

    def _is_closing(self) -> bool:
        return self._closing is not None and self._clock() >= self._closing

    def _resubmit(self, call: BindCall | EvictionCall) -> None:
        if call in self._uncertain:
            self._calls.appendleft(call)
        else:
            self._calls.append(call)
        _wake(self._idle_workers)

    def _requeue_pre_bind(self, call: BindCall) -> None:
        self._pre_bind_queue.append(call)
        _wake(self._idle_pre_binders)

    def _later(self, seconds: float, call: Callable[[T], None], argument: T) -> asyncio.TimerHandle | None:
        """Call after `seconds`, unless `clear` comes first."""
        if seconds <= 0:
            call(argument)
            return None

        def fire() -> None:
            self._timers.discard(timer)
            call(argument)

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)
        return timer


def _bind_text(bind: Bind, message: str) -> str:
    return f"failed to bind to node {bind.node}: {message}"


async def _wait_for_work(waiters: deque[asyncio.Future[None]]) -> None:
    future = asyncio.get_running_loop().create_future()
    waiters.append(future)
    await future


def _wake(waiters: deque[asyncio.Future[None]]) -> None:
    while waiters:
        future = waiters.popleft()
        if not future.done():
            future.set_result(None)
            return
