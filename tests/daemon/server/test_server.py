"""The daemon's HTTP over real sockets on loopback: pages, limits, addresses, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import resource
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import uvloop
from aiohttp import web

from capcard_sched.daemon.flag_values import AddressFlag
from capcard_sched.daemon.observability.health import Health
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.observability.server import (
    HttpServer,
    ServeError,
    ServerLimits,
    Tls,
    health_pages,
    metrics_pages,
)
from tests.clock import Clock

_LOOPBACK = AddressFlag("127.0.0.1", 0)


async def get(server: HttpServer, path: str, **more: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url(server, path), headers=more) as response:
        return response.status, await response.text()


async def get_by_tls(server: HttpServer, authority: Path) -> tuple[int, str]:
    trust = ssl.create_default_context(cafile=str(authority))
    page = f"https://127.0.0.1:{server.port}/healthz"
    async with aiohttp.ClientSession() as session, session.get(page, ssl=trust) as response:
        return response.status, await response.text()


def url(server: HttpServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


@asynccontextmanager
async def serving(pages: Mapping[str, Any], **settings: Any) -> AsyncIterator[HttpServer]:
    """A server that runs, on a port of its own."""
    server = HttpServer(_LOOPBACK, pages, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Page:
    """A page of metrics with that content; an error when there is none."""

    content_type = "text/plain"

    def __init__(self, content: bytes | None) -> None:
        self.content = content

    def exposition(self) -> bytes:
        if self.content is None:
            raise ValueError("secret detail")
        return self.content


async def until_ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    """Send the text now and then; returns what came when the server has ended the connection."""
    ended = asyncio.ensure_future(reader.read())
    async with asyncio.timeout(20):
        while not ended.done():
            writer.write(text)
            await asyncio.wait({ended}, timeout=0.05)
    writer.close()
    with contextlib.suppress(ConnectionError):
        return ended.result()
    return b""


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
    status, text = await get(served, "/readyz")
    assert status == 503
    assert "not applied yet" in text
    health.steps = lambda: {"list/nodes": "", "list/pods": "forbidden"}
    status, text = await get(served, "/readyz")
    assert status == 503
    assert text == (
        "[+]list/nodes ok\n"
        "[-]list/pods failed: forbidden\n"
        "[-]lists-applied failed: the lists are not applied yet\n"
        "readyz check failed\n"
    )
    health.steps = lambda: {"list/nodes": "", "list/pods": ""}
    health.lists_applied()
    assert await get(served, "/readyz") == (200, "ok\n")
    assert await get(served, "/readyz?verbose") == (
        200,
        "[+]list/nodes ok\n[+]list/pods ok\n[+]lists-applied ok\nreadyz check passed\n",
    )
    health.leads(leading=True)
    clock.now += 31
    status, text = await get(served, "/healthz")
    assert status == 200
    assert text.startswith("ok\nslow: no scheduling cycle completed for 31 s (limit 30 s")
    health.alive = lambda: False
    assert await get(served, "/healthz") == (503, f"the scheduler thread is dead\n{text.removeprefix('ok' + chr(10))}")
    health.alive = lambda: True
    assert (await get(served, "/readyz"))[0] == 200
    health.cycle_done()
    assert await get(served, "/healthz") == (200, "ok\n")


async def test_unknown_paths_and_methods_get_a_one_line_error(served: HttpServer) -> None:
    assert await get(served, "/metrics") == (404, "Not Found\n")
    async with aiohttp.ClientSession() as session:
        async with session.post(url(served, "/healthz"), data=b"x" * 100_000) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")
        async with session.head(url(served, "/healthz")) as head:
            assert head.status == 200
            assert await head.read() == b""


async def test_metrics_are_served_as_text_packed_when_the_client_wants_it() -> None:
    metrics = Metrics()
    async with serving(metrics_pages(metrics)) as server, aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.get(url(server, "/metrics"), headers={"Accept-Encoding": "gzip;q=1.0"}) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert response.headers["Content-Type"] == Metrics.content_type
            assert b"volcano_leader 0.0\n" in gzip.decompress(await response.read())
        async with session.get(url(server, "/metrics"), headers={"Accept-Encoding": "identity"}) as response:
            assert "Content-Encoding" not in response.headers
            assert b"volcano_leader 0.0\n" in await response.read()


async def test_a_scrape_requests_fresh_values_and_waits_for_a_bounded_time() -> None:
    metrics = Metrics()
    requested: list[str] = []

    async def refresh() -> None:
        metrics.set_gauge("cache_age_seconds", len(requested) + 7.0)
        requested.append("asked")
        if len(requested) > 1:
            await asyncio.sleep(60)

    async with serving(metrics_pages(metrics, refresh)) as server:
        assert "volcano_cache_age_seconds 7.0\n" in (await get(server, "/metrics"))[1]
        began = time.monotonic()
        assert "volcano_cache_age_seconds 8.0\n" in (await get(server, "/metrics"))[1]
        assert time.monotonic() - began < 5


async def test_a_page_that_raises_returns_an_error_and_the_server_continues() -> None:
    async with serving({**metrics_pages(Page(None)), **health_pages(Health(1.0))}) as server:
        status, text = await get(server, "/metrics")
        assert status == 500
        assert "secret" not in text
        assert (await get(server, "/healthz"))[0] == 200


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_a_client_that_never_finishes_its_headers_is_cut_off(health: Health) -> None:
    async with serving(health_pages(health), limits=ServerLimits(header_seconds=0.3)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        await until_ended(reader, writer, b"X-Slow: 1\r\n")


@pytest.mark.parametrize(("idle", "kept"), [(None, False), (60.0, True)])
async def test_an_idle_connection_is_kept_for_its_own_time(health: Health, idle: float | None, kept: bool) -> None:
    async with serving(health_pages(health), limits=ServerLimits(header_seconds=0.3, idle_seconds=idle)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(1000)
        ended = asyncio.ensure_future(reader.read())
        await asyncio.wait({ended}, timeout=1.5 if kept else 10)
        assert ended.done() is not kept
        writer.close()


async def test_a_client_that_reads_no_response_is_disconnected() -> None:
    async with serving(metrics_pages(Page(b"x" * 50_000_000)), limits=ServerLimits(response_seconds=0.5)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(1.5)  # nothing is read
        taken = 0
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(1 << 20):
                taken += len(chunk)
        assert taken < 50_000_000
        writer.close()


async def test_a_client_that_never_finishes_its_body_is_cut_off_and_one_above_the_limit_is_refused() -> None:
    async def size(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    limits = ServerLimits(response_seconds=0.5)
    async with serving({}, posts={"/review": size}, body_bytes=1000, limits=limits) as server:
        async with aiohttp.ClientSession() as session:
            for length, status in ((1000, 200), (1001, 413)):
                async with session.post(url(server, "/review"), data=b"x" * length) as response:
                    assert response.status == status
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /review HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n")
        assert await until_ended(reader, writer, b"x") == b""


@asynccontextmanager
async def silent(port: int, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that send nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * count)), hard))
    writers: list[asyncio.StreamWriter] = []
    readers: list[asyncio.StreamReader] = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            readers.append(reader)
            writers.append(writer)
        yield readers
    finally:
        for writer in writers:
            writer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def closed(readers: list[asyncio.StreamReader]) -> int:
    """Number of connections that the server has closed."""
    for reader in readers:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.001):
                await reader.read()
    return sum(reader.at_eof() or reader.exception() is not None for reader in readers)


async def test_probes_are_served_within_a_second_beside_a_thousand_silent_connections(served: HttpServer) -> None:
    async with silent(served.port, 1000) as readers:
        for _ in range(3):
            async with asyncio.timeout(1):
                assert await get(served, "/healthz") == (200, "ok\n")
        assert await closed(readers) >= 1000 - ServerLimits().connections, "memory is bounded"


async def test_probes_over_tls_are_served_beside_connections_without_a_handshake(
    certificate: tuple[Path, Path], health: Health
) -> None:
    async with serving(health_pages(health), tls=Tls(*certificate)) as server:
        with pytest.raises(aiohttp.ClientError):
            await get(server, "/healthz")
        async with silent(server.port, 300) as readers, asyncio.timeout(2):
            assert await get_by_tls(server, certificate[0]) == (200, "ok\n")
            assert await closed(readers) >= 300 - ServerLimits().connections


def test_headers_and_handshakes_are_awaited_for_five_seconds_at_most() -> None:
    assert ServerLimits().header_seconds <= 5


async def test_a_scrape_in_progress_survives_silent_connections() -> None:
    async def refresh() -> None:
        await asyncio.sleep(0.4)

    async with serving(metrics_pages(Metrics(), refresh), limits=ServerLimits(connections=3)) as server:
        scrape = asyncio.ensure_future(get(server, "/metrics"))
        await asyncio.sleep(0.1)
        async with silent(server.port, 20):
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

    pages = {"/wait": wait, **health_pages(health)}
    server = HttpServer(_LOOPBACK, pages, limits=ServerLimits(connections=3, busy_seconds=busy_seconds))
    await server.start()
    writers: list[asyncio.StreamWriter] = []
    try:
        async with asyncio.timeout(30):
            for _ in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
                writers.append(writer)
                await arrivals.acquire()
            assert await get(server, "/healthz") == expected
    finally:
        for writer in writers:
            writer.close()
        await server.stop()


async def test_headers_beyond_the_limits_are_refused(health: Health) -> None:
    async with serving(health_pages(health), limits=ServerLimits(header_bytes=1000, headers=10)) as server:
        assert (await get(server, "/healthz", **{"X-Long": "x" * 5000}))[0] == 400
        assert (await get(server, "/healthz", **{f"X-{i}": "x" for i in range(50)}))[0] == 400
        assert (await get(server, "/healthz"))[0] == 200


async def test_stopping_lets_a_response_under_way_finish_and_closes_idle_connections() -> None:
    began = asyncio.Event()

    async def refresh() -> None:
        began.set()
        await asyncio.sleep(0.3)

    server = HttpServer(_LOOPBACK, metrics_pages(Metrics(), refresh))
    await server.start()
    port = server.port
    idle, idle_writer = await asyncio.open_connection("127.0.0.1", port)
    scrape = asyncio.ensure_future(get(server, "/metrics"))
    await began.wait()
    stopped = time.monotonic()
    await server.stop()
    assert time.monotonic() - stopped < 3
    assert (await scrape)[0] == 200
    assert await idle.read() == b""
    idle_writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


# --- addresses --------------------------------------------------------------------------------------------------------


async def test_an_address_in_use_is_a_clear_error(served: HttpServer, health: Health) -> None:
    second = HttpServer(AddressFlag("127.0.0.1", served.port), health_pages(health))
    with pytest.raises(ServeError) as raised:
        await second.start()
    assert str(raised.value) == (f"cannot listen on 127.0.0.1:{served.port}: the address is in use by another process")
    await second.stop()


async def test_an_unresolvable_host_name_is_a_clear_error(health: Health) -> None:
    with pytest.raises(ServeError, match=r"cannot listen on no\.such\.host\.invalid:8080: "):
        await HttpServer(AddressFlag("no.such.host.invalid", 8080), health_pages(health)).start()


@pytest.mark.parametrize(
    "address, reached_at",
    [
        (AddressFlag("", 0), ["127.0.0.1", "::1"]),
        (AddressFlag("::1", 0), ["::1"]),
        (AddressFlag("localhost", 0), ["localhost"]),
    ],
)
async def test_every_form_of_address_is_listened_on(
    health: Health, address: AddressFlag, reached_at: list[str]
) -> None:
    server = HttpServer(address, health_pages(health))
    try:
        await server.start()
    except ServeError as error:
        if ":" in address.host and not has_ipv6():
            pytest.skip(f"no IPv6 here: {error}")
        raise
    try:
        for host in reached_at:
            if ":" in host and not has_ipv6():
                continue
            _reader, writer = await asyncio.open_connection(host, server.port)
            writer.close()
    finally:
        await server.stop()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    crt, key = folder / "crt", folder / "key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(crt)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return crt, key


def test_a_handshake_that_begins_with_the_connection_succeeds(certificate: tuple[Path, Path], health: Health) -> None:
    """Under the daemon's event loop, with a client of another thread: its first bytes arrive with the connection."""

    async def serve() -> None:
        async with serving(health_pages(health), tls=Tls(*certificate)) as server:
            for _ in range(20):
                shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", server.port))
                assert shown.strip() == certificate[0].read_text().strip()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


@pytest.mark.parametrize("broken", ["missing", "not PEM"])
async def test_invalid_certificate_files_are_named_in_the_error(
    certificate: tuple[Path, Path], health: Health, tmp_path: Path, broken: str
) -> None:
    bad = tmp_path / "bad"
    if broken == "not PEM":
        bad.write_text("hello")
    for tls in (Tls(bad, certificate[1]), Tls(*certificate, authorities=bad)):
        server = HttpServer(_LOOPBACK, health_pages(health), tls=tls)
        with pytest.raises(ServeError, match=str(bad)):
            await server.start()


def test_a_port_is_known_only_after_the_start(health: Health) -> None:
    with pytest.raises(RuntimeError):
        _ = HttpServer(_LOOPBACK, health_pages(health)).port
