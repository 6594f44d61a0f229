"""Pods wait for the binding conditions of their devices before they are bound, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest_asyncio

from capcard_sched.kube.claims import release_claims, reserve_claims
from capcard_sched.kube.client import Client
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.model.device_objects import AllocatedDevice, AllocatedDevices, Allocation
from capcard_sched.model.intents import Bind, ClaimAllocation
from capcard_sched.model.reasons import BINDING_CONDITIONS_PENDING
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, plain, pod
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, bind_of

DRIVER = "gpu.example.com"
WAITS = AllocatedDevice("r", DRIVER, "n1", "g0", binding_conditions=("ready",), binding_failure_conditions=("broken",))


class Waits(Observer):
    """The results of waits, with the seconds from the allocation."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, float]] = []

    def devices_prepared(self, result: str, seconds: float) -> None:
        self.ended.append((result, seconds))

    @property
    def results(self) -> list[str]:
        return [result for result, _ in self.ended]


@dataclass
class World:
    """A pod whose device is prepared after its allocation, and one without claims."""

    cluster: Cluster
    writer: Harness
    waiting: Bind
    other: Bind
    waits: Waits = field(default_factory=Waits)

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.cluster.get("resourceclaims", "c")).get("status", {})
        return found

    async def report(self, condition: str) -> None:
        """The driver reports a condition of the device."""
        found = {"type": condition, "status": "True", "reason": "Test", "message": ""}
        found["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        device = {"driver": DRIVER, "pool": "n1", "device": "g0", "conditions": [found]}
        await self.cluster.patch("resourceclaims", "c", {"status": {"devices": [device]}}, subresource="status")

    async def is_waiting(self) -> None:
        async def has_event() -> bool:
            return bool(await self.writer.events(BINDING_CONDITIONS_PENDING.code, self.waiting.namespace))

        await self.cluster.wait_until(has_event, "the event of the pod that waits", within=60)


@pytest_asyncio.fixture
async def world(cluster: Cluster, proxy: Proxy) -> AsyncIterator[World]:
    requests = [{"name": "r", "exactly": {"deviceClassName": DRIVER}}]
    made = await cluster.create_all([node("n1", cpu=8), pod("p"), pod("other")])
    spec = {"devices": {"requests": requests}}
    claim = await cluster.create(plain("ResourceClaim", "c", "resource.k8s.io/v1", spec=spec))
    wanted = ClaimAllocation("c", claim["metadata"]["uid"], Allocation(AllocatedDevices((WAITS,))))
    waiting = msgspec.structs.replace(bind_of(made[1]), claims=(wanted,))
    waits = Waits()

    async def reserve(client: Client, bind: Bind) -> None:
        await reserve_claims(client, bind, waits)

    async with Harness(cluster, proxy, pre_bind=reserve, undo_pre_bind=release_claims) as writer:
        yield World(cluster, writer, waiting, bind_of(made[2]), waits)


async def test_a_pod_is_bound_once_its_device_is_ready(world: World) -> None:
    world.writer.submit(world.waiting, world.other)
    await world.is_waiting()
    await world.writer.until(lambda: world.writer.observer.bindings, "the binding of the other pod")
    assert await world.cluster.bound() == {"other": "n1"}
    assert [each["name"] for each in (await world.status())["reservedFor"]] == ["p"]
    assert world.waits.ended == []
    await world.report("ready")
    await world.writer.quiet()
    assert await world.cluster.bound() == {"other": "n1", "p": "n1"}
    ((result, seconds),) = world.waits.ended
    assert result == "ready"
    assert seconds > 0
    assert len(await world.writer.events(BINDING_CONDITIONS_PENDING.code, world.waiting.namespace)) == 1


async def test_a_device_that_fails_is_given_back(world: World) -> None:
    world.writer.submit(world.waiting)
    await world.is_waiting()
    await world.report("broken")
    refused = await world.writer.refusal()
    assert "device binding failed: device gpu.example.com/n1/g0 has condition broken" in refused.message
    assert world.waits.results == ["failed"]
    found = await world.status()
    assert [found.get(field) for field in ("allocation", "reservedFor", "devices")] == [None, None, None]


async def test_a_pod_whose_binding_is_rejected_gives_its_devices_back(world: World) -> None:
    world.writer.submit(world.waiting)
    await world.is_waiting()
    world.writer.proxy.answer("POST", "/pods/p/binding$", 422, message="not today")
    await world.report("ready")
    assert "not today" in (await world.writer.refusal()).message
    found = await world.status()
    assert [found.get(field) for field in ("allocation", "reservedFor")] == [None, None]


async def test_a_device_that_another_leader_allocated_is_given_back_after_the_timeout(world: World) -> None:
    (wanted,) = world.waiting.claims or ()
    world.writer.submit(world.waiting)
    await world.is_waiting()
    world.writer.reset()  # the next leader finds the claim allocated
    later = msgspec.structs.replace(wanted, allocation=None, timeout=1)
    world.writer.submit(msgspec.structs.replace(world.waiting, claims=(later,)))
    refused = await world.writer.refusal()
    assert "device binding timeout: device gpu.example.com/n1/g0 lacks condition ready after 1 s" in refused.message
    assert world.waits.results == ["failed"]
    assert world.waits.ended[0][1] >= 1
    assert not (await world.status()).get("allocation")


async def test_a_pod_that_joins_an_allocated_claim_is_no_wait(world: World) -> None:
    world.writer.submit(world.waiting)
    await world.is_waiting()
    await world.report("ready")
    await world.writer.quiet()
    (wanted,) = world.waiting.claims or ()
    joining = msgspec.structs.replace(wanted, allocation=None)
    world.writer.submit(msgspec.structs.replace(world.other, claims=(joining,)))
    await world.writer.quiet()
    assert await world.cluster.bound() == {"other": "n1", "p": "n1"}
    assert world.waits.results == ["ready"]
