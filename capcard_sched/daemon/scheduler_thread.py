"""The scheduler thread: it alone touches the core (design D2).

Whatever happens outside comes through the inbox, in order: facts from the watches, and calls that change how the thread
goes on (lead, stand by, another scheduler-conf, a question about the state). Decisions leave through `handover`.

The thread sleeps until something arrives, then waits a moment for more, so that a burst of facts makes one session.
Without anything new a session is held every `period` seconds, for plugins whose answers follow the clock (W-20).
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from capcard_sched.model.deltas import Takeover
from capcard_sched.model.intents import Bind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from capcard_sched.framework.core import Core, StepResult
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent

_T = TypeVar("_T")

#: How long the thread waits for more after something arrived, in seconds.
_DEBOUNCE = 0.01
#: Sessions leave so many times as long as they took to the rest of the process, up to the longest rest in seconds:
#: while many pods are bound, their echoes then come together, and each session has more to do than to begin and end.
_REST_SHARE = 3.0
_LONGEST_REST = 0.25
#: Bindings are handed over in lots of at least so many while a session goes on.
_LOT = 64


class Listener(Protocol):
    """Told of what the thread does, in the thread."""

    def applied(self, deltas: Sequence[Delta]) -> None:
        """Facts were taken in outside of a step."""

    def stepped(
        self, core: Core, result: StepResult, deltas: Sequence[Delta], now: float, *, intake: float, seconds: float
    ) -> None:
        """A step over `deltas` is over: `now` in Unix seconds.

        It took `intake` seconds to take `deltas` in, and `seconds` from the session's opening to the end of its close.
        """

    def failed(self, what: str, error: Exception) -> None:
        """Something raised that never should; the thread goes on."""


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
        """`handover` takes decisions, in this thread; `period` is the longest gap between sessions in seconds."""
        self._core = core
        self._handover = handover
        self._listener = listener
        self._period = period
        self._clock = clock
        self._inbox: SimpleQueue[Sequence[Delta] | Callable[[], None]] = SimpleQueue()
        self._leading = False
        self._stopping = False
        self._lot: list[Intent] = []
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        #: When the last session ended while leading, by the monotonic clock; None before the first.
        self.last_cycle: float | None = None

    # --- from outside -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, standing by."""
        self._thread.start()

    def deliver(self, deltas: Sequence[Delta]) -> None:
        """Facts, in order."""
        self._inbox.put(deltas)

    def lead(self) -> None:
        """Hold sessions from now on. Everything delivered before is applied first."""
        self._inbox.put(self._begin)

    def stand_by(self) -> None:
        """Hold no more sessions; go on applying facts."""
        self._inbox.put(self._end)

    def call(self, question: Callable[[Core], _T], answer: Future[_T]) -> None:
        """Ask the core something between two steps; what it returns or raises becomes the future's result.

        A question that is cancelled before its turn comes (a scrape does not wait for a long session) is not asked.
        """

        def ask() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question(self._core))
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                answer.set_exception(error)

        self._inbox.put(ask)

    def stop(self) -> None:
        """End after the step that goes on now."""
        self._stopping = True
        self._inbox.put(())

    def is_alive(self) -> bool:
        """Whether the thread runs, or was stopped on purpose."""
        return self._stopping or self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._leading = True
        self._take_in([Takeover()])

    def _end(self) -> None:
        self._leading = False
        self.last_cycle = None

    def _run(self) -> None:
        rest = 0.0
        while not self._stopping:
            try:
                arrived: list[Any] = [self._inbox.get(timeout=self._period if self._leading else None)]
            except Empty:
                arrived = []
            if arrived:
                time.sleep(max(_DEBOUNCE, rest))
            while True:
                try:
                    arrived.append(self._inbox.get_nowait())
                except Empty:
                    break
            if self._stopping:
                return
            began = time.monotonic()
            self._work_off(arrived)
            if self._leading:
                self.last_cycle = time.monotonic()
            rest = min(_REST_SHARE * (time.monotonic() - began), _LONGEST_REST)

    def _work_off(self, arrived: list[Any]) -> None:
        """Apply facts and answer calls in order; then a session, when leading."""
        deltas: list[Delta] = []
        for item in arrived:
            if not callable(item):
                deltas += item
                continue
            self._take_in(deltas)
            deltas = []
            try:
                item()
            except Exception as error:  # noqa: BLE001 - one call must not end the thread
                self._listener.failed("call", error)
        if self._leading:
            self._step(deltas)
        else:
            self._take_in(deltas)

    def _take_in(self, deltas: Sequence[Delta]) -> None:
        """Keep the state warm."""
        if deltas:
            self._apply(deltas)
            self._listener.applied(deltas)

    def _apply(self, deltas: Sequence[Delta]) -> None:
        """Apply facts one by one: one that cannot be applied is told and lost, the others count."""
        for delta in deltas:
            try:
                self._core.state.apply(delta)
            except Exception as error:  # noqa: BLE001 - one object must not end the thread
                self._listener.failed(f"applying {type(delta).__name__}", error)

    def _step(self, deltas: Sequence[Delta]) -> None:
        now, began = self._clock(), time.monotonic()
        self._lot = []
        self._apply(deltas)
        opened = time.monotonic()
        try:
            result = self._core.step((), now, self._commit)
        except Exception as error:  # noqa: BLE001 - the next session starts from the state as it is
            self._core.state.changes.everything = True
            self._listener.applied(deltas)
            self._listener.failed("session", error)
            return
        closed = time.monotonic()
        rest = [intent for intent in result.intents if not isinstance(intent, Bind)]
        if self._lot or rest:
            self._handover([*self._lot, *rest])
        self._listener.stepped(self._core, result, deltas, now, intake=opened - began, seconds=closed - opened)

    def _commit(self, binds: list[Bind]) -> None:
        self._lot += binds
        if len(self._lot) >= _LOT:
            self._handover(self._lot)
            self._lot = []
