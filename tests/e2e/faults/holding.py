"""Requests that stand still at the proxy until a test lets them go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.controlplane.proxy import Fault, Proxy


class Hold:
    """Requests held back; a client that goes away takes its own along. `strikes` of the fault counts all there were."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        #: How many stand still now.
        self.held = 0
        self._over = asyncio.Event()

    def release(self) -> None:
        """Let them all go, and the later ones pass."""
        self.fault.lift()
        self._over.set()

    async def wait(self) -> None:
        """Stand still."""
        self.held += 1
        try:
            await self._over.wait()
        finally:
            self.held -= 1


def hold(proxy: Proxy, verb: str, path: str, *, after: bool = False, nth: int = 1, times: int | None = None) -> Hold:
    """Hold back requests as in `Proxy.delay`: before they reach the API server, or, with `after`, their answers."""
    held = Hold(Fault(verb, path, nth, times))

    async def action(forward: Callable[[], Awaitable[web.Response]]) -> web.Response:
        if not after:
            await held.wait()
            return await forward()
        answer = await forward()
        await held.wait()
        return answer

    proxy._add(held.fault, action)
    return held
