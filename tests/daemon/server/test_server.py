"""The daemon's HTTP over real sockets on loopback: pages, limits, addresses, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import uvloop
from aiohttp import web

from capcard_sched.daemon.common_options import ServeError
from capcard_sched.daemon.flag_values import AddressFlag
from capcard_sched.daemon.observability.health import Health
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.observability.server import (
    HttpServer,
    ServerLimits,
    Tls,
    health_pages,
    metrics_pages,
)
from tests.clock import Clock


async def get(
    server: HttpServer, path: str, *, trust: ssl.SSLContext | None = None, headers: Any = None
) -> tuple[int, str]:
    page = url(server, path, "https" if trust else "http")
    async with aiohttp.ClientSession() as session, session.get(page, ssl=trust or True, headers=headers) as response:
        return response.status, await response.text()


def url(server: HttpServer, path: str, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.port}{path}"


@asynccontextmanager
async def serving(pages: Mapping[str, Any], host: str = "127.0.0.1", **settings: Any) -> AsyncIterator[HttpServer]:
    """A server that runs, on a port of its own."""
    server = HttpServer(AddressFlag(host, 0), pages, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(
    server: HttpServer, sent: str = "", **settings: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which these lines were sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **settings)
    writer.write(sent.replace("\n", "\r\n").encode())
    try:
        yield reader, writer
    finally:
        writer.close()


class Page:
    """A page of metrics with that content; an error when there is none."""

    content_type = "text/plain"

    def __init__(self, content: bytes | None) -> None:
        self.content = content

    def exposition(self) -> bytes:
        if self.content is None:
            raise ValueError("secret detail")
        return self.content


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(1.0, clock)


@pytest_asyncio.fixture
async def served(health: Health) -> AsyncIterator[HttpServer]:
    async with serving(health_pages(health)) as server:
        yield server


async def test_health_and_readiness_follow_the_daemon(served: HttpServer, health: Health, clock: Clock) -> None:
    assert await get(served, "/healthz") == (200, "ok\n")
    health.steps = lambda: {"list/nodes": "", "list/pods": "forbidden"}
    failed = "[-]list/pods failed: forbidden\n[-]lists-applied failed: the lists are not applied yet\n"
    assert await get(served, "/readyz") == (503, f"[+]list/nodes ok\n{failed}readyz check failed\n")
    health.steps = lambda: {"list/nodes": "", "list/pods": ""}
    health.lists_applied()
    assert await get(served, "/readyz") == (200, "ok\n")
    steps = "[+]list/nodes ok\n[+]list/pods ok\n[+]lists-applied ok\nreadyz check passed\n"
    assert await get(served, "/readyz?verbose") == (200, steps)
    health.leads(leading=True)
    clock.now += 31
    status, text = await get(served, "/healthz")
    assert status == 200
    assert text.startswith("ok\nslow: no scheduling cycle completed for 31 s (limit 30 s")
    health.alive = lambda: False
    assert await get(served, "/healthz") == (503, text.replace("ok", "the scheduler thread is dead", 1))
    assert (await get(served, "/readyz"))[0] == 200


async def test_unknown_paths_and_methods_get_a_one_line_error(served: HttpServer) -> None:
    assert await get(served, "/metrics") == (404, "Not Found\n")
    async with aiohttp.ClientSession() as session:
        async with session.post(url(served, "/healthz"), data=b"x" * 100_000) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")
        async with session.head(url(served, "/healthz")) as head:
            assert (head.status, await head.read()) == (200, b"")


@pytest.mark.parametrize(("accepted", "packed"), [("gzip;q=1.0", True), ("identity", False)])
async def test_metrics_are_served_as_text_packed_when_the_client_wants_it(accepted: str, packed: bool) -> None:
    headers = {"Accept-Encoding": accepted}
    async with (
        serving(metrics_pages(Metrics())) as server,
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(url(server, "/metrics"), headers=headers) as response,
    ):
        assert response.headers.get("Content-Encoding") == ("gzip" if packed else None)
        assert response.headers["Content-Type"] == Metrics.content_type
        content = await response.read()
        assert b"volcano_leader 0.0\n" in (gzip.decompress(content) if packed else content)


async def test_a_scrape_requests_fresh_values_and_waits_for_a_bounded_time() -> None:
    metrics = Metrics()
    ages = iter([7, 8])

    async def refresh() -> None:
        metrics.set_gauge("cache_age_seconds", age := next(ages))
        await asyncio.sleep(0 if age == 7 else 60)

    async with serving(metrics_pages(metrics, refresh)) as server, asyncio.timeout(20):
        assert "volcano_cache_age_seconds 7.0\n" in (await get(server, "/metrics"))[1]
        assert "volcano_cache_age_seconds 8.0\n" in (await get(server, "/metrics"))[1]


async def test_a_page_that_raises_returns_an_error_and_the_server_continues() -> None:
    async with serving({**metrics_pages(Page(None)), **health_pages(Health(1.0))}) as server:
        status, text = await get(server, "/metrics")
        assert (status, "secret" in text) == (500, False)
        assert (await get(server, "/healthz"))[0] == 200


# --- limits -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def reviewing(health: Health, **limits: Any) -> AsyncIterator[HttpServer]:
    """A server that answers with the length of a body of at most 1,000 bytes."""

    async def size(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    settings: dict[str, Any] = {"body_bytes": 1000, "limits": ServerLimits(**limits)}
    async with serving(health_pages(health), posts={"/review": size}, **settings) as server:
        yield server


@pytest.mark.parametrize(
    ("limits", "sent", "more"),
    [
        ({"header_seconds": 0.3}, "GET /healthz HTTP/1.1\nHost: x\n", b"X-Slow: 1\r\n"),
        ({"response_seconds": 0.5}, "POST /review HTTP/1.1\nHost: x\nContent-Length: 900\n\n", b"x"),
    ],
    ids=["headers", "body"],
)
async def test_a_client_that_never_finishes_its_request_is_disconnected(
    health: Health, limits: dict[str, float], sent: str, more: bytes
) -> None:
    async with reviewing(health, **limits) as server, connected(server, sent) as (reader, writer):
        ended = asyncio.ensure_future(reader.read())
        async with asyncio.timeout(20):
            while not ended.done():
                writer.write(more)
                await asyncio.wait({ended}, timeout=0.05)
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in ended.result()


async def test_a_body_above_the_limit_is_refused(health: Health) -> None:
    async with reviewing(health) as server, aiohttp.ClientSession() as session:
        for length, status in ((1000, 200), (1001, 413)):
            async with session.post(url(server, "/review"), data=b"x" * length) as response:
                assert response.status == status


@pytest.mark.parametrize(("idle", "kept"), [(None, False), (60.0, True)])
async def test_an_idle_connection_is_kept_for_its_own_time(health: Health, idle: float | None, kept: bool) -> None:
    limits = ServerLimits(header_seconds=0.3, idle_seconds=idle)
    async with (
        serving(health_pages(health), limits=limits) as server,
        connected(server, "GET /healthz HTTP/1.1\nHost: x\n\n") as (reader, _),
    ):
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(1000)
        ended = asyncio.ensure_future(reader.read())
        await asyncio.wait({ended}, timeout=1.5 if kept else 10)
        assert ended.done() is not kept


async def test_a_client_that_reads_no_response_is_disconnected() -> None:
    limits = ServerLimits(response_seconds=0.5)
    async with (
        serving(metrics_pages(Page(b"x" * 50_000_000)), limits=limits) as server,
        connected(server, "GET /metrics HTTP/1.1\nHost: x\n\n", limit=1024) as (reader, _),
    ):
        await asyncio.sleep(1.5)  # nothing is read
        taken = 0
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(1 << 20):
                taken += len(chunk)
        assert taken < 50_000_000


@asynccontextmanager
async def silent(server: HttpServer, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that send nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * count)), hard))
    try:
        async with contextlib.AsyncExitStack() as stack:
            yield [(await stack.enter_async_context(connected(server)))[0] for _ in range(count)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def closed(readers: list[asyncio.StreamReader]) -> int:
    """Number of connections that the server has closed."""
    for reader in readers:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.001):
                await reader.read()
    return sum(reader.at_eof() or reader.exception() is not None for reader in readers)


async def test_probes_are_served_within_a_second_beside_a_thousand_silent_connections(served: HttpServer) -> None:
    async with silent(served, 1000) as readers:
        for _ in range(3):
            async with asyncio.timeout(1):
                assert await get(served, "/healthz") == (200, "ok\n")
        assert await closed(readers) >= 1000 - ServerLimits().connections, "memory is bounded"


async def test_probes_over_tls_are_served_beside_connections_without_a_handshake(
    certificate: tuple[Path, Path], health: Health
) -> None:
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    async with serving(health_pages(health), tls=Tls(*certificate)) as server:
        with pytest.raises(aiohttp.ClientError):
            await get(server, "/healthz")
        async with silent(server, 300) as readers, asyncio.timeout(2):
            assert await get(server, "/healthz", trust=trust) == (200, "ok\n")
            assert await closed(readers) >= 300 - ServerLimits().connections


def test_headers_and_handshakes_are_awaited_for_five_seconds_at_most() -> None:
    assert ServerLimits().header_seconds <= 5


async def test_a_scrape_in_progress_survives_silent_connections() -> None:
    async def refresh() -> None:
        await asyncio.sleep(0.4)

    async with serving(metrics_pages(Metrics(), refresh), limits=ServerLimits(connections=3)) as server:
        scrape = asyncio.ensure_future(get(server, "/metrics"))
        await asyncio.sleep(0.1)
        async with silent(server, 20):
            assert (await scrape)[0] == 200


@pytest.mark.parametrize(
    ("busy_seconds", "expected"),
    [(3600.0, (503, "too many connections\n")), (0.0, (200, "ok\n"))],
    ids=["young requests stay", "old requests go"],
)
async def test_a_server_full_of_requests_responds_503_or_replaces_the_oldest_one(
    health: Health, busy_seconds: float, expected: tuple[int, str]
) -> None:
    arrivals = asyncio.Semaphore(0)

    async def wait(_: web.Request) -> web.Response:
        arrivals.release()
        await asyncio.sleep(60)
        raise AssertionError

    limits = ServerLimits(connections=3, busy_seconds=busy_seconds)
    async with (
        asyncio.timeout(30),
        serving({"/wait": wait, **health_pages(health)}, limits=limits) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(3):
            await stack.enter_async_context(connected(server, "GET /wait HTTP/1.1\nHost: x\n\n"))
            await arrivals.acquire()
        assert await get(server, "/healthz") == expected


async def test_headers_beyond_the_limits_are_refused(health: Health) -> None:
    async with serving(health_pages(health), limits=ServerLimits(header_bytes=1000, headers=10)) as server:
        assert (await get(server, "/healthz", headers={"X-Long": "x" * 5000}))[0] == 400
        assert (await get(server, "/healthz", headers={f"X-{i}": "x" for i in range(50)}))[0] == 400
        assert (await get(server, "/healthz"))[0] == 200


async def test_stopping_lets_a_response_under_way_finish_and_closes_idle_connections() -> None:
    began = asyncio.Event()

    async def refresh() -> None:
        began.set()
        await asyncio.sleep(0.3)

    async with serving(metrics_pages(Metrics(), refresh)) as server, connected(server) as (idle, _):
        port = server.port
        scrape = asyncio.ensure_future(get(server, "/metrics"))
        await began.wait()
        async with asyncio.timeout(3):
            await server.stop()
        assert (await scrape)[0] == 200
        assert await idle.read() == b""
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)


# --- addresses --------------------------------------------------------------------------------------------------------


async def test_an_address_that_cannot_be_listened_on_is_a_clear_error(served: HttpServer, health: Health) -> None:
    for host, port, cause in (
        ("127.0.0.1", served.port, "the address is in use by another process$"),
        ("no.such.host.invalid", 8080, ""),
    ):
        with pytest.raises(ServeError, match=f"^cannot listen on {host}:{port}: {cause}"):
            await HttpServer(AddressFlag(host, port), health_pages(health)).start()


@pytest.mark.parametrize(
    ("host", "reached_at"), [("", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("localhost", ["localhost"])]
)
async def test_every_form_of_address_is_listened_on(health: Health, host: str, reached_at: list[str]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        reached_at = [each for each in reached_at if ":" not in each]
    if not reached_at:
        pytest.skip("no IPv6 here")
    async with serving(health_pages(health), host) as server:
        for each in reached_at:
            _, writer = await asyncio.open_connection(each, server.port)
            writer.close()


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_handshake_that_begins_with_the_connection_succeeds(certificate: tuple[Path, Path], health: Health) -> None:
    """Under the daemon's event loop, with a client of another thread: its first bytes arrive with the connection."""

    async def serve() -> None:
        async with serving(health_pages(health), tls=Tls(*certificate)) as server:
            for _ in range(20):
                shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", server.port))
                assert shown.strip() == certificate[0].read_text().strip()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


@pytest.mark.parametrize("content", [None, "hello"], ids=["missing", "not PEM"])
async def test_invalid_certificate_files_are_named_in_the_error(
    certificate: tuple[Path, Path], health: Health, tmp_path: Path, content: str | None
) -> None:
    bad = tmp_path / "bad"
    if content is not None:
        bad.write_text(content)
    for tls in (Tls(bad, certificate[1]), Tls(*certificate, authorities=bad)):
        with pytest.raises(ServeError, match=str(bad)):
            await HttpServer(AddressFlag("127.0.0.1", 0), health_pages(health), tls=tls).start()
