"""Claims get their volumes before a binding, on a real API server with the volume controller of Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from capcard_sched.kube.client import ApiError, Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.volumes import VolumeBindingError, bind_volumes
from capcard_sched.model.intents import Bind, ClaimBinding
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, node, plain, pod
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness

SELECTED = "volume.kubernetes.io/selected-node"
PROVISIONER = "csi.test"


@pytest.fixture(scope="module")
def binder(control_plane: ControlPlane) -> Iterator[None]:
    """The volume controller, which finishes what a scheduler begins."""
    control_plane.start()
    control_plane.start_controller_manager("persistentvolume-binder-controller")
    yield
    control_plane.stop_controller_manager()


@pytest_asyncio.fixture
async def client(cluster: Cluster, proxy: Proxy, binder: None) -> AsyncIterator[Client]:
    await cluster.create_all([node("n1"), node("n2"), storage_class("local", "kubernetes.io/no-provisioner"),
                              storage_class("disk", PROVISIONER)])  # fmt: skip
    async with Client(load_connection(str(proxy.kubeconfig_for("scheduler-a")))) as connected:
        yield connected


def storage_class(name: str, provisioner: str) -> Manifest:
    mode = "WaitForFirstConsumer"
    return plain("StorageClass", name, "storage.k8s.io/v1", provisioner=provisioner, volumeBindingMode=mode)


def claim(name: str, storage_class: str, *, mode: str = "ReadWriteOnce") -> Manifest:
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": [mode], "resources": resources, "storageClassName": storage_class}
    return plain("PersistentVolumeClaim", name, spec=spec)


def volume(name: str, storage_class: str, *, only: str = "", **spec: Any) -> Manifest:
    usual = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
        "storageClassName": storage_class,
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"/disks/{name}"},
    }
    if only:
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [only]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return plain("PersistentVolume", name, spec={**usual, **spec})


async def furnish(cluster: Cluster, volumes: str, claims: str, storage_class: str = "local") -> list[Manifest]:
    """Make volumes and claims of these names; returns the claims when the controller has looked at the volumes."""
    await cluster.create_all([volume(name, storage_class) for name in volumes.split()])
    made = [await cluster.create(claim(name, storage_class)) for name in claims.split()]
    await available(cluster, *volumes.split())
    return made


def bind(cluster: Cluster, *expected: tuple[Manifest, str], timeout: int = 20, node: str = "n1") -> Bind:
    """A binding that settles these claims, as the API server returned them, with these volumes."""
    volumes = tuple(
        ClaimBinding(made["metadata"]["name"], made["metadata"]["uid"], name, timeout) for made, name in expected
    )
    return Bind(cluster.namespace, "p", "p-uid", node, {}, volumes)


async def available(cluster: Cluster, *names: str) -> None:
    """Wait until the volume controller has looked at new volumes."""

    async def seen() -> bool:
        found = [await cluster.get("persistentvolumes", name) for name in names]
        return all(each.get("status", {}).get("phase") == "Available" for each in found)

    await cluster.wait_until(seen, "volumes to be available", within=60)


async def provision(cluster: Cluster, name: str, *, only: str = "") -> str:
    """A provisioner's part: wait for the node in the claim, and make a volume for it. Returns the node."""

    chosen = await cluster.wait_until(lambda: annotation(cluster, name), "a node in the claim", within=60)
    made = await cluster.get("persistentvolumeclaims", name)
    owner = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": cluster.namespace, "name": name,
             "uid": made["metadata"]["uid"]}  # fmt: skip
    source = {"csi": {"driver": PROVISIONER, "volumeHandle": name}, "hostPath": None, "claimRef": owner}
    await cluster.create(volume(f"made-{cluster.namespace}-{name}", "disk", only=only, **source))
    return str(chosen)


async def held(cluster: Cluster, name: str) -> str:
    """The volume a claim is bound to, "" while it is not. The controller writes the phase after all else."""

    async def settled() -> list[str]:
        found = await cluster.get("persistentvolumeclaims", name)
        volume = str(found["spec"].get("volumeName", ""))
        return [volume] if not volume or found["status"].get("phase") == "Bound" else []

    (volume,) = await cluster.wait_until(settled, f"claim {name} to say whether it is bound")
    return str(volume)


async def owner(cluster: Cluster, name: str) -> str:
    found = await cluster.get("persistentvolumes", name)
    return str((found["spec"].get("claimRef") or {}).get("name", ""))


