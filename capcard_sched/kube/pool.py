"""Connections to one server, kept alive for short requests, or of one watch each (docs/decisions/0013).

httptools parses responses, asyncio holds the sockets, aiohappyeyeballs opens them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import struct
import sys
from base64 import b64encode
from collections import deque
from socket import SO_LINGER, SOCK_STREAM, SOL_SOCKET
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec
from aiohappyeyeballs import start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from yarl import URL

from capcard_sched.kube.errors import ApiError, RequestWithheld, Unreachable, cancellations, forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.connection import Connection

#: Seconds for which an idle connection stays open.
_KEEPALIVE_SECONDS: Final = 60.0
#: Seconds between attempts at the addresses of one name (RFC 8305).
_NEXT_ADDRESS_SECONDS: Final = 0.25
#: Status of a response with a watch, or of an open tunnel.
_OK: Final = 200
#: Seconds by which an exchange may end before its deadline: the precision of timers of uvloop.
_TIMER_SECONDS: Final = 0.001
#: Bytes read ahead of a slow reader of a watch.
_READ_AHEAD: Final = 2**20
#: Bytes of the longest head of a response.
_HEAD_BYTES: Final = 2**17
#: Value of SO_LINGER: closing resets the connection.
_NO_LINGER: Final = struct.pack("ii", 1, 0)
#: Headers that delimit a body. Without one it ends with its connection.
_ENDS: Final = frozenset({b"content-length", b"transfer-encoding"})
#: Headers that a response keeps.
_KEPT: Final = frozenset({b"retry-after", b"warning"})


class HttpResponse(msgspec.Struct, frozen=True):
    """A response. `headers`: those of `_KEPT`. `stream`: of a watch, what the body arrives on."""

    status: int
    headers: list[tuple[bytes, str]]
    body: bytes
    stream: _Connection | None = None


class Pool:
    """Connections to one server. Belongs to one event loop."""

    def __init__(self, connection: Connection, limit: int) -> None:
        """`limit`: connections, 0 for none."""
        url, proxy = URL(connection.server), connection.proxy
        first = URL(proxy or connection.server)
        self._host, self._port = first.raw_host or "", first.port or 0
        authority = url.host_port_subcomponent or ""
        #: Headers of every request.
        self.head = f"Host: {authority}\r\n"
        #: Prefix of every path.
        self.prefix = url.raw_path.rstrip("/")
        name = connection.server_name or url.raw_host or ""
        tls = connection.ssl or ssl.create_default_context() if "https" in {url.scheme, first.scheme} else None
        self._ssl = tls if first.scheme == "https" else None
        self._server_name = (self._host if proxy else name) if self._ssl else None
        #: Of a tunnel through the proxy: its request, and TLS beyond it.
        self._tunnel: tuple[bytes, ssl.SSLContext, str] | None = None
        if proxy:
            login = b64encode(f"{first.user}:{first.password or ''}".encode()).decode()
            credentials = f"Proxy-Authorization: Basic {login}\r\n" if first.user else ""
            if url.scheme == "https" and tls:
                target = f"{url.host_subcomponent}:{url.port}"
                request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{credentials}\r\n"
                self._tunnel = request.encode(), tls, name
            else:
                self.head, self.prefix = self.head + credentials, f"http://{authority}{self.prefix}"
        #: Exchanges that may begin, and those that wait. `asyncio.Semaphore` takes three calls for a free slot.
        self._free = limit or sys.maxsize
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._open: set[_Connection] = set()
        #: Idle connections with the time since when, longest first.
        self._idle: deque[tuple[float, _Connection]] = deque()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadlines = _Deadlines(self._open)

    async def exchange(
        self,
        request: bytes,
        *,
        seconds: float,
        connect: float,
        limit: int,
        repeatable: bool = False,
        time_left: Callable[[], float] | None = None,
        silence: float | None = None,
    ) -> HttpResponse:
        """Send a request and return the complete response, whose body has at most `limit` bytes.

        `seconds`: for the whole exchange; `connect`: for a free slot, and again for a connection. `repeatable`: the
        request is sent again when an idle connection turns out to be closed. `time_left` is called right before the
        request is sent; the exchange ends within these seconds, and 0 or less withholds the request. `silence`: of a
        watch, the longest pause; the body of a response with status 200 is then its `stream`, which the caller aborts.
        Raises Unreachable, TimeoutError after sending, ApiError when the body is too large, RequestWithheld.
        """
        loop = self._loop
        if loop is None:  # read once: each call of `get_running_loop` is a system call in Python 3.11
            loop = self._loop = self._deadlines.loop = asyncio.get_running_loop()
        now = loop.time()
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait_for_slot(loop, connect)
        try:
            connection = self._pop_idle(now)
            if connection is not None:
                try:
                    return await self._exchange(loop, connection, request, limit, now, seconds, time_left, silence)
                except Unreachable:
                    if not repeatable or connection.responded:
                        raise
            fresh = await self._connect(min(now + seconds, loop.time() + connect), sent=connection is not None)
            try:
                return await self._exchange(loop, fresh, request, limit, now, seconds, time_left, silence)
            except Unreachable as error:
                error.sent = error.sent or connection is not None  # it was sent on the idle connection
                raise
        finally:
            self._release_slot()

    async def _wait_for_slot(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Wait for a slot in order of arrival. Raises Unreachable."""
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting.append(granted)
        try:
            async with asyncio.timeout(seconds):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                self._release_slot()  # it was granted in the same iteration of the event loop
            if isinstance(error, TimeoutError):
                raise Unreachable(f"no free connection within {seconds:g} s", sent=False) from None
            raise

    def _release_slot(self) -> None:
        """Grant the slot of an exchange to the one that waits longest."""
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1

    async def close(self) -> None:
        """Close all connections and abort their exchanges."""
        self._closed = True
        for connection in self._open:
            connection.abort()
        self._idle.clear()
        while self._open:  # noqa: ASYNC110 -- one or two iterations of the event loop
            await asyncio.sleep(0)
        self._deadlines.stop()

    async def _exchange(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: _Connection,
        request: bytes,
        limit: int,
        began: float,
        seconds: float,
        time_left: Callable[[], float] | None,
        silence: float | None,
    ) -> HttpResponse:
        until = began + seconds
        if time_left is not None:
            now, left = loop.time(), time_left()
            if left <= 0.0:
                self._idle.append((now, connection))
                raise RequestWithheld
            until, seconds = min(until, now + left), min(seconds, left)
        try:
            response = await connection.begin(request, limit, until, silence)
        except TimeoutError:
            raise TimeoutError(f"no response within {seconds:.3g} s") from None
        except BaseException:
            connection.abort()
            raise
        finally:
            connection.end()
        if connection.reusable:
            self._idle.append((loop.time(), connection))
        elif response.stream is None:
            connection.abort()
        return response

    def _pop_idle(self, now: float) -> _Connection | None:
        """Return the most recently used open connection; close those that were idle for too long."""
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
                connection = _Connection(loop, self._open, self._deadlines)
                try:
                    await loop.create_connection(
                        lambda: connection, sock=opened, ssl=self._ssl, server_hostname=self._server_name
                    )
                except BaseException:
                    connection.abort()
                    connection.connection_lost(None)  # uvloop reports no loss when the opening is cancelled
                    raise
                if self._tunnel is not None:
                    await connection.pass_through(until, *self._tunnel)
        except (OSError, UnicodeError, Unreachable, ApiError) as error:  # the second for an invalid host name
            forget_frames(error)
            why = "timed out" if isinstance(error, TimeoutError) else str(error)
            raise Unreachable(f"no connection to {self._host}:{self._port}: {why}", sent=sent) from error
        if self._closed:
            connection.abort()
        return connection


