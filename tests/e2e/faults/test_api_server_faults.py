"""The API server and its store end and come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capcard_sched.kube.kinds import KINDS
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.proxy import Proxy
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
