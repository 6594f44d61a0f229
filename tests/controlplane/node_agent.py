"""What stand-ins for programs on nodes have in common: a loop as user `kubelet`."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane


class NodeAgent:
    """Runs `_run` while its context lasts. A loop that ends by itself fails the test."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._cluster = Cluster(control_plane, user="kubelet")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None) -> None:
        assert self._task is not None
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        await self._cluster.__aexit__(None, None, None)
        assert isinstance(ended, asyncio.CancelledError), ended

    async def _run(self) -> None:
        raise NotImplementedError
