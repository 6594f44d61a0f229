"""Reflectors of all watched kinds."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from capcard_sched.kube.decode import DEFAULT_SETTINGS, KindDecoder, UndecodableObject, pages
from capcard_sched.kube.errors import ApiError
from capcard_sched.kube.instrumentation import UNAVAILABLE, Observer
from capcard_sched.kube.kinds import KINDS
from capcard_sched.kube.reflector import DeltaStore, Reflector

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.decode import ListPage, WatchSettings
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta


class Informers:
    """Lists and watches every kind and delivers changes in batches, in order per kind."""

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
        """`deliver` is called in the event loop and must not block."""
        self._clock = clock
        self._reflector_of = partial(
            Reflector, client, deliver=deliver, observer=observer, settings=settings, clock=clock
        )
        #: Watched kinds; `add` appends to it.
        self.kinds: list[WatchedKind[Any]] = []
        self._reflectors: list[Reflector[Any]] = []
        self._group: asyncio.TaskGroup | None = None
        self.add(kinds)

    async def run(self) -> None:
        """Run all reflectors until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    def add(self, kinds: Iterable[WatchedKind[Any]]) -> None:
        """Watch those of the kinds that are not watched yet, at once when `run` is under way."""
        for kind in kinds:
            if (kind.path, kind.field_selector) in {(known.path, known.field_selector) for known in self.kinds}:
                continue
            reflector: Reflector[Any] = self._reflector_of(kind)
            self.kinds.append(kind)
            self._reflectors.append(reflector)
            if self._group is not None:
                self._group.create_task(reflector.run())

    @property
    def synced(self) -> bool:
        """Whether every initial list was delivered; the receiver applies them later.

        Optional kinds count as listed when they are missing or forbidden.
        """
        return all(reflector.synced for reflector in self._reflectors)

    def pending(self) -> dict[str, bool]:
        """Resource to whether its first list, or one requested by `relist`, is pending."""
        return {reflector.kind.resource: reflector.pending for reflector in self._reflectors}

    def problems(self, leave_out: Collection[str] = ()) -> list[str]:
        """The objects that cannot be decoded, in the order of the kinds without those of these names."""
        kept = (reflector.problems for reflector in self._reflectors if reflector.kind.name not in leave_out)
        return [problems[key] for problems in kept for key in sorted(problems, key="/".join)]

    async def wait_synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.wait_synced()

    async def relist(self) -> None:
        """List every kind again; deliver the differences, and all objects of kinds that the scheduler writes.

        For a new leader: the delivered state is not older than this call. Requires a running `run`.
        """
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.relist())

    def stale_for(self) -> float:
        """Seconds for which some required kind has had no open watch; 0.0 when all have one."""
        lost = [
            reflector.disconnected_since
            for reflector in self._reflectors
            if reflector.kind.required and reflector.disconnected_since is not None
        ]
        return max(0.0, self._clock() - min(lost)) if lost else 0.0


async def list_all(
    client: Client, kinds: Iterable[WatchedKind[Any]] = KINDS, observer: Observer | None = None
) -> list[Delta]:
    """List every kind once, as the initial deltas of informers: for one-shot commands and comparisons.

    Skips optional kinds that are missing or forbidden. Raises ApiError and Unreachable.
    """
    out: list[Delta] = []
    watch_observer = observer or Observer()
    for kind in kinds:
        store = DeltaStore(kind, watch_observer)
        try:
            async for page in pages(client, kind.path, KindDecoder(kind), field_selector=kind.field_selector):
                out += initial_deltas(kind, page, store)
        except ApiError as error:
            if kind.required or error.status not in UNAVAILABLE:
                raise
            watch_observer.watch(kind.resource, kind.unavailable(error.status), error.message)
    return out


def initial_deltas(kind: WatchedKind[Any], page: ListPage[Any], store: DeltaStore[Any]) -> list[Delta]:
    """The deltas of one page of a list; `store`: that of the list."""
    out: list[Delta] = []
    for item in page.items:  # all of one version: nothing is to be compared
        if isinstance(item, UndecodableObject):
            store.undecodable(item, out)
        elif kind.selects is None or kind.selects(item):
            out.append(kind.changed(item))
    return out