async def annotation(cluster: Cluster, name: str) -> str | None:
    found = await cluster.get("persistentvolumeclaims", name)
    value: str | None = (found["metadata"].get("annotations") or {}).get(SELECTED)
    return value


async def test_a_claim_gets_the_volume_that_was_chosen_for_it(cluster: Cluster, client: Client) -> None:
    await cluster.create_all([volume("pv-a", "local"), volume("pv-b", "local", only="n1")])
    made = await cluster.create(claim("data", "local"))
    await available(cluster, "pv-a", "pv-b")
    await bind_volumes(client, bind(cluster, (made, "pv-b")))
    assert await held(cluster, "data") == "pv-b"
    assert await owner(cluster, "pv-a") == ""


async def test_a_volume_is_made_for_the_node_of_the_pod(cluster: Cluster, client: Client) -> None:
    made = await cluster.create(claim("data", "disk"))
    chosen, _ = await asyncio.gather(
        provision(cluster, "data", only="n1"), bind_volumes(client, bind(cluster, (made, "")))
    )
    assert chosen == "n1"
    assert await held(cluster, "data") == f"made-{cluster.namespace}-data"


async def test_all_claims_of_a_pod_are_settled_and_again_without_harm(
    cluster: Cluster, client: Client, proxy: Proxy
) -> None:
    first, second = await furnish(cluster, "pv-a pv-b", "one two")
    expected = bind(cluster, (first, "pv-a"), (second, "pv-b"))
    await bind_volumes(client, expected)
    assert (await held(cluster, "one"), await held(cluster, "two")) == ("pv-a", "pv-b")
    writes = [each for each in proxy.exchanges if each.verb == "PATCH"]
    await bind_volumes(client, expected)
    assert [each for each in proxy.exchanges if each.verb == "PATCH"] == writes


async def test_pods_that_share_a_claim_settle_it_together(cluster: Cluster, client: Client) -> None:
    made = await cluster.create(claim("data", "disk", mode="ReadWriteMany"))
    await asyncio.gather(
        provision(cluster, "data"),
        bind_volumes(client, bind(cluster, (made, ""), node="n1")),
        bind_volumes(client, bind(cluster, (made, ""), node="n2")),
    )
    assert await held(cluster, "data")


async def test_a_volume_of_another_claim_is_refused(cluster: Cluster, client: Client) -> None:
    other, made = await furnish(cluster, "pv", "other data")
    await bind_volumes(client, bind(cluster, (other, "pv")))
    with pytest.raises(VolumeBindingError, match=f"volume pv is given to claim {cluster.namespace}/other") as refused:
        await bind_volumes(client, bind(cluster, (made, "pv")))
    assert refused.value.status == 422
    assert await owner(cluster, "pv") == "other"


async def test_when_one_claim_fails_writes_for_the_others_are_reverted(cluster: Cluster, client: Client) -> None:
    made, missing = await cluster.create(claim("data", "disk")), {"metadata": {"name": "gone", "uid": "x"}}
    with pytest.raises(ApiError, match='404 NotFound: persistentvolumeclaims "gone" not found'):
        await bind_volumes(client, bind(cluster, (made, ""), (missing, "pv")))
    assert await annotation(cluster, "data") is None


async def test_a_claim_that_is_not_bound_in_time_fails_and_its_node_is_taken_back(
    cluster: Cluster, client: Client
) -> None:
    made = await cluster.create(claim("data", "disk"))
    with pytest.raises(VolumeBindingError, match=f"claim {cluster.namespace}/data is not bound after 1 s"):
        await bind_volumes(client, bind(cluster, (made, ""), timeout=1))
    assert await annotation(cluster, "data") is None


async def test_a_volume_of_a_discarded_reservation_is_free_again(
    cluster: Cluster, client: Client, control_plane: ControlPlane
) -> None:
    (made,) = await furnish(cluster, "pv", "data")
    await asyncio.to_thread(control_plane.stop_controller_manager)  # so that no provisioner finishes the binding
    try:
        with pytest.raises(VolumeBindingError, match="is not bound after 1 s"):
            await bind_volumes(client, bind(cluster, (made, "pv"), timeout=1))
        assert await owner(cluster, "pv") == ""
    finally:
        control_plane.start_controller_manager("persistentvolume-binder-controller")


