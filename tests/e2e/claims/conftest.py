"""Kubernetes' controllers of claims, NVIDIA's driver, and the history of devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.device_driver import DeviceDriver, device_class
from tests.controlplane.kubelet import Kubelet
from tests.e2e.claims.oracle import DEVICE_KINDS
from tests.e2e.claims.scenes import GPU, World
from tests.e2e.history import History

#: They make claims of templates, release claims of finished pods, and delete those of deleted pods.
_CONTROLLERS = "resourceclaim-controller,garbage-collector-controller"


@pytest.fixture
async def claim_controllers(cluster: Cluster, control_plane: ControlPlane) -> AsyncIterator[None]:
    """The real kube-controller-manager."""
    await asyncio.to_thread(control_plane.start_controller_manager, _CONTROLLERS)
    yield
    await asyncio.to_thread(control_plane.stop_controller_manager)


@pytest.fixture
async def driver(cluster: Cluster, claim_controllers: None) -> AsyncIterator[DeviceDriver]:
    """NVIDIA's driver with a DeviceClass of its name."""
    await cluster.create(device_class(GPU))
    async with DeviceDriver(cluster.control_plane, GPU) as running:
        yield running


@pytest.fixture
async def device_history(cluster: Cluster) -> AsyncIterator[History]:
    """Changes of the objects that the oracle of devices reads, from now on."""
    async with History(cluster.control_plane, DEVICE_KINDS) as running:
        yield running


@pytest.fixture
def world(cluster: Cluster, kubelet: Kubelet, driver: DeviceDriver, device_history: History, tmp_path: Path) -> World:
    return World(cluster, kubelet, driver, device_history, tmp_path)
