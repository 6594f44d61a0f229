"""Follows a live cluster; for `--watch`, prints each item of a list that changes, until it is interrupted."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from capcard_sched.cli.exit_codes import BadInputError
from capcard_sched.cli.sources.held_cluster import follow_objects, run_followed
from capcard_sched.insight.sources.object_view import DeltaObjects, for_core
from capcard_sched.kube.instrumentation import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.cli.sources.inputs import LoadedCluster
    from capcard_sched.cli.sources.live import LiveInput
    from capcard_sched.insight.sources.object_view import Json
    from capcard_sched.kube.informers import Informers
    from capcard_sched.model.deltas import Delta

#: Share of the time that is spent on computing lists: further changes wait for it.
_BUSY: Final = 0.2
#: Fields that change with time alone.
_PASSING: Final = frozenset({"ageSeconds", "waitSeconds"})
#: Fields that identify an item.
_KEY: Final = ("kind", "namespace", "name", "node")


class _Follower:
    """Computes the items again after changes, and prints those that differ from the last ones."""

    def __init__(self, show: Callable[[list[Json]], None], select: Callable[[LoadedCluster], list[Json]]) -> None:
        self._show, self._select = show, select
        self._found: LoadedCluster | None = None
        self._last: dict[tuple[str, ...], Json] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._idle_from = 0.0
        #: Deltas before the initial lists are complete.
        self.initial: list[Delta] = []

    def begin(self, found: LoadedCluster) -> None:
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
    given: LiveInput,
    show: Callable[[list[Json]], None],
    select: Callable[[LoadedCluster], list[Json]],
    *,
    headlines: bool,
) -> None:
    """Show the list, then for ever the items that change. Raises BadInputError without the right to watch.

    `given`: read before. `headlines`: the items have the causes of waiting jobs.
    """
    follower, refusals = _Follower(show, select), _Refusals()

    def begin(_: Informers) -> None:
        follower.begin(given.load_again(follower.initial, headlines=headlines))

    run_followed(follow_objects(given.connection, given.kinds, follower.deliver, refusals, refusals.denied, begin))


class _Refusals(Observer):
    """Ends the watch at a refusal."""

    def __init__(self) -> None:
        self.denied: Future[None] = Future()

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        if event == "forbidden" and not self.denied.done():
            self.denied.set_exception(BadInputError(f"--watch: access denied: {detail or resource}"))
