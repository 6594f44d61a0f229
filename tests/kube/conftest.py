"""Fixtures. Code that uses sockets directly is tested on the event loop of the daemon and on asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, pod


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A single one leaves the names of tests as they are."""
    if item.path.stem in {"test_cancellation", "test_client", "test_connection", "test_pool"}:
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    if item.path.stem == "test_ended_connections":
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def furnished(cluster: Cluster) -> Cluster:
    """A cluster with nodes n0 to n3, pods p0 to p7, and one pod named `again`."""
    await cluster.create_all([node(f"n{index}") for index in range(4)])
    await cluster.create_all([*(pod(f"p{index}") for index in range(8)), pod("again")])
    return cluster
