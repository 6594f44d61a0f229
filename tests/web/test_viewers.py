"""One viewer takes neither all streams of events nor all views that are made at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from aiohttp import web

from capcard_sched.model.trials import InsightPart
from capcard_sched.web.access import VIEWER
from capcard_sched.web.pages import Page
from capcard_sched.web.server import STREAMS_OF_ONE, VIEWS_OF_ONE, WebServer
from capcard_sched.web.source import UnavailableError
from tests.clock import until


class _Named:
    """Access by the name in a header."""

    async def namespaces(self, request: web.Request) -> frozenset[str] | None:
        request[VIEWER] = request.headers.get("X-Viewer", "")
        return None


class _Slow:
    """Views that are never made, and endless events."""

    def __init__(self) -> None:
        self.views = 0
        self.over = asyncio.Event()
        self.is_ready = True

    async def prepare(self) -> None: ...

    async def view(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        self.views += 1
        await self.over.wait()
        raise UnavailableError("over")

    async def changes(self) -> AsyncIterator[tuple[str, str]]:
        yield "beat", "1"
        await self.over.wait()


@asynccontextmanager
async def serving(source: _Slow) -> AsyncIterator[aiohttp.ClientSession]:
    server = WebServer(source, _Named())
    port = await server.start("127.0.0.1", 0)
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
            yield session
    finally:
        source.over.set()
        await server.stop()


async def _status(session: aiohttp.ClientSession, path: str, viewer: str) -> int:
    async with session.get(path, headers={"X-Viewer": viewer}) as response:
        return response.status


async def test_one_viewer_has_a_part_of_the_streams() -> None:
    async with serving(_Slow()) as session, AsyncExitStack() as open_streams:

        async def stream(viewer: str) -> int:
            request = session.get("/api/v1/events", headers={"X-Viewer": viewer})
            response = await open_streams.enter_async_context(request)
            return response.status

        assert {await stream("ann") for _ in range(STREAMS_OF_ONE)} == {200}
        assert await stream("ann") == 503
        assert await stream("bob") == 200
        assert {await stream("") for _ in range(STREAMS_OF_ONE + 1)} == {200}, "without access there is one viewer"


async def test_one_viewer_has_a_part_of_the_views() -> None:
    source = _Slow()
    async with serving(source) as session, asyncio.TaskGroup() as group:
        waiting = [group.create_task(_status(session, "/api/v1/jobs", "ann")) for _ in range(VIEWS_OF_ONE)]
        await until(lambda: source.views == VIEWS_OF_ONE, "the views of ann", within=60)
        assert await _status(session, "/jobs", "ann") == 503
        assert source.views == VIEWS_OF_ONE
        other = group.create_task(_status(session, "/jobs", "bob"))
        await until(lambda: source.views > VIEWS_OF_ONE, "the view of bob", within=60)
        source.over.set()
        assert {await each for each in (*waiting, other)} == {503}
        assert await _status(session, "/jobs", "ann") == 503, "its former views count no more"
        assert source.views == VIEWS_OF_ONE + 2
