"""Turns of views: viewers take turns, and have a part of the views that are made at a time."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class ViewTurns:
    """A number of places for views, of which a viewer has some at a time. "" is no viewer, and takes any free place."""

    def __init__(self, places: int, of_one: int) -> None:
        self._places, self._of_one = places, of_one
        #: Viewer to the number of views that are made.
        self._running: Counter[str] = Counter()
        #: Viewer to the waiting views; the viewer whose turn is next comes first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, viewer: str) -> AsyncIterator[None]:
        """A place, as soon as it is the turn of the viewer."""
        await self._take(viewer)
        try:
            yield
        finally:
            self._running -= Counter([viewer])
            self._give()

    async def _take(self, viewer: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(viewer, deque()).append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(viewer, turn)
            else:  # its turn came at the same moment
                self._running -= Counter([viewer])
                self._give()
            raise

    def _leave(self, viewer: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(viewer, deque())
        if turn in queue:
            queue.remove(turn)
        if not queue:
            self._waiting.pop(viewer, None)

    def _give(self) -> None:
        """Give free places to waiting views."""
        while self._running.total() < self._places:
            viewer = next((name for name in self._waiting if not name or self._running[name] < self._of_one), None)
            if viewer is None:
                return
            queue = self._waiting[viewer]
            turn = queue.popleft()
            if not turn.cancelled():
                self._running[viewer] += 1
                turn.set_result(None)
                self._waiting.move_to_end(viewer)
            if not queue:
                del self._waiting[viewer]
