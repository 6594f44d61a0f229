"""The leader ends after each of its writes to claims, and writes fail in every way: the next leader completes the work.

Nothing is lost and nothing is allocated twice, at no moment of the history.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import pytest
from aiohttp import web

from tests.controlplane.device_driver import DeviceDriver, device_class
from tests.controlplane.faults import Fault, Forward
from tests.controlplane.manifests import node, pod, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.claims.scenes import (
    GPU,
    H200,
    NIC,
    PATIENCE,
    World,
    claim,
    claiming,
    exactly,
    gang,
    gpu,
    held,
    template,
    until_running,
)
from tests.e2e.daemons import CARD_CONF, Daemon

pytestmark = pytest.mark.campaign

CLAIM, STATUS, BINDING = "/resourceclaims/[^/]+$", "/resourceclaims/[^/]+/status$", "/binding$"
CREATION, MAPPING = "/resourceclaims$", "/pods/g-[01]/status$"


class After:
    """The nth request of a kind is executed, and its sender never learns of it."""

    def __init__(self, proxy: Proxy, verb: str, path: str, nth: int) -> None:
        self._done = asyncio.Event()
        self._proxy, self._verb, self._path = proxy, verb, path
        self._strike(nth)

    def _strike(self, nth: int) -> None:
        self._proxy.strike(Fault(self._verb, self._path, nth, 1), self._hold)

    async def _hold(self, forward: Forward) -> web.Response:
        answer = await forward()
        if answer.status == 409:  # two pods write to a claim at once, and one of them repeats it
            self._strike(1)
            return answer
        assert answer.status < 300, answer.text
        self._done.set()
        await asyncio.Event().wait()  # until the client is gone
        return answer

    async def happened(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._done.wait()


async def furnish(world: World, **fields: Any) -> None:
    """One node with three H200, and a queue for them."""
    await world.cluster.create_all(
        [node("n1", cpu=64), queue("q", cards={H200: 3}, capability={"cpu": "64"}), template("one")]
    )
    await world.driver.publish("n1", [gpu(f"g{number}", **fields) for number in range(3)])


async def change_over(world: World, proxy: Proxy, after: After) -> Daemon:
    """Kill the leader once that has happened; then a pod comes, and the next leader, which starts."""
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), world.folder, conf=CARD_CONF, name="first") as first:
        await after.happened()
        await first.kill()
    proxy.mend()
    await world.cluster.create(claiming("other", "one", queue="q"))
    return Daemon(proxy.kubeconfig_for("scheduler-a"), world.folder, conf=CARD_CONF, name="second")


@pytest.mark.parametrize(
    ("verb", "path", "nth"),
    [
        ("PATCH", CLAIM, 1),
        ("PATCH", CLAIM, 2),
        ("PATCH", STATUS, 1),
        ("PATCH", STATUS, 2),
        ("POST", BINDING, 1),
        ("POST", BINDING, 2),
    ],
    ids=["first finalizer", "last finalizer", "first allocation", "last allocation", "first binding", "last binding"],
)
async def test_a_leader_ends_after_a_write(
    world: World,
    proxy: Proxy,
    verb: str,
    path: str,
    nth: int,
) -> None:
    await furnish(world)
    await world.cluster.create_all(gang("g", 2, "one"))
    async with await change_over(world, proxy, After(proxy, verb, path, nth)) as second:
        await until_running(world.cluster, {"g-0", "g-1", "other"})
        assert sorted(chain(*(await held(world.cluster)).values())) == ["n1/g0", "n1/g1", "n1/g2"]
        await world.end(second, "g-0", "g-1", "other")


@pytest.mark.parametrize("nth", [1, 2], ids=["first", "last"])
@pytest.mark.parametrize(
    ("verb", "path"),
    [("POST", CREATION), ("PATCH", STATUS), ("PATCH", MAPPING), ("POST", BINDING)],
    ids=["claim", "allocation", "mapping", "binding"],
)
async def test_a_leader_ends_after_a_write_for_extended_resources(
    world: World,
    proxy: Proxy,
    verb: str,
    path: str,
    nth: int,
) -> None:
    """The next leader deletes the claims that it finds for pods without a node, and makes new ones."""
    await furnish(world)
    await world.cluster.patch("deviceclasses", GPU, {"spec": {"extendedResourceName": "nvidia.com/gpu"}})
    amounts = {"cpu": "1", "nvidia.com/gpu": "1"}
    members = [pod(f"g-{index}", group="g", cards=H200, requests=amounts) for index in range(2)]
    await world.cluster.create_all([pod_group("g", queue="q", members=2), *members])
    async with await change_over(world, proxy, After(proxy, verb, path, nth)) as second:
        await until_running(world.cluster, {"g-0", "g-1", "other"})
        assert sorted(chain(*(await held(world.cluster)).values())) == ["n1/g0", "n1/g1", "n1/g2"]
        assert len(await world.cluster.list("resourceclaims")) == 3
        await world.end(second, "g-0", "g-1", "other")


async def test_a_leader_ends_after_the_reservation_of_a_shared_claim(world: World, proxy: Proxy) -> None:
    await furnish(world)
    await world.cluster.create_all([device_class(NIC), claim("shared", exactly(NIC))])
    members = [claiming(f"g-{index}", claims=["shared"], group="g") for index in range(2)]
    async with DeviceDriver(world.cluster.control_plane, NIC) as network:
        await network.publish("n1", [{"name": "nic"}])
        await world.cluster.create_all([pod_group("g", queue="q", members=2), *members])
        async with await change_over(world, proxy, After(proxy, "PATCH", STATUS, 2)) as second:
            await until_running(world.cluster, {"g-0", "g-1", "other"})
            await world.end(second, "g-0", "g-1", "other")


async def test_a_leader_ends_after_it_gave_a_claim_back(world: World, proxy: Proxy) -> None:
    """The second allocation of a gang is rejected, and the first one released."""
    await furnish(world)
    await world.cluster.create_all(gang("g", 2, "one"))
    proxy.answer("PATCH", STATUS, 422, nth=2, message="no more devices today")
    async with await change_over(world, proxy, After(proxy, "PATCH", STATUS, 3)) as second:
        await until_running(world.cluster, {"g-0", "g-1", "other"})
        await world.end(second, "g-0", "g-1", "other")


async def test_a_leader_ends_while_devices_are_prepared(world: World, proxy: Proxy) -> None:
    world.driver.paused = True
    await furnish(world, bindingConditions=["Attached"], bindingFailureConditions=["Broken"])
    await world.cluster.create_all(gang("g", 2, "one"))
    async with await change_over(world, proxy, After(proxy, "PATCH", STATUS, 2)) as second:
        await second.logged("caches synced")
        world.driver.paused = False
        await until_running(world.cluster, {"g-0", "g-1", "other"})
        await world.end(second, "g-0", "g-1", "other")


@pytest.mark.parametrize(
    ("verb", "path", "how"),
    [
        *(("PATCH", STATUS, how) for how in (409, 429, 500, 503, "done 504", "lost", "reset")),
        *(("PATCH", CLAIM, how) for how in (409, 503, "lost")),
        *(("GET", CLAIM, how) for how in (503, "reset")),
    ],
)
async def test_a_write_that_fails_is_repeated(
    world: World,
    proxy: Proxy,
    verb: str,
    path: str,
    how: int | str,
) -> None:
    """Two requests of one kind fail; the gang runs all the same, with three devices of three."""
    await furnish(world)
    fault = proxy.harm(verb, path, how, times=2)
    await world.cluster.create_all(gang("g", 3, "one"))
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), world.folder, conf=CARD_CONF) as daemon:
        await until_running(world.cluster, {"g-0", "g-1", "g-2"})
        await fault.struck(2)
        assert sorted(chain(*(await held(world.cluster)).values())) == ["n1/g0", "n1/g1", "n1/g2"]
        await world.end(daemon, "g-0", "g-1", "g-2")


async def test_the_api_server_ends_while_claims_are_allocated(world: World, proxy: Proxy) -> None:
    """Of six gangs of two on twelve devices, some are bound when the API server is killed."""
    await world.cluster.create_all([queue("q", cards={H200: 12}, capability={"cpu": "64"}), template("one")])
    await world.nodes("n1", "n2", "n3", devices=4)
    names = {f"g{number}-{index}" for number in range(6) for index in range(2)}
    half = After(proxy, "PATCH", STATUS, 5)
    for number in range(6):
        await world.cluster.create_all(gang(f"g{number}", 2, "one"))
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), world.folder, conf=CARD_CONF) as daemon:
        await half.happened()
        await asyncio.to_thread(world.cluster.control_plane.restart_apiserver)
        proxy.mend()
        await until_running(world.cluster, names)
        await world.end(daemon, *names)