async def test_a_provisioner_that_gives_up_fails_the_binding_at_once(cluster: Cluster, client: Client) -> None:
    made = await cluster.create(claim("data", "disk"))
    settling = asyncio.create_task(bind_volumes(client, bind(cluster, (made, ""), timeout=30)))

    await cluster.wait_until(lambda: annotation(cluster, "data"), "a node in the claim")
    await asyncio.sleep(0.5)  # it has been seen there
    await cluster.patch("persistentvolumeclaims", "data", {"metadata": {"annotations": {SELECTED: None}}})
    with pytest.raises(VolumeBindingError, match=r"no volume can be made for claim .*/data on node n1"):
        async with asyncio.timeout(10):
            await settling


async def test_a_claim_selected_for_another_node_is_refused(cluster: Cluster, client: Client) -> None:
    made = await cluster.create(
        {**claim("data", "disk"), "metadata": {"name": "data", "annotations": {SELECTED: "n2"}}}
    )
    with pytest.raises(VolumeBindingError, match="is being made for node n2, not n1"):
        await bind_volumes(client, bind(cluster, (made, "")))
    assert await annotation(cluster, "data") == "n2"


async def test_a_volume_made_where_the_node_cannot_use_it_is_refused(cluster: Cluster, client: Client) -> None:
    made = await cluster.create(claim("data", "disk"))
    name = f"made-{cluster.namespace}-data"
    with pytest.raises(VolumeBindingError, match=f"is bound to volume {name}, which node n1 cannot use"):
        await asyncio.gather(provision(cluster, "data", only="n2"), bind_volumes(client, bind(cluster, (made, ""))))


async def test_a_new_claim_of_the_same_name_is_not_the_one_that_was_meant(cluster: Cluster, client: Client) -> None:
    made = await cluster.create(claim("data", "disk"))
    await cluster.patch("persistentvolumeclaims", "data", {"metadata": {"finalizers": None}})
    await cluster.delete("persistentvolumeclaims", "data")

    async def gone() -> bool:
        return await cluster.find("persistentvolumeclaims", "data") is None

    await cluster.wait_until(gone, "the claim to go")
    await cluster.create(claim("data", "disk"))
    with pytest.raises(VolumeBindingError, match="was replaced by another claim of the same name"):
        await bind_volumes(client, bind(cluster, (made, "")))


@pytest.mark.parametrize("fault", ["lost", 409, 503, "reset"])
async def test_transient_error_responses_are_retried(
    cluster: Cluster, client: Client, proxy: Proxy, fault: int | str
) -> None:
    (made,) = await furnish(cluster, "pv", "data")
    proxy.harm("PATCH", "/persistentvolumes/pv$", fault)
    await bind_volumes(client, bind(cluster, (made, "pv")))
    assert await held(cluster, "data") == "pv"


async def test_a_refusal_ends_it(cluster: Cluster, client: Client, proxy: Proxy) -> None:
    made = await cluster.create(claim("data", "disk"))
    proxy.answer("PATCH", "/persistentvolumeclaims/data$", 403, message="not for you")
    with pytest.raises(ApiError, match="not for you"):
        await bind_volumes(client, bind(cluster, (made, "")))


async def test_effects_bind_a_pod_after_its_claims_and_give_it_back_when_they_fail(
    cluster: Cluster, client: Client, proxy: Proxy
) -> None:
    first, second = await furnish(cluster, "pv", "first second")
    pods = [await cluster.create(pod(name)) for name in ("p-1", "p-2")]
    binds = [
        msgspec.structs.replace(bind(cluster, (made, "pv")), name=each["metadata"]["name"], uid=each["metadata"]["uid"])
        for made, each in zip((first, second), pods, strict=True)
    ]
    async with Harness(cluster, proxy, pre_bind=bind_volumes) as effects:
        effects.submit(*binds[:1])
        await effects.until(lambda: effects.observer.bindings, "the first pod to be bound", within=60)
        effects.submit(*binds[1:])
        await effects.until(lambda: effects.deltas, "the second pod to be given back", within=60)
    assert effects.observer.bindings == [("bound", "p-1", 201), ("failed", "p-2", 422)]
    assert await cluster.bound() == {"p-1": "n1"}
    assert await held(cluster, "first") == "pv"
    assert (await effects.refusal()).message == f"volume pv is given to claim {cluster.namespace}/first"
    order = [each.path for each in proxy.exchanges if each.verb in ("PATCH", "POST") and "/p" in each.path]
    assert order.index("/api/v1/persistentvolumes/pv") < next(
        index for index, path in enumerate(order) if path.endswith("/pods/p-1/binding")
    )
