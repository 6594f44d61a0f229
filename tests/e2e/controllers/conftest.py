"""The three processes of a cluster without Volcano: our scheduler, our controllers, kube-controller-manager."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import node
from tests.e2e.daemons import Controllers, Daemon

#: Scheduling without cards: these tests are about the controllers.
PLAIN_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""
BATCH = "batch.volcano.sh/v1alpha1"


class Jobs:
    """Shorthands for the Jobs of a test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def create(self, name: str, replicas: int = 2, **spec: Any) -> Manifest:
        """A Job with one task `w`."""
        container = {"name": "main", "image": "train", "resources": {"requests": {"cpu": "1"}}}
        template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
        tasks = spec.pop("tasks", None) or [{"name": "w", "replicas": replicas, "template": template}]
        body = {"schedulerName": "capcard-sched", "tasks": tasks, **spec}
        metadata = {"name": name, "namespace": self.cluster.namespace}
        return await self.cluster.create({"apiVersion": BATCH, "kind": "Job", "metadata": metadata, "spec": body})

    async def get(self, name: str) -> Manifest:
        return await self.cluster.get("jobs.batch.volcano.sh", name)

    async def command(self, action: str, target: str) -> None:
        """A Command for a Job."""
        job = await self.get(target)
        body: Manifest = {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"generateName": "c-", "namespace": self.cluster.namespace},
            "action": action,
            "target": {"apiVersion": BATCH, "kind": "Job", "name": target, "uid": job["metadata"]["uid"]},
        }
        path = await self.cluster.path("commands")
        await self.cluster.request("POST", path, body=body)

    async def phase(self, name: str, wanted: str, *, within: float = 40) -> Manifest:
        """Wait for a phase; returns the Job."""

        async def reached() -> Manifest | None:
            job = await self.get(name)
            return job if job.get("status", {}).get("state", {}).get("phase") == wanted else None

        found = await self.cluster.wait_until(reached, f"Job {name} to be {wanted}", within=within)
        assert found is not None
        return found

    async def pods(self, name: str) -> dict[str, Manifest]:
        """Pods of a Job that are not being deleted."""
        found = await self.cluster.list("pods", labelSelector=f"volcano.sh/job-name={name}")
        return {pod["metadata"]["name"]: pod for pod in found if not pod["metadata"].get("deletionTimestamp")}


@pytest_asyncio.fixture
async def controllers(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Controllers]:
    """Our controllers."""
    async with Controllers(control_plane.kubeconfig_for("admin"), tmp_path) as running:
        await running.logged("controllers started")
        yield running


@pytest_asyncio.fixture
async def jobs(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, workloads: None, tmp_path: Path
) -> AsyncIterator[Jobs]:
    """Jobs on a cluster with a scheduler, kubelets and two nodes."""
    await cluster.create_all(node(name, cpu="32", memory="64Gi") for name in ("n1", "n2"))
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=PLAIN_CONF):
        yield Jobs(cluster)
