"""A tidal morning on a real API server: inference takes cards back, training waits and returns in the evening."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.proxy import Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import Daemon
from tests.e2e.faults.holding import hold
from tests.e2e.history import History
from tests.e2e.reclaim.tide import (
    H200,
    ObjectEvent,
    broken_gangs,
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


@pytest.mark.asyncio
async def test_the_tide_comes_in_and_goes_out(
    cluster: Cluster, control_plane: ControlPlane, history: History, slow_kubelet: Kubelet, tmp_path: Path
) -> None:
    """Inference reclaims in the morning; training returns in the evening."""
    await furnish(cluster, nodes=2, inference=12)
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=conf()) as daemon:
        # Night: all cards are in use.
        t1 = work("t1", 4, "n1", "n2")
        await make(cluster, service("chat", 2, "n1", "n1"), t1, work("t2", 4, "n2", priority=40000))
        night = {"chat-w-0": "n1", "chat-w-1": "n1", "t1-w-0": "n1", "t1-w-1": "n2", "t2-w-0": "n2"}
        assert await until_running(cluster, night) == night

        # Morning: two more replicas. The gang of the lowest priority goes, as a whole. (Pods end when they end: without
        # a node of its own the second replica would take what is free first, and the evening would be another one.)
        await make(cluster, service("chat", 2, "n1", "n1", first=2))
        kept = {"chat-w-0", "chat-w-1", "t2-w-0"}
        morning = await until_running(cluster, kept | {"chat-w-2", "chat-w-3"})
        assert {name: morning[name] for name in kept} == {name: night[name] for name in kept}
        victims = leavers(history.moments)
        assert sorted(victims) == ["t1-w-0", "t1-w-1"]
        lacking, taker = f"{H200}: 2", "chat-w-2"
        await until_emitted(
            cluster,
            [
                *evicted(cluster, victims, lacking, "n1", taker),
                group_evicted(cluster, "t1", 2, taker),
                *given(cluster, taker, "chat", 2, "n1", ["t1"], lacking),
            ],
        )
        for victim in victims.values():
            ready, target = victim["conditions"]["Ready"], victim["conditions"]["DisruptionTarget"]
            assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
            assert ready["status"] == "False"

        # Its controller brings the gang back: half of it would fit, so none of it starts, and it takes nothing.
        await cluster.delete("podgroups", "t1")
        await make(cluster, work("t1", 4, "", ""))
        await settled(daemon)
        assert set(await running(cluster)) == kept | {"chat-w-2", "chat-w-3"}

        # A service fits without an eviction; then the quota of inference is full, and one more evicts no pod.
        await make(cluster, service("rank", 4, ""))
        served = kept | {"chat-w-2", "chat-w-3", "rank-w-0"}
        await until_running(cluster, served)
        await make(cluster, service("chat", 2, "", first=4))
        figures = "requested <2000>, total would be <14000>, but capability is <12000>"
        short = f"Queue <qi> has insufficient <{H200}> quota: {figures}"
        await until_emitted(cluster, [ObjectEvent("Pod", "chat-w-4", "Warning", "InsufficientScalarQuota", short)])
        await settled(daemon)
        assert set(await running(cluster)) == served

        # Evening: inference ends, training is back without intervention.
        for name in ("chat-w-1", "chat-w-2", "chat-w-3", "chat-w-4", "rank-w-0"):
            await cluster.delete("pods", name)
        await until_running(cluster, {"chat-w-0", "t2-w-0", "t1-w-0", "t1-w-1"})
        disrupted = {
            name for name, item in leavers(history.moments).items() if "DisruptionTarget" in item["conditions"]
        }
        assert disrupted == {"t1-w-0", "t1-w-1"}, "no other pod was ever evicted"
        assert await daemon.metric("volcano_evictions_total", reason="reclaim") == 2
        await prove(history, control_plane, daemon)
        assert broken_gangs(history.moments) == []
        assert await daemon.stop() == 0


@pytest.mark.campaign
@pytest.mark.parametrize("late", ["executed", "refused"])
@pytest.mark.asyncio
async def test_quota_is_free_when_a_victim_is_gone_and_not_when_its_eviction_is_decided(
    cluster: Cluster, history: History, proxy: Proxy, slow_kubelet: Kubelet, tmp_path: Path, late: str
) -> None:
    """Node n2 has eight free cards: only the quota of training keeps `next` from it."""
    await furnish(cluster, nodes=2, training=8)
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=conf()) as daemon:
        await make(cluster, *(work(f"t{number}", 2, "n1") for number in range(4)))
        training = {f"t{number}-w-0" for number in range(4)}
        await until_running(cluster, training)
        deletes = "/pods/t[0-9]-w-0$"
        evictions = hold(proxy, "DELETE", deletes)
        await make(cluster, work("next", 4, ""), service("chat", 4, "n1"))
        await evictions.fault.struck(2, within=30)
        await settled(daemon)
        assert set(await running(cluster)) == training
        if late == "refused":
            proxy.answer("DELETE", deletes, 403, times=None)
            evictions.release(refused=True)
            await settled(daemon)
            assert set(await running(cluster)) == training
        else:
            evictions.release()

            async def done() -> bool:
                return {"chat-w-0", "next-w-0"} <= (await running(cluster)).keys()

            await cluster.wait_until(done, "both jobs to run", within=60)
            assert len(training & (await running(cluster)).keys()) == 2
        await prove(history, cluster.control_plane, daemon)
        assert await daemon.stop() == 0
