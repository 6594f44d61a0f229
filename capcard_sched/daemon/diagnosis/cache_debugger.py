"""Dumps the state and the objects on SIGUSR1 and compares it with the API server on SIGUSR2."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from capcard_sched.daemon.diagnosis import cache_comparer, dump
from capcard_sched.daemon.diagnosis.saved_state import document_text, manifests_of
from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.informers import list_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from capcard_sched.daemon.observability.observer import LoggingObserver
    from capcard_sched.daemon.scheduler_thread import SchedulerThread
    from capcard_sched.kube.kinds import WatchedKind

#: Seconds: between the two comparisons; updates that the watch delivers meanwhile are no differences.
_COMPARE_SECONDS: Final = 2.0
#: Differences: maximum logged.
_MOST_DIFFERENCES: Final = 100


class CacheDebugger:
    """Inspects the core's state between two steps."""

    def __init__(
        self,
        thread: SchedulerThread,
        client: Client,
        kinds: Sequence[WatchedKind[Any]],
        observer: LoggingObserver,
        folder: Path,
    ) -> None:
        """`folder`: of dumps."""
        self._thread = thread
        self._client = client
        self._kinds = kinds
        self._observer = observer
        self._folder = folder
        #: Dumps of one second have the same file names.
        self._dumping = asyncio.Lock()
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

    async def dump(self) -> None:
        """Write the state to a file, and the objects of the API server, as a saved state, to another."""
        async with self._dumping:
            await self._dump(time.time())

    async def _dump(self, now: float) -> None:
        content = await self._thread.query(lambda core: dump.snapshot(core.snapshot(), now))
        settings = await self._thread.query(lambda core: dump.settings(core.snapshot(), now))
        await self._write("dump written", dump.STATE, content, now)
        try:
            deltas = await list_all(self._client, self._kinds, self._observer)
        except (ApiError, Unreachable) as error:
            self._log.error("failed to list the objects of the dump", err=str(error))
            return
        objects = await asyncio.to_thread(lambda: document_text(settings, manifests_of(deltas)))
        await self._write("objects of the dump written", dump.OBJECTS, objects, now)

    async def _write(self, message: str, kind: str, content: bytes, now: float) -> None:
        try:
            path = await asyncio.to_thread(dump.write_snapshot, self._folder, content, now, kind)
        except OSError as error:
            self._log.error("failed to write dump", folder=str(self._folder), err=str(error))
        else:
            self._log.info(message, file=str(path), bytes=len(content))

    async def compare(self) -> None:
        """Log differences from the API server that two comparisons find."""
        try:
            found = await self._differences()
            if found:
                await asyncio.sleep(_COMPARE_SECONDS)
                found = cache_comparer.lasting(found, await self._differences())
        except (ApiError, Unreachable) as error:
            self._log.error("failed to compare the cache", err=str(error))
            return
        for difference in found[:_MOST_DIFFERENCES]:
            self._log.warning("cache differs", difference=difference.render())
        self._log.info("cache compared with the API server", differences=len(found))

    async def _differences(self) -> list[cache_comparer.CacheDifference]:
        deltas = await list_all(self._client, self._kinds, self._observer)
        state = await self._thread.query(lambda core: core.snapshot().state)
        fresh = await asyncio.to_thread(cache_comparer.rebuild, state, deltas)  # reads only settings of `state`
        return await self._thread.query(lambda core: cache_comparer.differences(core.snapshot().state, fresh))
