"""Preemption by priority inside a queue, on a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.e2e.checker import prove
from tests.e2e.daemons import Daemon
from tests.e2e.history import History
from tests.e2e.reclaim.tide import (
    H200,
    conf,
    evicted,
    furnish,
    given,
    group_evicted,
    leavers,
    make,
    running,
    settled,
    until_emitted,
    until_running,
    work,
)

PROTECTED = {"volcano.sh/preemptable": "false"}


@pytest.mark.asyncio
async def test_within_a_queue_the_lowest_priority_is_preempted_and_an_equal_one_is_not(
    cluster: Cluster, control_plane: ControlPlane, history: History, slow_kubelet: Kubelet, tmp_path: Path
) -> None:
    await furnish(cluster, training=8)
    rules = conf(actions="enqueue, allocate, preempt, backfill", gang="enablePreemptable: false")
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=rules) as daemon:
        await make(
            cluster,
            work("low", 2, "", priority=20000),
            work("safe", 2, "", priority=20000, annotations=PROTECTED),
            work("middle", 4, "", priority=60000),
        )
        all_pods = {"low-w-0", "safe-w-0", "middle-w-0"}
        await until_running(cluster, all_pods)
        await make(cluster, work("high", 2, "", priority=60000))
        await until_running(cluster, all_pods - {"low-w-0"} | {"high-w-0"})
        lacking = f"{H200}: 2"
        emitted = [
            *evicted(cluster, ["low-w-0"], lacking, "n1", "high-w-0", action="preempt", queue="qt"),
            group_evicted(cluster, "low", 1, "high-w-0", action="preempt", queue="qt"),
            *given(cluster, "high-w-0", "high", 1, "n1", ["low"], lacking, reason="Preempting"),
        ]
        await until_emitted(cluster, emitted)
        target = leavers(history.moments)["low-w-0"]["conditions"]["DisruptionTarget"]
        assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
        # No pod of a lower priority is left that may be evicted.
        await make(cluster, work("again", 2, "", priority=60000))
        await settled(daemon)
        assert set(await running(cluster)) == {"safe-w-0", "middle-w-0", "high-w-0"}
        await until_emitted(cluster, emitted)
        assert list(leavers(history.moments)) == ["low-w-0"]
        assert await daemon.metric("volcano_evictions_total", reason="preempt") == 1
        await prove(history, control_plane, daemon)
        assert await daemon.stop() == 0
