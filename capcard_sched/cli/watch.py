"""Follows a live cluster; for `--watch`, prints each item of a list that changes, until it is interrupted."""

from __future__ import annotations

import asyncio
import gc
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from capcard_sched.cli.cluster_source import live_cluster
from capcard_sched.cli.inputs import BadInputError
from capcard_sched.gc import settle_memory
from capcard_sched.insight.object_view import DeltaObjects, for_core
from capcard_sched.kube.instrumentation import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from capcard_sched.cli.cluster_source import ClusterSource, Source
    from capcard_sched.cli.live_cluster import LiveCluster
    from capcard_sched.insight.object_view import Json
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.informers import Informers
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

#: Share of the time that is spent on computing lists: further changes wait for it.
_BUSY: Final = 0.2
#: Fields that change with time alone.
_PASSING: Final = frozenset({"ageSeconds", "waitSeconds"})
#: Fields that identify an item.
_KEY: Final = ("kind", "namespace", "name", "node")


class _Follower:
    """Computes the items again after changes, and prints those that differ from the last ones."""

    def __init__(self, show: Callable[[list[Json]], None], select: Callable[[ClusterSource], list[Json]]) -> None:
        self._show, self._select = show, select
        self._found: ClusterSource | None = None
        self._last: dict[tuple[str, ...], Json] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._idle_from = 0.0
        #: Deltas before the initial lists are complete.
        self.initial: list[Delta] = []

    def begin(self, found: ClusterSource) -> None:
        """Print the list of a cluster, and follow it from now on."""
        self._found = found
        self._compute()

    def deliver(self, deltas: Sequence[Delta]) -> None:
        """Apply changes; compute the items now, or later when the last computation was recent."""
        if self._found is None:
            self.initial += deltas
            return
        self._found.watched.step(for_core(deltas), time.time())
        assert isinstance(self._found.objects, DeltaObjects)
        for delta in deltas:
            self._found.objects.apply(delta)
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_at(max(loop.time(), self._idle_from), self._compute)

    def _compute(self) -> None:
        loop = asyncio.get_running_loop()
        begun, last = loop.time(), self._last
        assert self._found is not None
        self._handle = None
        try:
            items = self._select(replace(self._found, now=time.time()))
        except BadInputError:  # an object that was named is deleted, or the last one with a value to sort by
            items = []
        self._last = {tuple(str(item.get(name, "")) for name in _KEY): item for item in items}
        self._show([item for key, item in self._last.items() if _lasting(last.get(key)) != _lasting(item)])
        now = loop.time()
        self._idle_from = now + (now - begun) * (1 / _BUSY - 1)


def _lasting(item: Json | None) -> Json | None:
    return None if item is None else {key: value for key, value in item.items() if key not in _PASSING}


def follow(
    source: Source,
    read: LiveCluster,
    show: Callable[[list[Json]], None],
    select: Callable[[ClusterSource], list[Json]],
    *,
    headlines: bool,
) -> None:
    """Show the list, then for ever the items that change. Raises BadInputError without the right to watch.

    `headlines`: the items have the causes of waiting jobs.
    """
    follower, refusals = _Follower(show, select), _Refusals()

    def begin(_: Informers) -> None:
        read_now = read._replace(deltas=follower.initial)
        follower.begin(live_cluster(source, read_now, read_only=True, headlines=headlines))

    run_followed(follow_objects(read.connection, read.kinds, follower.deliver, refusals, refusals.denied, begin))


class _Refusals(Observer):
    """Ends the watch at a refusal."""

    def __init__(self) -> None:
        self.denied: Future[None] = Future()

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        if event == "forbidden" and not self.denied.done():
            self.denied.set_exception(BadInputError(f"--watch: access denied: {detail or resource}"))


def run_followed(work: Coroutine[Any, Any, None]) -> None:
    """Run what follows objects. Raises the BadInputError that ends it."""
    try:
        asyncio.run(work)
    except BaseExceptionGroup as group:
        denied: BaseException | None = group.subgroup(BadInputError)
        while isinstance(denied, BaseExceptionGroup):
            denied = denied.exceptions[0]
        if denied is None:
            raise
        raise BadInputError(str(denied)) from None


async def follow_objects(
    connection: Connection,
    kinds: Iterable[WatchedKind[Any]],
    deliver: Callable[[Sequence[Delta]], None],
    observer: Observer,
    denied: Future[None],
    begin: Callable[[Informers], None],
) -> None:
    """Deliver the objects of kinds and their changes for ever; `begin` is called once all are delivered.

    Changes of fields that the scheduler does not read are delivered, too: lists show some. Raises the exception that
    is set in `denied`.
    """
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.informers import Informers

    whole = [replace(kind, reads=None, derives=None) for kind in kinds]
    async with Client(connection) as client, asyncio.TaskGroup() as group:
        informers = Informers(client, deliver, observer, whole)
        group.create_task(informers.run())
        group.create_task(_raised(denied))
        await informers.wait_synced()
        gc.enable()  # from here on, what is replaced becomes garbage
        begin(informers)
        settle_memory()


async def _raised(denied: Future[None]) -> None:
    await asyncio.wrap_future(denied)
