"""Pods that name no group, the PodGroup that a controller makes for them later, and the one that is never made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from capcard_sched.model.annotations import GROUP_NAME, POD_QUEUE_NAME
from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import node, pod, pod_group, queue
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.history import History

pytestmark = [pytest.mark.asyncio, pytest.mark.campaign]

_ROOM = {"cpu": "64", "memory": "256Gi"}


@pytest_asyncio.fixture
async def daemon(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as running:
        await running.logged("caches synced")
        yield running


def replica(name: str, owner: str, **rest: Any) -> Manifest:
    """A pod as a ReplicaSet makes it; `owner` is the ReplicaSet's uid."""
    made = pod(name, **rest)
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": owner, "controller": True}
    made["metadata"]["ownerReferences"] = [reference]
    return made


class GroupController:
    """The part of a PodGroup controller that schedulers meet: it makes a group for each pod's owner."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made: set[str] = set()
        self._lock = asyncio.Lock()

    async def adopt(self, made: Manifest) -> str:
        """See to the group of one pod; returns its name."""
        meta = made["metadata"]
        owners = [reference["uid"] for reference in meta.get("ownerReferences", []) if reference.get("controller")]
        name = f"podgroup-{owners[0] if owners else meta['uid']}"
        async with self._lock:
            if name not in self._made:
                wanted = meta.get("annotations", {}).get(POD_QUEUE_NAME, "default")
                group = pod_group(name, queue=wanted, minResources={"cpu": "1", "requests.cpu": "1", "pods": "1"})
                await self._cluster.create({**group, "status": {"phase": "Pending"}})
                self._made.add(name)
        await self._cluster.patch("pods", meta["name"], {"metadata": {"annotations": {GROUP_NAME: name}}})
        return name

    async def follow(self) -> None:
        """Adopt every pod of ours as it appears, until cancelled."""
        async for event in self._cluster.watch("pods", namespace=self._cluster.namespace):
            if event["type"] == "ADDED":
                await self.adopt(event["object"])


async def _bound(cluster: Cluster, count: int) -> dict[str, str]:
    async def enough() -> dict[str, str] | None:
        found = await cluster.bound()
        return found if len(found) >= count else None

    found = await cluster.wait_until(enough, f"{count} pods to be bound", within=20)
    assert found is not None
    return found


async def _allocated(cluster: Cluster, name: str, pods: int) -> None:
    """Wait until the queue's status shows so many pods, of a cpu each."""

    async def as_many() -> bool:
        amounts = (await cluster.get("queues", name)).get("status", {}).get("allocated", {})
        return (amounts.get("pods"), amounts.get("cpu")) == (str(pods), str(pods))

    await cluster.wait_until(as_many, f"{pods} pods in queue {name}", within=20)


async def test_a_podgroup_takes_over_pods_that_are_bound_and_pods_that_wait(
    cluster: Cluster, control_plane: ControlPlane, daemon: Daemon, history: History
) -> None:
    await cluster.create_all([node("n1", cpu=2), queue("q", capability=_ROOM)])
    made = await cluster.create_all([replica(f"web-{index}", "web-uid", queue="q") for index in range(3)])
    first = await _bound(cluster, 2)
    await _allocated(cluster, "q", 2)
    controller = GroupController(cluster)
    for one in made:
        assert await controller.adopt(one) == "podgroup-web-uid"

    async def runs() -> bool:
        group = await cluster.get("podgroups", "podgroup-web-uid")
        return bool(group.get("status", {}).get("phase") == "Running")

    await cluster.wait_until(runs, "the group to be Running", within=20)
    await prove(history, control_plane, daemon)
    await _allocated(cluster, "q", 2)
    assert await cluster.bound() == first
    await cluster.create(node("n2", cpu=2))
    assert {**first, **await _bound(cluster, 3)}.keys() == {"web-0", "web-1", "web-2"}
    await _allocated(cluster, "q", 3)
    # Its owner goes to no replicas: the controller deletes the group, before the pods are gone.
    await cluster.delete("podgroups", "podgroup-web-uid")
    await cluster.create(replica("web-3", "web-uid", queue="q"))
    assert {"web-3"} < (await _bound(cluster, 4)).keys()
    await _allocated(cluster, "q", 4)
    await prove(history, control_plane, daemon)


async def test_a_controller_that_races_the_scheduler_costs_no_second_decision(
    cluster: Cluster, control_plane: ControlPlane, daemon: Daemon, history: History
) -> None:
    nodes = [node(f"n{index}", cpu=8) for index in range(6)]
    await cluster.create_all([*nodes, queue("q", capability=_ROOM)])
    controller = asyncio.create_task(GroupController(cluster).follow())
    try:
        pods = [replica(f"r{index}", f"owner-{index % 4}", queue="q") for index in range(20)]
        await cluster.create_all([*pods, *(pod(f"b{index}", queue="q") for index in range(20))])
        await _bound(cluster, 40)
        await _allocated(cluster, "q", 40)

        async def grouped() -> bool:
            found = await cluster.list("pods")
            phases = {group.get("status", {}).get("phase") for group in await cluster.list("podgroups")}
            return phases == {"Running"} and all(GROUP_NAME in one["metadata"]["annotations"] for one in found)

        await cluster.wait_until(grouped, "every pod to have its group", within=20)
    finally:
        controller.cancel()
        await asyncio.gather(controller, return_exceptions=True)
    assert len(await cluster.list("podgroups")) == 24
    assert len((await prove(history, control_plane, daemon)).binds) == 40
