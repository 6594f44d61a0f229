"""One viewer takes neither all streams of events nor all views that are made at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web

from capcard_sched.insight.trials.forked_copy import in_copy
from capcard_sched.model.trials import InsightPart
from capcard_sched.web.access import VIEWER
from capcard_sched.web.copies import as_slow_copy
from capcard_sched.web.pages import Page
from capcard_sched.web.reviewed_access import viewer_of
from capcard_sched.web.server import STREAMS_OF_ONE, VIEWS_OF_ONE, WebServer
from capcard_sched.web.source import UnavailableError
from capcard_sched.web.view_turns import ViewTurns
from tests.clock import until


class _Grown(msgspec.Struct):
    bytes: int


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
async def serving(source: _Slow, server: WebServer | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    server = server or WebServer(source, _Named())
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
    server = WebServer(source, _Named())
    async with serving(source, server) as session, asyncio.TaskGroup() as group:
        waiting = [group.create_task(_status(session, "/api/v1/jobs", "ann")) for _ in range(VIEWS_OF_ONE)]
        await until(lambda: server._views["ann"] == VIEWS_OF_ONE, "the requests of ann", within=60)
        assert await _status(session, "/jobs", "ann") == 503
        made = source.views
        assert made < VIEWS_OF_ONE, "the others wait"
        other = group.create_task(_status(session, "/jobs", "bob"))
        await until(lambda: source.views > made, "the view of bob", within=60)
        source.over.set()
        assert {await each for each in (*waiting, other)} == {503}
        assert await _status(session, "/jobs", "ann") == 503, "its former views count no more"
        assert source.views == VIEWS_OF_ONE + 2


async def test_slow_views_of_one_viewer_leave_places_to_others() -> None:
    source = _Slow()
    async with serving(source) as session, asyncio.TaskGroup() as group:
        slow = "/what-if?drain=n1"
        waiting = [group.create_task(_status(session, slow, "ann")) for _ in range(VIEWS_OF_ONE)]
        await until(lambda: source.views, "a view of ann", within=60)
        waiting += [group.create_task(_status(session, slow, name)) for name in ("bob", "eve", "eve")]
        await until(lambda: source.views == 2, "that of another viewer beside it", within=60)
        waiting += [group.create_task(_status(session, "/jobs", "bob"))]
        await until(lambda: source.views == 3, "other pages do not wait for slow ones", within=60)
        source.over.set()
        assert {await each for each in waiting} == {503}


async def test_viewers_take_turns() -> None:
    turns, order, may_end = ViewTurns(2, 1), list[str](), asyncio.Event()

    async def make(viewer: str) -> None:
        async with turns.turn(viewer):
            order.append(viewer)
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(make(viewer)) for viewer in ("ann", "ann", "ann", "bob", "eve", "bob")]
        await until(lambda: len(order) == 2, "two views are made")
        assert order == ["ann", "bob"]
        tasks[1].cancel()
        may_end.set()
    assert order == ["ann", "bob", "ann", "eve", "bob"]


async def test_without_viewers_places_are_taken_in_order() -> None:
    turns, running, may_end = ViewTurns(2, 1), list[int](), asyncio.Event()

    async def make(number: int) -> None:
        async with turns.turn(""):
            running.append(number)
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(make(number))
        await until(lambda: running == [0, 1], "two views are made")
        may_end.set()
    assert running == [0, 1, 2]


@pytest.mark.parametrize(
    "user, viewer",
    [
        ("system:serviceaccount:team-a:web", "system:serviceaccount:team-a"),
        ("system:serviceaccount:team-b:web", "system:serviceaccount:team-b"),
        ("system:serviceaccount:team-a", "system:serviceaccount:team-a"),
        ("ann", "ann"),
        ("ann:system:serviceaccount:team-a:web", "ann:system:serviceaccount:team-a:web"),
    ],
)
def test_the_accounts_of_a_namespace_are_one_viewer(user: str, viewer: str) -> None:
    assert viewer_of(user) == viewer


def test_a_slow_copy_has_a_bound_of_memory() -> None:
    def grow() -> _Grown:
        as_slow_copy()
        try:
            return _Grown(bytes=len(bytearray(64 << 30)))
        except MemoryError:
            return _Grown(bytes=len(bytearray(64 << 20)))

    assert in_copy(grow, _Grown).bytes == 64 << 20
