"""Gangs in hard mode on a real API server: the gang stays together, its group names its HyperNode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from capcard_sched.model.annotations import JOB_ALLOCATED_HYPERNODE
from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import node, pod, pod_group
from tests.e2e.daemons import Daemon

pytestmark = pytest.mark.asyncio

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}, {name: network-topology-aware}]
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
