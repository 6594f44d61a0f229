"""The daemon's HTTP: /metrics on one port, /healthz and /readyz on another.

Any pod of the cluster can connect to these ports, so connections, header sizes and all waits for a client are limited.
A new connection above the limit replaces the oldest one without a request in progress, so silent connections do not
delay probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import math
import socket
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

from aiohttp import web

from capcard_sched.daemon.common_options import ServeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path

    import structlog

    from capcard_sched.daemon.controller_options import ControllerOptions
    from capcard_sched.daemon.flag_values import AddressFlag
    from capcard_sched.daemon.observability.health import HealthState
    from capcard_sched.daemon.options import Options

_FAMILY_MISSING: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 21\r\nConnection: close\r\n\r\ntoo many connections\n"
)
#: Seconds for which a scrape waits for fresh values of the scheduler thread before it serves the last ones.
_REFRESH_SECONDS: Final = 0.5
_SMALL: Final = 1024
#: Seconds until the next attempt to accept a connection after a failure.
_ACCEPT_PAUSE_SECONDS: Final = 0.05
#: Seconds within which a connection above the limit must send its request.
_REFUSAL_SECONDS: Final = 1.0
#: Number of connections that the kernel queues for `accept`.
_BACKLOG: Final = 512


class ServerLimits(NamedTuple):
    """Limits per server. Times in seconds, sizes in bytes."""

    connections: int = 64
    #: Time until the TLS handshake is complete, and again the headers of a request, also on an idle connection.
    header_seconds: float = 5.0
    #: Time until the headers of a request on an open connection; None: `header_seconds`.
    idle_seconds: float | None = None
    #: Time to produce a response and send it.
    response_seconds: float = 10.0
    #: Age from which a request in progress is aborted for a new connection, when all connections have one.
    busy_seconds: float = 1.0
    #: Size of one header line. Bodies are not read.
    header_bytes: int = 8190
    headers: int = 32


_DEFAULT_LIMITS: Final = ServerLimits()

Page: TypeAlias = "Callable[[web.Request], Awaitable[web.Response]]"


class TlsContext(Protocol):
    """The source of the server's TLS context; it may replace the certificate of a context in use."""

    def context(self) -> ssl.SSLContext:
        """Raises ServeError when there is none."""


class Tls(NamedTuple):
    """Files in PEM form. With `authorities`, a certificate that a client shows must be signed by one of them."""

    certificate: Path
    key: Path
    authorities: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Raises ServeError when a file cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ServeError(f"TLS certificate {self.certificate} with key {self.key}: {_cause(error)}") from None
        if self.authorities is not None:
            try:
                context.load_verify_locations(self.authorities)
            except (OSError, ssl.SSLError) as error:
                raise ServeError(f"TLS certificate authorities {self.authorities}: {_cause(error)}") from None
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


class Exposition(Protocol):
    """The interface of `metric_table.MetricSet`."""

    content_type: str

    def exposition(self) -> bytes:
        """All metrics, rendered."""


