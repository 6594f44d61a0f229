"""The daemon on a real API server, from its start to its end, as seen from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.model.annotations import GROUP_NAME
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, node, pod, queue
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, Controllers, Daemon
from tests.e2e.history import History

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


@pytest.mark.campaign
@pytest.mark.asyncio
async def test_controllers_that_race_the_scheduler_cost_no_second_decision(
    cluster: Cluster, control_plane: ControlPlane, history: History, tmp_path: Path
) -> None:
    """A pod without a group is bound, and gets the PodGroup that the controllers make for it, in either order."""
    nodes = [node(f"n{index}", cpu=8) for index in range(5)]
    await cluster.create_all([*nodes, queue("q", capability={"cpu": "64", "memory": "256Gi"})])
    async with (
        Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon,
        Controllers(control_plane.kubeconfig_for("admin"), tmp_path) as controllers,
    ):
        await daemon.logged("caches synced")
        await controllers.logged("controllers started")
        await cluster.create_all(pod(f"bare-{index}", queue="q") for index in range(40))

        async def grouped() -> bool:
            phases = [group.get("status", {}).get("phase") for group in await cluster.list("podgroups")]
            named = [GROUP_NAME in each["metadata"]["annotations"] for each in await cluster.list("pods")]
            allocated = (await cluster.get("queues", "q")).get("status", {}).get("allocated", {})
            return phases == ["Running"] * 40 and all(named) and allocated.get("pods") == allocated["cpu"] == "40"

        await cluster.wait_until(grouped, "every pod to be bound and to have its group", within=40)
        assert len((await prove(history, control_plane, daemon)).binds) == 40
