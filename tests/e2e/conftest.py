"""The history of the objects of a test, and a second way to the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.controlplane.cluster import Cluster
from tests.controlplane.proxy import Proxy
from tests.e2e.history import History


@pytest_asyncio.fixture
async def history(cluster: Cluster) -> AsyncIterator[History]:
    """Changes of the objects from now on."""
    async with History(cluster.control_plane) as running:
        yield running


@pytest_asyncio.fixture
async def second_proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    """A way of its own for a second replica."""
    async with Proxy(cluster.control_plane) as running:
        yield running
