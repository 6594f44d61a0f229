"""Requests to a Kubernetes API server: kept-alive connections, timeouts, tokens, a client-side limit, typed errors.

Errors differ by what the caller may conclude. `ApiError`: the server responded with an error. `Unreachable`: there is
no response; `sent` states whether the request can have had an effect. `RequestWithheld`: the caller's own check stopped
the request. The caller decides about retries.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from capcard_sched.kube.connection import ConnectionConfigError
from capcard_sched.kube.errors import ApiError, RequestWithheld, Unreachable, api_error, cancellations
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.paths import resource_of, verb_of
from capcard_sched.kube.pool import HttpResponse, Pool
from capcard_sched.kube.stream import AbortingConnector, Stream, read_body, unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from types import TracebackType

    from capcard_sched.kube.connection import Connection


class Throttle:
    """A token bucket with debt: requests pass in FIFO order and wait no longer than the rate requires."""

    def __init__(self, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`qps`: requests per second, 0 for no limit. `burst`: requests that pass at once after a pause, at least 1."""
        self._qps = qps
        self._burst = float(max(burst, 1))
        self._clock = clock
        self._tokens = self._burst
        self._filled = clock()

    def reserve(self) -> float:
        """Take a token; returns seconds to wait before using it."""
        if self._qps <= 0:
            return 0.0
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._qps) - 1.0
        self._filled = now
        return max(0.0, -self._tokens / self._qps)

    async def wait(self) -> None:
        """Take a token and wait until it is valid."""
        delay = self.reserve()
        if delay > 0:
            await asyncio.sleep(delay)


__all__ = ["ApiError", "Client", "RequestWithheld", "Stream", "Unreachable"]

#: Seconds to wait for a free connection and for its opening; at most half of the whole timeout.
_CONNECT_SECONDS = 10.0
#: Seconds after which the token is read from its source again; the kubelet renews minutes ahead of expiry.
_TOKEN_SECONDS = 10.0
#: Bytes of the largest response about one object: etcd stores no larger ones.
_OBJECT_BYTES = 8 * 2**20
#: Bytes read ahead of a slow reader.
_READ_AHEAD = 2**20
#: Indexes of pools. Streams last for minutes, so they have a pool of their own.
_LIMITED, _UNLIMITED = 0, 1
#: Idempotent methods.
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})
#: Seconds for which an idle connection stays open.
_KEEPALIVE_SECONDS = 60.0
_NOT_OPEN = "the client is not open: use `async with client`"


class _ClientRequest(NamedTuple):
    """A request, the limits of its response (seconds, bytes), and the caller's check right before it is sent."""

    pool: int
    method: str
    path: str
    params: Mapping[str, str] | None
    body: bytes | None
    content_type: str
    seconds: float
    limit: int
    time_left: Callable[[], float] | None


class _Deadline:
    """Calls `time_left` and records the deadline that resulted, for messages."""

    __slots__ = ("_time_left", "seconds")

    def __init__(self, time_left: Callable[[], float], seconds: float) -> None:
        self._time_left = time_left
        self.seconds = seconds

    def __call__(self) -> float:
        left = self._time_left()
        self.seconds = min(self.seconds, left)
        return left


