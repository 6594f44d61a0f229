"""Random clusters of one pod: kube-scheduler 1.37 itself allocates the same devices on a node, or none either."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from tests.controlplane.build import compared, module, needed, releases
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.device_driver import API
from tests.controlplane.manifests import Manifest, Manifests, node, plain, pod, queue
from tests.e2e.daemons import Daemon
from tests.properties.random_devices import Scene
from tests.properties.test_device_allocator import OF_THE_NODE
from tests.vectors.world import conf_text

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]

CLUSTERS: Final = 300
_CONF: Final = conf_text(["enqueue, allocate", ["gang"], ["predicates", "nodeorder"]])
_log: Final = logging.getLogger(__name__)
_KUBE, _OURS = "default-scheduler", "capcard-sched"
_SHARE: Final = str(UUID(int=1))


class Case(NamedTuple):
    """A random cluster and one of its nodes, with names of its own: no pod of another case may use its devices."""

    name: str
    devices: Manifests
    held: Manifests
    claims: Manifests

    @classmethod
    def of(cls, seed: int, number: int) -> Case:
        """Node `number` (1 or 2) of a cluster."""
        scene, name = Scene(seed), f"s{seed}n{number}"
        zone = {"zone": "ab"[number - 1], "scene": name}
        made = [node(f"{name}-node{number}", labels=zone)]
        for each in _renamed([*scene.classes], name):
            only = {"cel": {"expression": f'device.driver == "{name}"'}}
            spec = {**each["spec"], "selectors": [only, *each["spec"].get("selectors", ())]}
            made.append(plain("DeviceClass", f"{name}-{each['metadata']['name']}", API, spec=spec))
        for index, each in enumerate(_renamed(scene.slices, name)):
            made.append(plain("ResourceSlice", f"{name}-{index:02}-{each['metadata']['name']}", API, spec=each["spec"]))
        held = [_holder(f"{name}-h{index}", name, each) for index, each in enumerate(_renamed(scene.held, name))]
        claims = [
            plain("ResourceClaim", f"{name}-{each['metadata']['name']}", API, spec=each["spec"])
            for each in _renamed(scene.claims, name)
        ]
        return cls(name, made, held, claims)

    def pod(self, scheduler: str) -> Manifest:
        """The pod, which only the node of the case may run."""
        used = [{"name": f"c{index}", "resourceClaimName": each} for index, each in enumerate(self.names(scheduler))]
        name = _of(scheduler, self.name)
        return pod(name, queue="q", scheduler=scheduler, nodeSelector={"scene": self.name}, resourceClaims=used)

    def names(self, scheduler: str) -> list[str]:
        """Names of the pod's claims."""
        return [_of(scheduler, each["metadata"]["name"]) for each in self.claims]

    def claims_for(self, scheduler: str) -> Manifests:
        return [{**each, "metadata": {"name": _of(scheduler, each["metadata"]["name"])}} for each in self.claims]


def _of(scheduler: str, name: str) -> str:
    return f"{name}-{'k' if scheduler == _KUBE else 'c'}"


