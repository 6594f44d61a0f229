"""PodGroups of `scheduling.k8s.io` on an API server that serves them: feature gate and API version are switched on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, node, pod, pod_group, queue
from tests.controlplane.preparation import prepare
from tests.e2e.daemons import Controllers, Daemon
from tests.e2e.expectations import message, until, until_bound

_GROUPS = "podgroups.scheduling.k8s.io"
_API = "scheduling.k8s.io/v1beta1"


@pytest.fixture(scope="module")
def serving(programs: Path) -> Iterator[ControlPlane]:
    """An API server with the kind; skipped on a release without it."""
    flags = [
        "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true",
        f"--runtime-config={_API}=true",
    ]
    try:
        with ControlPlane(programs, apiserver_flags=flags) as running:
            yield running
    except RuntimeError as error:
        pytest.skip(f"this release has no PodGroups of scheduling.k8s.io: {error}")


@pytest_asyncio.fixture
async def cluster(serving: ControlPlane) -> AsyncIterator[Cluster]:
    async with Cluster(serving) as client:
        await prepare(client)
        client.namespace = await client.make_namespace()
        yield client
        await asyncio.to_thread(serving.wipe)  # pending pods of one test would take the nodes of the next


def kube_group(name: str, count: int) -> Manifest:
    spec = {"schedulingPolicy": {"gang": {"minCount": count}}}
    return {"apiVersion": _API, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def member(name: str, group: str, **more: Any) -> Manifest:
    found = pod(name, requests={"cpu": "1"}, scheduler="capcard-sched", **more)
    found["metadata"].get("annotations", {}).pop("scheduling.k8s.io/group-name", None)
    found["spec"]["schedulingGroup"] = {"podGroupName": group}
    return found


async def bound(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in await cluster.list("pods") if each["spec"].get("nodeName")}


@pytest.mark.timeout(240)
async def test_a_gang_starts_whole_and_its_condition_tells(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    config = serving.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path) as daemon, Controllers(config, tmp_path):
        await daemon.logged("caches synced")
        await cluster.create_all([node("n1", cpu=8), node("small", cpu=1)])
        # Pods that come before their PodGroup wait for it.
        await cluster.create_all([member("a-0", "a"), member("a-1", "a")])
        await daemon.settled()
        assert await bound(cluster) == set()
        await cluster.create(kube_group("a", 3))
        await until(cluster, _GROUPS, "a", status=condition("False", "Unschedulable"))
        await cluster.create(member("a-2", "a"))
        await until_bound(cluster, 3)
        await until(cluster, _GROUPS, "a", status=condition("True", "Scheduled"))
        assert await cluster.list("podgroups.scheduling.volcano.sh") == []
        # A PodGroup of each kind with one name are two jobs; a gang without room starts no pod.
        await cluster.create_all([queue("q"), pod_group("b", members=2), kube_group("b", 9)])
        await cluster.create_all([member(f"b-{index}", "b") for index in range(9)])
        await until(cluster, _GROUPS, "b", status=condition("False", "Unschedulable"))
        assert await bound(cluster) == {"a-0", "a-1", "a-2"}
        # A lower minimum starts it.
        await cluster.patch(_GROUPS, "b", {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        await until(cluster, _GROUPS, "b", status=condition("True", "Scheduled"))


@pytest.mark.timeout(240)
async def test_a_gang_with_a_topology_label_starts_in_one_domain_and_pods_of_others_do_not_count(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    config = serving.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path) as daemon:
        await daemon.logged("caches synced")
        racks = [node(f"{rack}{index}", cpu=1, labels={"rack": rack}) for rack in "ab" for index in (0, 1)]
        await cluster.create_all([*racks, node("lone", cpu=8)])
        topology = kube_group("t", 3)
        topology["spec"]["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
        created = await cluster.create(topology)
        assert created["spec"]["schedulingConstraints"]["topology"] == [{"key": "rack"}]
        await cluster.create_all([member(f"t-{index}", "t") for index in range(3)])
        await until(cluster, "pods", "t-0", status=message("at most 2 fit, on nodes with rack=a"))
        assert await bound(cluster) == set()
        # A pod of another scheduler does not complete the gang.
        other = member("other", "t")
        other["spec"] |= {"schedulerName": "default-scheduler", "nodeName": "lone"}
        await cluster.create(other)
        await until(cluster, "events", reason="OtherScheduler", involvedObject={"kind": "PodGroup", "name": "t"})
        await cluster.create(node("b2", cpu=1, labels={"rack": "b"}))
        nodes = await until_bound(cluster, 3, "t-.*")
        assert {place[0] for place in nodes.values()} == {"b"}
        await until(cluster, _GROUPS, "t", status=condition("True", "Scheduled"))


def condition(status: str, reason: str) -> Manifest:
    return {"conditions": [{"type": "PodGroupInitiallyScheduled", "status": status, "reason": reason}]}


_PREEMPT = """
actions: "enqueue, allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""


