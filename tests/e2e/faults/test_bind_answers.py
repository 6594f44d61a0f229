"""Whatever the API server answers to a binding: all that can be bound is bound, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.proxy import Fault, Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.faults.workloads import create_gangs, furnish, until_bound
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_SIZE = 4

_Strike = Callable[[Proxy, str], Fault]


def _answer(status: int, times: int = 1, retry_after: int | None = None) -> _Strike:
    return lambda proxy, path: proxy.answer("POST", path, status, nth=2, times=times, retry_after=retry_after)


def _replace(status: int) -> _Strike:
    return lambda proxy, path: proxy.replace_answer("POST", path, status, nth=2)


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
    # Refusals that do not last: the pod is left alone for a while.
    "bad": _answer(400),
    "forbidden": _answer(403),
    "not-found": _answer(404),
    "invalid": _answer(422, times=2),
}


@pytest.mark.asyncio
async def test_no_response_leaves_a_gang_incomplete_or_binds_a_pod_twice(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    await furnish(cluster, cards=_SIZE * len(TRANSIENT))
    faults = {name: strike(proxy, rf"/pods/{name}-\d/binding$") for name, strike in TRANSIENT.items()}
    await create_gangs(cluster, list(TRANSIENT), _SIZE)
    config = proxy.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, "--bind-workers=96", conf=CARD_CONF) as daemon:
        await until_bound(cluster, _SIZE * len(TRANSIENT), within=40)
        assert {name: fault.strikes for name, fault in faults.items() if not fault.strikes} == {}
        await prove(history, cluster.control_plane, daemon)
