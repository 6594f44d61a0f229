"""HyperNodes and CPUs on NUMA nodes with a real API server: reads, writes, and the events on bad objects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.model.annotations import JOB_ALLOCATED_HYPERNODE
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, node, plain, pod, pod_group, queue
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import message, until, until_bound

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}, {name: network-topology-aware}, {name: numa-aware}]
"""


@pytest.fixture
async def daemon(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CONF) as running:
        await running.logged("caches synced")
        yield running


def hyper_node(name: str, tier: int, *members: Manifest) -> Manifest:
    return plain("HyperNode", name, "topology.volcano.sh/v1alpha1", spec={"tier": tier, "members": list(members)})


def hard(name: str, size: int, **topology: Any) -> list[Manifest]:
    members = [pod(f"{name}-{index}", group=name, requests={"cpu": "1"}) for index in range(size)]
    return [pod_group(name, members=size, networkTopology={"mode": "hard", **topology}), *members]


async def test_a_gang_waits_for_hyper_nodes_and_then_stays_in_one(cluster: Cluster, daemon: Daemon) -> None:
    nodes = [node(f"{leaf}{index}", cpu=4) for leaf in "ab" for index in (1, 2)]
    await cluster.create_all([*nodes, *hard("g", 6, highestTierAllowed=1)])
    await until(cluster, "podgroups", "g", status=message("no HyperNode exists"))
    await cluster.create_all(
        [
            hyper_node("a", 1, {"type": "Node", "selector": {"regexMatch": {"pattern": "^a[0-9]$"}}}),
            hyper_node("b", 1, {"type": "Node", "selector": {"exactMatch": {"name": "gone"}}}),
        ]
    )
    assert {node[0] for node in (await until_bound(cluster, 6)).values()} == {"a"}
    await until(cluster, "podgroups", "g", metadata={"annotations": {JOB_ALLOCATED_HYPERNODE: "a"}})
    about, text = {"kind": "HyperNode"}, "*node gone does not exist*"
    await until(cluster, "events", namespace="default", involvedObject=about, message=text)  # of objects without one


async def test_prefill_and_decode_start_together_and_each_subgroup_whole_in_its_rack(
    cluster: Cluster, daemon: Daemon
) -> None:
    def member(role: str, replica: int, index: int) -> Manifest:
        labels = {"role": role, "replica": str(replica)}
        return pod(f"{role}-{replica}-{index}", group="chat", requests={"cpu": "2"}, labels=labels)

    def policy(role: str, least: int) -> Manifest:
        selector, domain = {"matchLabels": {"role": role}}, {"mode": "hard", "highestTierAllowed": 1}
        size = {"subGroupSize": 2, "minSubGroups": least, "networkTopology": domain}
        return {"name": role, "labelSelector": selector, "matchLabelKeys": ["replica"], **size}

    async def bound() -> set[str]:
        return set(await cluster.bound())

    racks = [
        hyper_node(rack, 1, {"type": "Node", "selector": {"regexMatch": {"pattern": f"^{rack}"}}}) for rack in "abc"
    ]
    await cluster.create_all([*racks, node("a1", cpu=2), node("a2", cpu=2), node("b1", cpu=2), node("c1", cpu=2)])
    policies = [policy("prefill", 1), policy("decode", 1)]
    prefill = [member("prefill", replica, index) for replica in (0, 1) for index in (0, 1)]
    decode = [member("decode", 0, index) for index in (0, 1)]
    # Rack a has space for one subgroup, b and c have one for half of one: no pod starts without decode.
    await cluster.create_all([pod_group("chat", members=4, subGroupPolicy=policies), *prefill, *decode])
    await until(cluster, "podgroups", "chat", status=message("subgroups of 2 pods can start"))
    assert await bound() == set()
    # With space for a second subgroup the minimum of both policies starts, each in one rack; the third is not begun.
    await cluster.create(node("b2", cpu=2))
    nodes = await until_bound(cluster, 4)
    await daemon.settled()
    assert await bound() == set(nodes)
    places = {role: {place[0] for name, place in nodes.items() if name.startswith(role)} for role in ("prefill", "dec")}
    assert all(len(place) == 1 for place in places.values()), nodes
    assert len({name.rpartition("-")[0] for name in nodes}) == 2, nodes
    # The second prefill subgroup is above the minimum: it starts whole as well.
    await cluster.create(node("c2", cpu=2))
    nodes = await until_bound(cluster, 6)
    assert {nodes[f"prefill-1-{index}"][0] for index in (0, 1)} in ({"a"}, {"b"}, {"c"})


POLICY, DECISION = "volcano.sh/numa-topology-policy", "volcano.sh/topology-decision"


def numatopology(name: str, free: str, *pods: str, policy: str = "single-numa-node") -> Manifest:
    """Two NUMA nodes of four CPUs, as an exporter writes them; `pods`: uids of those with CPUs of their own."""
    spec = {
        "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": policy},
        "numares": {"cpu": {"allocatable": free, "capacity": 8}},
        "cpuDetail": {str(cpu): {"numa": cpu // 4, "socket": cpu // 4, "core": cpu % 4} for cpu in range(8)},
        "podAllocations": [{"uid": uid} for uid in pods],
    }
    return plain("Numatopology", name, "nodeinfo.volcano.sh/v1alpha1", spec=spec)


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
        await until_bound(cluster, {"a", "b"})
        pods = [await cluster.get("pods", name) for name in ("a", "b")]
        decisions = [json.loads(each["metadata"]["annotations"][DECISION]) for each in pods]
        assert sorted(decisions, key=str) == [{"numa": {"0": {"cpu": "3"}}}, {"numa": {"1": {"cpu": "3"}}}]
        await cluster.create(whole("c", 2))
        text = "1 container main cannot be assigned by numa, 1 numa info is empty"
        await until(cluster, "pods", "c", status=message(text))
        on_n2 = {"name": "n2"}
        event = await until(cluster, "events", namespace="default", reason="InvalidObject", involvedObject=on_n2)
        problem = event["message"]
        assert "spec.policies.TopologyManagerPolicy: expected one of none, " in problem
        assert "spec.numares.cpu.allocatable: CPUs 8 are not in spec.cpuDetail" in problem
        first = pods[0]["metadata"]
        await cluster.delete("pods", first["name"])
        rest = numatopology("n1", "3-7" if "0" in decisions[1]["numa"] else "0-3,7", pods[1]["metadata"]["uid"])
        await cluster.patch("numatopologies", "n1", {"spec": rest["spec"]})
        assert {*(await until_bound(cluster, {"c"})).values()} == {"n1"}
