"""Claims of pods that were not bound are released, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest_asyncio

from capcard_sched.kube.claims import release_claims, reserve_claims
from capcard_sched.model.deltas import BindRetry
from capcard_sched.model.device_objects import AllocatedDevice, AllocatedDevices, Allocation
from capcard_sched.model.intents import Bind, ClaimAllocation, ReleaseClaims
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, plain, pod
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness


@dataclass
class World:
    """Claim c is allocated and reserved for pod p."""

    cluster: Cluster
    writer: Harness
    release: ReleaseClaims

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.cluster.get("resourceclaims", "c")).get("status", {})
        return found

    async def retried(self) -> None:
        async def is_done() -> bool:
            return bool(self.writer.deltas)

        await self.cluster.wait_until(is_done, "the core to schedule the pod again", within=60)
        wanted = self.release
        assert self.writer.deltas == [BindRetry(wanted.namespace, wanted.name, wanted.uid)]


@pytest_asyncio.fixture
async def world(cluster: Cluster, proxy: Proxy) -> AsyncIterator[World]:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]
    await cluster.create_all([node("n1", cpu=8), pod("p")])
    claim = await cluster.create(
        plain("ResourceClaim", "c", "resource.k8s.io/v1", spec={"devices": {"requests": requests}})
    )
    meta = (await cluster.get("pods", "p"))["metadata"]
    result = AllocatedDevice(request="r", driver="gpu.example.com", pool="n1", device="g0")
    wanted = ClaimAllocation("c", claim["metadata"]["uid"], Allocation(AllocatedDevices((result,))))
    async with Harness(cluster, proxy, undo_pre_bind=release_claims) as writer:
        await reserve_claims(writer.client, Bind(meta["namespace"], "p", meta["uid"], "n1", claims=(wanted,)))
        yield World(cluster, writer, ReleaseClaims(meta["namespace"], "p", meta["uid"], (wanted,)))


async def test_an_unbound_pod_gives_its_devices_back(world: World) -> None:
    assert (await world.status())["allocation"]
    world.writer.submit(world.release)
    await world.retried()
    found = await world.status()
    assert not found.get("allocation")
    assert not found.get("reservedFor")


async def test_a_pod_that_was_bound_meanwhile_keeps_them(world: World) -> None:
    await world.writer.write(Bind(world.release.namespace, "p", world.release.uid, "n1"))
    world.writer.submit(world.release)
    await world.retried()
    assert [each["name"] for each in (await world.status())["reservedFor"]] == ["p"]


async def test_devices_without_a_consumer_are_given_back(world: World) -> None:
    """The finalizer was removed, or the allocation is that of another writer."""
    await world.cluster.patch("resourceclaims", "c", {"status": {"reservedFor": None}}, subresource="status")
    assert (await world.status())["allocation"]
    world.writer.submit(world.release)
    await world.retried()
    assert not (await world.status()).get("allocation")


async def test_another_allocation_without_a_consumer_stays(world: World) -> None:
    await world.cluster.patch("resourceclaims", "c", {"status": {"reservedFor": None}}, subresource="status")
    (wanted,) = world.release.claims
    other = AllocatedDevice(request="r", driver="gpu.example.com", pool="n1", device="g1")
    changed = msgspec.structs.replace(wanted, allocation=Allocation(AllocatedDevices((other,))))
    world.writer.submit(msgspec.structs.replace(world.release, claims=(changed,)))
    await world.retried()
    assert (await world.status())["allocation"]


async def test_a_standby_releases_nothing(world: World) -> None:
    world.writer.leads = False
    world.writer.submit(world.release)
    world.writer.reset()
    world.writer.leads = True
    await world.writer.write(Bind(world.release.namespace, "p", world.release.uid, "n1"))
    assert world.writer.deltas == []
    assert (await world.status())["allocation"]


async def test_a_read_that_fails_for_now_is_repeated(world: World) -> None:
    world.writer.proxy.answer("GET", "/pods/p$", 503)
    world.writer.submit(world.release)
    await world.retried()
    assert not (await world.status()).get("allocation")
