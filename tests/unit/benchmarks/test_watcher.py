"""The watch of the end-to-end benchmarks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from benchmarks.e2e.watcher import lots


@asynccontextmanager
async def _server(streams: dict[str, list[str]]) -> AsyncIterator[str]:
    """A server that ends each watch after its events, by the version it begins with. Yields its address."""

    async def handle(request: web.Request) -> web.StreamResponse:
        events = streams.get(request.query["resourceVersion"])
        response = web.StreamResponse(status=410 if events is None else 200)
        await response.prepare(request)
        for line in events or ():
            await response.write(line.encode() + b"\n")
        return response

    app = web.Application()
    app.router.add_get("/pods", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _added(name: str, version: str) -> str:
    return json.dumps({"type": "ADDED", "object": {"metadata": {"name": name, "resourceVersion": version}}})


async def test_a_watch_that_the_server_ends_is_resumed() -> None:
    streams = {"1": [_added("a", "3"), _added("b", "4")], "4": [_added("c", "7")]}
    found: list[str] = []
    async with _server(streams) as address, aiohttp.ClientSession(address) as session:
        async for _, events in lots(session, "/pods", "1"):
            found += [event.object.metadata.name for event in events]
            if "c" in found:
                break
    assert found == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("version", "text"),
    [("1", "fails: .*too old resource version"), ("2", "fails: 410 ")],
    ids=["an event", "a response"],
)
async def test_a_watch_that_cannot_be_resumed_is_an_error(version: str, text: str) -> None:
    status = {"kind": "Status", "status": "Failure", "message": "too old resource version: 1 (7)", "code": 410}
    streams = {"1": [json.dumps({"type": "ERROR", "object": status}, separators=(",", ":"))]}
    async with _server(streams) as address, aiohttp.ClientSession(address) as session:
        with pytest.raises(RuntimeError, match=text):
            async for _ in lots(session, "/pods", version):
                pass
