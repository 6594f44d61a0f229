"""Pods with extended resources that a DeviceClass offers: the daemon on a real API server."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, plain, pod, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.expectations import message, until, until_bound

API = "resource.k8s.io/v1"
GPU = "nvidia.com/gpu"
ONE = {"cpu": "1", GPU: "1"}
CARD = "NVIDIA-H200"


def slice_of(name: str, devices: int) -> dict[str, Any]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    attributes = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H200"}}
    listed = [{"name": f"g{number}", "attributes": attributes} for number in range(devices)]
    return plain(
        "ResourceSlice", name, API, spec={"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": listed}
    )


def world(devices: int, quota: int) -> list[dict[str, Any]]:
    capability = {"cpu": "64", "memory": "64Gi"}
    return [
        node("n1", cpu=8),
        queue("q", capability=capability, cards={CARD: quota}),
        plain("DeviceClass", "gpu.nvidia.com", API, spec={"extendedResourceName": GPU}),
        slice_of("n1", devices),
    ]


async def _held(cluster: Cluster) -> dict[str, list[str]]:
    """The devices of each pod by its claims; checks owner, reservation, and mapping of each."""
    found: dict[str, list[str]] = {}
    for claim in await cluster.list("resourceclaims"):
        (owner,) = claim["metadata"]["ownerReferences"]
        status = (await cluster.get("pods", owner["name"]))["status"]["extendedResourceClaimStatus"]
        assert status["resourceClaimName"] == claim["metadata"]["name"]
        assert [each["uid"] for each in claim["status"]["reservedFor"]] == [owner["uid"]]
        requests = {each["name"] for each in claim["spec"]["devices"]["requests"]}
        assert {each["requestName"] for each in status["requestMappings"]} == requests
        found[owner["name"]] = [each["device"] for each in claim["status"]["allocation"]["devices"]["results"]]
    return found


async def test_pods_get_devices_of_plugins_and_of_slices_under_one_quota(
    cluster: Cluster, proxy: Proxy, tmp_path: Path
) -> None:
    plugin = node("d1", cpu=8, devices={GPU: 1}, labels={"nvidia.com/gpu.product": CARD})
    pods = [pod(f"p{number}", queue="q", cards=CARD, requests=ONE) for number in range(4)]
    await cluster.create_all([*world(4, quota=3), plugin, *pods])
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:

        async def three() -> bool:
            return len(await cluster.bound()) == 3

        await cluster.wait_until(three, "three pods to be bound", within=120)
        bound = await cluster.bound()
        (waits,) = {f"p{number}" for number in range(4)} - set(bound)
        await until(cluster, "pods", waits, status=message(f"has insufficient <{CARD}> quota"))
        held = await _held(cluster)
        assert set(held) == {name for name, where in bound.items() if where == "n1"}
        assert len({device for devices in held.values() for device in devices}) == len(held)
        assert await daemon.stop() == 0


async def test_a_gang_whose_last_claim_is_refused_leaves_none(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> None:
    members = [pod(f"g-{number}", group="g", cards=CARD, requests=ONE) for number in range(3)]
    await cluster.create_all([*world(3, quota=3), pod_group("g", queue="q", members=3), *members])
    path = "/resourceclaims/g-2-extended-resources-[0-9a-f]*/status$"
    proxy.answer("PATCH", path, 422, message="no more devices today", times=None)

    async def deleted() -> bool:
        return not await cluster.list("resourceclaims")

    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await until(cluster, "events", reason="FailedScheduling", message="*no more devices today*")
        await cluster.wait_until(deleted, "the claims to be deleted", within=120)
        assert await cluster.bound() == {}
        proxy.mend()
        await until_bound(cluster, ["g-0", "g-1", "g-2"])
        assert sorted(chain.from_iterable((await _held(cluster)).values())) == ["g0", "g1", "g2"]
        assert await daemon.stop() == 0


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/resourceclaims"),
        ("PATCH", "/resourceclaims/[^/]*/status$"),
        ("PATCH", "/pods/g-[01]/status$"),
        ("POST", "/pods/g-[01]/binding$"),
    ],
    ids=["claim", "allocation", "mapping", "binding"],
)
async def test_a_leader_that_ends_between_two_writes_leaves_no_claim_behind(
    cluster: Cluster, proxy: Proxy, tmp_path: Path, verb: str, path: str
) -> None:
    """Of a gang of two, the second write of one kind does not leave the first leader: the next one binds both."""
    members = [pod(f"g-{number}", group="g", cards=CARD, requests=ONE) for number in range(2)]
    await cluster.create_all([*world(2, quota=2), pod_group("g", queue="q", members=2), *members])
    held = proxy.hold(verb, path, nth=2)
    kubeconfig = proxy.kubeconfig_for("scheduler-a")
    async with Daemon(kubeconfig, tmp_path, conf=CARD_CONF, name="first") as first:
        await held.struck()
        await first.kill()
    proxy.mend()
    async with Daemon(kubeconfig, tmp_path, conf=CARD_CONF, name="second") as second:
        await until_bound(cluster, ["g-0", "g-1"])
        assert sorted(chain.from_iterable((await _held(cluster)).values())) == ["g0", "g1"]
        assert await second.stop() == 0
