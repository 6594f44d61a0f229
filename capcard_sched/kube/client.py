"""Requests to a Kubernetes API server: kept-alive connections, timeouts, tokens, a client-side limit, typed errors.

Errors differ by what the caller may conclude. `ApiError`: the server responded with an error. `Unreachable`: there is
no response; `sent` states whether the request can have had an effect. `RequestWithheld`: the caller's own check stopped
the request. The caller decides about retries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from capcard_sched.kube.connection import ConnectionConfigError
from capcard_sched.kube.errors import (
    ApiError,
    RequestError,
    RequestWithheld,
    Unreachable,
    api_error,
    forget_frames,
    warnings_of,
)
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.paths import object_path, resource_of, verb_of
from capcard_sched.kube.pool import Pool, Stream
from capcard_sched.model.decode_errors import field_problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.pool import HttpResponse


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


__all__ = ["ApiError", "Client", "RequestError", "RequestWithheld", "Stream", "Unreachable"]

T = TypeVar("T")
K = TypeVar("K", bound=msgspec.Struct)

#: Seconds to wait for a free connection and for its opening; at most half of the whole timeout.
_CONNECT_SECONDS = 10.0
#: Seconds after which the token is read from its source again; the kubelet renews minutes ahead of expiry.
_TOKEN_SECONDS = 10.0
#: Bytes of the largest response about one object: etcd stores no larger ones.
_OBJECT_BYTES = 8 * 2**20
#: Indexes of pools. Streams last for minutes, so they have a pool of their own.
_LIMITED, _UNLIMITED = 0, 1
#: Statuses, as numbers: reading a member of an enum takes as long as a call in Python 3.11.
_OK, _UNAUTHORIZED = int(HTTPStatus.OK), int(HTTPStatus.UNAUTHORIZED)
#: Idempotent methods.
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})


class _ClientRequest(msgspec.Struct, frozen=True):
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
    #: Of a watch: seconds between two bytes.
    silence: float | None = None
    accept: str = "application/json"


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
        self._timeout = timeout
        self._throttle = Throttle(qps, burst, clock)
        self._observer = observer or Observer()
        self._clock = clock
        # Responses are not compressed: unpacking a list costs more than its transfer over a cluster's network.
        self._headers = {"Accept-Encoding": "identity", "User-Agent": user_agent}
        self._pools = Pool(connection, connections), Pool(connection, 0)
        self._is_open = False
        #: The encoded headers of every request, with the token that they contain.
        self._head: tuple[str | None, str] | None = None
        self._token: str | None = None
        self._token_read: float | None = None
        self._token_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        for pool in self._pools:
            await pool.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
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
        if throttled and (delay := self._throttle.reserve()) > 0:
            await asyncio.sleep(delay)
        seconds = self._timeout if timeout is None else timeout
        pool = _LIMITED if throttled else _UNLIMITED
        request = _ClientRequest(
            pool, method, path, params, body, content_type, seconds, limit, time_left, accept=accept
        )
        token = await self._present_token() if self._token_expired() else self._token
        response = await self._attempt(request, token)
        if response.status == _UNAUTHORIZED:
            response = await self._renewed(request, token, response)
        if not _OK <= response.status < _OK + 100:
            raise _error_of(response)
        return response.body

    async def _renewed(self, request: _ClientRequest, token: str | None, response: HttpResponse) -> HttpResponse:
        """The response to a rejected request with a renewed token; `response` without one."""
        return await self._attempt(request, self._token) if await self._renew(token) else response

    async def _attempt(self, request: _ClientRequest, token: str | None) -> HttpResponse:
        if not self._is_open:
            raise RuntimeError("the client is not open: use `async with client`")
        resource, collection = resource_of(request.path)
        verb = verb_of(request.method, collection=collection, watch=request.silence is not None)
        code, sent = 0, True
        started = self._clock()
        try:
            response = await self._pools[request.pool].exchange(
                self._encode(request, token),
                seconds=request.seconds,
                connect=min(_CONNECT_SECONDS, request.seconds / 2),
                limit=request.limit,
                repeatable=request.method in _REPEATABLE,
                time_left=request.time_left,
                silence=request.silence,
            )
            code = response.status
            for text in warnings_of(response.headers) if response.headers else ():
                self._observer.warned(text)
            return response
        except (Unreachable, TimeoutError) as error:
            forget_frames(error)
            what = f"{request.method} {request.path}: {error}"
            raise Unreachable(what, sent=getattr(error, "sent", True)) from error
        except RequestWithheld:
            sent = False
            raise
        finally:
            if sent:
                self._observer.request(verb, resource, code, self._clock() - started)

    def _encode(self, request: _ClientRequest, token: str | None) -> bytes:
        pool = self._pools[request.pool]
        target = pool.prefix + request.path
        if request.params:
            target += "?" + urlencode(request.params, quote_via=quote)
        if self._head is None or self._head[0] != token:
            lines = (f"{name}: {value}\r\n" for name, value in {**self._headers, **_authorization(token)}.items())
            self._head = token, "".join((pool.head, *lines))
        head = f"{request.method} {target} HTTP/1.1\r\n{self._head[1]}Accept: {request.accept}\r\n"
        if request.body is not None:
            head += f"Content-Type: {request.content_type}\r\nContent-Length: {len(request.body)}\r\n"
        elif request.method not in _REPEATABLE:
            head += "Content-Length: 0\r\n"
        return f"{head}\r\n".encode() + (request.body or b"")

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
        request = _ClientRequest(_UNLIMITED, "GET", path, params, None, "", seconds, _OBJECT_BYTES, None, silence)
        token = await self._present_token() if self._token_expired() else self._token
        response = await self._attempt(request, token)
        if response.status == _UNAUTHORIZED:
            response = await self._renewed(request, token, response)
        if response.stream is None:
            raise _error_of(response)
        try:
            yield response.stream
        except Unreachable as error:
            raise Unreachable(f"GET {path}: {error}", sent=True) from None
        finally:
            response.stream.abort()  # a watch has no end, so its connection cannot be reused

    async def _present_token(self) -> str | None:
        """Read the expired token again and return it; in a thread, since that may run an exec plugin."""
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


async def read_object(client: Client, of: type[K], namespace: str, name: str) -> K:
    """Read an object of a type of `model`. Raises ApiError, Unreachable and DecodeError."""
    body = await client.request("GET", object_path(str(of.__struct_config__.tag), namespace, name))
    return msgspec.json.decode(body, type=of)


async def get(
    client: Client, path: str, decode: Callable[[bytes], T], *, params: Mapping[str, str] | None = None
) -> T | None:
    """Read and decode an object; None when it does not exist.

    Raises ApiError, and Unreachable for a body that cannot be decoded, too.
    """
    try:
        return decode(await client.request("GET", path, params=params))
    except msgspec.DecodeError as error:
        raise Unreachable(f"the response of {path} cannot be decoded: {field_problem(error)}", sent=True) from error
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return None


def _error_of(response: HttpResponse) -> ApiError:
    return api_error(response.status, {"Retry-After": dict(response.headers).get(b"retry-after", "")}, response.body)


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    return {"Authorization": token if token.startswith("Basic ") else f"Bearer {token}"}
