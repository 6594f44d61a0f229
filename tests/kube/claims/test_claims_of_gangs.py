"""The claims of a gang: one that is rejected, or gets no answer, gives those of all pods back. On a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from capcard_sched.kube.claims import release_claims, reserve_claims
from capcard_sched.kube.writes import binder
from capcard_sched.model.deltas import BindFailed
from capcard_sched.model.device_objects import AllocatedDevice, AllocatedDevices, Allocation
from capcard_sched.model.intents import Bind, ClaimAllocation
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, plain, pod
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, bind_of

DRIVER = "gpu.example.com"


@dataclass
class World:
    """Two pods of a gang with a claim each."""

    cluster: Cluster
    writer: Harness
    binds: list[Bind]

    async def allocated(self) -> dict[str, Any]:
        found = await self.cluster.list("resourceclaims")
        return {each["metadata"]["name"]: each.get("status", {}).get("allocation") for each in found}

    def failures(self) -> dict[str, str]:
        return {each.name: each.message for each in self.writer.deltas if isinstance(each, BindFailed)}


@pytest_asyncio.fixture
async def world(cluster: Cluster, proxy: Proxy) -> AsyncIterator[World]:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER}}]}}
    await cluster.create(node("n1", cpu=8))
    binds = []
    for number, name in enumerate("pq"):
        made = await cluster.create(pod(name))
        claim = await cluster.create(plain("ResourceClaim", f"of-{name}", "resource.k8s.io/v1", spec=spec))
        allocation = Allocation(AllocatedDevices((AllocatedDevice("r", DRIVER, "n1", f"g{number}"),)))
        wanted = ClaimAllocation(claim["metadata"]["name"], claim["metadata"]["uid"], allocation)
        binds.append(msgspec.structs.replace(bind_of(made), claims=(wanted,), gang=f"{cluster.namespace}/gang"))
    async with Harness(cluster, proxy, pre_bind=reserve_claims, undo_pre_bind=release_claims) as writer:
        yield World(cluster, writer, binds)


@pytest.mark.parametrize("code", [403, 422])
async def test_an_allocation_that_is_rejected_is_an_event(world: World, code: int) -> None:
    world.writer.proxy.answer("PATCH", "/resourceclaims/of-q/status$", code, message="not today")
    world.writer.submit(*world.binds)
    await world.writer.until(lambda: len(world.failures()) == 2, "the refusals")
    await world.writer.quiet()
    assert await world.allocated() == {"of-p": None, "of-q": None}
    assert await world.cluster.bound() == {}
    events = await world.writer.events("FailedAllocation", world.cluster.namespace)
    assert [(each["involvedObject"]["name"], "not today" in each["message"]) for each in events] == [("q", True)]
    assert "another pod of the gang failed: not today" in world.failures()["p"]


async def test_a_gang_does_not_wait_for_claims_without_an_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binder, "GANG_SECONDS", 1.0)
    world.writer.proxy.answer("PATCH", "/resourceclaims/of-q$", 503, message="overloaded", times=None)
    world.writer.submit(*world.binds)
    await world.writer.until(lambda: len(world.failures()) == 2, "the refusals")
    await world.writer.quiet()
    assert "overloaded" in world.failures()["q"]
    assert "another pod of the gang failed: overloaded" in world.failures()["p"]
    assert await world.allocated() == {"of-p": None, "of-q": None}
    assert await world.cluster.bound() == {}


async def test_an_answer_in_time_binds_the_gang(world: World) -> None:
    world.writer.proxy.answer("PATCH", "/resourceclaims/of-q$", 503, message="overloaded", times=2)
    world.writer.submit(*world.binds)
    await world.writer.quiet()
    assert await world.cluster.bound() == {"p": "n1", "q": "n1"}
    assert world.failures() == {}
