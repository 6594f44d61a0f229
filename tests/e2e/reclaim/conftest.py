"""Fixtures of every test of the tide: the history of its objects, and kubelets that take their time to end a pod."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.controlplane.cluster import Cluster
from tests.controlplane.kubelet import Kubelet
from tests.e2e.history import History


@pytest_asyncio.fixture
async def history(cluster: Cluster) -> AsyncIterator[History]:
    """Changes of the objects from now on."""
    async with History(cluster.control_plane) as running:
        yield running


@pytest_asyncio.fixture
async def slow_kubelet(kubelet: Kubelet) -> Kubelet:
    """Kubelets whose pods need a second and a half to end, so that others see them go."""
    kubelet.stop_delay = 1.5
    return kubelet
