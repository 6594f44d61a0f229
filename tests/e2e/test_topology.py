"""HyperNodes and CPUs on NUMA nodes with a real API server: reads, writes, and the events on bad objects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from capcard_sched.model.annotations import JOB_ALLOCATED_HYPERNODE
from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import node, pod, pod_group, queue
from tests.e2e.daemons import Daemon

pytestmark = pytest.mark.asyncio

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}, {name: network-topology-aware}, {name: numa-aware}]
"""


@pytest_asyncio.fixture
async def daemon(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CONF) as running:
        await running.logged("caches synced")
        yield running


def hyper_node(name: str, tier: int, *members: Manifest) -> Manifest:
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": {"tier": tier, "members": list(members)},
    }


def hard(name: str, size: int, **topology: Any) -> list[Manifest]:
    members = [pod(f"{name}-{index}", group=name, requests={"cpu": "1"}) for index in range(size)]
    return [pod_group(name, members=size, networkTopology={"mode": "hard", **topology}), *members]


async def test_a_gang_waits_for_hyper_nodes_and_then_stays_in_one(cluster: Cluster, daemon: Daemon) -> None:
    nodes = [node(f"{leaf}{index}", cpu=4) for leaf in "ab" for index in (1, 2)]
    await cluster.create_all([*nodes, *hard("g", 6, highestTierAllowed=1)])

    async def waits() -> bool:
        conditions = (await cluster.get("podgroups", "g")).get("status", {}).get("conditions", [])
        return any("no HyperNode exists" in condition["message"] for condition in conditions)

    await cluster.wait_until(waits, "the reason on the PodGroup", within=30)
    await cluster.create_all(
        [
            hyper_node("a", 1, {"type": "Node", "selector": {"regexMatch": {"pattern": "^a[0-9]$"}}}),
            hyper_node("b", 1, {"type": "Node", "selector": {"exactMatch": {"name": "gone"}}}),
        ]
    )

    async def together() -> bool:
        bound = await cluster.bound()
        return len(bound) == 6 and {name[0] for name in bound.values()} == {"a"}

    await cluster.wait_until(together, "the gang in one HyperNode", within=30)

    async def emitted() -> bool:
        group = await cluster.get("podgroups", "g")
        events = await cluster.list("events", namespace="default")  # of objects without one
        return group["metadata"].get("annotations", {}).get(JOB_ALLOCATED_HYPERNODE) == "a" and any(
            event["involvedObject"]["kind"] == "HyperNode" and "node gone does not exist" in event["message"]
            for event in events
        )

    await cluster.wait_until(emitted, "the annotation, and the event on the HyperNode that names no node", within=30)


POLICY, DECISION = "volcano.sh/numa-topology-policy", "volcano.sh/topology-decision"


def numatopology(name: str, free: str, *pods: str, policy: str = "single-numa-node") -> Manifest:
    """Two NUMA nodes of four CPUs, as an exporter writes them; `pods`: uids of those with CPUs of their own."""
    return {
        "apiVersion": "nodeinfo.volcano.sh/v1alpha1",
        "kind": "Numatopology",
        "metadata": {"name": name},
        "spec": {
            "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": policy},
            "numares": {"cpu": {"allocatable": free, "capacity": 8}},
            "cpuDetail": {str(cpu): {"numa": cpu // 4, "socket": cpu // 4, "core": cpu % 4} for cpu in range(8)},
            "podAllocations": [{"uid": uid} for uid in pods],
        },
    }


def whole(name: str, cpus: int) -> Manifest:
    made: dict[str, Any] = pod(name, annotations={POLICY: "single-numa-node"})
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    made["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return made


async def test_pods_get_adjacent_cpus_and_the_object_shows_when_they_are_free(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all(
        [
            queue("default"),
            node("n1"),
            node("n2"),
            numatopology("n1", "0-7"),
            numatopology("n2", "0-8", policy="single"),
            *(whole(name, 3) for name in ("a", "b")),
        ]
    )
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CONF) as daemon:
        await daemon.logged("caches synced")

        async def bound(*names: str) -> bool:
            return set(names) <= {name for name, where in (await cluster.bound()).items() if where == "n1"}

        async def refused() -> str | None:
            conditions = (await cluster.get("pods", "c"))["status"].get("conditions", [])
            return next((row["message"] for row in conditions if row["type"] == "PodScheduled"), None)

        async def emitted() -> str | None:
            events = [
                event
                for event in await cluster.list("events", namespace="default")
                if event["reason"] == "InvalidObject"
            ]
            return next((event["message"] for event in events if event["involvedObject"]["name"] == "n2"), None)

        await cluster.wait_until(lambda: bound("a", "b"), "two pods to be bound", within=20)
        pods = [await cluster.get("pods", name) for name in ("a", "b")]
        decisions = [json.loads(each["metadata"]["annotations"][DECISION]) for each in pods]
        assert sorted(decisions, key=str) == [{"numa": {"0": {"cpu": "3"}}}, {"numa": {"1": {"cpu": "3"}}}]
        await cluster.create(whole("c", 2))
        message = await cluster.wait_until(refused, "a reason", within=20)
        assert message is not None
        assert "1 container main cannot be assigned by numa, 1 numa info is empty" in message
        problem = await cluster.wait_until(emitted, "an event on the object", within=20)
        assert problem is not None
        assert "spec.policies.TopologyManagerPolicy: expected one of none, " in problem
        assert "spec.numares.cpu.allocatable: CPUs 8 are not in spec.cpuDetail" in problem

        first = pods[0]["metadata"]
        await cluster.delete("pods", first["name"])
        rest = numatopology("n1", "3-7" if "0" in decisions[1]["numa"] else "0-3,7", pods[1]["metadata"]["uid"])
        await cluster.patch("numatopologies", "n1", {"spec": rest["spec"]})
        await cluster.wait_until(lambda: bound("c"), "the pod that waited to be bound", within=20)
