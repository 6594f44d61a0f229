"""Runs the rules of the webhooks in a thread of their own, fair between tenants.

The event loop only reads and writes. A tenant waits for one run of each other tenant: the one that used the least CPU
time is next.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from capcard_sched.validation.budget import BudgetError, budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")

#: Runs of one tenant that may wait, and their bytes; bytes of all tenants. A rollout creates some hundred pods at once.
MOST_WAITING: Final = 1000
_TENANT_BYTES: Final = 32 * 2**20
_ALL_BYTES: Final = 128 * 2**20


@contextmanager
def cpu_budget(seconds: float) -> Iterator[None]:
    """Ends checks that take more CPU time of this thread with a BudgetError that states it."""
    end = time.thread_time() + seconds
    try:
        with budget(lambda: time.thread_time() > end):
            yield
    except BudgetError:
        raise BudgetError(f"the checks take more than {seconds * 1000:.0f} ms") from None


class TooManyReviewsError(Exception):
    """Too many runs of one tenant wait."""


class _Run(NamedTuple):
    tenant: str
    job: Callable[[], Any]
    result: Future[Any]
    size: int


class FairQueue:
    """Runs by tenant. `pop` takes the oldest run of the tenant with the least cost so far."""

    def __init__(self, most_waiting: int, most_bytes: int, most_bytes_in_all: int) -> None:
        """Limits of the runs that wait: their number and bytes of one tenant, and the bytes of all tenants."""
        self._most, self._most_bytes, self._most_in_all = most_waiting, most_bytes, most_bytes_in_all
        self._waiting: dict[str, deque[_Run]] = {}
        #: Bytes that wait, by tenant.
        self._sizes: dict[str, int] = {}
        #: Tenants that wait or were served lately, with their cost; a newcomer begins at `_floor`.
        self._costs: dict[str, float] = {}
        self._floor = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def push(self, run: _Run) -> None:
        """Raises TooManyReviewsError. A tenant without waiting runs is refused only for the bytes of all."""
        waiting, size = self._waiting.get(run.tenant, ()), self._sizes.get(run.tenant, 0)
        if waiting and (len(waiting) >= self._most or size + run.size > self._most_bytes):
            raise TooManyReviewsError(f"{len(waiting)} reviews of {run.tenant} wait; try again")
        if sum(self._sizes.values()) + run.size > self._most_in_all:
            raise TooManyReviewsError("too many reviews wait; try again")
        self._waiting.setdefault(run.tenant, deque()).append(run)
        self._sizes[run.tenant] = size + run.size
        self._costs[run.tenant] = max(self._costs.get(run.tenant, 0.0), self._floor)

    def pop(self) -> _Run:
        """Raises ValueError when no run waits."""
        tenant = min(self._waiting, key=lambda each: self._costs[each])
        waiting = self._waiting[tenant]
        run = waiting.popleft()
        self._sizes[tenant] -= run.size
        if not waiting:
            del self._waiting[tenant], self._sizes[tenant]
        self._floor = self._costs[tenant]
        return run

    def charge(self, tenant: str, cost: float) -> None:
        """Add the cost of a finished run. Costs below the floor are forgotten, and all while no run waits."""
        self._costs[tenant] = self._costs.get(tenant, self._floor) + cost
        self._costs = {
            each: paid
            for each, paid in self._costs.items()
            if each in self._waiting or (self._waiting and paid > self._floor)
        }


class RuleWorker:
    """One thread for rules and for updates of what they read. Close it at the end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._updates: deque[Callable[[], None]] = deque()
        self._runs = FairQueue(MOST_WAITING, _TENANT_BYTES, _ALL_BYTES)
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="rules", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    async def run(self, tenant: str, job: Callable[[], _T], size: int = 0) -> _T:
        """The result of `job`, which runs in the thread; `size`: bytes that it holds.

        Raises TooManyReviewsError and whatever the job raises.
        """
        run = _Run(tenant, job, Future(), size)
        with self._changed:
            self._runs.push(run)
            self._changed.notify()
        found: _T = await asyncio.wrap_future(run.result)
        return found

    def update(self, change: Callable[[], None]) -> None:
        """Apply a change before all runs that wait, after earlier changes."""
        with self._changed:
            self._updates.append(change)
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the present run."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._updates or len(self._runs))
                if self._closed:
                    return
                change = self._updates.popleft() if self._updates else None
                run = None if change is not None else self._runs.pop()
            if change is not None:
                change()
            elif run is not None and run.result.set_running_or_notify_cancel():
                began = time.thread_time()
                try:
                    run.result.set_result(run.job())
                except BaseException as error:  # noqa: BLE001 - the waiting request handles it, and the thread stays
                    run.result.set_exception(error)
                with self._changed:
                    self._runs.charge(run.tenant, time.thread_time() - began)
