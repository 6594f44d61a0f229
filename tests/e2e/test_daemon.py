"""The daemon on a real API server, from its start to its end, as seen from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, node, pod, queue
from tests.e2e.daemons import CARD_CONF, QUICK_ELECTION, Daemon

_CARD = {"cpu": "1", "nvidia.com/gpu": "1"}


@pytest.mark.asyncio
async def test_a_gang_within_its_quota_is_bound_and_one_beyond_it_gets_the_reason(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    await cluster.create_all(
        [gpu_node("n1", "A10", 8), queue("q", cards={"A10": 4}, capability={"cpu": "64", "memory": "64Gi"})]
    )
    fits = gang("fits", 4, queue="q", cards="A10", requests=_CARD)
    waits = gang("waits", 2, queue="q", cards="A10", requests=_CARD)
    await cluster.create_all([*fits, *waits])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:

        async def emitted() -> bool:
            events = await cluster.list("events")
            return any(event["reason"] == "InsufficientScalarQuota" for event in events)

        async def all_bound() -> bool:
            return len(await cluster.bound()) >= 4

        await cluster.wait_until(all_bound, "the gang to be bound", within=20)
        await cluster.wait_until(emitted, "the event of the refusal", within=20)
        assert await cluster.bound() == {f"fits-{member}": "n1" for member in range(4)}

        async def runs() -> bool:
            group = await cluster.get("podgroups", "fits")
            return bool(group.get("status", {}).get("phase") == "Running")

        await cluster.wait_until(runs, "the gang to be Running", within=20)
        assert (await daemon.get("/healthz"))[0] == 200
        assert (await daemon.get("/readyz"))[0] == 200
        assert await daemon.metric("volcano_pods_bound_total") == 4
        assert await daemon.stop() == 0
    assert not [line for line in daemon.lines() if line["level"] in ("error", "critical")]


@pytest.mark.asyncio
async def test_pods_without_a_group_are_scheduled_before_any_controller_runs(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([node("n1"), pod("bare"), pod("foreign", scheduler="somebody-else")])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path) as daemon:
        await cluster.wait_until(cluster.bound, "the pod to be bound", within=20)
        assert await cluster.bound() == {"bare": "n1"}
        names = {queue["metadata"]["name"] for queue in await cluster.list("queues")}
        assert names == {"default", "root"}, "made at start"
        await daemon.stop()


@pytest.mark.asyncio
async def test_without_a_fencing_policy_a_fenced_daemon_logs_it_and_binds(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    flags = (*QUICK_ELECTION, f"--leader-elect-resource-namespace={cluster.namespace}", "--fence")
    await cluster.create_all([node("n1"), pod("p")])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, *flags) as daemon:
        line = await daemon.logged("fencing policy NOT active", within=60)
        assert "Apply manifests/base/admission-fence.yaml" in line["detail"]
        await cluster.wait_until(cluster.bound, "the pod to be bound", within=60)
