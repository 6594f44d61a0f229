"""Claims for extended resources are created before a binding and deleted if it fails, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from capcard_sched.kube.claims import FINALIZER, ClaimError, release_claims, reserve_claims
from capcard_sched.kube.client import ApiError, Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.errors import RequestError
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.model.device_objects import (
    EXTENDED_CLAIM,
    AllocatedDevice,
    AllocatedDevices,
    Allocation,
    DeviceClaim,
    DeviceRequest,
    ExactRequest,
    RequestMapping,
)
from capcard_sched.model.intents import Bind, ClaimAllocation, ExtendedClaim, ReleaseClaims
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, plain
from tests.controlplane.proxy import Proxy

NAME = "p-extended-resources-0123456789"
REQUEST = "container-0-request-0"


class Steps(Observer):
    """The steps and codes of writes."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def claim_written(self, step: str, code: int) -> None:
        self.seen.append((step, code))


@dataclass
class World:
    """Pod p requests two example.com/gpu, and no claim exists."""

    cluster: Cluster
    client: Client
    proxy: Proxy
    uid: str

    def bind(self, device: str = "g0", count: int = 2) -> Bind:
        devices = DeviceClaim((DeviceRequest(REQUEST, ExactRequest(device_class_name="gpu.example.com", count=count)),))
        result = AllocatedDevice(request=REQUEST, driver="gpu.example.com", pool="n1", device=device)
        mapping = RequestMapping("main", "example.com/gpu", REQUEST)
        wanted = ClaimAllocation(
            NAME, "", Allocation(AllocatedDevices((result,))), extended=ExtendedClaim(devices, (mapping,))
        )
        return Bind(self.cluster.namespace, "p", self.uid, "n1", claims=(wanted,))

    async def claims(self) -> list[dict[str, Any]]:
        return [dict(each) for each in await self.cluster.list("resourceclaims")]

    async def mapped(self) -> Any:
        return (await self.cluster.get("pods", "p")).get("status", {}).get("extendedResourceClaimStatus")


@pytest_asyncio.fixture
async def world(cluster: Cluster, proxy: Proxy) -> AsyncIterator[World]:
    resources = {"requests": {"example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}}
    spec = {"containers": [{"name": "main", "image": "x", "resources": resources}], "schedulerName": "capcard-sched"}
    await cluster.create(node("n1", cpu=8))
    made = await cluster.create(plain("Pod", "p", "v1", spec=spec))
    async with Client(load_connection(str(proxy.kubeconfig_for("scheduler-a")))) as client:
        yield World(cluster, client, proxy, made["metadata"]["uid"])


async def test_a_claim_is_created_allocated_reserved_and_mapped(world: World) -> None:
    steps = Steps()
    await reserve_claims(world.client, world.bind(), steps)
    (claim,) = await world.claims()
    meta, status = claim["metadata"], claim["status"]
    assert (meta["name"], meta["annotations"], meta["finalizers"]) == (NAME, {EXTENDED_CLAIM: "true"}, [FINALIZER])
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", world.uid, True)
    (request,) = claim["spec"]["devices"]["requests"]
    assert (request["name"], request["exactly"]["count"]) == (REQUEST, 2)
    assert status["allocation"]["devices"]["results"][0]["device"] == "g0"
    assert [each["uid"] for each in status["reservedFor"]] == [world.uid]
    mapping = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": REQUEST}
    assert await world.mapped() == {"resourceClaimName": NAME, "requestMappings": [mapping]}
    assert steps.seen == [("create", 200), ("allocate", 200)]


async def test_a_failed_binding_deletes_the_claim(world: World) -> None:
    await reserve_claims(world.client, world.bind())
    steps = Steps()
    await release_claims(world.client, world.bind(), steps)
    assert await world.claims() == []
    assert steps.seen == [("unprotect", 200), ("delete", 200)]
    await release_claims(world.client, world.bind(), steps)  # nothing is left to undo
    await reserve_claims(world.client, world.bind("g1"))
    assert [each["status"]["allocation"]["devices"]["results"][0]["device"] for each in await world.claims()] == ["g1"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/resourceclaims"), ("PATCH", "/status$")])
async def test_a_lost_answer_makes_no_second_claim(world: World, method: str, path: str) -> None:
    world.proxy.lose_answer(method, path, nth=1)
    with pytest.raises(RequestError):  # the binder sends the whole PreBind again
        await reserve_claims(world.client, world.bind())
    await reserve_claims(world.client, world.bind())
    (claim,) = await world.claims()
    assert [each["uid"] for each in claim["status"]["reservedFor"]] == [world.uid]


async def test_a_claim_of_an_earlier_attempt_with_other_requests_is_refused_and_deleted(world: World) -> None:
    await reserve_claims(world.client, world.bind())
    with pytest.raises(ClaimError, match="exists, and is not that of the pod"):
        await reserve_claims(world.client, world.bind(count=1))
    await release_claims(world.client, world.bind(count=1))
    assert await world.claims() == []


async def test_a_claim_of_another_owner_stays(world: World) -> None:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]
    await world.cluster.create(
        plain("ResourceClaim", NAME, "resource.k8s.io/v1", spec={"devices": {"requests": requests}})
    )
    with pytest.raises(ClaimError, match="exists, and is not that of the pod"):
        await reserve_claims(world.client, world.bind())
    await release_claims(world.client, world.bind())
    assert [each["metadata"]["name"] for each in await world.claims()] == [NAME]
    assert await world.mapped() is None


async def test_an_allocation_that_the_api_server_refuses_leaves_no_claim(world: World) -> None:
    world.proxy.answer("PATCH", f"/resourceclaims/{NAME}/status$", 422, message="not today")
    with pytest.raises(ApiError):
        await reserve_claims(world.client, world.bind())
    await release_claims(world.client, world.bind())
    assert await world.claims() == []


async def test_the_next_leader_deletes_the_claim_of_a_former_one(world: World) -> None:
    bind = world.bind()
    await reserve_claims(world.client, bind)
    (claim,) = await world.claims()
    left = ClaimAllocation(NAME, claim["metadata"]["uid"], extended=ExtendedClaim())
    other = msgspec.structs.replace(left, uid="of-another-claim")
    await release_claims(world.client, ReleaseClaims(bind.namespace, "p", world.uid, (other,)))
    assert len(await world.claims()) == 1
    await release_claims(world.client, ReleaseClaims(bind.namespace, "p", world.uid, (left,)))
    assert await world.claims() == []
