"""What the proxy makes of requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from aiohttp import web

#: Sends a request on to the API server.
Forward = Callable[[], Awaitable[web.Response]]
Action = Callable[[Forward], Awaitable[web.Response]]


class Fault:
    """Something that goes wrong for requests of a verb whose path (without its query) has a match of `path` in it.

    The verb is the HTTP method, or WATCH, for which each event of the matching streams counts as one match. It strikes
    from the `nth` match on, `times` times (None: for good).

    Attributes:
        matches: How many matches there were.
        strikes: How often it struck.
    """

    def __init__(self, verb: str, path: str, nth: int, times: int | None) -> None:
        self.verb = verb
        self.path = re.compile(path)
        self.nth = nth
        self.times = times
        self.matches = 0
        self.strikes = 0
        self._changed = asyncio.Condition()

    def concerns(self, verb: str, path: str) -> bool:
        """Whether such a request is a match."""
        return verb == self.verb and self.path.search(path) is not None

    async def strikes_now(self) -> bool:
        """Counts a match and returns whether it is one to strike."""
        self.matches += 1
        if self.matches < self.nth or (self.times is not None and self.strikes >= self.times):
            return False
        async with self._changed:
            self.strikes += 1
            self._changed.notify_all()
        return True

    async def struck(self, times: int = 1, *, within: float = 60.0) -> None:
        """Waits until it struck so often."""
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(lambda: self.strikes >= times)

    def lift(self) -> None:
        """It strikes no more."""
        self.times = 0


class Hold(Fault):
    """Requests that stand still until they are released; a client that goes away takes its own along.

    Attributes:
        held: How many stand still.
        statuses: Of the requests that were released.
        tasks: Of the requests that outlive their clients.
    """

    def __init__(self, verb: str, path: str, nth: int) -> None:
        super().__init__(verb, path, nth, None)
        self.held = 0
        self.statuses: list[int] = []
        self.tasks: set[asyncio.Task[web.Response]] = set()
        self._over = asyncio.Event()

    def release(self) -> None:
        """Lets them all go, and the later ones pass."""
        self.lift()
        self._over.set()

    async def late(self, forward: Forward) -> web.Response:
        """Stands still, then forwards the request."""
        self.held += 1
        try:
            await self._over.wait()
        finally:
            self.held -= 1
        answer = await forward()
        self.statuses.append(answer.status)
        return answer
