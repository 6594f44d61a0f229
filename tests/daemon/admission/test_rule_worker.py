"""The thread of the rules: budget of CPU time, order of updates, fairness between tenants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from capcard_sched.daemon.admission.rule_worker import (
    MOST_WAITING,
    FairQueue,
    RuleBudgetError,
    RuleWorker,
    TooManyReviewsError,
    _Run,
)


@pytest.fixture
def worker() -> Iterator[RuleWorker]:
    found = RuleWorker(budget_seconds=0.05)
    yield found
    found.close()


def _forever() -> None:
    while True:
        try:
            while True:
                sum(range(100))
        except Exception:  # noqa: BLE001 - a rule that catches everything
            pass


async def test_a_rule_beyond_its_budget_ends_and_the_next_one_runs(worker: RuleWorker) -> None:
    for _ in range(20):
        with pytest.raises(RuleBudgetError, match="more than 50 ms"):
            await worker.run("a", lambda: worker.limited(_forever))
        assert await worker.run("a", lambda: worker.limited(lambda: 1)) == 1
    assert worker.is_alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_interrupt_that_is_lost_in_a_callback_is_repeated(worker: RuleWorker) -> None:
    class Slow:
        def __del__(self) -> None:  # errors in it are dropped
            end = time.thread_time() + 0.1
            while time.thread_time() < end:
                pass

    def rule() -> None:
        Slow()
        _forever()

    with pytest.raises(RuleBudgetError):
        await worker.run("a", lambda: worker.limited(rule))
    assert await worker.run("a", lambda: worker.limited(lambda: 1)) == 1


async def test_rules_that_end_about_when_their_budget_does_have_one_outcome(worker: RuleWorker) -> None:
    outcomes = set()
    for index in range(60):
        seconds = 0.045 + index * 0.0005

        def busy(seconds: float = seconds) -> str:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
            return "done"

        def job(busy: Callable[[], str] = busy) -> str:
            return worker.limited(busy)

        try:
            outcomes.add(await worker.run("a", job))
        except RuleBudgetError:
            outcomes.add("refused")
    assert "done" in outcomes
    assert worker.is_alive


async def test_an_error_of_a_rule_reaches_its_request_alone(worker: RuleWorker) -> None:
    with pytest.raises(ZeroDivisionError):
        await worker.run("a", lambda: worker.limited(lambda: 1 // 0))
    assert await worker.run("a", lambda: worker.limited(lambda: 1)) == 1


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
