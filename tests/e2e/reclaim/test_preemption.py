"""Preemption by priority inside a queue, on a real API server, and pods that are never victims."""

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
    ObjectEvent,
    conf,
    evicted,
    furnish,
    given,
    group_evicted,
    leavers,
    make,
    running,
    service,
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


@pytest.mark.campaign
@pytest.mark.parametrize("where", ["pod", "PodGroup"])
@pytest.mark.asyncio
async def test_a_pod_with_preemptable_false_is_never_a_victim(
    cluster: Cluster, control_plane: ControlPlane, history: History, slow_kubelet: Kubelet, tmp_path: Path, where: str
) -> None:
    """Neither of another queue nor of the own one, whatever its priority; not even a part of its gang."""
    await furnish(cluster)
    rules = conf(actions="enqueue, allocate, preempt, backfill, reclaim", gang="enableReclaimable: false")
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=rules) as daemon:
        safe = work("safe", 3, "", "")
        protected_member = safe[0 if where == "PodGroup" else 2]  # the annotation of one member counts for the gang
        protected_member["metadata"]["annotations"].update(PROTECTED)
        await make(cluster, safe, work("other", 2, ""))
        await until_running(cluster, {"safe-w-0", "safe-w-1", "other-w-0"})
        # It would have to be three cards: the other pod is not enough.
        taker = service("r", 3, "")
        await make(cluster, taker, work("own", 3, "", priority=80000))
        causes = {"PodGroup": "2 not-preemptable, 1 not enough", "pod": "1 gang, 1 not enough, 1 not-preemptable"}
        why = f"0/1 nodes can be reclaimed: {causes[where]}"
        await until_emitted(cluster, [ObjectEvent("Pod", "r-w-0", "Warning", "ReclaimFailed", why)])
        await settled(daemon)
        assert set(await running(cluster)) == {"safe-w-0", "safe-w-1", "other-w-0"}
        assert leavers(history.moments) == {}
        # With less it is content, and the other pod is enough.
        await cluster.delete("pods", "r-w-0")
        await cluster.delete("pods", "own-w-0")
        await make(cluster, service("s", 2, ""))
        await until_running(cluster, {"safe-w-0", "safe-w-1", "s-w-0"})
        await prove(history, control_plane, daemon)
        assert await daemon.stop() == 0
