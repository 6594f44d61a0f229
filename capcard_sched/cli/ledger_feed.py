"""Records a followed cluster in a ledger: changes are written in their order by one thread."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from capcard_sched.cli.output import put_error
from capcard_sched.ledger.database import LedgerError
from capcard_sched.ledger.usage_ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from capcard_sched.cli.sources.held_cluster import HeldCluster
    from capcard_sched.model.deltas import Delta

#: Kinds that a ledger reads, in the order of its first step.
_KINDS: Final = ("Namespace", "Node", "Queue", "PodGroup", "Pod")
#: Seconds between two writes.
_PERIOD: Final = 1.0


class LedgerFeed:
    """The changes of a cluster from its first complete lists on."""

    def __init__(self, url: str, held: HeldCluster, wait: Callable[[float], Awaitable[None]]) -> None:
        """`wait(seconds)` returns at the next change of the cluster, or after that time."""
        self._url, self._held, self._wait = url, held, wait
        #: Changes that are not written yet, with their moments (Unix seconds); None before the lists are complete.
        self._waiting: list[tuple[float, Sequence[Delta]]] | None = None

    def note(self, deltas: Sequence[Delta]) -> None:
        """Changes of the cluster now."""
        if self._waiting is not None:
            self._waiting.append((time.time(), deltas))

    async def run(self) -> None:
        """Record until cancelled. A failed write is reported and tried again with a new list of all objects."""
        while True:
            try:
                await self._record()
            except LedgerError as error:
                put_error(f"warning: ledger: {error}; the next attempt follows in a minute")
                self._waiting = None
                await asyncio.sleep(60.0)

    async def _record(self) -> None:
        """Raises LedgerError."""
        while self._held.stale_for() is None:
            await self._wait(_PERIOD)
        began = time.time()
        objects = [delta for kind in _KINDS for delta in self._held.objects.of(kind).values()]
        self._waiting = []
        state = self._held.core.snapshot().state
        labels, queue = state.card_labels, state.default_queue
        with await asyncio.to_thread(open_ledger, self._url) as ledger:
            start = partial(ledger.start, card_labels=labels, default_queue=queue)
            await asyncio.to_thread(start, f"live-{began:.3f}", "live", began)
            await asyncio.to_thread(ledger.feed, began, objects)
            while True:
                await asyncio.sleep(_PERIOD)
                found, self._waiting = self._waiting, []
                for moment, deltas in found or [(time.time(), ())]:
                    await asyncio.to_thread(ledger.feed, moment, deltas)
