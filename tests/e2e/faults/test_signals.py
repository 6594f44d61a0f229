"""Signals to a daemon in the middle of its work."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.exit_codes import BadInputError
from capcard_sched.cli.sources.load import load_cluster
from capcard_sched.cli.sources.source import Source
from tests.controlplane.cluster import Cluster
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.proxy import Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.expectations import until_bound
from tests.e2e.faults.workloads import create_gangs, furnish, replica
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_SIZE = 8
_GANGS = 25
_PODS = _SIZE * _GANGS


async def test_sigterm_in_the_middle_of_200_pods_ends_in_time_and_another_daemon_finishes(
    cluster: Cluster, history: History, proxy: Proxy, second_proxy: Proxy, kubelet: Kubelet, tmp_path: Path
) -> None:
    """With the default Lease, which the second one need not wait for."""
    await furnish(cluster, cards=_PODS)
    await create_gangs(cluster, [f"g{index}" for index in range(_GANGS)], _SIZE)
    proxy.delay("POST", "/binding$", 0.3, times=None)  # eight at a time: 200 take 7.5 s
    flags = ("--leader-elect", "--bind-workers=8")
    one, two = replica(proxy, "scheduler-a", tmp_path, *flags), replica(second_proxy, "scheduler-b", tmp_path, *flags)
    async with one:
        await until_bound(cluster, 20)
        assert await one.stop() == 0
        ending, ended = one.lines("shutting down")[0]["time"], one.lines("stopped")[0]["time"]
        assert (datetime.fromisoformat(ended) - datetime.fromisoformat(ending)).total_seconds() <= 5.0
        assert len(await cluster.bound()) < _PODS, "the end was to come in the middle"
        async with two:
            await until_bound(cluster, _PODS)
            await prove(history, two)


async def _snapshot(daemon: Daemon, number: int) -> dict[str, Any]:
    line = await daemon.logged("dump written", times=number)
    content: dict[str, Any] = json.loads(await asyncio.to_thread(Path(line["file"]).read_text))
    return content


def placed_plugins(content: dict[str, Any]) -> list[str]:
    """The plugins of a dump, in order."""
    return [name for tier in content["schedulerConf"]["tiers"] for name in tier]


def _file_of(daemon: Daemon) -> str:
    """The file of the last dump."""
    return str(daemon.lines("dump written")[-1]["file"])


async def test_a_snapshot_and_a_comparison_can_be_had_at_any_time(
    cluster: Cluster, history: History, proxy: Proxy, kubelet: Kubelet, tmp_path: Path
) -> None:
    await furnish(cluster, cards=40)
    proxy.delay("POST", "/binding$", 0.05, times=None)
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, "--bind-workers=4", conf=CARD_CONF) as daemon:
        await daemon.logged("caches synced", within=60)
        await create_gangs(cluster, [f"g{index}" for index in range(5)], _SIZE)
        await until_bound(cluster, 4)
        daemon.signal(signal.SIGUSR1)
        daemon.signal(signal.SIGUSR2)
        taken = await _snapshot(daemon, 1)
        assert len(taken["Node"]) == 5
        assert len(taken["Pod"]) == 40
        # A write in flight is no difference.
        assert (await daemon.logged("cache compared with the API server", within=60))["differences"] == 0
        await until_bound(cluster, 40)
        await prove(history, daemon)
        daemon.signal(signal.SIGUSR1)
        placed = await _snapshot(daemon, 2)
        assert placed["Cluster"][""]["total_used"]["nvidia.com/gpu"] == 40_000
        assert placed["PriorityClass"]["system-node-critical"]["value"] == 2_000_001_000
        assert cluster.namespace in placed["Namespace"]
        line = await daemon.logged("objects of the dump written", times=2)
        assert Path(line["file"]).name.startswith("objects-")
        source = Source(file=(line["file"],))
        found = await asyncio.to_thread(load_cluster, source, read_only=True)
        assert (len(found.core.snapshot().state.nodes), len(found.core.snapshot().state.tasks)) == (5, 40)
        assert [plugin.name for plugin in found.core.snapshot().dispatch.plugins] == placed_plugins(placed)
        with pytest.raises(BadInputError, match="apiVersion: is required"):
            await asyncio.to_thread(load_cluster, Source(file=(_file_of(daemon),)))
        for _ in range(10):
            daemon.signal(signal.SIGUSR1)
            await asyncio.sleep(0.001)
        await daemon.logged("objects of the dump written", times=6)
        assert daemon.lines("failed to write dump") == []
