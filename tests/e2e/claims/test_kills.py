"""The leader ends after each of its writes to claims, and writes fail in every way: the next leader completes the work.

Nothing is lost and nothing is allocated twice, at no moment of the history.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.controlplane.cluster import Cluster
from tests.controlplane.device_driver import DeviceDriver, device_class
from tests.controlplane.faults import Fault, Forward
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import node, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.claims.scenes import (
    H200,
    NIC,
    PATIENCE,
    claim,
    claiming,
    exactly,
    finish,
    gang,
    gpu,
    held,
    prove,
    template,
    until_running,
)
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

CLAIM, STATUS, BINDING = "/resourceclaims/[^/]+$", "/resourceclaims/[^/]+/status$", "/binding$"


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


async def furnish(cluster: Cluster, driver: DeviceDriver, **fields: Any) -> None:
    """One node with three H200, and a queue for them."""
    await cluster.create_all(
        [node("n1", cpu=64), queue("q", cards={H200: 3}, capability={"cpu": "64"}), template("one")]
    )
    await driver.publish("n1", [gpu(f"g{number}", **fields) for number in range(3)])


async def change_over(cluster: Cluster, proxy: Proxy, folder: Path, after: After) -> Daemon:
    """Kill the leader once that has happened; then a pod comes, and the next leader, which starts."""
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), folder, conf=CARD_CONF, name="first") as first:
        await after.happened()
        await first.kill()
    proxy.mend()
    await cluster.create(claiming("other", "one", queue="q"))
    return Daemon(proxy.kubeconfig_for("scheduler-a"), folder, conf=CARD_CONF, name="second")


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
    cluster: Cluster,
    proxy: Proxy,
    kubelet: Kubelet,
    driver: DeviceDriver,
    device_history: History,
    tmp_path: Path,
    verb: str,
    path: str,
    nth: int,
) -> None:
    await furnish(cluster, driver)
    await cluster.create_all(gang("g", 2, "one"))
    async with await change_over(cluster, proxy, tmp_path, After(proxy, verb, path, nth)) as second:
        await until_running(cluster, {"g-0", "g-1", "other"})
        assert sorted(chain(*(await held(cluster)).values())) == ["n1/g0", "n1/g1", "n1/g2"]
        await finish(cluster, kubelet, ["g-0", "g-1", "other"])
        await prove(device_history, kubelet, second)
        assert await second.stop() == 0


async def test_a_leader_ends_after_the_reservation_of_a_shared_claim(
    cluster: Cluster,
    proxy: Proxy,
    kubelet: Kubelet,
    driver: DeviceDriver,
    device_history: History,
    tmp_path: Path,
) -> None:
    await furnish(cluster, driver)
    await cluster.create_all([device_class(NIC), claim("shared", exactly(NIC))])
    members = [claiming(f"g-{index}", claims=["shared"], group="g") for index in range(2)]
    async with DeviceDriver(cluster.control_plane, NIC) as network:
        await network.publish("n1", [{"name": "nic"}])
        await cluster.create_all([pod_group("g", queue="q", members=2), *members])
        async with await change_over(cluster, proxy, tmp_path, After(proxy, "PATCH", STATUS, 2)) as second:
            await until_running(cluster, {"g-0", "g-1", "other"})
            await finish(cluster, kubelet, ["g-0", "g-1", "other"])
            await prove(device_history, kubelet, second)
            assert await second.stop() == 0


async def test_a_leader_ends_after_it_gave_a_claim_back(
    cluster: Cluster,
    proxy: Proxy,
    kubelet: Kubelet,
    driver: DeviceDriver,
    device_history: History,
    tmp_path: Path,
) -> None:
    """The second allocation of a gang is rejected, and the first one released."""
    await furnish(cluster, driver)
    await cluster.create_all(gang("g", 2, "one"))
    proxy.answer("PATCH", STATUS, 422, nth=2, message="no more devices today")
    async with await change_over(cluster, proxy, tmp_path, After(proxy, "PATCH", STATUS, 3)) as second:
        await until_running(cluster, {"g-0", "g-1", "other"})
        await finish(cluster, kubelet, ["g-0", "g-1", "other"])
        await prove(device_history, kubelet, second)
        assert await second.stop() == 0


async def test_a_leader_ends_while_devices_are_prepared(
    cluster: Cluster,
    proxy: Proxy,
    kubelet: Kubelet,
    driver: DeviceDriver,
    device_history: History,
    tmp_path: Path,
) -> None:
    driver.paused = True
    await furnish(cluster, driver, bindingConditions=["Attached"], bindingFailureConditions=["Broken"])
    await cluster.create_all(gang("g", 2, "one"))
    async with await change_over(cluster, proxy, tmp_path, After(proxy, "PATCH", STATUS, 2)) as second:
        await second.logged("caches synced")
        driver.paused = False
        await until_running(cluster, {"g-0", "g-1", "other"})
        await finish(cluster, kubelet, ["g-0", "g-1", "other"])
        await prove(device_history, kubelet, second)
        assert await second.stop() == 0


@pytest.mark.parametrize(
    ("verb", "path", "how"),
    [
        *(("PATCH", STATUS, how) for how in (409, 429, 500, 503, "done 504", "lost", "reset")),
        *(("PATCH", CLAIM, how) for how in (409, 503, "lost")),
        *(("GET", CLAIM, how) for how in (503, "reset")),
    ],
)
async def test_a_write_that_fails_is_repeated(
    cluster: Cluster,
    proxy: Proxy,
    kubelet: Kubelet,
    driver: DeviceDriver,
    device_history: History,
    tmp_path: Path,
    verb: str,
    path: str,
    how: int | str,
) -> None:
    """Two requests of one kind fail; the gang runs all the same, with three devices of three."""
    await furnish(cluster, driver)
    fault = proxy.harm(verb, path, how, times=2)
    await cluster.create_all(gang("g", 3, "one"))
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await until_running(cluster, {"g-0", "g-1", "g-2"})
        await fault.struck(2)
        assert sorted(chain(*(await held(cluster)).values())) == ["n1/g0", "n1/g1", "n1/g2"]
        await finish(cluster, kubelet, ["g-0", "g-1", "g-2"])
        await prove(device_history, kubelet, daemon)
        assert await daemon.stop() == 0


async def test_the_api_server_ends_while_claims_are_allocated(
    cluster: Cluster,
    proxy: Proxy,
    kubelet: Kubelet,
    driver: DeviceDriver,
    device_history: History,
    tmp_path: Path,
) -> None:
    """Of six gangs of two on twelve devices, some are bound when the API server is killed."""
    await cluster.create_all([queue("q", cards={H200: 12}, capability={"cpu": "64"}), template("one")])
    for name in ("n1", "n2", "n3"):
        await cluster.create(node(name, cpu=64))
        await driver.publish(name, [gpu(f"g{number}") for number in range(4)])
    names = {f"g{number}-{index}" for number in range(6) for index in range(2)}
    half = After(proxy, "PATCH", STATUS, 5)
    for number in range(6):
        await cluster.create_all(gang(f"g{number}", 2, "one"))
    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await half.happened()
        await asyncio.to_thread(cluster.control_plane.restart_apiserver)
        proxy.mend()
        await until_running(cluster, names)
        await finish(cluster, kubelet, names)
        await prove(device_history, kubelet, daemon)
        assert await daemon.stop() == 0
