"""The leader dies between an eviction and the binding that it was made for: the next one takes nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.e2e.checker import prove
from tests.e2e.daemons import QUICK_ELECTION, Daemon
from tests.e2e.history import History
from tests.e2e.reclaim.tide import (
    PATIENCE,
    conf,
    furnish,
    leavers,
    make,
    running,
    service,
    settled,
    until_running,
    work,
)

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("nominated", [True, False], ids=["nominated", "before its node is nominated"])
@pytest.mark.asyncio
async def test_a_leader_that_is_killed_after_an_eviction_is_followed_by_one_that_finishes_it(
    cluster: Cluster,
    control_plane: ControlPlane,
    history: History,
    kubelet: Kubelet,
    tmp_path: Path,
    nominated: bool,
) -> None:
    await furnish(cluster, nodes=3, training=32)
    kubelet.stop_delay = 600.0  # victims end when the test resumes their kubelet
    one = Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, *QUICK_ELECTION, conf=conf(), name="one")
    two = Daemon(control_plane.kubeconfig_for("scheduler-b"), tmp_path, *QUICK_ELECTION, conf=conf(), name="two")
    async with one:
        await one.logged("became leader", within=PATIENCE)
        await make(cluster, work("a", 8, "n1", grace=600), work("g", 4, "n2", "n3", grace=600))
        await make(cluster, work("x", 4, "n2", "n3", minimum=1, priority=40000))
        night = {"a-w-0", "g-w-0", "g-w-1", "x-w-0", "x-w-1"}
        await until_running(cluster, night)
        async with two:
            await two.logged("caches synced", within=PATIENCE)
            await make(cluster, service("r", 8, "n1"))

            async def leaving() -> bool:
                return list(leavers(history.moments)) == ["a-w-0"]

            async def named() -> bool:
                return bool((await cluster.get("pods", "r-w-0"))["status"].get("nominatedNodeName") == "n1")

            await cluster.wait_until(leaving, "the eviction", within=PATIENCE)
            await cluster.wait_until(named, "the nomination", within=PATIENCE)
            await one.kill()
            if not nominated:  # as if it had been killed before it wrote that
                patch = {"status": {"nominatedNodeName": None}}
                await cluster.patch("pods", "r-w-0", patch, subresource="status")
            await two.logged("became leader", within=PATIENCE)
            await settled(two)
            assert set(await running(cluster)) == night - {"a-w-0"}
            assert list(leavers(history.moments)) == ["a-w-0"], "no second set of victims"
            # Another pending pod does not get the capacity, though it is there first.
            await make(cluster, work("late", 8, "n1", priority=80000, grace=600))
            await cluster.delete("pods", "a-w-0")
            await until_running(cluster, night - {"a-w-0"} | {"r-w-0"})
            await settled(two)
            assert list(leavers(history.moments)) == ["a-w-0"]
            assert await two.metric("volcano_evictions_total") == 0
            await prove(history, control_plane, two)
            assert await two.stop() == 0
