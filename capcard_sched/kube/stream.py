"""The body of a watch, and helpers for responses of aiohttp."""

from __future__ import annotations

import asyncio

import aiohttp

from capcard_sched.kube.errors import Unreachable
from capcard_sched.kube.pool import too_large


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
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
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
    unsent = isinstance(
        error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.ClientHttpProxyError
    )
    if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ServerTimeoutError):
        return Unreachable(f"{what}: no response within {seconds:.3g} s", sent=True)
    return Unreachable(f"{what}: {_text(error)}", sent=not unsent)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
