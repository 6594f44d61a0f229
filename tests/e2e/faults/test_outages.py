"""Watches that break, fall silent or are forgotten while gangs are placed; an API server and a store that end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capcard_sched.kube.kinds import chosen_kinds
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.proxy import Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, QUICK_ELECTION, Daemon
from tests.e2e.expectations import until_bound
from tests.e2e.faults.impatient import impatient
from tests.e2e.faults.workloads import create_gangs, furnish, replica
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_SIZE = 4
_WATCHED = ("pods", "nodes", "podgroups", "queues")


async def _until_watch_event(daemon: Daemon, cluster: Cluster, event: str, *kinds: str, times: int = 1) -> None:
    """Wait until this happened to the watches of all these kinds."""

    async def everywhere() -> bool:
        counts = [await daemon.metric("volcano_watch_events_total", resource=kind, event=event) for kind in kinds]
        return min(counts) >= times

    await cluster.wait_until(everywhere, f"watches of {kinds} to be {event}", within=60)


async def test_watches_cut_in_the_middle_of_objects_lose_nothing(
    cluster: Cluster, history: History, proxy: Proxy, kubelet: Kubelet, tmp_path: Path
) -> None:
    await furnish(cluster, cards=40)
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await daemon.logged("caches synced", within=60)
        cuts = [proxy.cut("/pods$", nth=nth, times=1) for nth in (3, 15, 40)]
        cuts += [proxy.cut(f"/{kind}$", nth=2, times=1) for kind in ("podgroups", "queues")]
        await create_gangs(cluster, [f"g{index}" for index in range(10)], _SIZE)
        await until_bound(cluster, 40)
        await asyncio.gather(*(cut.struck(within=60) for cut in cuts))
        await prove(history, daemon)


async def test_a_stalled_watch_is_replaced_and_its_withheld_events_arrive_by_the_new_one(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    await furnish(cluster, cards=8)
    # Idle watches of the two dozen kinds end by silence, too: with a shorter one, all are rarely open at once.
    async with impatient(proxy, tmp_path, silence=8.0) as daemon:
        await daemon.logged("caches synced", within=60)
        pause = proxy.pause("/pods$")
        await create_gangs(cluster, ["first", "second"], _SIZE)
        await _until_watch_event(daemon, cluster, "stalled", "pods")
        pause.resume()
        await until_bound(cluster, 8)
        await prove(history, daemon)


async def test_a_history_that_was_compacted_while_the_watches_were_silent_is_listed_afresh(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    """Pods, a quota and a node change, and pods go and come by the same name, unheard."""
    await furnish(cluster, cards=16, quota=8)
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await create_gangs(cluster, ["first", "second"], _SIZE)
        await until_bound(cluster, 8)
        await daemon.logged("caches synced", within=60)
        pauses = [proxy.pause(f"/{kind}$") for kind in _WATCHED]
        for name in ("first", "second"):
            for index in range(_SIZE):
                await cluster.delete("pods", f"{name}-{index}")
            await cluster.delete("podgroups", name)
        await create_gangs(cluster, ["second", "third", "fourth"], _SIZE)
        quota = {"metadata": {"annotations": {"volcano.sh/card.quota": '{"A10": 12}'}}}
        await cluster.patch("queues", "q", quota)
        await cluster.patch("nodes", "n0", {"spec": {"unschedulable": True}})
        await history.caught_up()
        await asyncio.to_thread(cluster.control_plane.compact)
        await asyncio.to_thread(cluster.control_plane.restart_apiserver)
        for kind in _WATCHED:
            proxy.reset_streams(f"/{kind}$")
        for pause in pauses:
            pause.resume()
        await _until_watch_event(daemon, cluster, "expired", *_WATCHED)
        await until_bound(cluster, 8)
        await cluster.patch("nodes", "n0", {"spec": {"unschedulable": None}})
        await until_bound(cluster, 12)
        await prove(history, daemon)


# --- the API server and its store end and come back -------------------------------------------------------------------

_LARGE = 8
_GANGS = 12


async def test_a_daemon_that_starts_before_the_api_server_waits_for_it(
    cluster: Cluster, history: History, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await furnish(cluster, cards=_LARGE)
    await create_gangs(cluster, ["g"], _LARGE)
    await asyncio.to_thread(control_plane.kill_apiserver)
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, *QUICK_ELECTION, conf=CARD_CONF) as daemon:
        trouble = await daemon.logged("leader election", within=60)
        assert trouble["event_type"] == "unreachable"
        assert (await daemon.get("/healthz"))[0] == 200

        async def names_every_list() -> bool:
            status, text = await daemon.get("/readyz")
            assert status == 503
            return all(f"[-]list/{kind.resource} failed: unreachable\n" in text for kind in chosen_kinds())

        await cluster.wait_until(names_every_list, "readiness to name every list", within=60)
        await asyncio.to_thread(control_plane.start_apiserver)
        await until_bound(cluster, _LARGE, within=60)
        assert (await daemon.get("/readyz"))[0] == 200
        await prove(history, daemon)


@pytest.mark.parametrize("program", ["kube-apiserver", "etcd"])
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
    one, two = replica(proxy, "scheduler-a", tmp_path, *flags), replica(second_proxy, "scheduler-b", tmp_path, *flags)
    async with two, one:
        placed = await until_bound(cluster, 20)
        assert len(placed) < _GANGS * _LARGE, "the restart is to come in the middle"
        restart = control_plane.restart_apiserver if program == "kube-apiserver" else control_plane.restart_etcd
        await asyncio.to_thread(restart)
        await until_bound(cluster, _GANGS * _LARGE, within=60)
        await prove(history, one, two)
