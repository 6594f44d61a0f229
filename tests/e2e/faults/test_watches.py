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
from tests.e2e.faults.workloads import create_gangs, furnish, until_bound
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_SIZE = 4


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
