"""The thread of the rules: order of updates, fairness between tenants; and the budget of CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from capcard_sched.daemon.admission.rule_worker import (
    MOST_WAITING,
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
