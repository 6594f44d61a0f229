"""What the tests of claims on a real cluster have in common: objects, waits, and the proof over the history."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.controlplane.cluster import Cluster
from tests.controlplane.device_driver import API, DeviceDriver
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, Manifests, node, plain, pod, pod_group
from tests.e2e.checker import ViolationError, differences
from tests.e2e.claims.oracle import DeviceOracle
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.history import KINDS, History
from tests.soak.oracle import Oracle

H200 = "NVIDIA-H200"
H100 = "NVIDIA-H100"
GPU = "gpu.nvidia.com"
NIC = "nic.example.com"
#: Seconds: much more than anything here takes on an idle machine.
PATIENCE = 120.0


def gpu(name: str, card: str = H200, **fields: Any) -> Manifest:
    """A whole GPU, as NVIDIA's driver publishes it."""
    attributes = {"type": {"string": "gpu"}, "productName": {"string": card.replace("-", " ")}}
    return {"name": name, "attributes": attributes, **fields}


def exactly(device_class: str = GPU, name: str = "r", **fields: Any) -> Manifest:
    """A request."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **fields}}


def template(name: str, *requests: Manifest) -> Manifest:
    """A ResourceClaimTemplate with these requests, by default of one GPU."""
    spec = {"spec": {"devices": {"requests": [*requests] or [exactly()]}}}
    return plain("ResourceClaimTemplate", name, API, spec=spec)


def claim(name: str, *requests: Manifest) -> Manifest:
    """A ResourceClaim with these requests."""
    return plain("ResourceClaim", name, API, spec={"devices": {"requests": [*requests]}})


def claiming(name: str, *templates: str, claims: Sequence[str] = (), **fields: Any) -> Manifest:
    """A pod with a claim of each template, and these claims."""
    used = [{"name": f"t{index}", "resourceClaimTemplateName": each} for index, each in enumerate(templates)]
    used += [{"name": f"c{index}", "resourceClaimName": each} for index, each in enumerate(claims)]
    return pod(name, resourceClaims=used, **fields)


def gang(name: str, size: int, *templates: str, queue: str = "q", **fields: Any) -> Manifests:
    """A PodGroup that needs all its pods."""
    members = [claiming(f"{name}-{index}", *templates, group=name, **fields) for index in range(size)]
    return [pod_group(name, queue=queue, members=size), *members]


async def held(cluster: Cluster) -> dict[str, list[str]]:
    """Devices as `pool/device` of the allocated claims, by the name of their first consumer, or of the claim."""
    found: dict[str, list[str]] = {}
    for each in await cluster.list("resourceclaims"):
        status = each.get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results") or ()
        if results:
            names = [consumer["name"] for consumer in status.get("reservedFor") or ()] or [each["metadata"]["name"]]
            found.setdefault(names[0], []).extend(f"{result['pool']}/{result['device']}" for result in results)
    return found


async def until_running(cluster: Cluster, names: Collection[str]) -> dict[str, str]:
    """Wait until exactly these pods run, and none is terminating; return their nodes."""
    seen: dict[str, str] = {}

    async def so() -> bool:
        pods = await cluster.list("pods")
        seen.clear()
        seen.update(
            {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods if _runs(each)}
            | {each["metadata"]["name"]: "leaving" for each in pods if "deletionTimestamp" in each["metadata"]}
        )
        return seen.keys() == set(names) and "leaving" not in seen.values()

    try:
        await cluster.wait_until(so, f"{sorted(names)} to run", within=PATIENCE)
    except AssertionError as error:
        error.add_note(f"there run {seen}")
        raise
    return seen


def _runs(item: Manifest) -> bool:
    return bool(item["status"].get("phase") == "Running")


async def finish(cluster: Cluster, kubelet: Kubelet, names: Collection[str]) -> None:
    """End these pods; return once their claims are no more allocated, as kube-controller-manager sees to."""
    for name in names:
        await kubelet.finish(name, namespace=cluster.namespace)

    async def released() -> bool:
        return not (await held(cluster)).keys() & set(names)

    await cluster.wait_until(released, f"the claims of {sorted(names)} to be released", within=PATIENCE)


async def prove(history: History, kubelet: Kubelet, *daemons: Daemon) -> DeviceOracle:
    """Check the whole history, which has come to rest. Raises ViolationError with a line for each violation."""
    await history.caught_up()
    general, devices = Oracle(), DeviceOracle()
    for moment in history.moments:
        devices.apply(moment)
        if known := tuple(change for change in moment.changes if change.kind in KINDS):
            general.apply(moment._replace(changes=known))
    devices.finish()
    found = [f"revision {one.revision}: {one.text}" for one in (*general.violations, *devices.violations)]
    found += [f"the kubelet refused {name}: {why}" for name, why in kubelet.refused]
    for daemon in daemons:
        found += await differences(daemon)
    if found:
        raise ViolationError("\n".join(found))
    return devices


class World:
    """A cluster with devices, and the daemon that schedules it."""

    def __init__(
        self, cluster: Cluster, kubelet: Kubelet, driver: DeviceDriver, history: History, folder: Path
    ) -> None:
        self.cluster = cluster
        self.kubelet = kubelet
        self.driver = driver
        self.history = history
        self.folder = folder

    def daemon(self, conf: str = CARD_CONF) -> Daemon:
        return Daemon(self.cluster.control_plane.kubeconfig_for("scheduler-a"), self.folder, conf=conf)

    async def nodes(self, *names: str, devices: int = 2) -> None:
        """Creates nodes with this number of H200 each."""
        await self.cluster.create_all([node(name, cpu=64) for name in names])
        for name in names:
            await self.driver.publish(name, [gpu(f"g{number}") for number in range(devices)])

    async def end(self, daemon: Daemon, *running: str) -> None:
        """End the pods that run; prove the history."""
        await finish(self.cluster, self.kubelet, running)
        await prove(self.history, self.kubelet, daemon)
        assert await daemon.stop() == 0


def selected(expression: str) -> Mapping[str, Any]:
    """The field of a request with one selector."""
    return {"selectors": [{"cel": {"expression": expression}}]}
