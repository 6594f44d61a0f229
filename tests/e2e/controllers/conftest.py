"""The three processes of a cluster without Volcano: our scheduler, our controllers, kube-controller-manager."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, job, node, plain
from tests.e2e.daemons import Controllers, Daemon
from tests.e2e.expectations import until

#: Scheduling without cards: these tests are about the controllers.
PLAIN_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""
BATCH, JOBS = "batch.volcano.sh/v1alpha1", "jobs.batch.volcano.sh"


class Jobs:
    """Shorthands for the Jobs of a test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def create(self, name: str, replicas: int = 2, **spec: Any) -> Manifest:
        """See `manifests.job`."""
        return await self.cluster.create(job(name, replicas, **spec))

    async def get(self, name: str) -> Manifest:
        return await self.cluster.get(JOBS, name)

    async def command(self, action: str, target: str) -> None:
        """A Command for a Job."""
        uid = (await self.get(target))["metadata"]["uid"]
        about = {"apiVersion": BATCH, "kind": "Job", "name": target, "uid": uid}
        name = f"c-{secrets.token_hex(4)}"
        await self.cluster.create(plain("Command", name, "bus.volcano.sh/v1alpha1", action=action, target=about))

    async def phase(self, name: str, wanted: str, *, within: float = 60) -> Manifest:
        """Wait for a phase; returns the Job."""
        return await until(self.cluster, JOBS, name, within=within, status={"state": {"phase": wanted}})

    async def pods(self, name: str) -> dict[str, Manifest]:
        """Pods of a Job that are not being deleted."""
        found = await self.cluster.list("pods", labelSelector=f"volcano.sh/job-name={name}")
        return {pod["metadata"]["name"]: pod for pod in found if not pod["metadata"].get("deletionTimestamp")}


@pytest.fixture
async def controllers(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Controllers]:
    """Our controllers."""
    async with Controllers(control_plane.kubeconfig_for("admin"), tmp_path) as running:
        await running.logged("controllers started")
        yield running


@pytest.fixture
async def jobs(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, workloads: None, tmp_path: Path
) -> AsyncIterator[Jobs]:
    """Jobs on a cluster with a scheduler, kubelets and two nodes."""
    await cluster.create_all(node(name, cpu="32", memory="64Gi") for name in ("n1", "n2"))
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=PLAIN_CONF):
        yield Jobs(cluster)
