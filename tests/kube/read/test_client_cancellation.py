"""A task that is cancelled while it opens a connection ends, at any moment."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection

pytestmark = pytest.mark.processes

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
#: Turns of the event loop in which the second attempt wins and the first is ended.
_TURNS = 9


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """URL of a server with two addresses, of which the first takes connections and never opens them."""
    answering = await asyncio.start_server(_answer, "127.0.0.2", 0)
    port = answering.sockets[0].getsockname()[1]
    silent = socket.create_server(("127.0.0.1", port), backlog=0)
    waiting = []
    for _ in range(3):  # more than it lets wait
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(silent.getsockname())
        waiting.append(one)

    async def both(*_: Any, **__: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for address in ("127.0.0.1", "127.0.0.2")
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
    yield f"http://api.test:{port}"
    answering.close()
    for each in (silent, *waiting):
        each.close()


async def _request(client: Client) -> object:
    return await client.request("GET", "/version")


async def _watch(client: Client) -> object:
    async with client.stream("/version", {}) as stream:
        return await stream.read()


@pytest.mark.parametrize("work", [_request, _watch], ids=["request", "watch"])
async def test_a_cancellation_is_heeded_also_in_the_moment_an_attempt_to_connect_is_given_up(
    work: Callable[[Client], Awaitable[object]], server: str
) -> None:
    fates = set()
    for turns in range(_TURNS):
        async with Client(Connection(server, None, lambda: None, "default")) as client:
            present = len(asyncio.all_tasks())
            task = asyncio.ensure_future(work(client))
            while len(asyncio.all_tasks()) < present + 3 and not task.done():  # noqa: ASYNC110 -- it and two attempts
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.done():
                continue  # it had its response before
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                fates.add("ended")
            else:
                fates.add(f"went on at turn {turns}")
    assert fates == {"ended"}
