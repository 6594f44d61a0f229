"""Pods with ResourceClaims on a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import node, plain, pod, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.expectations import message, until, until_bound

API = "resource.k8s.io/v1"


def slice_of(name: str, devices: int) -> dict[str, Any]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": f"g{number}", "attributes": {"numa": {"int": number}}} for number in range(devices)]
    spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": listed}
    return plain("ResourceSlice", name, API, spec=spec)


def claim(name: str, numa: int | None = None) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": "gpu.example.com"}
    if numa is not None:
        exactly["selectors"] = [{"cel": {"expression": f'device.attributes["gpu.example.com"].numa == {numa}'}}]
    return plain("ResourceClaim", name, API, spec={"devices": {"requests": [{"name": "r", "exactly": exactly}]}})


def claims_of(*names: str) -> list[dict[str, str]]:
    return [{"name": f"r{number}", "resourceClaimName": name} for number, name in enumerate(names)]


async def test_pods_are_bound_with_the_devices_of_their_claims(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """A gang of two shares the devices of two nodes; a pod whose claim fits no device waits with the reason."""
    capability = {"cpu": "64", "memory": "64Gi"}
    of_class = {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]}
    await cluster.create_all(
        [
            node("n1", cpu=8),
            node("n2", cpu=8),
            queue("q", capability=capability),
            plain("DeviceClass", "gpu.example.com", API, spec=of_class),
            slice_of("n1", 1),
            slice_of("n2", 2),
            *(claim(name) for name in ("a", "b", "shared")),
            claim("none", numa=7),
            pod_group("g", queue="q", members=2),
            pod("g-0", group="g", resourceClaims=claims_of("a")),
            pod("g-1", group="g", resourceClaims=claims_of("b")),
            pod("alone", queue="q", resourceClaims=claims_of("shared")),
            pod("waits", queue="q", resourceClaims=claims_of("none")),
        ]
    )
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await until_bound(cluster, ["g-0", "g-1", "alone"])
        await until(cluster, "pods", "waits", status=message("cannot allocate all claims: request r needs 1 device"))
        bound = await cluster.bound()
        held = set()
        for name, of in (("g-0", "a"), ("g-1", "b"), ("alone", "shared")):
            status = (await cluster.get("resourceclaims", of))["status"]
            (result,) = status["allocation"]["devices"]["results"]
            assert result["pool"] == bound[name]
            assert [each["name"] for each in status["reservedFor"]] == [name]
            held.add((result["pool"], result["device"]))
        assert held == {("n1", "g0"), ("n2", "g0"), ("n2", "g1")}
        assert await daemon.stop() == 0


async def test_queues_limit_devices_by_class(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> None:
    """Two of three pods start within the quota; the third one takes the place of one that ends."""
    key = "deviceclass/gpu.example.com"
    names = ("p0", "p1", "p2")
    await cluster.create_all(
        [
            node("n1", cpu=8),
            queue("q", capability={"cpu": "64", "memory": "64Gi", key: "2"}),
            plain("DeviceClass", "gpu.example.com", API, spec={}),
            slice_of("n1", 4),
            *(claim(name) for name in names),
            *(pod(name, queue="q", resourceClaims=claims_of(name)) for name in names),
        ]
    )
    conf = CARD_CONF.replace("capacity-card", "capacity")
    assert conf != CARD_CONF
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=conf) as daemon:
        await until_bound(cluster, 2)
        await until(cluster, "queues", "q", status={"allocated": {key: "2"}})
        bound = await cluster.bound()
        (waiting,) = {*names} - {*bound}
        await until(cluster, "pods", waiting, status=message(f"insufficient {key}"))
        await cluster.delete("pods", min(bound))
        await until_bound(cluster, [waiting])
        await until(cluster, "queues", "q", status={"allocated": {key: "2"}})
        assert await daemon.stop() == 0


async def test_a_restarted_scheduler_knows_the_devices_in_use(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    capability = {"cpu": "64", "memory": "64Gi"}
    await cluster.create_all(
        [
            node("n1", cpu=8),
            queue("q", capability=capability),
            plain("DeviceClass", "gpu.example.com", API, spec={}),
            slice_of("n1", 1),
            claim("a"),
            claim("b"),
            pod("first", queue="q", resourceClaims=claims_of("a")),
        ]
    )
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(kubeconfig, tmp_path, conf=CARD_CONF) as daemon:
        await until_bound(cluster, ["first"])
        assert await daemon.stop() == 0
    await cluster.create(pod("second", queue="q", resourceClaims=claims_of("b")))
    async with Daemon(kubeconfig, tmp_path, conf=CARD_CONF) as daemon:
        await until(cluster, "pods", "second", status=message("0 of 1 free"))
        assert set(await cluster.bound()) == {"first"}
        assert await daemon.stop() == 0


@pytest.mark.parametrize(
    ("path", "verb"),
    [
        pytest.param("/resourceclaims/[ab]$", "PATCH", marks=pytest.mark.campaign),
        ("/resourceclaims/[ab]/status$", "PATCH"),
        ("/pods/g-[ab]/binding$", "POST"),
    ],
    ids=["finalizer", "allocation", "binding"],
)
async def test_a_leader_that_ends_between_two_writes_loses_and_doubles_no_device(
    cluster: Cluster, proxy: Proxy, tmp_path: Path, path: str, verb: str
) -> None:
    """Of a gang of two, the second write of one kind does not leave the first leader: the next one binds both."""
    await cluster.create_all(
        [
            node("n1", cpu=8),
            queue("q", capability={"cpu": "64", "memory": "64Gi"}),
            plain("DeviceClass", "gpu.example.com", API, spec={}),
            slice_of("n1", 3),
            *(claim(name) for name in "abc"),
            pod_group("g", queue="q", members=2),
            *(pod(f"g-{name}", group="g", resourceClaims=claims_of(name)) for name in "ab"),
        ]
    )
    held = proxy.hold(verb, path, nth=2)
    kubeconfig = proxy.kubeconfig_for("scheduler-a")
    async with Daemon(kubeconfig, tmp_path, conf=CARD_CONF, name="first") as first:
        await held.struck()
        await first.kill()
    proxy.mend()
    await cluster.create(pod("other", queue="q", resourceClaims=claims_of("c")))
    async with Daemon(kubeconfig, tmp_path, conf=CARD_CONF, name="second") as second:
        await until_bound(cluster, ["g-a", "g-b", "other"])
        held_devices = []
        for name, consumer in (("a", "g-a"), ("b", "g-b"), ("c", "other")):
            status = (await cluster.get("resourceclaims", name))["status"]
            held_devices += [result["device"] for result in status["allocation"]["devices"]["results"]]
            assert [each["name"] for each in status["reservedFor"]] == [consumer]
        assert sorted(held_devices) == ["g0", "g1", "g2"]
        assert await second.stop() == 0


async def test_a_gang_gets_all_its_claims_or_none(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> None:
    """The API server refuses the third allocation: the others are given back, no pod is bound; later all are."""
    await cluster.create_all(
        [
            node("n1", cpu=8),
            queue("q", capability={"cpu": "64", "memory": "64Gi"}),
            plain("DeviceClass", "gpu.example.com", API, spec={}),
            slice_of("n1", 3),
            *(claim(name) for name in "abc"),
            pod_group("g", queue="q", members=3),
            *(pod(f"g-{name}", group="g", resourceClaims=claims_of(name)) for name in "abc"),
        ]
    )
    proxy.answer("PATCH", "/resourceclaims/c/status$", 422, message="no more devices today", times=None)

    async def given_back() -> bool:
        claims = [await cluster.get("resourceclaims", name) for name in "abc"]
        written = [each["metadata"].get("finalizers") for each in claims]
        return all(written) and not any(each.get("status", {}).get("reservedFor") for each in claims)

    async with Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await until(cluster, "events", reason="FailedScheduling", message="*no more devices today*")
        await cluster.wait_until(given_back, "the claims to be given back", within=60)
        assert await cluster.bound() == {}
        proxy.mend()
        await until_bound(cluster, ["g-a", "g-b", "g-c"])
        held = set()
        for name in "abc":
            (result,) = (await cluster.get("resourceclaims", name))["status"]["allocation"]["devices"]["results"]
            held.add(result["device"])
        assert held == {"g0", "g1", "g2"}
        assert await daemon.stop() == 0