class HttpServer:
    """One port and its pages. `start` once, `stop` once."""

    def __init__(
        self,
        address: AddressFlag,
        pages: Mapping[str, Page],
        *,
        posts: Mapping[str, Page] | None = None,
        body_bytes: int = _SMALL,
        tls: TlsContext | None = None,
        limits: ServerLimits = _DEFAULT_LIMITS,
        shutdown_seconds: float = 1.0,
    ) -> None:
        """`pages`: GET, HEAD; `posts`: POST, bodies up to `body_bytes`; `shutdown_seconds`: of requests at the end."""
        self._address = address
        self._tls = tls
        self._limits = limits
        app = web.Application(middlewares=[self._respond], client_max_size=body_bytes)
        for path, page in pages.items():
            app.router.add_get(path, page)
        for path, page in (posts or {}).items():
            app.router.add_post(path, page)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            keepalive_timeout=limits.header_seconds if limits.idle_seconds is None else limits.idle_seconds,
            lingering_time=0.0,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            shutdown_timeout=shutdown_seconds,
        )
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._context: ssl.SSLContext | None = None
        #: Open connections, oldest first; pruned when the next one is accepted.
        self._open: list[_ServedConnection] = []
        #: Connections above the limit, until they have their response.
        self._refused: list[_ServedConnection] = []
        #: Connections with a request in progress, and its time of arrival.
        self._busy: dict[object, float] = {}

    @property
    def port(self) -> int:
        """The listening port; the system chooses it for port 0."""
        if self._listener is None:
            raise RuntimeError("the server is not started")
        return int(self._listener.getsockname()[1])

    async def start(self) -> None:
        """Listen. Raises ServeError when the address is taken or unusable, or a TLS file is."""
        self._context = None if self._tls is None else self._tls.context()
        listener = _listen(self._address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        await self._runner.setup()
        self._listener = listener
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    async def stop(self) -> None:
        """Stop accepting, let responses in progress finish for `shutdown_seconds`, and close."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in self._open:
            if connection.transport is None:
                connection.abort()
        await self._runner.cleanup()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError:  # no file descriptors left, or the client is gone already
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            self._admit(accepted)

    def _admit(self, accepted: socket.socket) -> None:
        """Serve a new connection; above the limit, abort an older one or respond 503."""
        self._open = [each for each in self._open if not each.is_closed()]
        server = self._runner.server
        if server is None or (len(self._open) >= self._limits.connections and not self._evict()):
            if self._context is None:
                self._refused = [each for each in self._refused if not each.is_closed()]
                self._refused.append(_ServedConnection(_OverloadProtocol(), accepted, None, _REFUSAL_SECONDS))
            else:
                accepted.close()
            return
        self._open.append(_ServedConnection(server(), accepted, self._context, self._limits.header_seconds))

    def _evict(self) -> bool:
        """Abort the oldest connection without a request in progress, else the oldest slow one; False without either."""
        slow = asyncio.get_running_loop().time() - self._limits.busy_seconds
        for limit in (-math.inf, slow):
            for index, connection in enumerate(self._open):
                if self._busy.get(connection.protocol, -math.inf) <= limit:
                    connection.abort()
                    del self._open[index]
                    return True
        return False

    @web.middleware
    async def _respond(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Produce and send the response within the limit, or abort the connection."""
        self._busy[request.protocol] = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._limits.response_seconds):
                try:
                    response = await handler(request)
                except web.HTTPException as error:
                    response = web.Response(status=error.status, text=f"{error.reason}\n", headers=_allowed(error))
                response.headers["X-Content-Type-Options"] = "nosniff"
                if request.can_read_body:
                    response.force_close()  # the body stays unread
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise asyncio.CancelledError from None
        finally:
            self._busy.pop(request.protocol, None)
        return response


def _allowed(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


class _ServedConnection:
    """An accepted connection, from the TLS handshake on."""

    def __init__(
        self, protocol: asyncio.Protocol, accepted: socket.socket, context: ssl.SSLContext | None, seconds: float
    ) -> None:
        """`seconds`: limit of the handshake, if there is one."""
        self.protocol = protocol
        #: None before the end of the handshake.
        self.transport: asyncio.Transport | None = None
        self._task = asyncio.get_running_loop().create_task(self._connect(accepted, context, seconds))

    async def _connect(self, accepted: socket.socket, context: ssl.SSLContext | None, seconds: float) -> None:
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self.protocol,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else seconds,
            )
        except (OSError, ssl.SSLError):  # no TLS, too slow, or aborted
            accepted.close()
        else:
            self.transport = transport

    def is_closed(self) -> bool:
        return self._task.done() and (self.transport is None or self.transport.is_closing())

    def abort(self) -> None:
        """Close at once."""
        if self.transport is None:
            self._task.cancel()
        else:
            self.transport.abort()


