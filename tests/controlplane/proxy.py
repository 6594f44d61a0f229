"""A reverse proxy before the API server that injects faults on request of a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from tests.controlplane import deprecations
from tests.controlplane.connector import AbortingConnector
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.faults import Action, Fault, Forward, Hold
from tests.controlplane.manifests import Manifest

#: Headers of one connection only: they are not handed on.
_OF_ONE_HOP: Final = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})
#: Reasons that are not the words of HTTP for their status.
_REASONS: Final = {410: "Expired", 422: "Invalid", 500: "InternalError", 504: "Timeout"}


class Exchange(NamedTuple):
    """One request that came, and its answer as the client got it: status 0 where it got none."""

    verb: str
    path: str
    body: bytes
    status: int


class Pause(NamedTuple):
    """Streams that are open but silent, until `resume`."""

    path: re.Pattern[str]
    over: asyncio.Event

    def resume(self) -> None:
        """Lets through what was held back."""
        self.over.set()


class _Lost(Exception):  # noqa: N818 - not an error of ours: the requested outcome
    """The client is to see its connection reset."""


class _Stream(NamedTuple):
    """One open watch."""

    path: str
    request: web.BaseRequest
    response: web.StreamResponse


class Proxy:
    """Stands before the API server with its certificate; tokens and bodies pass as they are.

    Every method that makes something go wrong takes `verb` and `path` as in `Fault`. A fault made later goes first.

    Attributes:
        exchanges: Every request that came, in the order of their ends; watches are not among them.
    """

    def __init__(self, control_plane: ControlPlane) -> None:
        self.exchanges: list[Exchange] = []
        self._control_plane = control_plane
        self._faults: list[tuple[Fault, Action]] = []
        self._cuts: list[Fault] = []
        self._pauses: list[Pause] = []
        self._streams: list[_Stream] = []
        self._runner: web.ServerRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        connector = AbortingConnector(limit=0, ssl=self._control_plane.ssl)
        no_limit = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=no_limit, trace_configs=[deprecations.tracing()]
        )
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        # The API server's own certificate: clients send no tokens over plain HTTP, kubectl at least.
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self._control_plane.ca, self._control_plane.ca.with_suffix(".key"))
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None) -> None:
        for pause in self._pauses:
            pause.resume()
        for stream in list(self._streams):
            _reset(stream.request)
        assert self._runner is not None
        assert self._session is not None
        await self._session.close()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """URL to use in place of the API server's."""
        return f"https://127.0.0.1:{self._port}"

    def kubeconfig_for(self, user: str = "admin", *, token: str = "") -> Path:
        """A kubeconfig file whose way to the API server is this proxy."""
        return self._control_plane.kubeconfig_for(user, token=token, server=self.url)

    # --- faults of requests -------------------------------------------------------------------------------------------

    def strike(self, fault: Fault, action: Action) -> Fault:
        """The general fault: `action` answers the requests that it strikes, and may forward them."""
        self._faults.insert(0, (fault, action))
        return fault

    def answer(
        self,
        verb: str,
        path: str,
        status: int,
        *,
        message: str = "by the test's will",
        retry_after: int | None = None,
        done: bool = False,
        nth: int = 1,
        times: int | None = 1,
    ) -> Fault:
        """Answers with an error; the API server never sees the request, or executes it if `done` (504: it gave up)."""

        async def action(forward: Forward) -> web.Response:
            if done:
                await forward()
            headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
            return web.json_response(failure(status, message), status=status, headers=headers)

        return self.strike(Fault(verb, path, nth, times), action)

    def reset(self, verb: str, path: str, *, done: bool = False, nth: int = 1, times: int | None = 1) -> Fault:
        """Resets the connection; the API server never sees the request, or has executed it if `done`."""

        async def action(forward: Forward) -> web.Response:
            if done:
                await forward()
            raise _Lost

        return self.strike(Fault(verb, path, nth, times), action)

    def lose_answer(self, verb: str, path: str, *, nth: int = 1, times: int | None = 1) -> Fault:
        """The API server executes the request; the connection is reset in place of its response."""
        return self.reset(verb, path, done=True, nth=nth, times=times)

    def delay(
        self, verb: str, path: str, seconds: float, *, after: bool = False, nth: int = 1, times: int | None = 1
    ) -> Fault:
        """Holds the request back, or with `after` its answer. A client that goes away in between takes it along."""

        async def action(forward: Forward) -> web.Response:
            await asyncio.sleep(0 if after else seconds)
            answer = await forward()
            await asyncio.sleep(seconds if after else 0)
            return answer

        return self.strike(Fault(verb, path, nth, times), action)

    def hold(self, verb: str, path: str, *, nth: int = 1, outlive: bool = False) -> Hold:
        """Holds requests back until they are released.

        With `outlive` they reach the API server although their client is gone, as from a middlebox that stores them.
        """
        held = Hold(verb, path, nth)

        async def action(forward: Forward) -> web.Response:
            if not outlive:
                return await held.late(forward)
            task = asyncio.create_task(held.late(forward))
            held.tasks.add(task)
            return await asyncio.shield(task)

        self.strike(held, action)
        return held

    def harm(self, verb: str, path: str, how: int | str, *, times: int | None = 1) -> Fault:
        """A fault by its name: a status, `done 504` (after the request was executed), `lost` or `reset`."""
        if how in ("reset", "lost"):
            return self.reset(verb, path, done=how == "lost", times=times)
        done, _, status = str(how).rpartition(" ")
        return self.answer(verb, path, int(status), done=bool(done), times=times)

    # --- faults of watches --------------------------------------------------------------------------------------------

    def cut(self, path: str, *, nth: int = 1, times: int | None = 1) -> Fault:
        """Breaks a stream off in the middle of an event, the `nth` that comes on streams of that path from now on."""
        fault = Fault("WATCH", path, nth, times)
        self._cuts.insert(0, fault)
        return fault

    def pause(self, path: str) -> Pause:
        """Nothing more comes on streams of that path, the open ones and new ones, though they stay open."""
        pause = Pause(re.compile(path), asyncio.Event())
        self._pauses.append(pause)
        return pause

    def reset_streams(self, path: str) -> int:
        """Resets the open streams of that path, between two events; returns how many."""
        streams = self._open(path)
        for stream in streams:
            _reset(stream.request)
        return len(streams)

    async def inject(self, path: str, event: Manifest) -> int:
        """Sends an event of the test's own on the open streams of that path; returns how many there were."""
        streams = self._open(path)
        for stream in streams:
            with contextlib.suppress(ConnectionError):  # its reader is just leaving
                await stream.response.write(json.dumps(event).encode() + b"\n")
        return len(streams)

    def watching(self, path: str) -> int:
        """Number of open streams of that path."""
        return len(self._open(path))

    def mend(self) -> None:
        """Nothing goes wrong any more; what was held back goes through."""
        self._faults.clear()
        self._cuts.clear()
        for pause in self._pauses:
            pause.resume()
        self._pauses.clear()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _open(self, path: str) -> list[_Stream]:
        return [stream for stream in self._streams if re.search(path, stream.path)]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        watch = request.query.get("watch") in {"1", "true"}
        verb = "WATCH" if watch else request.method
        body = await request.read()

        async def forward() -> web.Response:
            async with self._to_server(request, body) as answer:
                return web.Response(status=answer.status, body=await answer.read(), headers=_passed_on(answer.headers))

        try:
            response: web.StreamResponse | None = None
            for fault, action in list(self._faults):
                if fault.concerns(verb, request.path) and await fault.strikes_now():
                    response = await action(forward)
                    break
            if response is None:
                response = await (self._pass_stream(request, body) if watch else forward())
        except (_Lost, aiohttp.ClientError):
            # Of a server that cannot be reached the client learns in the same way.
            self.exchanges.append(Exchange(verb, request.path, body, 0))
            _reset(request)
            raise ConnectionResetError from None
        if not watch:
            self.exchanges.append(Exchange(verb, request.path, body, response.status))
        return response

    def _to_server(self, request: web.BaseRequest, body: bytes) -> aiohttp.client._RequestContextManager:
        assert self._session is not None
        url = URL(self._control_plane.server + request.path_qs, encoded=True)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_ONE_HOP}
        return self._session.request(request.method, url, data=body or None, headers=headers, allow_redirects=False)

    async def _pass_stream(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        async with self._to_server(request, body) as answer:
            response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
            await response.prepare(request)
            stream = _Stream(request.path, request, response)
            self._streams.append(stream)
            try:
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        await self._pass_event(stream, line + b"\n")
                await response.write(rest)
                await response.write_eof()
            finally:
                self._streams.remove(stream)
            return response

    async def _pass_event(self, stream: _Stream, event: bytes) -> None:
        for pause in list(self._pauses):
            if pause.path.search(stream.path):
                await pause.over.wait()
        for cut in list(self._cuts):
            if cut.concerns("WATCH", stream.path) and await cut.strikes_now():
                await stream.response.write(event[: len(event) // 2])
                await asyncio.sleep(0.02)  # data in the socket's buffer would be lost with it
                raise _Lost
        await stream.response.write(event)


def failure(status: int, message: str) -> Manifest:
    """The body of an error of the API server; in an `ERROR` event it is the object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(status) or HTTPStatus(status).phrase.replace(" ", ""),
        "code": status,
    }


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _OF_ONE_HOP)


def _reset(request: web.BaseRequest) -> None:
    """Breaks a connection off so that the client sees a reset, not an end."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
