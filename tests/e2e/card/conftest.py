"""The stage: one daemon per module, one scene per test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.controlplane.cluster import Cluster, prepare
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.e2e.card.stage import Scene, Stage, eventually, start


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A daemon for all scenarios of the module. At the end it must have had no trouble."""

    async def begin() -> Stage:
        async with Cluster(control_plane) as client:
            await prepare(client)
            daemon = start(control_plane, tmp_path_factory.mktemp("stage"), {})
            await daemon.start()
            # It makes two queues as it begins: scenarios bring their own.
            await eventually(lambda: client.list("queues"), "the queues of the start", lambda queues: len(queues) == 2)
            await client.wipe()
        return Stage(control_plane, daemon)

    running = asyncio.run(begin())
    try:
        yield running
        asyncio.run(running.end())
    finally:
        if running.daemon.process.poll() is None:
            asyncio.run(running.daemon.kill())


@pytest_asyncio.fixture
async def scene(stage: Stage, cluster: Cluster, kubelet: Kubelet) -> AsyncIterator[Scene]:
    """A scenario: an empty cluster before the running daemon; afterwards the independent check."""
    async with Scene(stage, cluster, kubelet) as running:
        await stage.knows()
        await stage.use({})
        yield running
        await running.check()
