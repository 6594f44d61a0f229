"""The first lane: bindings and evictions, the workers that send them, and what is told about how they end."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from capcard_sched.kube.client import ApiError, Unreachable
from capcard_sched.kube.writes import binder, evictor
from capcard_sched.kube.writes.binder import Binder, Binding
from capcard_sched.kube.writes.evictor import EvictionCall, EvictionGroup, PodEvictor, because
from capcard_sched.kube.writes.leadership_gate import GatedClient, LeadershipLost
from capcard_sched.kube.writes.retry_class import RetryClass, asked_wait, code_of, text_of, verdict
from capcard_sched.kube.writes.write_backoff import RefusedWrites, WriteBackoff
from capcard_sched.model.deltas import BindFailed, BindRetry, EvictFailed, PodGone
from capcard_sched.model.intents import EmitEvent, ObjectRef, UpdatePodCondition
from capcard_sched.model.reasons import FAILED_SCHEDULING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.writes.binder import Settle
    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Bind, Evict, Intent

T = TypeVar("T")

#: Between attempts at the same binding or eviction, in seconds.
_ATTEMPTS = WriteBackoff(first=0.1, longest=10.0)
#: How long a refused pod is left alone, in seconds.
_REFUSALS = WriteBackoff(first=1.0, longest=300.0)
#: How long the core believes that a refused eviction is under way when it was refused before, in seconds.
_EVICTIONS = WriteBackoff(first=1.0, longest=60.0)
#: A pod that somebody else bound is left alone until the watch shows it, in seconds.
_ELSEWHERE_SECONDS = 1.0
#: The longest a worker rests for when the server asks for fewer requests, in seconds; the pod itself waits longer.
_MAX_REST = 1.0
#: A worker's least rest then.
_MIN_REST = 0.1
#: So many attempts without a definite answer are told on the pod.
_TELL_AFTER = 5
#: Between looks at a binding that may have been committed, when we are about to end, in seconds.
_LAST_LOOKS = 0.2
#: Pods whose volumes are settled at a time: that is waiting for the most part, minutes where volumes are made.
SETTLERS: Final = 64
#: The condition's reason for a pod that could not be bound (core reference §5.3).
_SCHEDULER_ERROR = "SchedulerError"


class BindQueue:
    """Bindings and evictions, in order of submission. See `writer.Effects` for the arguments.

    `still(uid)` waits for other writes to a pod, `tell(intents)` takes conditions and events, `idle()` is called when
    the lane leaves room for others.
    """

    def __init__(
        self,
        client: Client,
        permit: LeadershipGate,
        deliver: Callable[[Sequence[Delta]], None],
        observer: Observer,
        *,
        workers: int,
        scheduler_name: str,
        use_eviction_api: bool,
        fence: Callable[[], str | None],
        settle: Settle | None,
        still: Callable[[str], Awaitable[None]],
        tell: Callable[[Sequence[Intent]], None],
        stamp: Callable[[], str],
        idle: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._permit = permit
        self._deliver = deliver
        self._observer = observer
        self._workers = workers
        self._use_eviction_api = use_eviction_api
        self._settle = settle
        self._tell = tell
        self._idle = idle
        self._clock = clock
        self._binder = Binder(client, permit, fence, still)
        self._evictor = PodEvictor(
            client,
            permit,
            scheduler_name=scheduler_name,
            use_eviction_api=use_eviction_api,
            stamp=stamp,
            mark_failed=lambda code, message: observer.write_failed("PodCondition", code, message),
        )
        self._jobs: deque[Binding | EvictionCall] = deque()
        self._unsettled: deque[Binding] = deque()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._settlers: deque[asyncio.Future[None]] = deque()
        #: Jobs between two attempts, and pods left alone.
        self._timers: set[asyncio.TimerHandle] = set()
        self._counts = {"bind": 0, "evict": 0}
        self._in_flight = 0
        #: Bindings between two attempts of which the first may have been committed, and what wakes them.
        self._uncertain: dict[Binding, asyncio.TimerHandle | None] = {}
        self._refusals = RefusedWrites(_REFUSALS, clock)
        self._evict_refusals = RefusedWrites(_EVICTIONS, clock)
        self._closing: float | None = None

    # --- from outside -----------------------------------------------------------------------------------------------

    def bind(self, bind: Bind) -> None:
        """Submit a binding."""
        job = Binding(bind, self._permit.term, self._clock())
        self._counts["bind"] += 1
        if self._settle is not None and bind.volumes:
            self._unsettled.append(job)
            _wake(self._settlers)
        else:
            self._jobs.append(job)
            _wake(self._resting)

    def evict(self, evicts: Sequence[Evict]) -> None:
        """Submit evictions. By the eviction API those for one pod are made if all of them may be."""
        together = Counter(evict.by for evict in evicts if self._use_eviction_api and evict.by)
        companies = {by: EvictionGroup() for by, count in together.items() if count > 1}
        for evict in evicts:
            self._counts["evict"] += 1
            self._jobs.append(EvictionCall(evict, self._permit.term, companies.get(evict.by)))
            _wake(self._resting)

    def close(self, at: float) -> None:
        """Begin nothing after `at`, in seconds of the clock, and pursue what may have been committed without delay."""
        self._closing = at
        for job, timer in list(self._uncertain.items()):
            if timer is not None:
                timer.cancel()
                self._timers.discard(timer)
                self._uncertain[job] = None
                self._resubmit(job)

    @property
    def busy(self) -> bool:
        """Whether others had better wait: there is a line, or most connections are in use."""
        return bool(self._jobs) or self._in_flight > self._workers // 4

    @property
    def open(self) -> int:
        """Bindings and evictions without a known outcome; while closing, those that may have one."""
        return self._in_flight + len(self._uncertain) if self._is_closing() else sum(self._counts.values())

    def backlog(self) -> Mapping[str, int]:
        """Bindings and evictions without a known outcome."""
        return self._counts

    def clear(self) -> None:
        """Forget what is not under way. The permit must have been revoked before."""
        self._jobs.clear()
        self._unsettled.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._uncertain.clear()
        self._refusals.clear()
        self._evict_refusals.clear()
        self._counts.update(bind=0, evict=0)

    def tasks(self) -> Iterator[Coroutine[None, None, None]]:
        """The workers, to be run until cancelled."""
        for _ in range(self._workers):
            yield self._work()
        if self._settle is not None:
            for _ in range(SETTLERS):
                yield self._work_on_volumes(self._settle)

    # --- workers ----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            job = self._next()
            if job is None:
                await _rest(self._resting)
                continue
            self._in_flight += 1
            try:
                rest = await (self._bind(job) if isinstance(job, Binding) else self._evict(job))
            except LeadershipLost:
                rest = 0.0
            finally:
                self._in_flight -= 1
            if not self.busy:
                self._idle()
            if rest:
                # The server is busy: whoever was told so makes a pause, so that the rate falls as refusals become many.
                await asyncio.sleep(rest)

    def _next(self) -> Binding | EvictionCall | None:
        """The next in line; while closing, bindings that are to be pursued, which stand in front then."""
        if not self._jobs or (self._is_closing() and self._jobs[0] not in self._uncertain):
            return None
        job = self._jobs.popleft()
        if isinstance(job, Binding):
            self._uncertain.pop(job, None)
        return job

    async def _bind(self, job: Binding) -> float:
        bind = job.bind
        ending = await self._binder.attempt(job)
        fate = ending.fate
        if fate is binder.BindResult.BOUND:
            self._observer.bound(bind, self._clock() - job.since)
            self._refusals.forget(bind.uid)
        if job.term != self._permit.term:
            return 0.0
        if fate is binder.BindResult.AGAIN:
            if job.attempts >= _TELL_AFTER:
                self._tell_refusal(bind, ending.code, ending.message)
            wait = _ATTEMPTS.wait(job.attempts, ending.wait)
            wait = wait if self._closing is None else min(wait, _LAST_LOOKS)
            timer = self._later(wait, self._resubmit, job)
            if job.uncertain:
                self._uncertain[job] = timer
            return min(max(ending.wait, _MIN_REST), _MAX_REST) if ending.throttled else 0.0
        self._counts["bind"] -= 1
        if fate is binder.BindResult.GONE:
            self._refusals.forget(bind.uid)
            self._deliver([PodGone(bind.namespace, bind.name, bind.uid)])
        elif fate is binder.BindResult.ELSEWHERE:
            self._refusals.forget(bind.uid)
            self._observer.bind_failed(bind, ending.code, ending.message)
            self._hold(bind, ending.message, _ELSEWHERE_SECONDS)
        elif fate is binder.BindResult.REFUSED:
            self._refuse(bind, ending.code, ending.message, _bind_text(bind, ending.message), ending.wait)
        return 0.0

    async def _evict(self, job: EvictionCall) -> float:
        evict = job.evict
        asked = job.asks_first
        ending = await self._evictor.attempt(job)
        fate = ending.fate
        if fate is evictor.EvictionResult.EVICTED:
            self._observer.evicted(evict)
        if job.term != self._permit.term:
            return 0.0
        if fate is evictor.EvictionResult.AGAIN:
            self._later(_ATTEMPTS.wait(job.attempts, ending.wait), self._resubmit, job)
            return min(max(ending.wait, _MIN_REST), _MAX_REST) if ending.throttled else 0.0
        if asked and job.company is not None:
            for one in job.company.hear(job, ending):
                self._resubmit(one)
        if fate is evictor.EvictionResult.WILLING:
            return 0.0
        self._counts["evict"] -= 1
        if fate is evictor.EvictionResult.REFUSED:
            self._observer.evict_failed(evict, ending.code, ending.message)
            # The core goes by what it hears: a refusal that repeats is told late, or core and server would spin.
            repeats = evict.uid in self._evict_refusals
            wait = self._evict_refusals.refused(evict.uid)
            failed = EvictFailed(evict.namespace, evict.name, evict.uid, ending.message)
            self._later(wait if repeats else 0.0, self._deliver, [failed])
            return 0.0
        self._evict_refusals.forget(evict.uid)
        if fate is evictor.EvictionResult.GONE:
            self._deliver([PodGone(evict.namespace, evict.name, evict.uid)])
            return 0.0
        pod = ObjectRef("Pod", evict.namespace, evict.name, evict.uid)
        told: list[Intent] = [EmitEvent(pod, "Warning", "Evict", because(evict))]
        # Who took room from a job is told on it once for all its pods, by who decided it; otherwise here.
        if not evict.by and job.marked is not None and job.marked.group:
            group = ObjectRef("PodGroup", evict.namespace, job.marked.group)
            told.append(EmitEvent(group, "Normal", "Evict", evict.reason))
        self._tell(told)
        return 0.0

    async def _work_on_volumes(self, settle: Settle) -> None:
        while True:
            if not self._unsettled or self._is_closing():
                await _rest(self._settlers)
                continue
            job = self._unsettled.popleft()
            job.attempts += 1
            bind = job.bind
            try:
                await settle(cast("Client", GatedClient(self._client, self._permit, job.term)), bind)
            except LeadershipLost:
                continue
            except msgspec.DecodeError as error:
                if job.term == self._permit.term:
                    self._refuse_volumes(job, 0, f"an object cannot be read: {error}", 0.0)
                continue
            except (ApiError, Unreachable) as error:
                if job.term != self._permit.term:
                    continue
                if verdict(error) in (RetryClass.LATER, RetryClass.UNKNOWN):
                    self._later(_ATTEMPTS.wait(job.attempts, asked_wait(error)), self._resettle, job)
                    continue
                self._refuse_volumes(job, code_of(error), text_of(error), asked_wait(error))
                continue
            if job.term == self._permit.term:
                job.attempts = 0
                self._jobs.append(job)
                _wake(self._resting)

    # --- endings ----------------------------------------------------------------------------------------------------

    def _refuse(self, bind: Bind, code: int, message: str, said: str, asked: float) -> None:
        self._observer.bind_failed(bind, code, message)
        wait = self._refusals.refused(bind.uid, asked)
        self._hold(bind, message, wait)
        self._say(bind, said)

    def _refuse_volumes(self, job: Binding, code: int, message: str, asked: float) -> None:
        self._counts["bind"] -= 1
        said = f"execute preBind for pod {job.bind.name} failed: {message}, resync the task"
        self._refuse(job.bind, code, message, said, asked)

    def _hold(self, bind: Bind, message: str, wait: float) -> None:
        """Give the pod back to the core, to be left alone for so many seconds."""
        self._deliver([BindFailed(bind.namespace, bind.name, bind.uid, message, wait)])
        self._later(wait, self._deliver, [BindRetry(bind.namespace, bind.name, bind.uid)])

    def _tell_refusal(self, bind: Bind, code: int, message: str) -> None:
        """A binding that does not get through is told, and goes on being tried."""
        if self._say(bind, _bind_text(bind, message)):
            self._observer.bind_failed(bind, code, message)

    def _say(self, bind: Bind, message: str) -> bool:
        """Condition and event on the pod, once per text. Whether it was news."""
        if not self._refusals.is_news(bind.uid, message):
            return False
        pod = ObjectRef("Pod", bind.namespace, bind.name, bind.uid)
        row = FAILED_SCHEDULING
        self._tell(
            [
                UpdatePodCondition(bind.namespace, bind.name, bind.uid, _SCHEDULER_ERROR, message),
                EmitEvent(pod, row.type, row.code, row.render(detail=message)),
            ]
        )
        return True

    # --- time -------------------------------------------------------------------------------------------------------

    def _is_closing(self) -> bool:
        return self._closing is not None and self._clock() >= self._closing

    def _resubmit(self, job: Binding | EvictionCall) -> None:
        if job in self._uncertain:
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)
        _wake(self._resting)

    def _resettle(self, job: Binding) -> None:
        self._unsettled.append(job)
        _wake(self._settlers)

    def _later(self, seconds: float, call: Callable[[T], None], argument: T) -> asyncio.TimerHandle | None:
        """Call after so many seconds, unless everything is cleared before."""
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


async def _rest(line: deque[asyncio.Future[None]]) -> None:
    future = asyncio.get_running_loop().create_future()
    line.append(future)
    await future


def _wake(line: deque[asyncio.Future[None]]) -> None:
    while line:
        future = line.popleft()
        if not future.done():
            future.set_result(None)
            return
