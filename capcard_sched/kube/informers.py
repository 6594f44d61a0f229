"""All watched kinds together: the scheduler's eyes."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from capcard_sched.kube.decode import KindDecoder
from capcard_sched.kube.delta_store import DeltaStore
from capcard_sched.kube.errors import ApiError
from capcard_sched.kube.instrumentation import NullObserver
from capcard_sched.kube.kinds import KINDS
from capcard_sched.kube.listing import pages
from capcard_sched.kube.reflector import DEFAULT_SETTINGS, Reflector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.kube.reflector import WatchSettings
    from capcard_sched.model.deltas import Delta


class Informers:
    """Lists and watches every kind and hands over what changes, in batches, in the order of each kind."""

    def __init__(
        self,
        client: Client,
        deliver: Callable[[Sequence[Delta]], None],
        observer: Observer,
        kinds: Iterable[WatchedKind[Any]] = KINDS,
        *,
        settings: WatchSettings = DEFAULT_SETTINGS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deliver` is called in the event loop and must return at once."""
        self._clock = clock
        self._reflectors = [
            Reflector(client, kind, deliver, observer, settings=settings, clock=clock) for kind in kinds
        ]

    async def run(self) -> None:
        """Keep in step until cancelled: nothing the API server does ends it."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    @property
    def synced(self) -> bool:
        """Whether every initial list has been delivered; applying them is the receiver's part (W-22).

        Kinds that a session may do without count as listed when they are missing or may not be read.
        """
        return all(reflector.settled for reflector in self._reflectors)

    def pending(self) -> dict[str, bool]:
        """Resource to whether its list, the first or one that was asked for by `relist`, is still to come."""
        return {reflector.kind.resource: reflector.pending for reflector in self._reflectors}

    async def wait_synced(self) -> None:
        """Return once `synced`."""
        for reflector in self._reflectors:
            await reflector.wait_settled()

    async def relist(self) -> None:
        """List everything afresh and deliver the differences, and all objects of kinds that we write.

        Returns when that is done.

        For a new leader: what it then knows is not older than this call. Needs `run` to be running.
        """
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.relist())

    def stale_for(self, now: float | None = None) -> float:
        """Seconds for which some required kind has had no open watch, by the clock given; 0.0 when all have one."""
        at = self._clock() if now is None else now
        lost = [
            reflector.lost_since
            for reflector in self._reflectors
            if reflector.kind.required and reflector.lost_since is not None
        ]
        return max(0.0, at - min(lost)) if lost else 0.0


async def list_all(
    client: Client, kinds: Iterable[WatchedKind[Any]] = KINDS, observer: Observer | None = None
) -> list[Delta]:
    """Everything there is now, once, as a feed would deliver it first: for one-shot commands and comparisons.

    Raises ApiError and Unreachable; kinds that are not required and are missing or forbidden are left out.
    """
    out: list[Delta] = []
    told = observer or NullObserver()
    for kind in kinds:
        known = DeltaStore(kind, told)
        try:
            async for page in pages(client, kind.path, KindDecoder(kind)):
                known.items(page.items, out)
        except ApiError as error:
            if kind.required or error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}:
                raise
            told.watch(kind.resource, "missing" if error.status == HTTPStatus.NOT_FOUND else "forbidden", error.message)
    return out
