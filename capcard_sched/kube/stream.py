"""Connections and bodies of watches, and helpers for responses of aiohttp."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from capcard_sched.kube.errors import Unreachable, forget_frames
from capcard_sched.kube.pool import too_large


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


class Stream:
    """The body of a watch as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse, path: str) -> None:
        self._response = response
        self._path = path

    async def pause(self, seconds: float) -> None:
        """Pause reading, so that the bytes of this time arrive in one read, which costs much less."""
        connection = self._response.connection
        transport = connection.transport if connection is not None else None
        if transport is None:
            return  # the stream has ended
        transport.pause_reading()
        try:
            await asyncio.sleep(seconds)
        finally:
            transport.resume_reading()

    async def read(self) -> bytes:
        """Return all bytes that arrived since the last call, at least one; b"" at a proper end.

        Raises Unreachable when the connection breaks, TimeoutError after `silence` seconds without a byte.
        """
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            forget_frames(error)
            raise TimeoutError from error
        except (aiohttp.ClientError, OSError) as error:
            forget_frames(error)
            raise Unreachable(f"GET {self._path}: the stream broke: {_text(error)}", sent=True) from error


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read the whole body. Raises ApiError when it is larger than `limit` bytes."""
    parts: list[bytes] = []
    size = response.content_length or 0
    if size <= limit:
        size = 0
        while part := await response.content.readany():
            parts.append(part)
            size += len(part)
            if size > limit:
                break
        else:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    response.close()
    raise too_large(response.status, limit)


def unreachable(error: Exception, what: str, seconds: float) -> Unreachable:
    """Convert the error of a request without a response. Only failures to connect guarantee that nothing was sent."""
    forget_frames(error)
    unsent = isinstance(
        error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.ClientHttpProxyError
    )
    if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ServerTimeoutError):
        return Unreachable(f"{what}: no response within {seconds:.3g} s", sent=True)
    return Unreachable(f"{what}: {_text(error)}", sent=not unsent)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