def _renamed(value: Any, name: str) -> Any:
    """The same of a driver, nodes, classes and zones of its own."""
    if isinstance(value, list):
        return [_renamed(each, name) for each in value]
    if isinstance(value, str):
        return value.replace('["d"]', f'["{name}"]').replace("d/numa", f"{name}/numa")
    if not isinstance(value, dict):
        return value
    found = {key: _renamed(each, name) for key, each in value.items()}
    own = {"key": "scene", "operator": "In", "values": [name]}
    if found.get("driver") == "d":
        found["driver"] = name
    if "nodeName" in found:
        found["nodeName"] = f"{name}-node{found['nodeName'][1:]}"
    if "deviceClassName" in found:
        found["deviceClassName"] = f"{name}-{found['deviceClassName']}"
    if found.pop("allNodes", False):
        found["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [own]}]}
    elif "nodeSelectorTerms" in found:
        (term,) = found["nodeSelectorTerms"]
        found["nodeSelectorTerms"] = [{"matchExpressions": [*term["matchExpressions"], own]}]
    for field in ("bindingConditions", "bindingFailureConditions"):
        found.pop(field, None)  # no driver here reports them
    return found


def _holder(name: str, case: str, held: Manifest) -> Manifest:
    """An allocated claim."""
    result = {"request": "r", **{key: held[key] for key in ("driver", "pool", "device")}}
    if "shareID" in held:
        result |= {"shareID": _SHARE, "consumedCapacity": held["capacity"]}
    requests = [{"name": "r", "exactly": {"deviceClassName": f"{case}-c"}}]
    status = {"allocation": {"devices": {"results": [result]}}}
    return plain("ResourceClaim", name, API, spec={"devices": {"requests": requests}}, status=status)


class Verdict(NamedTuple):
    """What became of a pod."""

    #: One per claim, None without an allocation.
    devices: list[list[Manifest] | None]
    message: str

    @property
    def fits(self) -> bool:
        return all(each is not None for each in self.devices)


def _is_of_the_node(verdict: Verdict) -> bool:
    """Whether kube-scheduler refuses the pod by a rule that here excludes the node or the alternative only."""
    return not verdict.fits and any(text in verdict.message for text in OF_THE_NODE)


async def _verdicts(cluster: Cluster, cases: Iterable[Case], scheduler: str) -> dict[str, Verdict]:
    """What a scheduler decided for all pods, once it decided them all."""
    cases, found = [*cases], dict[str, Verdict]()

    async def all_decided() -> bool:
        pods = {each["metadata"]["name"]: each for each in await cluster.list("pods")}
        claims = {each["metadata"]["name"]: each for each in await cluster.list("resourceclaims")}
        found.clear()
        for case in cases:
            own = pods[_of(scheduler, case.name)]
            conditions = own["status"].get("conditions") or ()
            refused = [row for row in conditions if row["type"] == "PodScheduled" and row["status"] == "False"]
            if own["spec"].get("nodeName"):
                allocations = [claims[name]["status"]["allocation"] for name in case.names(scheduler)]
                found[case.name] = Verdict([_plain(each["devices"].get("results") or []) for each in allocations], "")
            elif refused:
                found[case.name] = Verdict([None], refused[0].get("message", ""))
        return len(found) == len(cases)

    try:
        await cluster.wait_until(all_decided, f"{scheduler} to decide all pods", within=400)
    except AssertionError as error:
        error.add_note(f"undecided: {[case.name for case in cases if case.name not in found][:20]}")
        raise
    return found


def _plain(results: Manifests) -> list[Manifest]:
    """Without ids of shares, which are random there, and defaults."""
    for result in results:
        result.pop("shareID", None)
        result.pop("bindingConditions", None)
        for toleration in result.get("tolerations") or ():
            if toleration.get("operator") == "Equal":
                del toleration["operator"]
    return results


@pytest.fixture
async def kube_scheduler(cluster: Cluster) -> AsyncIterator[None]:
    """kube-scheduler of the newest release, on demand."""
    if module() != [*releases().values()][-1]:
        pytest.skip("compares with the newest kube-scheduler")
    needed(compared)
    yield
    await asyncio.to_thread(cluster.control_plane.stop_scheduler)


async def _create(cluster: Cluster, case: Case) -> bool:
    """Whether the API server accepts all objects of a case."""
    try:
        for each in (*case.devices, *case.held, *case.claims_for(_KUBE), *case.claims_for(_OURS)):
            await cluster.create(each)
        for each in case.held:
            patch = {"status": each["status"]}
            await cluster.patch("resourceclaims", each["metadata"]["name"], patch, subresource="status")
    except RequestError as answer:
        if answer.status != 422:
            raise
        return False
    return True


async def _clear(cluster: Cluster, cases: Iterable[Case]) -> None:
    """Frees what kube-scheduler allocated."""
    slots = asyncio.Semaphore(16)

    async def free(name: str) -> None:
        async with slots:
            patch = {"status": {"allocation": None, "reservedFor": None}}
            await cluster.patch("resourceclaims", name, patch, subresource="status")

    await asyncio.gather(*(free(name) for case in cases for name in case.names(_KUBE)))


async def test_verdicts_and_devices_are_those_of_kube_scheduler(
    cluster: Cluster, kube_scheduler: None, tmp_path: Path
) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await cluster.patch("namespaces", cluster.namespace, label)
    await cluster.create(queue("q", capability={"cpu": "4096", "memory": "4096Gi"}))
    slots, rejected = asyncio.Semaphore(16), Counter[bool]()

    async def made(case: Case) -> Case | None:
        async with slots:
            accepted = await _create(cluster, case)
            rejected[not accepted] += 1
            return case if accepted else None

    cases: list[Case] = []
    seed = 0
    while len(cases) < CLUSTERS:
        batch = [Case.of(each, 1 + each % 2) for each in range(seed, seed + 60)]
        seed += 60
        cases += [case for case in await asyncio.gather(*map(made, batch)) if case is not None]
    await cluster.create_all([case.pod(_KUBE) for case in cases])
    await asyncio.to_thread(cluster.control_plane.start_scheduler)
    theirs = await _verdicts(cluster, cases, _KUBE)
    await asyncio.to_thread(cluster.control_plane.stop_scheduler)
    await _clear(cluster, cases)
    await cluster.create_all([case.pod(_OURS) for case in cases])
    kubeconfig = cluster.control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(kubeconfig, tmp_path, "--session-deadline=10m", conf=_CONF) as daemon:
        ours = await _verdicts(cluster, cases, _OURS)
        assert await daemon.stop() == 0
    differences = [
        f"{name}: kube-scheduler {theirs[name]}, ours {ours[name]}"
        for name in theirs
        if theirs[name].devices != ours[name].devices and not _is_of_the_node(theirs[name])
    ]
    fitting = sum(verdict.fits for verdict in theirs.values())
    counts = (len(cases), fitting, len(differences), rejected[True])
    _log.info("%d nodes compared, %d fit, %d differ; the API server rejects the clusters of %d others", *counts)
    assert not differences, "\n".join(differences[:20])
    assert len(cases) // 8 < fitting < len(cases) * 7 // 8
