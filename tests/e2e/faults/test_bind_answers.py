"""Whatever the API server answers to a binding: all that can be bound is bound, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.faults import Fault
from tests.controlplane.proxy import Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.expectations import until, until_bound
from tests.e2e.faults.impatient import impatient
from tests.e2e.faults.workloads import create_gangs, furnish, members
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_SIZE = 4
_FOR_EVER = 600.0

_Strike = Callable[[Proxy, str], Fault]


def _answer(status: int, times: int = 1, retry_after: int | None = None) -> _Strike:
    return lambda proxy, path: proxy.answer("POST", path, status, nth=2, times=times, retry_after=retry_after)


def _replace(status: int) -> _Strike:
    return lambda proxy, path: proxy.answer("POST", path, status, done=True, nth=2)


#: Fault of the second binding of a gang of that name.
TRANSIENT: dict[str, _Strike] = {
    "conflict": _answer(409),
    "unauthorized": _answer(401),
    "too-many": _answer(429, times=3, retry_after=1),
    "too-many-untold": _answer(429, times=3),
    "internal": _answer(500, times=3),
    "unavailable": _answer(503, times=2, retry_after=1),
    "gateway": _answer(504, times=2),
    "reset": lambda proxy, path: proxy.reset("POST", path, nth=2, times=3),
    "lost": lambda proxy, path: proxy.lose_answer("POST", path, nth=2),
    "done-internal": _replace(500),
    "done-gateway": _replace(504),
    "done-conflict": _replace(409),
    "done-not-found": _replace(404),
    "late": lambda proxy, path: proxy.delay("POST", path, _FOR_EVER, nth=2),
    "late-answer": lambda proxy, path: proxy.delay("POST", path, _FOR_EVER, after=True, nth=2),
    # Refusals that do not last: the pod is left alone for a while.
    "bad": _answer(400),
    "forbidden": _answer(403),
    "not-found": _answer(404),
    "invalid": _answer(422, times=2),
}
PERMANENT = {"bad": 400, "forbidden": 403, "not-found": 404, "invalid": 422}


async def test_no_response_leaves_a_gang_incomplete_or_binds_a_pod_twice(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    await furnish(cluster, cards=_SIZE * len(TRANSIENT))
    faults = {name: strike(proxy, rf"/pods/{name}-\d/binding$") for name, strike in TRANSIENT.items()}
    await create_gangs(cluster, list(TRANSIENT), _SIZE)
    async with impatient(proxy, tmp_path, "--bind-workers=96") as daemon:
        await until_bound(cluster, _SIZE * len(TRANSIENT), within=60)
        assert {name: fault.strikes for name, fault in faults.items() if not fault.strikes} == {}
        await prove(history, daemon)


async def test_pods_with_a_permanent_refusal_block_no_others_and_are_bound_when_the_cause_is_gone(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    """More of them than there are workers, and before the others in line."""
    await furnish(cluster, cards=8 * _SIZE)
    faults = [
        proxy.answer("POST", rf"/pods/{name}-\d/binding$", status, message=f"no {name}", times=None)
        for name, status in PERMANENT.items()
    ]
    await create_gangs(cluster, list(PERMANENT), _SIZE)
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, "--bind-workers=4", conf=CARD_CONF) as daemon:
        await asyncio.gather(*(fault.struck(_SIZE, within=60) for fault in faults))
        await create_gangs(cluster, [f"fine-{index}" for index in range(4)], _SIZE)
        await until_bound(cluster, 4 * _SIZE, "fine-.*")

        for name in PERMANENT:
            about = {"name": f"{name}-0"}
            await until(cluster, "events", reason="FailedScheduling", message=f"*no {name}*", involvedObject=about)
        assert {name.partition("-")[0] for name in await cluster.bound()} == {"fine"}
        for fault in faults:
            fault.lift()
        await until_bound(cluster, 8 * _SIZE)
        await prove(history, daemon)


async def test_a_binding_that_is_overtaken_on_its_way_counts_for_nothing(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    """By another scheduler's binding, by the pod's deletion, and by another pod of the same name."""
    await furnish(cluster, cards=16)
    held = proxy.hold("POST", r"/pods/first-\d/binding$")
    await create_gangs(cluster, ["first"], _SIZE)
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await cluster.wait_until(lambda: held.held == _SIZE, "all bindings to be on their way", within=60)
        await cluster.bind("first-0", "n1")
        await cluster.delete("pods", "first-1")
        await cluster.delete("pods", "first-2")
        _, *pods = members("first", _SIZE)
        await cluster.create(pods[2])
        held.release()
        await until_bound(cluster, 2)
        await cluster.create(pods[1])
        await until_bound(cluster, _SIZE)
        assert (await cluster.bound())["first-0"] == "n1"
        await prove(history, daemon)