@pytest.mark.timeout(240)
async def test_a_group_that_is_evicted_as_a_whole_has_the_condition_before_its_pods_are_deleted(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    config = serving.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, conf=_PREEMPT) as daemon:
        await daemon.logged("caches synced")
        high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
        whole = kube_group("w", 2)
        whole["spec"]["disruptionMode"] = {"all": {}}
        await cluster.create_all([node("n1", cpu=2), high, whole])
        await cluster.create_all([member("w-0", "w", grace=30), member("w-1", "w", grace=30)])
        await until_bound(cluster, 2)
        await until(cluster, _GROUPS, "w", status=condition("True", "Scheduled"))
        await cluster.create(pod("p", requests={"cpu": "1"}, priorityClassName="high"))
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        await until(cluster, _GROUPS, "w", status={"conditions": [target]})
        await until(cluster, "pods", "w-0", status={"conditions": [target]})
        found = await cluster.get(_GROUPS, "w")
        rows = {row["type"]: row for row in found["status"]["conditions"]}
        assert rows["PodGroupInitiallyScheduled"]["status"] == "True", "it started once"
        assert rows["DisruptionTarget"]["message"] == "capcard-sched: preempting to accommodate a higher priority pod"


@pytest.mark.timeout(240)
async def test_a_group_takes_no_pods_owners_and_claims_of_another_namespace(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    """A tenant names the group, the Job and the uid of a peer."""
    config, peer = serving.kubeconfig_for("scheduler-a"), await cluster.make_namespace()
    async with Daemon(config, tmp_path) as daemon, Controllers(config, tmp_path):
        await daemon.logged("caches synced")
        theirs = await cluster.create({**kube_group("g", 2), "metadata": {"name": "g", "namespace": peer}})
        await cluster.create_all([node("n1", cpu=8), _in(peer, member("first", "g")), member("forged", "g")])
        await daemon.settled()
        assert await bound(cluster) == set()
        own = kube_group("g", 2)
        reference = {"apiVersion": _API, "kind": "PodGroup", "name": "g", "uid": theirs["metadata"]["uid"]}
        own["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
        await cluster.create(own)
        claimed = kube_group("claimed", 1)
        claimed["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "of-a-peer"}]
        stored = await cluster.create(claimed)
        await cluster.create(member("with-claims", "claimed"))
        await daemon.settled()
        assert await bound(cluster) == (set() if stored["spec"].get("resourceClaims") else {"with-claims"})
        assert await cluster.find("pods", "first", namespace=peer) is not None
        found = await cluster.get(_GROUPS, "g", namespace=peer)
        assert found["metadata"].get("annotations") == theirs["metadata"].get("annotations")
        await cluster.create(_in(peer, member("second", "g")))

        async def is_whole() -> bool:
            pods = await cluster.list("pods", namespace=peer)
            return len(pods) == 2 and all(each["spec"].get("nodeName") for each in pods)

        await cluster.wait_until(is_whole, "the gang of the peer starts")
        assert "forged" not in await bound(cluster)


def _in(namespace: str, manifest: Manifest) -> Manifest:
    manifest["metadata"]["namespace"] = namespace
    return manifest
