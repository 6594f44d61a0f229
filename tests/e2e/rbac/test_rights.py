"""The daemon with its ServiceAccount's token uses every right it has and no other, and outlives the lack of each."""

from __future__ import annotations

import asyncio
import copy
import re
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.kube.kinds import KINDS, WatchedKind
from capcard_sched.model.annotations import CARD_ALLOCATED, CARD_QUOTA, QUEUE_ALLOCATION_GATE
from capcard_sched.model.device_objects import EXTENDED_CLAIM
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, plain, pod, queue
from tests.controlplane.preparation import CRDS, install_crds
from tests.controlplane.proxy import Proxy
from tests.e2e import test_claims
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import until, until_bound
from tests.e2e.rbac.installed import Audit, Installation, Right, install, without
from tests.kube.volumes.test_volumes import PROVISIONER, available, claim, provision, storage_class, volume
from tests.manifests.documents import MANIFESTS, overlay

_CARD = {"cpu": "1", "nvidia.com/gpu": "1"}
_SCHEDULING = "scheduling.volcano.sh"
_ROOM = {"cpu": "64", "memory": "256Gi"}


#: Rights on PodGroups of Kubernetes, which the API servers of these tests do not serve: tests/e2e/test_kube_groups.py.
_UNSERVED = {
    Right("podgroups", "list", "scheduling.k8s.io"),
    Right("podgroups", "watch", "scheduling.k8s.io"),
    Right("podgroups/status", "patch", "scheduling.k8s.io"),
}


@pytest.fixture(scope="module")
def plain_control_plane(programs: Path) -> Iterator[ControlPlane]:
    """Without WatchList, so that what is watched is listed first; one per module, which may spoil it."""
    with ControlPlane(programs, apiserver_flags=["--feature-gates=WatchList=false"]) as running:
        running.start_controller_manager("persistentvolume-binder-controller")
        yield running


async def _gangs(cluster: Cluster) -> None:
    """One within the quota and one beyond it, whose refusal changes and comes again; what both leave in statuses."""

    async def refused(limit: int, times: int = 1) -> bool:
        events = [
            event for event in await cluster.list("events") if f"capability is <{limit}000>" in event.get("message", "")
        ]
        return any(event["reason"] == "InsufficientScalarQuota" and event["count"] >= times for event in events)

    await cluster.create_all(gang("fits", 2, queue="q", cards="A10", requests=_CARD))
    await cluster.create_all(gang("waits", 4, queue="q", cards="A10", requests=_CARD))
    await _statuses_written(cluster)
    for limit, times in ((3, 1), (4, 1), (3, 2)):
        quota = {"metadata": {"annotations": {"volcano.sh/card.quota": f'{{"A10": {limit}}}'}}}
        await cluster.patch("queues", "q", quota)
        await cluster.wait_until(lambda limit=limit, times=times: refused(limit, times), "a refusal", within=60)  # type: ignore[misc]


async def _statuses_written(cluster: Cluster, waits: str = "waits-0") -> None:
    await until(cluster, "podgroups", "fits", status={"phase": "Running"})
    allocated = {"allocated": {"nvidia.com/gpu": "2"}}
    await until(cluster, "queues", "q", metadata={"annotations": {CARD_ALLOCATED: '{"A10":2}'}}, status=allocated)
    await until(cluster, "pods", waits, status={"conditions": [{"type": "PodScheduled", "status": "False"}]})


async def _volumes(cluster: Cluster) -> None:
    """A pod whose claims wait for it: one of a volume that is there, one of a volume to be made."""
    classes = [storage_class("local", "kubernetes.io/no-provisioner"), storage_class("disk", PROVISIONER)]
    await cluster.create_all([*classes, volume("pv", "local", only="n1")])
    await available(cluster, "pv")
    await cluster.create_all([claim("kept", "local"), claim("made", "disk")])
    provisioning = asyncio.create_task(provision(cluster, "made", only="n1"))
    mounts = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("kept", "made")]
    await cluster.create(pod("mounts", volumes=mounts))
    await until_bound(cluster, {"mounts"})
    await provisioning


