"""The API server and its store end and come back, its watches break, and its answers to bindings are of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from capcard_sched.kube.kinds import KINDS
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.proxy import Fault, Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, QUICK_ELECTION, Daemon
from tests.e2e.faults.workloads import create_gangs, furnish, until_bound
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_LARGE = 8
_GANGS = 12


@pytest.mark.asyncio
async def test_a_daemon_that_starts_before_the_api_server_waits_for_it(
    cluster: Cluster, history: History, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await furnish(cluster, cards=_LARGE)
    await create_gangs(cluster, ["g"], _LARGE)
    await asyncio.to_thread(control_plane.kill_apiserver)
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, *QUICK_ELECTION, conf=CARD_CONF) as daemon:
        trouble = await daemon.logged("leader election", within=30)
        assert trouble["event_type"] == "unreachable"
        assert (await daemon.get("/healthz"))[0] == 200

        async def names_every_list() -> bool:
            status, text = await daemon.get("/readyz")
            assert status == 503
            return all(f"[-]list/{kind.resource} failed: unreachable\n" in text for kind in KINDS)

        await cluster.wait_until(names_every_list, "readiness to name every list", within=30)
        await asyncio.to_thread(control_plane.start_apiserver)
        await until_bound(cluster, _LARGE, within=40)
        assert (await daemon.get("/readyz"))[0] == 200
        await prove(history, control_plane, daemon)


@pytest.mark.parametrize("program", ["kube-apiserver", "etcd"])
@pytest.mark.asyncio
async def test_gangs_that_are_being_placed_when_the_control_plane_restarts_are_finished(
    cluster: Cluster,
    history: History,
    proxy: Proxy,
    second_proxy: Proxy,
    tmp_path: Path,
    program: str,
) -> None:
    """By the leader, or by the other one if the Lease ran out meanwhile."""
    control_plane = cluster.control_plane
    await furnish(cluster, cards=_GANGS * _LARGE)
    await create_gangs(cluster, [f"g{index}" for index in range(_GANGS)], _LARGE)
    flags = (*QUICK_ELECTION, "--bind-workers=8")
    for way in (proxy, second_proxy):
        way.delay("POST", "/binding$", 0.1, times=None)  # so that there is a middle
    one = Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, *flags, conf=CARD_CONF, name="one")
    two = Daemon(second_proxy.kubeconfig_for("scheduler-b"), tmp_path, *flags, conf=CARD_CONF, name="two")
    async with two, one:
        placed = await until_bound(cluster, 20)
        assert len(placed) < _GANGS * _LARGE, "the restart is to come in the middle"
        restart = control_plane.restart_apiserver if program == "kube-apiserver" else control_plane.restart_etcd
        await asyncio.to_thread(restart)
        await until_bound(cluster, _GANGS * _LARGE, within=60)
        await prove(history, control_plane, one, two)


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


@pytest.mark.asyncio
async def test_watches_cut_in_the_middle_of_objects_lose_nothing(
    cluster: Cluster, history: History, proxy: Proxy, kubelet: Kubelet, tmp_path: Path
) -> None:
    await furnish(cluster, cards=40)
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await daemon.logged("caches synced", within=30)
        cuts = [proxy.cut("/pods$", nth=nth, times=1) for nth in (3, 15, 40)]
        cuts += [proxy.cut(f"/{kind}$", nth=2, times=1) for kind in ("podgroups", "queues")]
        await create_gangs(cluster, [f"g{index}" for index in range(10)], _SIZE)
        await until_bound(cluster, 40)
        await asyncio.gather(*(cut.struck(within=30) for cut in cuts))
        await prove(history, cluster.control_plane, daemon)
