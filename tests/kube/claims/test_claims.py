"""ResourceClaims are allocated and reserved before a binding, on a real API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from capcard_sched.kube.claims import FINALIZER, ClaimError, release_claims, reserve_claims
from capcard_sched.kube.client import ApiError, Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.errors import RequestError
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.protobuf import PROTOBUF
from capcard_sched.model.device_objects import AllocatedDevice, AllocatedDevices, Allocation
from capcard_sched.model.intents import Bind, ClaimAllocation
from capcard_sched.model.objects import NodeSelector, NodeSelectorTerm, Requirement
from tests.controlplane.cluster import Cluster
from tests.controlplane.faults import Fault, Forward
from tests.controlplane.manifests import Manifest, plain
from tests.controlplane.proxy import Proxy

API = "resource.k8s.io/v1"
RECORD = {"capcard-sched.io/queue": "q", "volcano.sh/card.assigned": '{"NVIDIA-H200":1000}'}


@dataclass
class World:
    """A claim that is not allocated, and the client of the scheduler."""

    cluster: Cluster
    client: Client
    proxy: Proxy
    claim: Manifest

    def bind(self, pod: str, device: str | None = "g0", uid: str = "") -> Bind:
        """A binding that allocates a device (None: reserves the claim only)."""
        made = self.claim["metadata"]
        wanted = ClaimAllocation(
            made["name"],
            uid or made["uid"],
            allocation(device) if device else None,
            annotations=RECORD if device else msgspec.UNSET,
        )
        return Bind(self.cluster.namespace, pod, f"{pod}-uid", "n1", claims=(wanted,))

    async def status(self) -> tuple[list[str], list[str]]:
        """Devices and consumers."""
        found = await self.cluster.get("resourceclaims", "c")
        status: dict[str, Any] = found.get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        return [each["device"] for each in results], [each["name"] for each in status.get("reservedFor", [])]


def allocation(device: str) -> Allocation:
    result = AllocatedDevice(request="r", driver="gpu.example.com", pool="n1", device=device)
    here = Requirement("metadata.name", "In", ("n1",))
    return Allocation(AllocatedDevices((result,)), NodeSelector((NodeSelectorTerm(match_fields=(here,)),)))


@pytest_asyncio.fixture
async def world(cluster: Cluster, proxy: Proxy) -> AsyncIterator[World]:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]
    claim = await cluster.create(plain("ResourceClaim", "c", API, spec={"devices": {"requests": requests}}))
    async with Client(load_connection(str(proxy.kubeconfig_for("scheduler-a")))) as client:
        yield World(cluster, client, proxy, claim)


async def test_a_claim_is_allocated_and_reserved_in_one_write(world: World) -> None:
    await reserve_claims(world.client, world.bind("p"))
    assert await world.status() == (["g0"], ["p"])
    found = await world.cluster.get("resourceclaims", "c")
    assert found["metadata"]["finalizers"] == [FINALIZER]
    assert found["status"]["allocation"]["allocationTimestamp"]
    assert found["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    version = found["metadata"]["resourceVersion"]
    await reserve_claims(world.client, world.bind("p"))  # repeated after an unknown outcome
    assert (await world.cluster.get("resourceclaims", "c"))["metadata"]["resourceVersion"] == version


async def test_queue_and_cards_are_written_with_the_finalizer(world: World) -> None:
    former = {"annotations": {"volcano.sh/card.assigned": "{}", "mine": "x"}}
    await world.cluster.patch("resourceclaims", "c", {"metadata": former})
    await reserve_claims(world.client, world.bind("p"))
    assert (await world.cluster.get("resourceclaims", "c"))["metadata"]["annotations"] == {**RECORD, "mine": "x"}
    assert await world.status() == (["g0"], ["p"])


async def test_every_write_is_reported_with_its_step_and_code(world: World) -> None:
    steps: list[tuple[str, int]] = []

    class Steps(Observer):
        def claim_written(self, step: str, code: int) -> None:
            steps.append((step, code))

    await reserve_claims(world.client, world.bind("a"), Steps())
    await reserve_claims(world.client, world.bind("b"), Steps())
    world.proxy.answer("PATCH", "/resourceclaims/c/status$", 422, message="not today")
    with pytest.raises(ApiError):
        await reserve_claims(world.client, world.bind("d", None), Steps())
    await release_claims(world.client, world.bind("a"), Steps())
    assert steps == [("protect", 200), ("allocate", 200), ("reserve", 200), ("reserve", 422), ("release", 200)]


async def test_pods_of_a_gang_share_a_claim(world: World) -> None:
    for pod, device in (("a", "g0"), ("b", "g0"), ("c", None)):
        await reserve_claims(world.client, world.bind(pod, device))
    assert await world.status() == (["g0"], ["a", "b", "c"])


async def test_the_last_consumer_takes_the_allocation_with_it(world: World) -> None:
    await reserve_claims(world.client, world.bind("a"))
    await reserve_claims(world.client, world.bind("b"))
    await release_claims(world.client, world.bind("a"))
    assert await world.status() == (["g0"], ["b"])
    await release_claims(world.client, world.bind("a"))
    await release_claims(world.client, world.bind("b"))
    assert await world.status() == ([], [])
    await reserve_claims(world.client, world.bind("d", "g1"))
    assert await world.status() == (["g1"], ["d"])


async def test_an_allocation_of_another_writer_stays(world: World) -> None:
    await reserve_claims(world.client, world.bind("a", "g1"))
    with pytest.raises(ClaimError, match="is allocated to other devices"):
        await reserve_claims(world.client, world.bind("b", "g0"))
    assert await world.status() == (["g1"], ["a"])


async def test_a_claim_that_is_gone_or_another_one_is_refused(world: World) -> None:
    with pytest.raises(ClaimError, match="is another one by now"):
        await reserve_claims(world.client, world.bind("p", uid="other"))
    with pytest.raises(ClaimError, match="is not allocated any more"):
        await reserve_claims(world.client, world.bind("p", None))
    await world.cluster.delete("resourceclaims", "c")
    with pytest.raises(ApiError) as raised:
        await reserve_claims(world.client, world.bind("p"))
    assert raised.value.status == 404


async def test_a_lost_answer_and_a_conflict_are_repeated(world: World) -> None:
    world.proxy.lose_answer("PATCH", "/status$", nth=1)
    with pytest.raises(RequestError):  # the binder sends the whole PreBind again
        await reserve_claims(world.client, world.bind("p"))
    await reserve_claims(world.client, world.bind("p"))
    assert await world.status() == (["g0"], ["p"])
    world.proxy.answer("PATCH", "/status$", 409)
    await reserve_claims(world.client, world.bind("q"))
    assert await world.status() == (["g0"], ["p", "q"])


async def test_a_conflict_of_the_first_two_writes_is_repeated(world: World) -> None:
    world.proxy.answer("PATCH", "/resourceclaims/c$", 409)
    world.proxy.answer("PATCH", "/resourceclaims/c/status$", 409)
    await reserve_claims(world.client, world.bind("p"))
    assert await world.status() == (["g0"], ["p"])


async def test_a_reservation_keeps_the_time_of_the_allocation(world: World) -> None:
    await reserve_claims(world.client, world.bind("p"))
    before = (await world.cluster.get("resourceclaims", "c"))["status"]["allocation"]
    await reserve_claims(world.client, world.bind("q", None))
    assert (await world.cluster.get("resourceclaims", "c"))["status"]["allocation"] == before


#: Opaque parameters as clients in other languages than Go write them; the API server stores these bytes.
WRITTEN = {
    "spaces": '{ "sharing": "exclusive" }',
    "order": '{"b":1,"a":[2, 1]}',
    "numbers": '{"a":1.0,"b":1e3,"c":123456789012345678901234567890}',
    "signs": '{"a":"<&>"}',
    "twice": '{"a":1,"a":2}',
    "compact": '{"a":1}',
}


async def _send(cluster: Cluster, method: str, path: str, body: Manifest, parameters: str) -> Manifest:
    """Sends JSON in which `"PARAMETERS"` stands for these."""
    data = json.dumps(body).replace('"PARAMETERS"', parameters)
    async with cluster.session.request(method, path, data=data, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status < 300, await answer.text()
        found: Manifest = await answer.json()
        return found


async def _as_written(cluster: Cluster, parameters: str) -> int:
    """How often the API server has these bytes in the claim."""
    path = await cluster.path("resourceclaims", "written")
    async with cluster.session.get(path, headers={"Accept": PROTOBUF}) as answer:
        return (await answer.read()).count(parameters.encode())


@pytest_asyncio.fixture
async def written(world: World, request: pytest.FixtureRequest) -> str:
    """Parameters of the claim."""
    parameters: str = WRITTEN[request.param]
    config = [{"opaque": {"driver": "gpu.example.com", "parameters": "PARAMETERS"}}]
    body = plain(
        "ResourceClaim", "written", API, spec={"devices": {**world.claim["spec"]["devices"], "config": config}}
    )
    world.claim = await _send(world.cluster, "POST", await world.cluster.path("resourceclaims"), body, parameters)
    return parameters


@pytest.mark.parametrize("written", WRITTEN, indirect=True)
async def test_opaque_parameters_keep_their_bytes(world: World, written: str) -> None:
    world.proxy.answer("PUT", "/resourceclaims/written$", 409)
    await reserve_claims(world.client, world.bind("p"))
    await reserve_claims(world.client, world.bind("q", None))
    found = await world.cluster.get("resourceclaims", "written")
    assert (found["metadata"]["finalizers"], found["metadata"]["annotations"]) == ([FINALIZER], RECORD)
    assert [each["name"] for each in found["status"]["reservedFor"]] == ["p", "q"]
    assert await _as_written(world.cluster, written)
    for pod in ("p", "q"):
        await release_claims(world.client, world.bind(pod))
    found = await world.cluster.get("resourceclaims", "written")
    assert not found["status"].keys() & {"allocation", "reservedFor"}


@pytest.mark.parametrize("written", WRITTEN, indirect=True)
async def test_a_claim_that_another_scheduler_allocated_is_shared(world: World, written: str) -> None:
    """It copied the parameters into the allocation, which is as immutable."""
    config = [{"source": "FromClaim", "opaque": {"driver": "gpu.example.com", "parameters": "PARAMETERS"}}]
    given = msgspec.to_builtins(allocation("g0"))
    given["devices"]["config"] = config
    users = [{"resource": "pods", "name": each, "uid": f"{each}-uid"} for each in ("a", "b")]
    claim = await world.cluster.get("resourceclaims", "written")
    claim["spec"] = {}  # the API server takes that of the claim
    claim["status"] = {"allocation": given, "reservedFor": users}
    path = await world.cluster.path("resourceclaims", "written", subresource="status")
    await _send(world.cluster, "PUT", path, claim, written)
    assert await _as_written(world.cluster, written) == 2
    world.proxy.answer("PUT", "/resourceclaims/written/status$", 409)
    await reserve_claims(world.client, world.bind("p", None))
    await release_claims(world.client, world.bind("a", None))
    found = await world.cluster.get("resourceclaims", "written")
    assert [each["uid"] for each in found["status"]["reservedFor"]] == ["b-uid", "p-uid"]
    assert [each["device"] for each in found["status"]["allocation"]["devices"]["results"]] == ["g0"]
    assert await _as_written(world.cluster, written) == 2


@pytest.mark.parametrize("written", ["compact"], indirect=True)
async def test_an_update_is_of_the_version_that_was_read(world: World, written: str) -> None:
    """The claim changes between the reading of its state and of its bytes."""

    async def change_first(forward: Forward) -> web.Response:
        await world.cluster.patch("resourceclaims", "written", {"metadata": {"annotations": {"a": "b"}}})
        return await forward()

    steps: list[tuple[str, int]] = []

    class Steps(Observer):
        def claim_written(self, step: str, code: int) -> None:
            steps.append((step, code))

    world.proxy.strike(Fault("GET", "/resourceclaims/written$", 2, 1), change_first)
    await reserve_claims(world.client, world.bind("p"), Steps())
    assert steps == [("protect", 409), ("protect", 200), ("allocate", 200)]
    assert await _as_written(world.cluster, written)
