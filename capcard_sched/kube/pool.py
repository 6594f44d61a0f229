"""Kept-alive connections to one server, for many short requests (docs/decisions/0013).

httptools reads the answers, asyncio holds the sockets, aiohappyeyeballs opens them; here they are put together.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from socket import SOCK_STREAM
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from aiohappyeyeballs import start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from yarl import URL

from capcard_sched.kube.cancellation import cancellations
from capcard_sched.kube.errors import ApiError, RequestWithheld, Unreachable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

#: How long an unused connection stays open, in seconds.
_KEEPALIVE_SECONDS: Final = 60.0
#: Between tries of the addresses of one name, in seconds (RFC 8305).
_NEXT_ADDRESS_SECONDS: Final = 0.25
#: The longest head of an answer, in bytes.
_HEAD_BYTES: Final = 2**17
#: Headers that say where a body ends. Without one it ends with its connection.
_ENDS: Final = frozenset({b"content-length", b"transfer-encoding"})


class HttpResponse(NamedTuple):
    """An answer, whole. `retry_after`: that header."""

    status: int
    retry_after: str | None
    body: bytes


def too_large(status: int, limit: int) -> ApiError:
    """What an answer of more than `limit` bytes is for its reader."""
    return ApiError(status, "TooLarge", f"the answer has more than {limit} bytes")


class Pool:
    """Connections to one server. Belongs to one event loop."""

    def __init__(self, server: str, context: ssl.SSLContext | None, server_name: str | None, limit: int) -> None:
        """`server`: URL. `server_name`: whom the certificate must name, where not the host. `limit`: 0 for none."""
        url = URL(server)
        self._host, self._port = url.raw_host or "", url.port or 0
        #: For the Host header.
        self.authority = url.host_port_subcomponent or ""
        #: What every path begins with.
        self.prefix = url.raw_path.rstrip("/")
        self._ssl = (context or True) if url.scheme == "https" else None
        self._server_name = (server_name or self._host) if self._ssl else None
        self._places = asyncio.Semaphore(limit or sys.maxsize)  # first come, first served
        self._open: set[_Connection] = set()
        #: Of those, the ones that rest, and since when: longest first.
        self._idle: deque[tuple[float, _Connection]] = deque()
        self._closed = False

    async def exchange(
        self,
        request: bytes,
        *,
        seconds: float,
        connect: float,
        limit: int,
        repeatable: bool = False,
        clear: Callable[[], bool] | None = None,
    ) -> HttpResponse:
        """Send a request and return the whole answer, whose body may have `limit` bytes.

        `seconds`: for all of it; `connect`: to wait for a place and then for a connection, each. `repeatable`: the
        request may be sent again when a connection that rested turns out to have ended. `clear`: asked right before
        it is sent, whether it still may be. Raises Unreachable, TimeoutError when the request was sent, ApiError when
        the body is too large, RequestWithheld.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._places.locked():
            try:
                async with asyncio.timeout(connect):
                    await self._places.acquire()
            except TimeoutError:
                raise Unreachable(f"no free connection within {connect:g} s", sent=False) from None
        else:
            await self._places.acquire()
        try:
            connection = self._rested(now)
            if connection is not None:
                try:
                    return await self._exchange(connection, request, limit, now + seconds, clear)
                except Unreachable:
                    if not repeatable or connection.heard:
                        raise
            fresh = await self._connect(min(now + seconds, loop.time() + connect), sent=connection is not None)
            return await self._exchange(fresh, request, limit, now + seconds, clear)
        finally:
            self._places.release()

    async def close(self) -> None:
        """Close everything; what is under way is broken."""
        self._closed = True
        for connection in self._open:
            connection.abort()
        self._idle.clear()
        while self._open:  # noqa: ASYNC110 -- a turn of the loop or two
            await asyncio.sleep(0)

    async def _exchange(
        self, connection: _Connection, request: bytes, limit: int, until: float, clear: Callable[[], bool] | None
    ) -> HttpResponse:
        if clear is not None and not clear():
            self._idle.append((asyncio.get_running_loop().time(), connection))
            raise RequestWithheld
        try:
            answer = await connection.exchange(request, limit, until)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.abort()
        return answer

    def _rested(self, now: float) -> _Connection | None:
        """The connection that was used last, if one is still good; those that rested for too long are closed."""
        idle = self._idle
        while idle and idle[0][0] < now - _KEEPALIVE_SECONDS:
            idle.popleft()[1].abort()
        while idle:
            _, connection = idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self, until: float, *, sent: bool) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until):
                addresses = await loop.getaddrinfo(self._host, self._port, type=SOCK_STREAM)
                before = cancellations()
                opened = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
                if cancellations() > before:
                    opened.close()
                    raise asyncio.CancelledError
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._open), sock=opened, ssl=self._ssl, server_hostname=self._server_name
                )
        except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
            why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise Unreachable(f"no connection to {self._host}:{self._port}: {why}", sent=sent) from error
        if self._closed:
            connection.abort()
        return connection


class _Connection(asyncio.Protocol):
    """One connection, one request at a time; also the listener of its parser."""

    def __init__(self, opened: set[_Connection]) -> None:
        """`opened`: where it stands while it is open."""
        self._opened = opened
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        #: Whether another request may be sent.
        self.reusable = True
        #: Whether anything came in answer to the last request.
        self.heard = False
        #: Of the answer that comes: how large it may get, has got, and what is known of it.
        self._limit = self._size = self._head_size = 0
        self._parts: list[bytes] = []
        self._retry_after: str | None = None
        self._headed = self._delimited = False
        self._done: asyncio.Future[HttpResponse] | None = None

    async def exchange(self, request: bytes, limit: int, until: float) -> HttpResponse:
        """As `Pool.exchange`; `until`: by the clock of the event loop. After an error it must be aborted."""
        if self._transport is None or not self.reusable:
            raise Unreachable("the connection has ended", sent=False)
        self.heard = self._headed = False
        self._limit, self._size, self._head_size = limit, 0, 0
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        timer = loop.call_at(until, self._fail, TimeoutError())  # half the price of `asyncio.timeout`
        self._transport.write(request)
        try:
            return await self._done
        finally:
            timer.cancel()
            self._done = None

    def abort(self) -> None:
        """Close it at once."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self.abort()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.abort()  # nobody asked: whatever it is, it is no answer to the next request
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(Unreachable(f"the answer is not HTTP/1.1: {error}", sent=True))
        if not self._headed:
            self._head_size += len(data)
            if self._head_size > _HEAD_BYTES:
                self._fail(Unreachable(f"the answer has a head of more than {_HEAD_BYTES} bytes", sent=True))

    def eof_received(self) -> None:
        if self._headed and not self._delimited:
            self._complete(reusable=False)
        self.reusable = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        self._fail(Unreachable(str(exc) if exc is not None else "the server closed the connection", sent=True))

    # --- callbacks of httptools -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._done is None or self._done.done():
            self.reusable = False  # a second answer
        self._parts, self._retry_after, self._headed, self._delimited = [], None, False, False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _ENDS:
            self._delimited = True
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)
        if self._size > self._limit:
            self._fail(too_large(self._parser.get_status_code(), self._limit))

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._headed = False  # an interim answer: the answer follows
        else:
            self._complete(reusable=self._parser.should_keep_alive())

    def _complete(self, *, reusable: bool) -> None:
        if self._done is not None and not self._done.done():
            self.reusable = self.reusable and reusable
            self._done.set_result(
                HttpResponse(self._parser.get_status_code(), self._retry_after, b"".join(self._parts))
            )
