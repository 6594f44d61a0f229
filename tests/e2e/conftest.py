"""The history of the objects of a test, a second way to the API server, and controllers of Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.proxy import Proxy
from tests.e2e.history import History

#: The controllers of Kubernetes that create pods, and its garbage collector.
WORKLOAD_CONTROLLERS = (
    "garbage-collector-controller,deployment-controller,replicaset-controller,statefulset-controller,"
    "daemonset-controller,job-controller"
)


@pytest.fixture
async def history(cluster: Cluster) -> AsyncIterator[History]:
    """Changes of the objects from now on."""
    async with History(cluster.control_plane) as running:
        yield running


@pytest.fixture
async def second_proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    """A way of its own for a second replica."""
    async with Proxy(cluster.control_plane) as running:
        yield running


@pytest.fixture
async def workloads(control_plane: ControlPlane) -> AsyncIterator[None]:
    """The controllers of Kubernetes that create pods, and its garbage collector."""
    await asyncio.to_thread(control_plane.start_controller_manager, WORKLOAD_CONTROLLERS)
    yield
    await asyncio.to_thread(control_plane.stop_controller_manager)
