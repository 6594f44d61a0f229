"""Exclusive claims and limits of CSI drivers on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import node, pod
from tests.e2e.daemons import Daemon

pytestmark = pytest.mark.asyncio

CONF = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: predicates}]
"""
IN_USE = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
EBS = "ebs.csi.aws.com"


@pytest_asyncio.fixture
async def daemon(
    cluster: Cluster, kubelet: Kubelet, control_plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[Daemon]:
    await cluster.create_all([node("n1"), node("n2")])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CONF) as running:
        await running.logged("caches synced")
        yield running


def bound_claim(namespace: str, name: str, mode: str, **source: Any) -> list[Manifest]:
    """A claim and its volume, bound to each other as the volume controller leaves them."""
    common = {"accessModes": [mode], "storageClassName": ""}
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pv-{name}"},
        "spec": {**common, "capacity": {"storage": "1Gi"}, "claimRef": reference, **source},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": f"pv-{name}"},
    }
    return [volume, claim]


def uses(claim: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}


async def wait_until_bound(cluster: Cluster, *names: str) -> None:
    async def bound() -> bool:
        return set(names) <= (await cluster.bound()).keys()

    await cluster.wait_until(bound, f"{', '.join(names)} to be bound", within=60)


async def wait_until_refused(cluster: Cluster, name: str, text: str) -> None:
    async def refused() -> bool:
        conditions = (await cluster.get("pods", name))["status"].get("conditions") or []
        return any(each["type"] == "PodScheduled" and text in each.get("message", "") for each in conditions)

    await cluster.wait_until(refused, f"{name} to be refused", within=60)


async def test_an_exclusive_claim_has_one_pod_and_a_higher_priority_preempts_it(
    cluster: Cluster, daemon: Daemon
) -> None:
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    await cluster.create({**priority, "value": 1000})
    await cluster.create_all(bound_claim(cluster.namespace, "data", "ReadWriteOncePod", hostPath={"path": "/data"}))
    await cluster.create(pod("holder", **uses("data")))
    await wait_until_bound(cluster, "holder")
    await cluster.create(pod("second", **uses("data")))
    await wait_until_refused(cluster, "second", IN_USE)
    assert (await cluster.bound()).keys() == {"holder"}
    place = (await cluster.bound())["holder"]
    await cluster.create(pod("urgent", priorityClassName="high", **uses("data")))
    await wait_until_bound(cluster, "urgent")
    assert await cluster.bound() == {"urgent": place}
    assert await cluster.find("pods", "holder") is None


@pytest.mark.campaign
async def test_inline_volumes_and_claims_count_towards_the_limit_of_their_driver(
    cluster: Cluster, daemon: Daemon
) -> None:
    drivers = [{"name": EBS, "nodeID": "i", "allocatable": {"count": 1}}]
    for name in ("n1", "n2"):
        spec = {"drivers": drivers}
        await cluster.create(
            {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}, "spec": spec}
        )
    for name in ("a", "b"):
        source = {"driver": EBS, "volumeHandle": f"vol-{name}"}
        await cluster.create_all(bound_claim(cluster.namespace, name, "ReadWriteOnce", csi=source))
    volume = {"name": "v", "awsElasticBlockStore": {"volumeID": "vol-inline"}}
    await cluster.create_all([pod("inline", volumes=[volume]), pod("a", **uses("a"))])
    await wait_until_bound(cluster, "inline", "a")
    places = await cluster.bound()
    assert sorted(places.values()) == ["n1", "n2"]
    await cluster.create(pod("b", **uses("b")))
    await wait_until_refused(cluster, "b", "node(s) exceed max volume count")
    await cluster.delete("pods", "inline")
    await wait_until_bound(cluster, "b")
    assert (await cluster.bound())["b"] == places["inline"]