async def _devices(cluster: Cluster) -> None:
    """Pods whose ResourceClaims the scheduler allocates and reserves, one with opaque parameters for two of them; one
    with a claim that it deletes and creates.
    """
    of_class = {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]}
    classes = plain("DeviceClass", "gpu.example.com", test_claims.API, spec=of_class)
    tuned = test_claims.claim("tuned")
    tuned["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.example.com", "parameters": {"mode": "fast"}}}]
    await cluster.create_all([classes, test_claims.slice_of("n1", 3), test_claims.claim("device"), tuned])
    await cluster.create(pod("devices", resourceClaims=test_claims.claims_of("device", "tuned")))
    requests = {"deviceclass.resource.kubernetes.io/gpu.example.com": "1"}
    gate = {"name": "example.com/claim"}
    made = await cluster.create(pod("extended", requests=requests, schedulingGates=[gate]))
    left = test_claims.claim("left-by-an-earlier-attempt")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "extended", "uid": made["metadata"]["uid"], "controller": True}
    left["metadata"] |= {"annotations": {EXTENDED_CLAIM: "true"}, "ownerReferences": [owner]}
    await cluster.create(left)
    await cluster.patch("pods", "extended", {"spec": {"schedulingGates": None}})
    await until_bound(cluster, {"devices", "extended"})
    await cluster.create(pod("shares", requests={"memory": "1Mi"}, resourceClaims=test_claims.claims_of("tuned")))
    await until_bound(cluster, {"shares"})


async def _namespace_queue(cluster: Cluster) -> None:
    """A gang of a queue of its namespace, whose usage the scheduler writes."""
    quota = {"name": "team", "annotations": {CARD_QUOTA: '{"A10": 1}'}}
    spec = {"parent": "cluster/above", "capability": _ROOM}
    team = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "NamespaceQueue", "metadata": quota, "spec": spec}
    await cluster.create_all([queue("above", allowedNamespaces=["*"], capability=_ROOM), team])
    await cluster.create_all(gang("local", 1, queue="namespace/team", cards="A10", requests=_CARD))
    await until_bound(cluster, {"local-0"})
    status = {"allocated": {"nvidia.com/gpu": "1"}}
    await until(
        cluster, "namespacequeues", "team", metadata={"annotations": {CARD_ALLOCATED: '{"A10":1}'}}, status=status
    )


async def _work(
    installation: Installation, proxy: Proxy, folder: Path, *, between: Path | None = None
) -> tuple[Daemon, Daemon]:
    """Everything the daemon can do. `between`: CRDs to be applied before the second replica takes over."""
    cluster = installation.cluster
    await cluster.create_all([gpu_node("n1", "A10", 8), queue("q", cards={"A10": 2}, capability=_ROOM)])
    lost = proxy.lose_answer("POST", "fits-0/binding$")
    kubeconfig = await installation.kubeconfig(proxy.url)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(installation.daemon(kubeconfig, folder, name="first"))
        await first.logged("became leader")
        second = await stack.enter_async_context(installation.daemon(kubeconfig, folder, name="second"))
        await second.logged("caches synced")
        await _gangs(cluster)
        await lost.struck()
        await _volumes(cluster)
        await _devices(cluster)
        await _namespace_queue(cluster)
        await cluster.create(pod("gated", schedulingGates=[{"name": QUEUE_ALLOCATION_GATE}]))
        await until_bound(cluster, {"gated"})
        await cluster.patch("pods", "fits-0", {"metadata": {"labels": {"test/evict": "now"}}})
        await until(cluster, "pods", "fits-0", count=0)
        first.signal(signal.SIGUSR2)
        compared = await first.logged("cache compared with the API server")
        assert compared["differences"] == 0
        if between is not None:
            await cluster.apply(between)
        await first.stop()
        await second.logged("became leader")
        await cluster.create_all([pod("later"), *gang("again", 2, requests=_CARD)])
        await until_bound(cluster, {"later"})
        await until(cluster, "podgroups", "again", status={"phase": "Running"})
        await second.stop()
    return first, second


async def test_the_base_grants_exactly_the_rights_in_use(
    cluster: Cluster, kubelet: Kubelet, proxy: Proxy, tmp_path: Path
) -> None:
    installation = await install(cluster, MANIFESTS / "base")
    audit = Audit(cluster.control_plane)
    cluster.control_plane.start_controller_manager("persistentvolume-binder-controller")
    try:
        daemons = await _work(installation, proxy, tmp_path)
    finally:
        cluster.control_plane.stop_controller_manager()
    assert not audit.denied()
    assert audit.used() | _UNSERVED == await installation.granted()
    for daemon in daemons:
        assert not [line for line in daemon.lines() if line["level"] in ("error", "critical")]


def _with_status(folder: Path) -> Path:
    """The PodGroup CRD with a status subresource."""
    (found,) = CRDS.glob("*_podgroups.yaml")
    crd = copy.deepcopy(yaml.safe_load(found.read_text("utf-8")))
    for version in crd["spec"]["versions"]:
        version["subresources"] = {"status": {}}
    path = folder / "podgroups.yaml"
    path.write_text(yaml.safe_dump(crd), "utf-8")
    return path


