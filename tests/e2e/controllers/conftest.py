"""The three processes of a cluster without Volcano: our scheduler, our controllers, kube-controller-manager."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import pytest_asyncio

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import node
from tests.controlplane.processes import end, free_port, spawn
from tests.e2e.daemons import Daemon

_PROGRAM = Path(sys.executable).with_name("capcard-sched")
#: Scheduling without cards: these tests are about the controllers.
PLAIN_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""
BATCH = "batch.volcano.sh/v1alpha1"
#: The controllers of Kubernetes that create pods, and its garbage collector.
WORKLOAD_CONTROLLERS = (
    "garbage-collector-controller,deployment-controller,replicaset-controller,statefulset-controller,"
    "daemonset-controller,job-controller"
)


class Controllers:
    """`capcard-sched controllers` against a kubeconfig."""

    def __init__(self, kubeconfig: Path, folder: Path, *flags: str, name: str = "controllers") -> None:
        self.log_path = folder / f"{name}.log"
        self.port, self.health_port = free_port(), free_port()
        self.command: list[str | Path] = [
            _PROGRAM,
            "controllers",
            f"--kubeconfig={kubeconfig}",
            "--enable-metrics",
            f"--listen-address=127.0.0.1:{self.port}",
            "--enable-healthz",
            f"--healthz-address=127.0.0.1:{self.health_port}",
            "--log-format=json",
            *(flags or ("--leader-elect=false",)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> Self:
        """Start it; returns at once."""
        self._process = await asyncio.to_thread(spawn, self.command, log=self.log_path, environment=dict(os.environ))
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    async def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self.process.wait, 5)

    async def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 20)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._process is not None:
            await asyncio.to_thread(end, self._process, gently=6)
        if kind is not None and error is not None:
            error.add_note(f"--- {self.log_path} ---\n{self.text[-6000:]}")

    @property
    def text(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Log lines with this message."""
        whole, _, _ = self.text.rpartition("\n")
        found: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in found if line.get("msg") == message]

    async def logged(self, message: str, *, times: int = 1, within: float = 30.0) -> None:
        """Return when the log has this message."""
        for _ in range(int(within / 0.05)):
            if len(self.lines(message)) >= times:
                return
            assert self.process.poll() is None, self.text[-6000:]
            await asyncio.sleep(0.05)
        raise AssertionError(f"no {message!r} in\n{self.text[-6000:]}")

    async def metrics(self) -> str:
        """The content of /metrics."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/metrics") as answer,
        ):
            return await answer.text()


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
async def workloads(control_plane: ControlPlane) -> AsyncIterator[None]:
    """The controllers of Kubernetes that create pods, and its garbage collector."""
    await asyncio.to_thread(control_plane.start_controller_manager, WORKLOAD_CONTROLLERS)
    yield
    await asyncio.to_thread(control_plane.stop_controller_manager)


@pytest_asyncio.fixture
async def jobs(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, workloads: None, tmp_path: Path
) -> AsyncIterator[Jobs]:
    """Jobs on a cluster with a scheduler, kubelets and two nodes."""
    await cluster.create_all(node(name, cpu="32", memory="64Gi") for name in ("n1", "n2"))
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=PLAIN_CONF):
        yield Jobs(cluster)
