"""The checks of a history and of a cache on a real API server find what is planted; tests/soak has each property."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import gang, gpu_node, node, pod, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.checker import ViolationError, prove
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.history import History

_CARD = {"cpu": "1", "nvidia.com/gpu": "1"}


@pytest.mark.campaign
async def test_the_history_of_a_real_cluster_contains_every_change(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.create_all([gpu_node("n", "A10", 8, pods=4), queue("q", cards={"A10": 1})])
    group, *members = gang("g", 3, queue="q", cards="A10", requests=_CARD)
    async with History(cluster.control_plane) as history:
        await cluster.create_all([group, *members])
        await cluster.bind("g-0", "n")
        assert len((await prove(history, gangs=False)).binds) == 1
        with pytest.raises(ViolationError, match=r"gang .*/g has 1 bound members, at most 1 at a time, of 3"):
            await prove(history)
        await cluster.bind("g-1", "n")
        with pytest.raises(ViolationError, match=r"queue q has 2 of 1 A10"):
            await prove(history, gangs=False)
        assert history.gaps == 0
        # Changes while the history's watches are broken off and forgotten.
        await cluster.create_all([pod(f"more-{index}") for index in range(3)])
        await asyncio.to_thread(cluster.control_plane.compact)
        await asyncio.to_thread(cluster.control_plane.restart_apiserver)
        for index in range(3):
            await cluster.bind(f"more-{index}", "n")
        with pytest.raises(ViolationError, match=r"node n has 5 of 4 pods"):
            await prove(history, gangs=False)
        assert history.gaps > 0


@pytest.mark.campaign
async def test_a_cache_that_differs_is_a_violation(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> None:
    async with History(cluster.control_plane) as history:
        await cluster.create_all([node("n"), pod("foreign", scheduler="somebody-else")])
        async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
            await daemon.logged("caches synced", within=60)
            await prove(history, daemon)
            pause = proxy.pause("/pods$")
            await cluster.bind("foreign", "n")
            with pytest.raises(ViolationError, match=r"daemon: cache differs: Pod .*/foreign"):
                await prove(history, daemon)
            pause.resume()
            await prove(history, daemon)
