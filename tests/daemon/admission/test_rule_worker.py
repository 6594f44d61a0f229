"""The thread of the rules: order of updates, fairness between tenants; and the budget of CPU time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from capcard_sched.daemon.admission.rule_worker import (
    MOST_WAITING,
    SMALL_BYTES,
    FairQueue,
    RuleWorker,
    TooManyReviewsError,
    _Run,
    cpu_budget,
)
from capcard_sched.validation.budget import BudgetError, checkpoint


@pytest.fixture
def worker() -> Iterator[RuleWorker]:
    found = RuleWorker()
    yield found
    found.close()


def _forever() -> None:
    while True:
        checkpoint()


def _within(rule: Callable[[], object]) -> object:
    with cpu_budget(0.05):
        return rule()


async def test_a_rule_beyond_its_budget_ends_and_the_next_one_runs(worker: RuleWorker) -> None:
    for _ in range(5):
        with pytest.raises(BudgetError, match="the checks take more than 50 ms"):
            await worker.run("a", lambda: _within(_forever))
        assert await worker.run("a", lambda: _within(lambda: 1)) == 1
    checkpoint()  # there is no budget outside
    assert worker.is_alive


async def test_an_error_of_a_rule_reaches_its_request_alone(worker: RuleWorker) -> None:
    with pytest.raises(ZeroDivisionError):
        await worker.run("a", lambda: 1 // 0)
    assert await worker.run("a", lambda: 1) == 1


async def test_updates_precede_the_runs_that_wait(worker: RuleWorker) -> None:
    seen: list[str] = []
    blocked = asyncio.create_task(worker.run("a", lambda: time.sleep(0.2)))
    await asyncio.sleep(0)
    later = asyncio.create_task(worker.run("a", lambda: seen.append("run")))
    await asyncio.sleep(0)
    worker.update(lambda: seen.append("first"))
    worker.update(lambda: seen.append("second"))
    await asyncio.gather(blocked, later)
    assert seen == ["first", "second", "run"]


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class LargeRun:
    """A large run that is in progress until `ended` is true."""

    def __init__(self, worker: RuleWorker, ended: Callable[[], bool]) -> None:
        self._worker, self._ended = worker, ended
        self._started = threading.Event()

    async def start(self) -> asyncio.Task[float]:
        """The task with the CPU seconds of its interruptions."""
        task = asyncio.create_task(self._worker.run("hostile", self._run, SMALL_BYTES + 1))
        await asyncio.to_thread(self._started.wait)
        return task

    def _run(self) -> float:
        began = self._worker._began
        self._started.set()
        with cpu_budget(5.0, self._worker.interrupt):
            while not self._ended():
                checkpoint()
        return self._worker._began - began


async def test_small_runs_of_other_tenants_interrupt_a_large_run(worker: RuleWorker) -> None:
    seen: list[str] = []

    def ended() -> bool:
        if len(seen) < 2:
            return False
        seen.append("large")
        return True

    def small(name: str) -> None:
        checkpoint()  # the budget of the large run is not that of this one
        _burn(0.02)
        seen.append(name)

    hostile = await LargeRun(worker, ended).start()
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run("hostile", lambda: seen.append("own"), 10))
        group.create_task(worker.run("other", lambda: seen.append("other large"), SMALL_BYTES + 1))
        group.create_task(worker.run("a", lambda: small("a"), 10))
        await asyncio.sleep(0)
        group.create_task(worker.run("b", lambda: small("b"), SMALL_BYTES))
    await hostile
    assert seen[:3] == ["a", "b", "large"], seen
    assert sorted(seen[3:]) == ["other large", "own"]


def test_the_time_of_interruptions_does_not_count() -> None:
    calls: list[float] = []

    def interrupt() -> float:
        began = time.thread_time()
        _burn(0.1)
        calls.append(time.thread_time() - began)
        return calls[-1]

    with cpu_budget(0.08, interrupt):
        while len(calls) < 3:
            checkpoint()
    with pytest.raises(BudgetError), cpu_budget(0.08, interrupt):
        _forever()


async def test_the_time_of_interruptions_is_not_charged_to_the_large_run(worker: RuleWorker) -> None:
    seen: list[str] = []

    def small() -> None:
        _burn(0.25)
        seen.append("small")

    hostile = await LargeRun(worker, lambda: bool(seen)).start()
    await worker.run("healthy", small, 10)
    assert await hostile >= 0.2


async def test_an_error_of_a_run_that_interrupts_another_one_reaches_its_request_alone(worker: RuleWorker) -> None:
    failed: list[bool] = []

    def small() -> None:
        failed.append(True)
        raise BudgetError

    hostile = await LargeRun(worker, lambda: bool(failed)).start()
    with pytest.raises(BudgetError):
        await worker.run("healthy", small, 10)
    assert await hostile > 0.0


def test_a_small_run_precedes_the_large_runs_of_tenants_that_have_used_as_little() -> None:
    queue = FairQueue(MOST_WAITING, 2**30, 2**30)
    for index in range(20):
        queue.push(_run(f"hostile-{index}", 2**20))
    queue.push(_run("healthy", 1000))
    assert queue.pop().tenant == "healthy"
    assert queue.pop_small(SMALL_BYTES, 1.0, "hostile") is None, "all others are large"
    queue.push(_run("healthy", 1000))
    queue.charge("healthy", 0.2)
    assert queue.pop_small(SMALL_BYTES, 0.1, "hostile") is None, "it has used more than the run in progress"
    assert queue.pop_small(SMALL_BYTES, 0.3, "healthy") is None, "the run in progress is its own"
    found = queue.pop_small(SMALL_BYTES, 0.3, "hostile")
    assert found is not None
    assert found.tenant == "healthy"


def _run(tenant: str, size: int = 0) -> _Run:
    return _Run(tenant, lambda: None, Future(), size)


def test_a_tenant_waits_for_one_run_of_each_other_tenant() -> None:
    queue = FairQueue(MOST_WAITING, 100, 1000)
    for _ in range(20):
        queue.push(_run("hostile"))
    order = []
    for index in range(26):
        if index in {3, 7, 8}:
            queue.push(_run("a"))
        if index in {5, 7}:
            queue.push(_run("b"))
        if not len(queue):
            break
        tenant = queue.pop().tenant
        order.append(tenant)
        queue.charge(tenant, 0.1 if tenant == "hostile" else 0.001)
    assert len(order) == 25
    waits = {tenant: order[at:].index(tenant) for tenant, at in (("a", 3), ("b", 5), ("a", 7), ("b", 7), ("a", 8))}
    assert max(waits.values()) <= 2, order


def test_the_waiting_runs_of_one_tenant_are_limited_by_number_and_bytes() -> None:
    queue = FairQueue(3, 100, 250)
    for _ in range(3):
        queue.push(_run("a"))
    with pytest.raises(TooManyReviewsError, match="3 reviews of a wait"):
        queue.push(_run("a"))
    queue.push(_run("b", 90))
    with pytest.raises(TooManyReviewsError):
        queue.push(_run("b", 11))
    queue.push(_run("c", 120))  # a first run of any size
    with pytest.raises(TooManyReviewsError, match="too many reviews"):
        queue.push(_run("d", 50))
    while len(queue):
        run = queue.pop()
        queue.charge(run.tenant, 1.0)
    queue.push(_run("d", 250))
    assert queue.pop().tenant == "d"


def test_costs_of_former_tenants_are_forgotten() -> None:
    queue = FairQueue(3, 100, 100)
    for index in range(1000):
        queue.push(_run(f"t{index}"))
        queue.charge(queue.pop().tenant, 0.001)
    assert len(queue._costs) < 20