@pytest.mark.campaign
async def test_components_grant_exactly_the_rights_of_their_flags(
    plain_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """PodGroup gets its status subresource in the course of it: both rights to write a status are of use then."""
    async with Cluster(plain_control_plane) as cluster:
        await install_crds(cluster)
        cluster.namespace = await cluster.make_namespace()
        chosen = overlay(tmp_path, "eviction-api", "podgroup-status")
        installation = await install(cluster, chosen)
        assert {"--fence=true", "--use-eviction-api=true"} <= set(installation.arguments)
        audit = Audit(plain_control_plane)
        async with Kubelet(plain_control_plane), Proxy(plain_control_plane) as proxy:
            first, second = await _work(installation, proxy, tmp_path, between=_with_status(tmp_path))
        used, granted = audit.used(), await installation.granted()
        assert not audit.denied()
        assert used | _UNSERVED == granted
        assert Right("podgroups/status", "patch", "scheduling.volcano.sh") in granted
        assert Right("pods", "delete") not in granted
        for daemon in (first, second):
            (fence,) = daemon.lines("fencing policy active")
            assert fence["state"] == "active"


#: Rights to write, but that to bind.
_WRITES = {
    Right("pods/status", "patch"),
    Right("podgroups", "patch", _SCHEDULING),
    Right("queues/status", "patch", _SCHEDULING),
    Right("queues", "patch", _SCHEDULING),
    Right("events", "create"),
}
_BINDING = Right("pods/binding", "create")


async def _reported(cluster: Cluster, daemon: Daemon, right: Right, *verbs: str) -> None:
    """Wait for a warning or an error that names the right in the API server's words."""
    verb = "|".join(verbs or (right.verb,))
    words = re.compile(rf'cannot ({verb}) resource \\*"{re.escape(right.resource)}\\*"')

    def found() -> bool:
        return any(line["level"] in {"warning", "error"} and words.search(str(line)) for line in daemon.lines())

    await cluster.wait_until(found, f"the log line that it cannot {right}", within=60)


@pytest.mark.campaign
async def test_without_a_right_the_rest_goes_on_and_with_it_everything_without_a_restart(
    cluster: Cluster, tmp_path: Path
) -> None:
    installation = await install(cluster, MANIFESTS / "base")
    await cluster.create_all([gpu_node("n1", "A10", 8), queue("q", cards={"A10": 2}, capability=_ROOM)])
    reads = {kind: [_watching(kind, verb) for verb in ("list", "watch")] for kind in KINDS}
    optional = [right for kind, rights in reads.items() if not kind.required and kind.expected for right in rights]
    required = [right for kind, rights in reads.items() if kind.required for right in rights]
    missing = {f"[-]list/{kind.resource} failed: forbidden" for kind in KINDS if kind.required}

    async def lacks(steps: set[str]) -> bool:
        status, text = await daemon.get("/readyz")
        found = {line for line in text.splitlines() if line.startswith("[-]list/")}
        return (status, found) == (503 if steps else 200, steps)

    async with AsyncExitStack() as stack:
        async with without(installation, *_WRITES, *optional):
            async with without(installation, *required):
                kubeconfig = await installation.kubeconfig()
                daemon = await stack.enter_async_context(installation.daemon(kubeconfig, tmp_path))
                await daemon.logged("serving", times=2)
                await cluster.wait_until(lambda: lacks(missing), "readiness to name the kinds", within=60)
                assert (await daemon.get("/healthz"))[0] == 200, "a restart would not help"
                assert not daemon.lines("caches synced")
            await cluster.wait_until(lambda: lacks(set()), "the replica to be ready", within=60)
            await daemon.logged("became leader", within=60)
            await cluster.create_all(gang("fits", 2, queue="q", cards="A10", requests=_CARD))
            await cluster.create_all(gang("waits", 4, queue="q", cards="A10", requests=_CARD))
            await until_bound(cluster, {"fits-0"})
            for right in optional:
                await _reported(cluster, daemon, right, "list", "watch")
            for right in _WRITES:
                await _reported(cluster, daemon, right)
            assert (await daemon.get("/healthz"))[0] == 200
        await cluster.create(pod("more", queue="q", cards="A10", requests=_CARD))
        await _statuses_written(cluster, "more")
        async with without(installation, _BINDING):
            await cluster.create(pod("late"))
            await until(cluster, "events", reason="FailedScheduling", message="*pods/binding*")
        await until_bound(cluster, {"late"})
        assert len(daemon.lines("starting")) == 1
        await daemon.stop()


def _watching(kind: WatchedKind[Any], verb: str) -> Right:
    """The right to list or watch a kind."""
    return Right(kind.resource, verb, kind.path.split("/")[2] if kind.path.startswith("/apis/") else "")
