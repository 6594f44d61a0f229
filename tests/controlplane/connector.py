"""The connector of the tests' own clients of aiohttp."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler


class _RecordedProtocol(ResponseHandler):
    """Adds its transport to the open ones, and ends the shutdowns under way."""

    def __init__(self, opened: set[asyncio.Transport], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        for each in [each for each in self._opened if each.is_closing()]:
            each.abort()
            self._opened.discard(each)
        self._opened.add(cast("asyncio.Transport", transport))
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._opened.discard(cast("asyncio.Transport", self.transport))
        super().connection_lost(exc)


class AbortingConnector(aiohttp.TCPConnector):
    """Opens connections, and closes them at once when it is closed itself.

    A connection that is forgotten (its request is cancelled, or its response is not read to its end) is shut down by
    TLS. That waits for the peer, which may take longer than the event loop of a command runs.
    """

    def __init__(self, **settings: Any) -> None:
        """`settings`: as in the base class."""
        super().__init__(**settings)
        self._opened: set[asyncio.Transport] = set()
        factory = functools.partial(_RecordedProtocol, self._opened, self._loop)
        self._factory = cast("functools.partial[ResponseHandler]", factory)

    async def close(self, *, abort_ssl: bool = True) -> None:
        """Close all connections, the forgotten ones too."""
        for transport in self._opened:
            transport.abort()
        self._opened.clear()
        await super().close(abort_ssl=abort_ssl)
        await asyncio.sleep(0)  # aborted sockets are closed in the next iteration of the event loop
