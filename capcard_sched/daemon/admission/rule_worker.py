"""Runs the rules of the webhooks in a thread of their own, fair between tenants.

The event loop only reads and writes. The next run is the one of the tenant that has used the least CPU time, with the
cost that the size of the run lets expect. Small runs of such tenants interrupt a large run at its checkpoints.
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
#: Bytes of a review up to which it is small: it may interrupt a larger one, which it delays by little.
SMALL_BYTES: Final = 64 * 2**10
#: Seconds of CPU time of the rules per MiB of an object, at most.
SECONDS_PER_MIB: Final = 0.1
#: Seconds of CPU time between two interruptions of a run.
_SLICE_SECONDS: Final = 0.005


@contextmanager
def cpu_budget(seconds: float, interrupt: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
    """Ends checks that take more CPU time of this thread with a BudgetError that states it.

    `interrupt` is called after each slice of time; its seconds do not count.
    """
    begin = time.thread_time()
    end, pause = begin + seconds, begin + _SLICE_SECONDS

    def is_spent() -> bool:
        nonlocal end, pause
        now = time.thread_time()
        if now > end:
            return True
        if now > pause:
            spent = interrupt()
            end += spent
            pause = now + spent + _SLICE_SECONDS
        return False

    try:
        with budget(is_spent):
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
    """Runs by tenant. `pop` takes the oldest run of a tenant, with the least cost so far and by its size."""

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
        return self._take(min(self._waiting, key=self._expected))

    def pop_small(self, most_bytes: int, below: float, other_than: str) -> _Run | None:
        """The next run of another tenant, of those with at most these bytes and an expected cost below this one."""
        waiting = self._waiting.items()
        found = [each for each, runs in waiting if each != other_than and runs[0].size <= most_bytes]
        tenant = min(found, key=self._expected, default=None)
        return None if tenant is None or self._expected(tenant) >= below else self._take(tenant)

    def cost(self, tenant: str) -> float:
        """Seconds that a tenant is charged with, from the time at which others began to wait."""
        return self._costs.get(tenant, self._floor)

    def _expected(self, tenant: str) -> float:
        """The cost of a tenant after its oldest run, by the size of that."""
        return self._costs[tenant] + SECONDS_PER_MIB * self._waiting[tenant][0].size / 2**20

    def _take(self, tenant: str) -> _Run:
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
        #: The run in progress that is not small, and the CPU time of its begin, later by its interruptions.
        self._large: _Run | None = None
        self._began = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="rules", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
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

    def interrupt(self) -> float:
        """Execute small runs of tenants that used less than that of the large run in progress; their CPU seconds.

        Only the rules in the thread call it. Updates wait: the run in progress reads what they change.
        """
        large, began = self._large, time.thread_time()
        if large is None:
            return 0.0
        self._large = None  # a small run is not interrupted
        try:
            while True:
                with self._changed:
                    used = self._runs.cost(large.tenant) + began - self._began
                    run = self._runs.pop_small(SMALL_BYTES, used, large.tenant)
                if run is None:
                    break
                self._execute(run)
        finally:
            self._large = large
            spent = time.thread_time() - began
            self._began += spent
        return spent

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
            elif run is not None:
                self._execute(run)

    def _execute(self, run: _Run) -> None:
        """Execute a run and charge its tenant, without interruptions."""
        if not run.result.set_running_or_notify_cancel():
            return
        began = time.thread_time()
        if run.size > SMALL_BYTES:
            self._large, self._began = run, began
        try:
            run.result.set_result(run.job())
        except BaseException as error:  # noqa: BLE001 - the waiting request handles it, and the thread stays
            run.result.set_exception(error)
        finally:
            if self._large is run:
                began, self._large = self._began, None
        with self._changed:
            self._runs.charge(run.tenant, time.thread_time() - began)
