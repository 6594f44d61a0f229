"""A writer on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness


@pytest.fixture
async def effects(cluster: Cluster, proxy: Proxy) -> AsyncIterator[Harness]:
    """An ApiWriter behind the proxy, with the usual settings."""
    async with Harness(cluster, proxy) as running:
        yield running