class _Deadlines:
    """Ends the exchanges of a pool at their deadlines.

    They share one timer: a timer of uvloop costs as much as the parsing of a response, and nearly none of them fires.
    """

    def __init__(self, opened: set[_Connection]) -> None:
        """`opened`: the set of open connections. `loop` is to be set before the first `watch`."""
        self._opened = opened
        self.loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        #: Time of the loop at which the timer fires.
        self._next = math.inf

    def watch(self, until: float) -> None:
        """Have the timer fire at `until`, the deadline of an exchange that begins, or before."""
        if until < self._next:
            if self._timer is not None:
                self._timer.cancel()
            self._next, self._timer = until, self.loop.call_at(until, self._fire)

    def _fire(self) -> None:
        self._next, self._timer = math.inf, None
        now = self.loop.time() + _TIMER_SECONDS
        for connection in [one for one in self._opened if one.until <= now]:
            connection.expire()
        until = min((one.until for one in self._opened if one.until > now), default=math.inf)
        if until < math.inf:
            self.watch(until)

    def stop(self) -> None:
        """End no exchange any more."""
        if self._timer is not None:
            self._timer.cancel()


class _Connection(asyncio.Protocol):
    """One connection, one request at a time; also the listener of its parser."""

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: set[_Connection], deadlines: _Deadlines) -> None:
        """`opened`: the set of open connections."""
        self._loop, self._registry, self._deadlines = loop, opened, deadlines
        #: Time of the loop at which the exchange in progress ends; infinite without one.
        self.until = math.inf
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        #: Whether another request may be sent.
        self.reusable = True
        #: Whether any byte arrived in response to the last request.
        self.responded = False
        #: The incoming response: limit and size of its body, size of its head, and its parts.
        self._limit = self._size = self._head_size = 0
        self._parts: list[bytes] = []
        self._headers: list[tuple[bytes, str]] = []
        self._headed = self._delimited = False
        self._done: asyncio.Future[HttpResponse] | None = None
        #: Whether the body of a response with status 200 is read in parts, and what ended it: "" for a proper end.
        self._is_stream = False
        self._end: str | None = None
        self._arrived = asyncio.Event()
        self._silence: float | None = None

    def begin(
        self, request: bytes, limit: int, until: float, silence: float | None = None
    ) -> asyncio.Future[HttpResponse]:
        """Send a request; returns its response, with the errors of `Pool.exchange`. `until`: time of the event loop.

        The caller calls `end` when the exchange is over, and aborts the connection after an error.
        """
        if self._transport is None or not self.reusable:
            raise Unreachable("the connection is closed", sent=False)
        self.responded = self._headed = False
        self._is_stream, self._silence, self._end = silence is not None, silence, None
        self._limit, self._size, self._head_size = limit, 0, 0
        self._done = done = self._loop.create_future()
        self.until = until
        self._deadlines.watch(until)
        self._transport.write(request)
        return done

    def end(self) -> None:
        """Forget the exchange: an error would keep the connection in a reference cycle."""
        self.until, self._done = math.inf, None

    async def pass_through(self, until: float, request: bytes, tls: ssl.SSLContext, name: str) -> None:
        """Open a tunnel to a server. Raises OSError and as `exchange`; the connection is then aborted."""
        try:
            response = await self.begin(request, _HEAD_BYTES, until, 0.0)
            self.end()
            if response.status != _OK:
                raise ConnectionError(f"the proxy responded with status {response.status}")
            assert self._transport is not None
            self._parser = HttpResponseParser(self)
            self._transport = await self._loop.start_tls(self._transport, self, tls, server_hostname=name)
            self.reusable = True
        except BaseException:
            self.abort()
            self.connection_lost(None)  # TLS forwards no loss before the end of its handshake
            raise

    async def read(self) -> bytes:
        """All bytes of the body that arrived since the last call, at least one; b"" at its proper end.

        Raises Unreachable when the connection breaks, TimeoutError after `silence` seconds without a byte.
        """
        if not self._parts and self._end is None:
            self._arrived.clear()
            async with asyncio.timeout(self._silence):
                await self._arrived.wait()
        if not self._parts and self._end:
            raise Unreachable(f"the stream broke: {self._end}", sent=True)
        found, self._parts, self._size = b"".join(self._parts), [], 0
        self._resume()
        return found

    async def pause(self, seconds: float) -> None:
        """Pause reading, so that the bytes of this time arrive in one read, which costs much less."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            try:
                await asyncio.sleep(seconds)
            finally:
                self._resume()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def expire(self) -> None:
        """End the exchange at its deadline; the reset discards bytes that the kernel has not sent yet."""
        connection = self._transport.get_extra_info("socket") if self._transport is not None else None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(SOL_SOCKET, SO_LINGER, _NO_LINGER)
        self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self.abort()
        if self._is_stream and self._headed and self._end is None:
            self._end = str(error)
            self._arrived.set()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._registry.add(self)

    def data_received(self, data: bytes) -> None:
        if (self._done is None or self._done.done()) and not (self._is_stream and self._end is None):
            self.abort()  # unsolicited data is no response to the next request
            return
        self.responded = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(Unreachable(f"the response is not HTTP/1.1: {error}", sent=True))
        if not self._headed:
            self._head_size += len(data)
            if self._head_size > _HEAD_BYTES:
                self._fail(Unreachable(f"the response has a head of more than {_HEAD_BYTES} bytes", sent=True))

    def eof_received(self) -> None:
        if self._headed and not self._delimited:
            self._complete(reusable=False)
        self.reusable = False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._registry.discard(self)
        self._fail(Unreachable(str(exc) if exc is not None else "the server closed the connection", sent=True))
        # The parser holds its listener: both, and the buffers of TLS, would stay until a full garbage collection.
        del self._parser
        self._transport = None

    def on_message_begin(self) -> None:
        if self._done is None or self._done.done():
            self.reusable = False  # a second response
        else:
            self._parts, self._headers, self._headed, self._delimited = [], [], False, False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _ENDS:
            self._delimited = True
        elif name in _KEPT:
            self._headers.append((name, value.decode("utf-8", "replace")))

    def on_headers_complete(self) -> None:
        self._headed = True
        if self._is_stream and self._parser.get_status_code() == _OK:
            self._complete(reusable=False)
        else:
            self._is_stream = self._is_stream and self._parser.get_status_code() < _OK

    def on_body(self, body: bytes) -> None:
        if self._end is not None:
            return
        self._parts.append(body)
        self._size += len(body)
        if self._is_stream:
            self._arrived.set()
            if self._size > _READ_AHEAD and self._transport is not None:
                self._transport.pause_reading()
        elif self._size > self._limit:
            text = f"the response has more than {self._limit} bytes"
            self._fail(ApiError(self._parser.get_status_code(), "TooLarge", text))

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < _OK:
            self._headed = False  # an interim response: the final one follows
        else:
            self._complete(reusable=self._parser.should_keep_alive())

    def _complete(self, *, reusable: bool) -> None:
        if self._done is not None and not self._done.done():
            self.reusable = self.reusable and reusable
            stream = self if self._is_stream else None
            status, body = self._parser.get_status_code(), b"".join(self._parts)
            self._done.set_result(HttpResponse(status, self._headers, body, stream))
        elif self._is_stream and self._end is None:
            self._end = ""
            self._arrived.set()


#: The body of a watch as it arrives: `read` and `pause`.
Stream: TypeAlias = _Connection
