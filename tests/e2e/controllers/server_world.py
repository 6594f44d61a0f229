"""Plays scenarios of the controllers on an API server."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from tests.controlplane.cluster import ALL, Cluster, RequestError
from tests.controlplane.manifests import Manifest

#: Seconds for which an expectation may take, and for which a state must last.
_LIMIT, _HELD = 90.0, 1.0
_EVERY: Final = 0.4
_RESOURCES: Final = {
    "Job": "jobs.batch.volcano.sh",
    "CronJob": "cronjobs.batch.volcano.sh",
    "BatchJob": "jobs.batch",
    "PodGroup": "podgroups.scheduling.volcano.sh",
    "KubePodGroup": "podgroups.scheduling.k8s.io",
    "Event": "events",
}


class ServerWorld:
    """A namespace of an API server that other scenarios share."""

    def __init__(self, cluster: Cluster, restart: Callable[[], Awaitable[None]]) -> None:
        """`restart`: ends the controllers and starts them again."""
        self._cluster = cluster
        self._restart = restart
        self.namespace = cluster.namespace

    async def until(self, check: Callable[[], Awaitable[str]]) -> None:
        deadline = time.monotonic() + _LIMIT
        while problem := await check():
            assert time.monotonic() < deadline, problem
            await asyncio.sleep(_EVERY)

    async def hold(self, check: Callable[[], Awaitable[str]]) -> None:
        deadline = time.monotonic() + _HELD
        while time.monotonic() < deadline:
            problem = await check()
            assert not problem, problem
            await asyncio.sleep(_EVERY)

    async def create(self, manifest: Manifest) -> None:
        async def problem() -> str:
            try:
                await self._cluster.create(manifest)
            except RequestError as error:
                if error.status == 403:  # admission has yet to see the queue, or that it is open
                    return str(error)
                raise
            return ""

        await self.until(problem)

    async def rejection(self, manifest: Manifest) -> str:
        kind: str = manifest["kind"]
        path = await self._cluster.path(_RESOURCES.get(kind, kind))
        try:
            await self._cluster.request("POST", path, params={"dryRun": "All"}, body=manifest)
        except RequestError as error:
            return error.message
        return ""

    async def patch(self, kind: str, name: str, body: Manifest) -> None:
        await self._cluster.patch(_RESOURCES.get(kind, kind), name, body)

    async def delete(self, kind: str, name: str) -> None:
        await self._cluster.delete(_RESOURCES.get(kind, kind), name, grace=None)

    async def finish(self, pod: str, code: int) -> None:
        ended = {"exitCode": code, "finishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        row = {"name": "main", "image": "main:1", "imageID": "", "ready": False, "restartCount": 0}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{**row, "state": {"terminated": ended}}],
        }
        try:
            await self._cluster.patch("pods", pod, {"status": status}, subresource="status")
        except RequestError as error:
            if error.status != 404:  # its grace period is over
                raise

    async def list(self, kind: str) -> list[Manifest]:
        found = await self._cluster.list(_RESOURCES.get(kind, kind), namespace=ALL if kind == "Event" else "")
        if kind == "Secret":  # as they were written
            for each in found:
                each["stringData"] = {key: b64decode(value).decode() for key, value in each.get("data", {}).items()}
        return found

    async def restart_controllers(self) -> None:
        await self._restart()