class Client:
    """Requests to one API server. An async context manager; belongs to the event loop it is entered in."""

    def __init__(
        self,
        connection: Connection,
        *,
        connections: int = 32,
        qps: float = 2000,
        burst: int = 2000,
        timeout: float = 30.0,
        user_agent: str = "capcard-sched",
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most `connections` at a time, streams not counted; `timeout` in seconds for a whole request."""
        self.connection = connection
        self._connections = connections
        self._timeout = timeout
        self._throttle = Throttle(qps, burst, clock)
        self._observer = observer or Observer()
        self._clock = clock
        # Responses are not compressed: unpacking a list costs more than its transfer over a cluster's network.
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": user_agent}
        context, name = connection.ssl, connection.server_name
        self._pools = Pool(connection.server, context, name, connections), Pool(connection.server, context, name, 0)
        #: Carry streams, and all requests when a proxy is configured.
        self._sessions: tuple[aiohttp.ClientSession, aiohttp.ClientSession] | None = None
        #: The encoded headers of every request, with the token that they contain.
        self._head: tuple[str | None, str] | None = None
        self._token: str | None = None
        self._token_read: float | None = None
        self._token_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._sessions = (self._session(self._connections), self._session(0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sessions, self._sessions = self._sessions or (), None
        for pool in self._pools:
            await pool.close()
        for session in sessions:
            await session.close()

    def _session(self, limit: int) -> aiohttp.ClientSession:
        connector = AbortingConnector(
            limit=limit,
            ssl=self.connection.ssl if self.connection.ssl is not None else True,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            ttl_dns_cache=10,
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=_READ_AHEAD,
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,  # noqa: ASYNC109 -- raises Unreachable, unlike the caller's own timeouts
        throttled: bool = True,
        limit: int = _OBJECT_BYTES,
        time_left: Callable[[], float] | None = None,
    ) -> bytes:
        """Send a request; return the body of a 2xx response, up to `limit` bytes.

        `throttled=False` bypasses the limits on rate and connections, for the election. `time_left` is called right
        before the request is sent, after all waiting: the response must arrive within these seconds, and 0 or less
        withholds the request. A 401 is retried once with a renewed token. There are no other retries. Raises ApiError,
        Unreachable, RequestWithheld.
        """
        if throttled:
            await self._throttle.wait()
        seconds = self._timeout if timeout is None else timeout
        pool = _LIMITED if throttled else _UNLIMITED
        request = _ClientRequest(pool, method, path, params, body, content_type, seconds, limit, time_left)
        token = await self._present_token()
        try:
            return await self._attempt(request, token)
        except ApiError as error:
            if error.status != HTTPStatus.UNAUTHORIZED or not await self._renew(token):
                raise
        return await self._attempt(request, self._token)

    async def _attempt(self, request: _ClientRequest, token: str | None) -> bytes:
        if self._sessions is None:
            raise RuntimeError(_NOT_OPEN)
        method, path = request.method, request.path
        resource, collection = resource_of(path)
        verb = verb_of(method, collection=collection)
        code, sent = 0, True
        if request.time_left is not None:
            request = request._replace(time_left=_Deadline(request.time_left, request.seconds))
        started = self._clock()
        try:
            response = await (self._send if self.connection.proxy is None else self._send_by_proxy)(request, token)
            code = response.status
        except Unreachable as error:
            raise Unreachable(f"{method} {path}: {error}", sent=error.sent) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            deadline = request.time_left
            seconds = deadline.seconds if isinstance(deadline, _Deadline) else request.seconds
            raise unreachable(error, f"{method} {path}", seconds) from error
        except RequestWithheld:
            sent = False
            raise
        finally:
            if sent:
                self._observer.request(verb, resource, code, self._clock() - started)
        if not HTTPStatus.OK <= code < HTTPStatus.MULTIPLE_CHOICES:
            raise api_error(code, {"Retry-After": response.retry_after or ""}, response.body)
        return response.body

    async def _send(self, request: _ClientRequest, token: str | None) -> HttpResponse:
        """Send on a pooled connection. Raises as `Pool.exchange`."""
        pool = self._pools[request.pool]
        target = pool.prefix + request.path
        if request.params:
            target += "?" + urlencode(request.params, quote_via=quote)
        if self._head is None or self._head[0] != token:
            headers = {"Host": pool.authority, **self._headers, **_authorization(token)}
            self._head = token, "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{request.method} {target} HTTP/1.1\r\n{self._head[1]}"
        if request.body is not None:
            head += f"Content-Type: {request.content_type}\r\nContent-Length: {len(request.body)}\r\n"
        elif request.method not in _REPEATABLE:
            head += "Content-Length: 0\r\n"
        return await pool.exchange(
            f"{head}\r\n".encode() + (request.body or b""),
            seconds=request.seconds,
            connect=min(_CONNECT_SECONDS, request.seconds / 2),
            limit=request.limit,
            repeatable=request.method in _REPEATABLE,
            time_left=request.time_left,
        )

    async def _send_by_proxy(self, request: _ClientRequest, token: str | None) -> HttpResponse:
        """Send through the proxy. The connection is opened after the call of `time_left` here."""
        headers = _authorization(token)
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        seconds = request.seconds
        if request.time_left is not None:
            seconds = min(seconds, request.time_left())
            if seconds <= 0.0:
                raise RequestWithheld
        before = cancellations()
        async with self._open(request.pool).request(
            request.method,
            self._url(request.path, request.params),
            data=request.body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=seconds, connect=min(_CONNECT_SECONDS, seconds / 2)),
            allow_redirects=False,
            proxy=self.connection.proxy,
            server_hostname=self.connection.server_name,
        ) as response:
            if cancellations() > before:
                raise asyncio.CancelledError
            body = await read_body(response, request.limit)
            return HttpResponse(response.status, response.headers.get("Retry-After"), body)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        silence: float = 90.0,
        timeout: float | None = None,  # noqa: ASYNC109 -- as in `request`
    ) -> AsyncIterator[Stream]:
        """Open a watch; `timeout` seconds until its first byte at the latest, `silence` seconds between two.

        A 401 is retried once with a renewed token. Raises ApiError or Unreachable.
        """
        seconds = self._timeout if timeout is None else timeout
        token = await self._present_token()
        response = await self._opened(token, path, params, seconds, silence)
        if response.status == HTTPStatus.UNAUTHORIZED and await self._renew(token):
            response.close()
            response = await self._opened(self._token, path, params, seconds, silence)
        try:
            if response.status != HTTPStatus.OK:
                try:
                    async with asyncio.timeout(seconds):
                        content = await read_body(response, _OBJECT_BYTES)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    raise unreachable(error, f"GET {path}", seconds) from error
                raise api_error(response.status, response.headers, content)
            yield Stream(response, path)
        finally:
            response.close()  # a watch has no end, so its connection cannot be reused

    async def _opened(
        self, token: str | None, path: str, params: Mapping[str, str], seconds: float, silence: float
    ) -> aiohttp.ClientResponse:
        resource, _ = resource_of(path)
        code = 0
        started = self._clock()
        timeout = aiohttp.ClientTimeout(total=None, connect=min(_CONNECT_SECONDS, seconds / 2), sock_read=silence)
        try:
            async with asyncio.timeout(seconds):
                before = cancellations()
                response = await self._open(_UNLIMITED).get(
                    self._url(path, params),
                    headers=_authorization(token),
                    timeout=timeout,
                    allow_redirects=False,
                    proxy=self.connection.proxy,
                    server_hostname=self.connection.server_name,
                )
                if cancellations() > before:
                    response.close()
                    raise asyncio.CancelledError
            code = response.status
            return response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(error, f"GET {path}", seconds) from error
        finally:
            self._observer.request("watch", resource, code, self._clock() - started)

    def _open(self, pool: int) -> aiohttp.ClientSession:
        if self._sessions is None:
            raise RuntimeError(_NOT_OPEN)
        return self._sessions[pool]

    def _url(self, path: str, params: Mapping[str, str] | None) -> URL:
        url = URL(self.connection.server + path, encoded=True)  # paths come quoted from kube.paths
        return url.with_query(dict(params)) if params else url

    async def _present_token(self) -> str | None:
        """Return the token; read it again in a thread when it has expired, since that may run an exec plugin."""
        if self._token_expired():
            async with self._token_lock:
                if self._token_expired():
                    try:
                        self._token = await asyncio.to_thread(self.connection.token)
                    except ConnectionConfigError as error:
                        if self._token is None:
                            raise Unreachable(str(error), sent=False) from error
                        # The last token may still be valid; the server rejects it if it is not.
                    self._token_read = self._clock()
        return self._token

    def _token_expired(self) -> bool:
        return self._token_read is None or self._clock() - self._token_read >= _TOKEN_SECONDS

    async def _renew(self, rejected: str | None) -> bool:
        """Renew the token; whether the result differs from the rejected one."""
        async with self._token_lock:
            if self._token == rejected:  # else another request has renewed it
                try:
                    await asyncio.to_thread(self.connection.renew)
                    self._token = await asyncio.to_thread(self.connection.token)
                except ConnectionConfigError:
                    return False
                self._token_read = self._clock()
        return self._token != rejected


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    return {"Authorization": token if token.startswith("Basic ") else f"Bearer {token}"}
