"""Watches that break, fall silent or are forgotten by the API server while gangs are placed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.proxy import Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.faults.impatient import impatient
from tests.e2e.faults.workloads import create_gangs, furnish, until_bound
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_SIZE = 4
_WATCHED = ("pods", "nodes", "podgroups", "queues")


async def _until_watch_event(daemon: Daemon, cluster: Cluster, event: str, *kinds: str, times: int = 1) -> None:
    """Wait until this happened to the watches of all these kinds."""

    async def everywhere() -> bool:
        counts = [await daemon.metric("volcano_watch_events_total", resource=kind, event=event) for kind in kinds]
        return min(counts) >= times

    await cluster.wait_until(everywhere, f"watches of {kinds} to be {event}", within=30)


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


@pytest.mark.asyncio
async def test_a_stalled_watch_is_replaced_and_its_withheld_events_arrive_by_the_new_one(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    await furnish(cluster, cards=8)
    async with impatient(proxy, tmp_path, silence=1.5) as daemon:
        await daemon.logged("caches synced", within=30)
        pause = proxy.pause("/pods$")
        await create_gangs(cluster, ["first", "second"], _SIZE)
        await _until_watch_event(daemon, cluster, "stalled", "pods")
        pause.resume()
        await until_bound(cluster, 8)
        await prove(history, cluster.control_plane, daemon)


@pytest.mark.asyncio
async def test_a_history_that_was_compacted_while_the_watches_were_silent_is_listed_afresh(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    """Pods, a quota and a node change, and pods go and come by the same name, unheard."""
    await furnish(cluster, cards=16, quota=8)
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await create_gangs(cluster, ["first", "second"], _SIZE)
        await until_bound(cluster, 8)
        await daemon.logged("caches synced", within=30)
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
        await prove(history, cluster.control_plane, daemon)
