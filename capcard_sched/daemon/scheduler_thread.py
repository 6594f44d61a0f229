"""The scheduler thread, the only one that touches the core.

All input comes through the inbox, in order: deltas of the watches, and calls (lead, stand by, another scheduler-conf,
queries of the state). Intents leave through `handover`, which has the event loop call `ApiWriter.submit`.

The thread sleeps until input arrives, then debounces, so that a burst of deltas makes one session. Without input it
runs a session every `period` seconds, for plugins whose results depend on the clock, and at once when the session
deadline left jobs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from capcard_sched.model.deltas import Takeover
from capcard_sched.model.intents import Bind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.framework.core import Core, StepResult
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent

_T = TypeVar("_T")

#: Seconds: debounce after the first input.
_DEBOUNCE = 0.01
#: Ratio of the pause after a session to its duration, and its maximum in seconds: while many pods are bound, their
#: echoes then arrive together instead of in a session each.
_REST_SHARE = 3.0
_LONGEST_REST = 0.25
#: Binds: the minimum batch handed over during a session, and the seconds after which a smaller one is.
_BATCH = 64
_BATCH_SECONDS = 0.1


class Listener(Protocol):
    """Callbacks of the thread, called in the thread."""

    def applied(self, deltas: Sequence[Delta]) -> None:
        """Deltas were applied outside of a step."""

    def stepped(
        self, core: Core, result: StepResult, deltas: Sequence[Delta], now: float, *, intake: float, seconds: float
    ) -> None:
        """A step over `deltas` is complete; `now` in Unix seconds.

        Applying `deltas` took `intake` seconds, the session from its opening to the end of its close `seconds`.
        """

    def failed(self, what: str, error: Exception) -> None:
        """An unexpected exception; the thread continues."""


class SchedulerThread:
    """Runs the core. All methods but `run` may be called from any thread."""

    def __init__(
        self,
        core: Core,
        *,
        handover: Callable[[Sequence[Intent]], None],
        listener: Listener,
        period: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`handover` receives intents, in this thread; `period` is the maximum gap between sessions in seconds."""
        self._core = core
        self._handover = handover
        self._listener = listener
        self._period = period
        self._clock = clock
        self._inbox: SimpleQueue[Sequence[Delta] | Callable[[], None]] = SimpleQueue()
        self._leading = False
        self._stopping = False
        self._batch: list[Intent] = []
        #: When binds were last handed over, by the monotonic clock.
        self._handed_over = 0.0
        #: Whether the last session left jobs to the next one.
        self._unfinished = False
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        #: When the last session ended while leading, by the monotonic clock; None before the first.
        self.last_cycle: float | None = None

    def start(self) -> None:
        """Start the thread as a standby."""
        self._thread.start()

    def config_maps(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of the ConfigMaps that plugins read; to be called before `start`."""
        return self._core.config_maps

    def deliver(self, deltas: Sequence[Delta]) -> None:
        self._inbox.put(deltas)

    def lead(self) -> None:
        """Run sessions from now on, after everything delivered before is applied."""
        self._inbox.put(self._begin)

    def stand_by(self) -> None:
        """Run no more sessions; keep applying deltas."""
        self._inbox.put(self._end)

    def call(self, query: Callable[[Core], _T], result: Future[_T]) -> None:
        """Run a query of the core between two steps; its value or exception becomes the future's result.

        A query cancelled before its turn (a scrape during a long session) does not run.
        """

        def run() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(query(self._core))
            except Exception as error:  # noqa: BLE001 - the caller receives it
                result.set_exception(error)

        self._inbox.put(run)

    async def query(self, query: Callable[[Core], _T]) -> _T:
        """`call` for the event loop."""
        result: Future[_T] = Future()
        self.call(query, result)
        return await asyncio.wrap_future(result)

    def stop(self) -> None:
        """Stop after the current step."""
        self._stopping = True
        self._inbox.put(())

    def is_alive(self) -> bool:
        """Whether the thread runs, or was stopped on purpose."""
        return self._stopping or self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; False after `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _begin(self) -> None:
        self._leading = True
        self._apply_and_report([Takeover()])

    def _end(self) -> None:
        self._leading = False
        self.last_cycle = None

    def _run(self) -> None:
        rest = 0.0
        while not self._stopping:
            unfinished = self._leading and self._unfinished
            try:
                timeout = 0.0 if unfinished else self._period
                arrived: list[Any] = [self._inbox.get(timeout=timeout if self._leading else None)]
            except Empty:
                arrived = []
            if arrived or unfinished:
                time.sleep(max(_DEBOUNCE, rest))
            while True:
                try:
                    arrived.append(self._inbox.get_nowait())
                except Empty:
                    break
            if self._stopping:
                return
            began = time.monotonic()
            self._process(arrived)
            if self._leading:
                self.last_cycle = time.monotonic()
            rest = min(_REST_SHARE * (time.monotonic() - began), _LONGEST_REST)

    def _process(self, arrived: list[Any]) -> None:
        """Apply deltas and run calls in order; then a session, as leader."""
        deltas: list[Delta] = []
        arrived.reverse()
        while arrived:
            item = arrived.pop()  # the objects of lists, which a session does not read, are freed before it
            if not callable(item):
                deltas += item
                continue
            self._apply_and_report(deltas)
            deltas = []
            try:
                item()
            except Exception as error:  # noqa: BLE001 - a failed call must not end the thread
                self._listener.failed("call", error)
        if self._leading:
            self._step(deltas)
        else:
            self._apply_and_report(deltas)

    def _apply_and_report(self, deltas: Sequence[Delta]) -> None:
        if deltas:
            self._apply(deltas)
            self._listener.applied(deltas)

    def _apply(self, deltas: Sequence[Delta]) -> None:
        """Apply deltas: a failing one is reported and skipped, so that a malformed object does not end the thread."""
        self._core.apply_all(deltas, self._not_applied)

    def _not_applied(self, delta: Delta, error: Exception) -> None:
        self._listener.failed(f"applying {type(delta).__name__}", error)

    def _step(self, deltas: Sequence[Delta]) -> None:
        now, began = self._clock(), time.monotonic()
        self._batch, self._unfinished = [], False
        self._apply(deltas)
        self._handed_over = time.monotonic()
        opened = time.monotonic()
        try:
            result = self._core.step((), now, self._commit)
        except Exception as error:  # noqa: BLE001 - the next session starts from the current state
            self._core.resync()
            self._listener.applied(deltas)
            self._listener.failed("session", error)
            return
        closed = time.monotonic()
        self._unfinished = result.report.unfinished
        rest = [intent for intent in result.intents if not isinstance(intent, Bind)]
        if self._batch or rest:
            self._handover([*self._batch, *rest])
        self._listener.stepped(self._core, result, deltas, now, intake=opened - began, seconds=closed - opened)

    def _commit(self, binds: list[Bind]) -> None:
        self._batch += binds
        now = time.monotonic()
        if len(self._batch) >= _BATCH or now - self._handed_over >= _BATCH_SECONDS:
            self._handover(self._batch)
            self._batch, self._handed_over = [], now
