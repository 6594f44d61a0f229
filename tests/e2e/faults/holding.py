"""Requests that stand still at the proxy until a test lets them go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.controlplane.proxy import Fault, Proxy, failure


class Hold:
    """Requests held back; a client that goes away takes its own along. `strikes` of the fault counts all there were."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        #: Number of stopped ones.
        self.held = 0
        #: Statuses of the requests that outlived their clients, and their tasks.
        self.statuses: list[int] = []
        self.tasks: set[asyncio.Task[web.Response]] = set()
        #: Whether they end with 403 in place of reaching the API server.
        self.refused = False
        self._over = asyncio.Event()

    def release(self, *, refused: bool = False) -> None:
        """Let them all go, and the later ones pass; `refused`: the stopped ones get an error."""
        self.refused = refused
        self.fault.lift()
        self._over.set()

    async def wait(self) -> None:
        """Stand still."""
        self.held += 1
        try:
            await self._over.wait()
        finally:
            self.held -= 1


def hold(
    proxy: Proxy,
    verb: str,
    path: str,
    *,
    after: bool = False,
    outlive: bool = False,
    nth: int = 1,
    times: int | None = None,
) -> Hold:
    """Hold back requests as in `Proxy.delay`: before they reach the API server, or, with `after`, their answers.

    With `outlive` they reach the API server although their client is gone, as from a middlebox that stores requests.
    """
    held = Hold(Fault(verb, path, nth, times))

    async def late(forward: Callable[[], Awaitable[web.Response]]) -> web.Response:
        await held.wait()
        answer = await forward()
        held.statuses.append(answer.status)
        return answer

    async def action(forward: Callable[[], Awaitable[web.Response]]) -> web.Response:
        if outlive:
            task = asyncio.create_task(late(forward))
            held.tasks.add(task)
            return await asyncio.shield(task)
        if not after:
            await held.wait()
            if held.refused:
                return web.json_response(failure(403, "refused late"), status=403)
            return await forward()
        answer = await forward()
        await held.wait()
        return answer

    proxy._add(held.fault, action)
    return held
