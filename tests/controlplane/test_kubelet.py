"""The fake kubelets."""

from __future__ import annotations

import asyncio

import pytest

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.kubelet import Heartbeats, Kubelet
from tests.controlplane.manifests import node, pod

pytestmark = [pytest.mark.asyncio, pytest.mark.campaign]


async def phases(cluster: Cluster) -> dict[str, str]:
    return {each["metadata"]["name"]: each["status"]["phase"] for each in await cluster.list("pods")}


async def conditions(cluster: Cluster, name: str) -> dict[str, str]:
    rows = (await cluster.get("pods", name))["status"]["conditions"]
    return {row["type"]: row["status"] for row in rows}


async def test_pods_run_once_they_are_bound(cluster: Cluster, kubelet: Kubelet) -> None:
    await cluster.create_all([node("n"), pod("bound"), pod("waiting")])
    await cluster.bind("bound", "n")
    expected = {"bound": "Running", "waiting": "Pending"}

    async def reached() -> bool:
        return await phases(cluster) == expected

    await cluster.wait_until(reached, "the bound pod to run")
    now = await conditions(cluster, "bound")
    assert now == {"PodScheduled": "True", "Ready": "True", "ContainersReady": "True", "Initialized": "True"}


async def test_pods_start_after_the_configured_delay(cluster: Cluster, kubelet: Kubelet) -> None:
    await cluster.create_all([node("n"), pod("slow"), pod("never")])
    kubelet.start_delay = 0.5
    await cluster.bind("slow", "n")
    await asyncio.sleep(0.2)
    assert (await phases(cluster))["slow"] == "Pending"
    kubelet.start_delay = float("inf")
    await cluster.bind("never", "n")

    async def reached() -> bool:
        return await phases(cluster) == {"slow": "Running", "never": "Pending"}

    await cluster.wait_until(reached, "the slow pod to run")


async def test_deleted_pods_end_and_go(cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.stop_delay = 0.3
    await cluster.create_all([node("n"), pod("p", grace=30)])
    version = str(cluster.control_plane.revision())
    await cluster.bind("p", "n")

    async def running() -> bool:
        return await phases(cluster) == {"p": "Running"}

    await cluster.wait_until(running, "the pod to run")
    await cluster.delete("pods", "p", grace=None)
    assert "deletionTimestamp" in (await cluster.get("pods", "p"))["metadata"]
    seen: list[tuple[str, str]] = []
    async for event in cluster.watch("pods", namespace=cluster.namespace, resourceVersion=version):
        seen.append((event["type"], event["object"]["status"]["phase"]))
        if event["type"] == "DELETED":
            break
    assert ("MODIFIED", "Failed") in seen
    assert seen[-1] == ("DELETED", "Failed")


async def test_pods_that_replace_others_of_their_name_run_too(cluster: Cluster, kubelet: Kubelet) -> None:
    await cluster.create(node("n"))
    uids = set()
    for _ in range(3):
        uids.add((await cluster.create(pod("p")))["metadata"]["uid"])
        await cluster.bind("p", "n")

        async def running() -> bool:
            return await phases(cluster) == {"p": "Running"}

        await cluster.wait_until(running, "the pod to run")
        await cluster.delete("pods", "p", grace=None)

        async def gone() -> bool:
            return await phases(cluster) == {}

        await cluster.wait_until(gone, "the pod to go")
    assert len(uids) == 3


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_pods_end_by_themselves_when_configured(cluster: Cluster, kubelet: Kubelet, phase: str) -> None:
    await cluster.create_all([node("n"), pod("p")])
    await cluster.bind("p", "n")

    async def running() -> bool:
        return await phases(cluster) == {"p": "Running"}

    await cluster.wait_until(running, "the pod to run")
    await kubelet.finish("p", namespace=cluster.namespace, phase=phase)
    assert await phases(cluster) == {"p": phase}
    assert (await conditions(cluster, "p"))["Ready"] == "False"


async def test_it_goes_on_when_the_server_was_away(cluster: Cluster, kubelet: Kubelet) -> None:
    await cluster.create_all([node("n"), pod("before"), pod("after")])
    await cluster.bind("before", "n")
    await asyncio.to_thread(cluster.control_plane.restart_apiserver)
    await cluster.bind("after", "n")

    async def reached() -> bool:
        return await phases(cluster) == {"before": "Running", "after": "Running"}

    await cluster.wait_until(reached, "both pods to run", within=20)


async def test_heartbeats_come_evenly_and_change_nothing_else(cluster: Cluster) -> None:
    names = [f"n{number}" for number in range(20)]
    await cluster.create_all(node(name) for name in names)

    def without_beat(each: Manifest) -> Manifest:
        for row in each["status"]["conditions"]:
            row.pop("lastHeartbeatTime", None)
        for key in ("resourceVersion", "managedFields"):
            del each["metadata"][key]
        return each

    before = list(map(without_beat, await cluster.list("nodes")))
    async with Heartbeats(cluster.control_plane, names, period=1.0) as heartbeats:
        await asyncio.sleep(2.0)
    after = await cluster.list("nodes")
    assert all(each["status"]["conditions"][0]["lastHeartbeatTime"] for each in after)
    assert list(map(without_beat, after)) == before
    assert 10 <= heartbeats.sent <= 41
