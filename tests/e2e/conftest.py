"""The history of the objects of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.controlplane.cluster import Cluster
from tests.e2e.history import History


@pytest_asyncio.fixture
async def history(cluster: Cluster) -> AsyncIterator[History]:
    """Changes of the objects from now on."""
    async with History(cluster.control_plane) as running:
        yield running
