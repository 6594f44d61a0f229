"""Records a followed cluster in a ledger: changes are written in their order by one thread."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from capcard_sched.cli.output import put_error
from capcard_sched.ledger.database import FencedError, LedgerError
from capcard_sched.ledger.ledger_thread import in_ledger_thread
from capcard_sched.ledger.usage_ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.cli.web_live import FollowedCluster
    from capcard_sched.model.deltas import Delta

#: Kinds that a ledger reads, in the order of its first step.
_KINDS: Final = (
    "ResourceSlice",
    "ResourceClaim",
    "Namespace",
    "Node",
    "Queue",
    "NamespaceQueue",
    "PodGroup",
    "Pod",
)
#: Seconds between two writes, and after a failed one.
_PERIOD: Final = 1.0
_PAUSE: Final = 60.0


class LedgerFeed:
    """The changes of a cluster from its first complete lists on."""

    def __init__(self, url: str, held: FollowedCluster, lease: str, may_write: Callable[[], bool]) -> None:
        """`lease`: `NAMESPACE/NAME` of the Lease that this process holds while `may_write()`, "" without one."""
        self._url, self._held, self._lease, self._may_write = url, held, lease, may_write
        #: Changes that are not written yet, with their moments (Unix seconds); None before the lists are complete.
        self._waiting: list[tuple[float, Sequence[Delta]]] | None = None

    def note(self, deltas: Sequence[Delta]) -> None:
        """Changes of the cluster now; ignored before the lists are complete."""
        if self._waiting is not None:
            self._waiting.append((time.time(), deltas))

    async def run(self) -> None:
        """Record until cancelled. A failed write is reported and tried again with a new list of all objects.

        Without a Lease, ends when another process begins to record.
        """
        while True:
            try:
                await self._record()
                await asyncio.sleep(_PERIOD)  # the end of the term cancels this
            except LedgerError as error:
                is_over = isinstance(error, FencedError) and not self._lease
                then = "this one records no more" if is_over else "the next attempt follows in a minute"
                put_error(f"warning: ledger: {error}; {then}", flush=True)
                self._waiting = None
                if is_over:
                    return
                await asyncio.sleep(_PAUSE)

    async def _record(self) -> None:
        """Record until `may_write()` is false. Raises LedgerError."""
        while self._held.stale_for() is None:
            await self._held.wait_changed(_PERIOD)
        began = time.time()
        objects = [delta for kind in _KINDS for delta in self._held.objects.of(kind).values()]
        self._waiting = []
        state = self._held.core.snapshot().state
        labels, queue = state.card_labels, state.default_queue
        opening = in_ledger_thread(partial(open_ledger, self._url), lambda late: late.database.close())
        with await opening as ledger:
            start = partial(ledger.start, card_labels=labels, default_queue=queue, lease=self._lease)
            await in_ledger_thread(partial(start, f"live-{began:.3f}", "live", began))
            await in_ledger_thread(partial(ledger.feed, began, objects))
            while True:
                await asyncio.sleep(_PERIOD)
                found, self._waiting = self._waiting, []
                for moment, deltas in found or [(time.time(), ())]:
                    if not self._may_write():
                        return
                    await in_ledger_thread(partial(ledger.feed, moment, deltas))