class _OverloadProtocol(asyncio.Protocol):
    """Responds 503 to a connection above the limit, after its request: an earlier response would end in a reset."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(_REFUSAL_SECONDS, self._transport.abort)

    def data_received(self, _data: bytes) -> None:
        self._transport.write(_FULL)
        self._transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._timer.cancel()


def metrics_pages(metrics: Exposition, refresh: Callable[[], Awaitable[object]] | None = None) -> dict[str, Page]:
    """/metrics. `refresh` is awaited before every scrape, for at most half a second; it may fetch fresh values."""

    async def page(request: web.Request) -> web.Response:
        if refresh is not None:
            with contextlib.suppress(TimeoutError):  # during a long session the last values are served
                async with asyncio.timeout(_REFRESH_SECONDS):
                    await refresh()
        accepted = request.headers.get("Accept-Encoding", "")
        packed = any(coding.split(";")[0].strip() == "gzip" for coding in accepted.split(","))
        body = await asyncio.to_thread(_render, metrics, packed=packed)
        headers = {"Content-Type": metrics.content_type, "Vary": "Accept-Encoding"}
        if packed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    return {"/metrics": page}


def _render(metrics: Exposition, *, packed: bool) -> bytes:
    text = metrics.exposition()
    return gzip.compress(text, 1, mtime=0) if packed else text


def health_pages(health: HealthState) -> dict[str, Page]:
    """/healthz and /readyz: 200 `ok`, or 503 with the reason.

    A failing /readyz, and `/readyz?verbose`, list every check in the format of the API server's /readyz.
    """

    async def healthz(_: web.Request) -> web.Response:
        slow = health.slow_cycle()
        return _status_response(health.liveness_error(), f"slow: {slow}\n" if slow else "")

    async def readyz(request: web.Request) -> web.Response:
        checks = health.readiness()
        ready = not any(checks.values())
        if ready and "verbose" not in request.query:
            return _status_response("")
        lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in checks.items()]
        text = "\n".join([*lines, f"readyz check {'passed' if ready else 'failed'}", ""])
        return web.Response(status=200 if ready else 503, text=text)

    return {"/healthz": healthz, "/readyz": readyz}


def _status_response(problem: str, note: str = "") -> web.Response:
    return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n{note}")


async def open_pages(
    stack: AsyncExitStack,
    log: structlog.stdlib.BoundLogger,
    options: Options | ControllerOptions,
    metrics: Exposition,
    health: HealthState,
    sample: Callable[[], Awaitable[object]],
    tls: TlsContext | None = None,
) -> None:
    """Serve the pages that the flags enable; one server if both share an address. `tls`: of the health server.

    Raises ServeError.
    """
    pages: dict[AddressFlag, dict[str, Page]] = {}
    if options.enable_metrics:
        pages[options.listen_address] = metrics_pages(metrics, sample)
    if options.enable_healthz:
        pages.setdefault(options.healthz_address, {}).update(health_pages(health))
    for address, content in pages.items():
        server = HttpServer(address, content, tls=tls if "/healthz" in content else None)
        await server.start()
        stack.push_async_callback(server.stop)
        log.info("serving", address=f"{address.host}:{server.port}", pages=sorted(content))


def _listen(address: AddressFlag) -> socket.socket:
    """One listening socket, IPv4 and IPv6 when no host is given. Raises ServeError."""
    try:
        if address.host:
            family, _, _, _, place = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return socket.create_server((str(place[0]), int(place[1])), family=family)
        if socket.has_dualstack_ipv6():
            try:
                return socket.create_server(("", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
            except OSError as error:
                if error.errno not in _FAMILY_MISSING:
                    raise
        return socket.create_server(("", address.port))
    except OSError as error:
        raise ServeError(f"cannot listen on {address}: {_cause(error)}") from None


def _cause(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the address is in use by another process"
    return error.strerror or str(error)
