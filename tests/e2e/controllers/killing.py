"""The write at which a process of the controllers is killed."""

from __future__ import annotations

import asyncio

from aiohttp import web

from tests.controlplane.faults import Fault, Forward
from tests.controlplane.proxy import Proxy

_WRITES = ("POST", "PATCH", "DELETE")


class NthWrite(Fault):
    """The nth write of a process, and those after it, get no response.

    The API server executes them (`taken`), or receives none.
    """

    def __init__(self, nth: int, *, taken: bool) -> None:
        super().__init__("POST", "", nth, None)
        self.reached = asyncio.Event()
        self._taken = taken

    def concerns(self, verb: str, path: str) -> bool:
        """Events and Leases do not change what is reconciled."""
        return verb in _WRITES and "/events" not in path and "/leases" not in path

    def strike(self, proxy: Proxy) -> None:
        """Begin to count; `reached` is set at the write."""

        async def action(forward: Forward) -> web.Response:
            if self._taken:
                await forward()
            self.reached.set()
            await asyncio.Event().wait()  # the client is gone before it ends
            raise AssertionError

        proxy.strike(self, action)
