"""Connections to a server that responses by a script, and the same requests through a proxy; watches."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection, load_connection, ssl_context
from capcard_sched.kube.errors import ApiError, RequestWithheld, Unreachable
from capcard_sched.kube.pool import HttpResponse, Pool, Stream
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PLAIN = b'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5\r\n{"ab"\r\n00A;note=x\r\n:[1,\r\n2,3]\r\n1\r\n}\r\n0\r\nAfterwards: yes\r\n\r\n'
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nRetry-After: 9\r\n\r\n" + PLAIN
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Scripted:
    """Answers requests one by one: bytes are sent piece by piece, None closes the connection; afterwards all is OK."""

    def __init__(self, *script: bytes | list[bytes] | None, wait: float) -> None:
        self.wait = wait
        self.script = list(script)
        self.requests: list[int] = []  # number of the connection each request came on
        self.heads: list[bytes] = []
        self.connections = 0
        self.ended = 0
        self.port = 0

    def cut(self) -> None:
        """Close the connection that came last."""
        self.last.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.last = writer
        number = self.connections
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(number)
                self.heads.append(head)
                action = self.script.pop(0) if self.script else OK
                await asyncio.sleep(self.wait)
                if action is None:
                    break
                for piece in [action] if isinstance(action, bytes) else action:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()

    async def received(self, requests: int) -> None:
        await until(lambda: len(self.requests) >= requests, f"{requests} requests")

    async def all_ended(self) -> None:
        await until(lambda: self.ended >= self.connections, "the end of every connection")


def address(server: str, context: ssl.SSLContext | None = None) -> Connection:
    return Connection(server, context, lambda: None, "default")


@asynccontextmanager
async def scripted(
    *script: bytes | list[bytes] | None, wait: float = 0.0, connections: int = 2
) -> AsyncIterator[tuple[Scripted, Pool]]:
    reported = Scripted(*script, wait=wait)
    server = await asyncio.start_server(reported.serve, "127.0.0.1", 0)
    reported.port = server.sockets[0].getsockname()[1]
    pool = Pool(address(f"http://127.0.0.1:{reported.port}"), connections)
    try:
        yield reported, pool
    finally:
        await pool.close()
        server.close()
        await reported.all_ended()


async def send(
    pool: Pool,
    request: bytes = GET,
    *,
    repeatable: bool = True,
    seconds: float = 8.0,
    connect: float = 5.0,
    limit: int = 1000,
) -> HttpResponse:
    async with asyncio.timeout(10):
        return await pool.exchange(request, seconds=seconds, connect=connect, limit=limit, repeatable=repeatable)


# --- responses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw, status, body, kept",
    [
        pytest.param(PLAIN, 201, b'{"a":1}', True, id="a length"),
        pytest.param(CHUNKED, 200, b'{"ab":[1,\r\n2,3]}', True, id="chunks, one with a line end in it, and a trailer"),
        pytest.param(INTERIM, 201, b'{"a":1}', True, id="interim responses before it"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True, id="no content"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", True, id="empty"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False, id="close"
        ),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False, id="HTTP/1.0"),
        pytest.param(PLAIN + OK, 201, b'{"a":1}', False, id="two responses"),
        pytest.param(PLAIN + b"HTTP", 201, b'{"a":1}', False, id="an response and a half"),
        pytest.param(PLAIN + b"nonsense", 201, b'{"a":1}', False, id="an response and nonsense"),
    ],
)
async def test_a_response_is_read(raw: bytes, status: int, body: bytes, kept: bool) -> None:
    async with scripted(raw) as (reported, pool):
        assert await send(pool) == HttpResponse(status, None, body)
        assert (await send(pool)).body == b"ok"
        assert reported.requests == ([1, 1] if kept else [1, 2])


@pytest.mark.parametrize("raw", [PLAIN, CHUNKED, INTERIM], ids=["plain", "chunked", "interim"])
async def test_chunk_boundaries_do_not_matter(raw: bytes) -> None:
    async with scripted(raw, [raw[i : i + 1] for i in range(len(raw))], [raw[:40], raw[40:]]) as (reported, pool):
        responses = [await send(pool) for _ in range(3)]
        assert responses == responses[:1] * 3
        assert reported.requests == [1, 1, 1]


@pytest.mark.parametrize("raw", [PLAIN, CHUNKED, INTERIM], ids=["plain", "chunked", "interim"])
async def test_a_response_that_was_cut_is_none(raw: bytes) -> None:
    cuts = [20, 25, raw.index(b"\r\n\r\n") + 4, len(raw) - 1]
    script = [part for cut in cuts for part in (raw[:cut], OK)]
    async with scripted(*script) as (reported, pool):
        for number in range(len(cuts)):
            requested = asyncio.create_task(send(pool))
            await reported.received(2 * number + 1)
            await asyncio.sleep(0.05)
            assert not requested.done()
            reported.cut()
            with pytest.raises(Unreachable, match="closed") as lost:
                await requested
            assert lost.value.sent
            await send(pool)


async def test_a_response_without_a_length_ends_with_its_connection() -> None:
    async with scripted([b"HTTP/1.1 502 Bad Gateway\r\n\r\nsor", b"ry"]) as (reported, pool):
        requested = asyncio.create_task(send(pool))
        await reported.received(1)
        await asyncio.sleep(0.1)
        assert not requested.done()
        reported.cut()
        assert await requested == HttpResponse(502, None, b"sorry")
        assert (await send(pool)).body == b"ok"
        assert reported.requests == [1, 2]


async def test_retry_after_belongs_to_its_own_response() -> None:
    head = b"HTTP/1.1 429 Too Many Requests\r\nX-Retry-After: 9\r\nRETRY-After:  7\r\ncontent-length:0\r\n\r\n"
    async with scripted(head) as (reported, pool):
        assert await send(pool) == HttpResponse(429, "7", b"")
        assert await send(pool) == HttpResponse(200, None, b"ok")
        assert reported.requests == [1, 1]


@pytest.mark.parametrize(
    "raw, problem",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length", id="length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length", id="two"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "chunk size", id="chunk"),
        pytest.param(
            b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello", "not HTTP", id="upgrade"
        ),
        pytest.param([b"HTTP/1.1 200 OK\r\nA: ", *[b"x" * 2**14] * 9], "a head of more than", id="endless head"),
    ],
)
async def test_a_malformed_response_ends_the_connection(raw: bytes | list[bytes], problem: str) -> None:
    async with scripted(raw) as (reported, pool):
        with pytest.raises(Unreachable, match=problem) as lost:
            await send(pool)
        assert lost.value.sent
        assert (await send(pool)).body == b"ok"
        assert reported.requests == [1, 2]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.1 202 OK\r\nContent-Length: 11\r\n\r\n12345678901", id="length"),
        pytest.param(
            b"HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n123456\r\n6\r\n123456\r\n0\r\n\r\n", id="chunks"
        ),
        pytest.param(b"HTTP/1.1 202 OK\r\n\r\n12345678901", id="endless"),
    ],
)
async def test_a_body_beyond_the_limit_is_refused(raw: bytes) -> None:
    async with scripted(raw) as (reported, pool):
        with pytest.raises(ApiError, match="more than 10 bytes") as refused:
            await send(pool, limit=10)
        assert (refused.value.status, refused.value.reason) == (202, "TooLarge")
        assert (await send(pool, limit=2)).body == b"ok"
        assert reported.requests == [1, 2]


# --- connections ------------------------------------------------------------------------------------------------------


async def test_one_request_after_another_goes_on_one_connection() -> None:
    async with scripted() as (reported, pool):
        assert [(await send(pool)).body for _ in range(3)] == [b"ok"] * 3
        assert reported.requests == [1, 1, 1]


async def test_no_more_connections_are_opened_than_allowed_and_all_are_served_in_order() -> None:
    done: list[int] = []
    async with scripted(wait=0.005) as (reported, pool):

        async def one(number: int) -> None:
            await send(pool)
            done.append(number)

        await asyncio.gather(*(one(number) for number in range(20)))
        assert reported.connections == 2
    # Two go on at a time: no request is overtaken by more than the one beside.
    assert all(abs(place - number) <= 1 for place, number in enumerate(done))


async def test_a_request_past_its_deadline_leaves_its_connection_to_others() -> None:
    async with scripted(OK, OK) as (server, pool):
        responses = [30.0, 0.0, 0.0, 30.0]
        fates = []
        while responses:
            try:
                await pool.exchange(GET, seconds=8, connect=5, limit=1000, time_left=lambda: responses.pop(0))
                fates.append("sent")
            except RequestWithheld:
                fates.append("withheld")
        assert fates == ["sent", "withheld", "withheld", "sent"]
        assert (server.connections, len(server.requests)) == (1, 2)


async def test_without_a_limit_no_request_waits() -> None:
    async with scripted(wait=0.2, connections=0) as (reported, pool):
        await asyncio.gather(*(send(pool) for _ in range(20)))
        assert reported.connections == 20


async def test_waiting_for_a_place_has_an_end_and_loses_none() -> None:
    async with scripted(wait=0.4) as (_, pool):
        busy = [asyncio.create_task(send(pool)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Unreachable, match=r"no free connection within 0\.05 s") as lost:
            await send(pool, connect=0.05)
        assert not lost.value.sent
        cancelled = asyncio.create_task(send(pool))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        assert [(await task).status for task in busy] == [200, 200]
        assert [response.status for response in await asyncio.gather(*(send(pool) for _ in range(4)))] == [200] * 4


@pytest.mark.parametrize("left", [b"x", None], ids=["by an unrequested response", "by its server"])
async def test_a_connection_that_ended_at_rest_is_not_used_again(left: bytes | None) -> None:
    async with scripted() as (reported, pool):
        await send(pool)
        if left is None:
            reported.cut()
        else:
            reported.last.write(left)
        await asyncio.sleep(0.05)
        assert (await send(pool, repeatable=False)).body == b"ok"
        assert reported.requests == [1, 2]


async def test_a_connection_that_rested_for_too_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted() as (reported, pool):
        await asyncio.gather(send(pool), send(pool))
        monkeypatch.setattr("capcard_sched.kube.pool._KEEPALIVE_SECONDS", 0.05)
        await asyncio.sleep(0.1)
        assert (await send(pool)).body == b"ok"
        await asyncio.sleep(0.05)
        assert (reported.requests[-1], reported.ended) == (3, 2)


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_request_on_a_connection_that_just_ended_is_sent_again_only_where_that_does_no_harm(
    repeatable: bool,
) -> None:
    async with scripted(OK, None) as (reported, pool):
        await send(pool)
        if repeatable:
            assert (await send(pool)).body == b"ok"
            assert reported.requests == [1, 1, 2]
        else:
            with pytest.raises(Unreachable) as lost:
                await send(pool, repeatable=False)
            assert lost.value.sent
            assert reported.requests == [1, 1]


async def test_a_request_is_not_sent_again_on_a_new_connection_nor_after_a_part_of_the_response() -> None:
    async with scripted(None, OK, OK[:30]) as (reported, pool):
        with pytest.raises(Unreachable, match="closed"):
            await send(pool)
        assert reported.requests == [1]
        await send(pool)
        broken = asyncio.create_task(send(pool))
        await reported.received(3)
        await asyncio.sleep(0.1)
        reported.cut()
        with pytest.raises(Unreachable):
            await broken
        assert reported.requests == [1, 2, 2]


async def test_a_request_sent_once_counts_as_sent_when_no_second_connection_opens() -> None:
    async with scripted(OK, None, wait=0.1) as (reported, pool):
        await send(pool)
        requested = asyncio.create_task(send(pool))
        await asyncio.sleep(0.05)
        pool._port = 9
        with pytest.raises(Unreachable, match="no connection to") as lost:
            await requested
        assert lost.value.sent
        assert reported.requests == [1, 1]


async def test_a_request_that_takes_too_long_ends_its_connection_and_is_not_sent_again() -> None:
    async with scripted(OK, [OK[:30], *[b""] * 400, OK[30:]]) as (reported, pool):
        await send(pool)
        with pytest.raises(TimeoutError):
            await send(pool, seconds=0.1)
        assert (await send(pool, seconds=1.0)).body == b"ok"
        assert reported.requests == [1, 1, 2]


async def test_cancelling_closes_the_connection_with_a_pending_response() -> None:
    async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate", wait=0.2) as (reported, pool):
        late = asyncio.create_task(send(pool))
        await asyncio.sleep(0.1)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert (await send(pool)).body == b"ok"
        assert reported.requests == [1, 2]


async def test_closing_breaks_requests_in_flight() -> None:
    async with scripted(OK, wait=0.2) as (reported, pool):
        requested = asyncio.create_task(send(pool))
        await asyncio.sleep(0.1)
        await pool.close()
        with pytest.raises(Unreachable):
            await requested
        assert reported.requests == [1]
        with pytest.raises(Unreachable, match="closed"):
            await send(pool)


async def test_all_addresses_of_a_name_are_tried() -> None:
    async with scripted() as (reported, _):
        pool = Pool(address(f"http://localhost:{reported.port}"), 1)  # no server listens at ::1
        assert (await send(pool)).body == b"ok"
        await pool.close()


async def test_a_handshake_that_does_not_end_leaves_no_connection() -> None:
    async with scripted() as (reported, _):
        pool = Pool(address(f"https://127.0.0.1:{reported.port}", ssl_context(verify=False)), 1)
        with pytest.raises(Unreachable, match="timed out") as lost:
            await send(pool, connect=0.2)
        assert not lost.value.sent
        await reported.all_ended()
        cancelled = asyncio.create_task(send(pool))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await reported.all_ended()
        assert reported.connections == 2


async def test_a_large_response_and_a_large_request_arrive_whole() -> None:
    body = b"".join(b"%08d" % number for number in range(2**18))
    async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)) as (reported, pool):
        request = GET[:-2] + b"X: " + b"y" * 50_000 + b"\r\n\r\n"
        assert (await send(pool, request, limit=2**22)).body == body
        assert reported.heads == [request]


# --- requests of the client -------------------------------------------------------------------------------------------


async def test_requests_carry_user_agent_credentials_and_content_type() -> None:
    async with scripted() as (reported, _):
        token = "first"
        connection = Connection(f"http://127.0.0.1:{reported.port}/clusters/c", None, lambda: token, "default")
        now = 0.0
        async with Client(connection, user_agent="me", clock=lambda: now) as client:
            await client.request("GET", "/api/v1/pods", params={"fieldSelector": "a=b c/d", "limit": "5"})
            token, now = "Basic abc", 100.0
            await client.request("POST", "/api/v1/pods")
            await client.request("DELETE", "/api/v1/pods")
    host = b"Host: 127.0.0.1:%d\r\n" % reported.port
    more = b"Accept: application/json\r\nAccept-Encoding: identity\r\nUser-Agent: me\r\n"
    assert reported.heads == [
        b"GET /clusters/c/api/v1/pods?fieldSelector=a%3Db%20c%2Fd&limit=5 HTTP/1.1\r\n"
        + host + more + b"Authorization: Bearer first\r\n\r\n",
        b"POST /clusters/c/api/v1/pods HTTP/1.1\r\n"
        + host + more + b"Authorization: Basic abc\r\nContent-Length: 0\r\n\r\n",
        b"DELETE /clusters/c/api/v1/pods HTTP/1.1\r\n" + host + more + b"Authorization: Basic abc\r\n\r\n",
    ]  # fmt: skip


# --- by a proxy -------------------------------------------------------------------------------------------------------


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


@asynccontextmanager
async def tunnels(answer: bytes = OPEN) -> AsyncIterator[tuple[list[bytes], str]]:
    """A proxy that answers CONNECT, and opens the tunnel for a 200; yields the heads of requests, and its address."""
    requested: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if answer is not OPEN:
            writer.close()
            return
        host, _, port = requested[-1].split()[1].decode().rpartition(":")
        there_reader, there = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pipe(reader, there), _pipe(there_reader, writer))

    async with await asyncio.start_server(tunnel, "127.0.0.1", 0) as server:
        yield requested, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_requests_and_streams_go_through_the_proxy_of_the_kubeconfig(cluster: Cluster) -> None:
    direct = load_connection(str(cluster.control_plane.kubeconfig))
    async with (
        tunnels() as (requested, proxy),
        Client(msgspec.structs.replace(direct, proxy=f"http://me:a%20secret@{proxy}")) as client,
    ):
        made = await client.request("POST", "/api/v1/nodes", body=json.dumps(node("n")).encode())
        assert b'"uid"' in made
        with pytest.raises(ApiError, match="404 NotFound"):
            await client.request("GET", "/api/v1/nodes/m")
        async with client.stream("/api/v1/namespaces", {"watch": "1"}) as stream:
            assert b'"ADDED"' in await stream.read()
    target = direct.server.removeprefix("https://").encode()
    login = b"Proxy-Authorization: Basic bWU6YSBzZWNyZXQ=\r\n"
    assert requested == [b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (target, target, login)] * 2


@pytest.mark.parametrize(
    "answer, problem",
    [
        (b"HTTP/1.1 407 Required\r\nContent-Length: 2\r\n\r\nno", "the proxy responded with status 407"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "the proxy responded with status 502"),
        (b"SSH-2.0\r\n\r\n", "not HTTP"),
    ],
    ids=["refused", "without a length", "another protocol"],
)
async def test_a_proxy_that_opens_no_tunnel_is_named_and_the_request_was_never_sent(
    answer: bytes, problem: str
) -> None:
    async with tunnels(answer) as (_, proxy):
        target = msgspec.structs.replace(address("https://api.test:6443", ssl_context()), proxy=f"http://{proxy}")
        async with Client(target) as client:
            with pytest.raises(Unreachable, match=rf"no connection to {proxy}: .*{problem}") as lost:
                await client.request("POST", "/api/v1/nodes", body=b"{}")
    assert not lost.value.sent


async def test_a_server_behind_a_tunnel_is_verified(cluster: Cluster) -> None:
    direct = load_connection(str(cluster.control_plane.kubeconfig))
    async with tunnels() as (_, proxy):
        changed = msgspec.structs.replace(direct, proxy=f"http://{proxy}", server_name="another.example.com")
        async with Client(changed) as client:
            with pytest.raises(Unreachable, match=r"another\.example\.com") as lost:
                await client.request("GET", "/version")
    assert not lost.value.sent


async def test_a_proxy_gets_the_whole_address_of_a_server_without_tls() -> None:
    async with scripted() as (reported, _):
        proxy = f"http://me@127.0.0.1:{reported.port}"
        async with Client(msgspec.structs.replace(address("http://api.test/c"), proxy=proxy)) as client:
            assert await client.request("GET", "/version") == b"ok"
    assert reported.heads[0].startswith(
        b"GET http://api.test/c/version HTTP/1.1\r\nHost: api.test\r\nProxy-Authorization: Basic bWU6\r\n"
    )


# --- streams ----------------------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def streamed(*script: bytes | list[bytes] | None) -> AsyncIterator[tuple[Scripted, Stream]]:
    """A server, and the stream of its first response."""
    async with scripted(*script) as (reported, pool):
        response = await pool.exchange(GET, seconds=8, connect=5, limit=10, silence=5)
        assert response.stream is not None
        try:
            yield reported, response.stream
        finally:
            response.stream.abort()


async def read_all(stream: Stream) -> bytes:
    parts = []
    async with asyncio.timeout(10):
        while part := await stream.read():
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "pieces",
    [[CHUNKED], [CHUNKED[i : i + 1] for i in range(len(CHUNKED))], [INTERIM[: -len(PLAIN)] + CHUNKED], [CHUNKED + OK]],
    ids=["one piece", "bytes", "after interim responses", "before another response"],
)
async def test_a_stream_has_all_parts_of_its_body_and_an_end(pieces: list[bytes]) -> None:
    async with streamed(pieces) as (_, stream):
        assert await read_all(stream) == b'{"ab":[1,\r\n2,3]}'
        assert await stream.read() == b""


async def test_a_stream_without_chunks_ends_with_its_connection_and_others_break() -> None:
    async with streamed(b"HTTP/1.1 200 OK\r\n\r\nlines") as (reported, stream):
        assert await stream.read() == b"lines"
        reported.cut()
        assert await stream.read() == b""
    async with streamed(HEAD + b"5\r\nli") as (reported, stream):
        assert await stream.read() == b"li"
        reported.cut()
        with pytest.raises(Unreachable, match="the stream broke: the server closed the connection"):
            await stream.read()
    async with streamed([HEAD, b"nonsense\r\n"]) as (_, stream):
        with pytest.raises(Unreachable, match="the stream broke: the response is not HTTP"):
            await stream.read()


async def test_a_slow_reader_of_a_stream_stops_its_server() -> None:
    chunk = b"%x\r\n%b\r\n" % (2**16, b"x" * 2**16)
    async with streamed([HEAD, *[chunk] * 48, b"0\r\n\r\n"]) as (_, stream):
        async with asyncio.timeout(10):
            while stream._size <= 2**20:  # noqa: ASYNC110 - until it stops
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert stream._size < 2**21
        assert len(await read_all(stream)) == 48 * 2**16


async def test_a_watch_that_is_refused_has_a_whole_response_and_leaves_its_connection() -> None:
    refused = b"HTTP/1.1 410 Gone\r\nContent-Length: 4\r\n\r\ngone"
    async with scripted(refused, HEAD + b"1\r\nx\r\n") as (reported, pool):
        responses = [await pool.exchange(GET, seconds=8, connect=5, limit=10, silence=5) for _ in range(2)]
        assert responses[0] == HttpResponse(410, None, b"gone")
        assert responses[1].stream is not None
        assert await responses[1].stream.read() == b"x"
        responses[1].stream.abort()
        assert reported.requests == [1, 1]
