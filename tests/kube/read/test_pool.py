"""Connections to a server that responds by a script, and the bytes of requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection, ssl_context
from capcard_sched.kube.errors import ApiError, RequestWithheld, Unreachable
from capcard_sched.kube.pool import HttpResponse, Pool, Stream, _Connection
from tests.clock import until

pytestmark = pytest.mark.processes


def http(head: str, body: bytes = b"") -> bytes:
    """A response: status and headers, separated by `|`."""
    return "\r\n".join([f"HTTP/1.1 {head.replace('|', chr(13) + chr(10))}", "", ""]).encode() + body


OK = http("200 OK|Content-Length: 2", b"ok")
PLAIN = http("201 Created|Content-Type: application/json|Content-Length: 7", b'{"a":1}')
HEAD = http("200 OK|Transfer-Encoding: chunked")
CHUNKED = HEAD + b'5\r\n{"ab"\r\n00A;note=x\r\n:[1,\r\n2,3]\r\n1\r\n}\r\n0\r\nAfterwards: yes\r\n\r\n'
INTERIM = http("100 Continue") + http("103 Early Hints|Retry-After: 9") + PLAIN
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
#: What a server sends in response to a request, piece by piece; None closes the connection.
Pieces = Sequence[bytes | None]


class Scripted:
    """Answers requests one by one by a script; afterwards all is OK."""

    def __init__(self, *script: bytes | Pieces, wait: float) -> None:
        self.wait = wait
        self.script = list(script)
        self.requests: list[int] = []  # number of the connection each request came on
        self.heads: list[bytes] = []
        self.connections = 0
        self.ended = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(number)
                self.heads.append(head)
                pieces = self.script.pop(0) if self.script else OK
                await asyncio.sleep(self.wait)
                for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()

    async def all_ended(self) -> None:
        await until(lambda: self.ended >= self.connections, "the end of every connection")


def address(server: str, context: ssl.SSLContext | None = None) -> Connection:
    return Connection(server, context, lambda: None, "default")


@asynccontextmanager
async def scripted(
    *script: bytes | Pieces, wait: float = 0.0, connections: int = 2
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


async def send(pool: Pool, request: bytes = GET, **limits: Any) -> HttpResponse:
    usual: dict[str, Any] = {"repeatable": True, "seconds": 8.0, "connect": 5.0, "limit": 1000}
    return await pool.exchange(request, **{**usual, **limits})


async def outcome(pool: Pool, **limits: Any) -> str:
    """Status, body and Retry-After of a response, or why there is none."""
    try:
        response = await send(pool, **limits)
    except Unreachable as error:
        return f"{'sent' if error.sent else 'unsent'}: {error}"
    except (ApiError, TimeoutError, RequestWithheld) as error:
        return f"{type(error).__name__} {error}".strip()
    retry_after = dict(response.headers).get(b"retry-after")
    return f"{response.status} {response.body.decode()}{f'after {retry_after} s' if retry_after else ''}".strip()


CLOSED = "sent: the server closed the connection"
TOO_LARGE = "ApiError 202 TooLarge: ...more than 20 bytes"


# --- responses --------------------------------------------------------------------------------------------------------


#: Id to what the server sends, what the client finds, and whether the connection is used again.
RESPONSES: dict[str, tuple[bytes | Pieces, str, bool]] = {
    "a length": (PLAIN, '201 {"a":1}', True),
    "chunks, one with a line end in it, and a trailer": (CHUNKED, '200 {"ab":[1,\r\n2,3]}', True),
    "interim responses, whose Retry-After is not its own": (INTERIM, '201 {"a":1}', True),
    "no content": (http("204 No Content"), "204", True),
    "empty": (http("200 OK|Content-Length: 0"), "200", True),
    "Retry-After": (http("429 No|X-Retry-After: 9|RETRY-After:  7|content-length:0"), "429 after 7 s", True),
    "close": (http("200 OK|Connection: Close|Content-Length: 1", b"x"), "200 x", False),
    "HTTP/1.0": (OK.replace(b"1.1", b"1.0"), "200 ok", False),
    "no length: until the connection ends": ([http("502 Bad Gateway", b"sor"), b"ry", None], "502 sorry", False),
    "two responses": (PLAIN + OK, '201 {"a":1}', False),
    "a response and a half": (PLAIN + b"HTTP", '201 {"a":1}', False),
    "a response and nonsense": (PLAIN + b"nonsense", '201 {"a":1}', False),
    "another protocol": (b"SSH-2.0-OpenSSH\r\n\r\n", "sent: ...not HTTP", False),
    "a negative length": (http("200 OK|Content-Length: -1"), "sent: ...Content-Length", False),
    "two lengths": (http("200 OK|Content-Length: 1|Content-Length: 2"), "sent: ...Content-Length", False),
    "a chunk without a size": (http("200 OK|Transfer-Encoding: chunked", b"xyz\r\n"), "sent: ...chunk size", False),
    "an upgrade": (http("101 Switching|Upgrade: x|Connection: upgrade", b"hello"), "sent: ...not HTTP", False),
    "an endless head": ([b"HTTP/1.1 200 OK\r\nA: ", *[b"x" * 2**14] * 9], "sent: ...a head of more than", False),
    "a length beyond the limit": (http("202 OK|Content-Length: 21", b"x" * 21), TOO_LARGE, False),
    "chunks beyond the limit": (
        http("202 OK|Transfer-Encoding: chunked", b"b\r\n12345678901\r\nb\r\n12345678901\r\n0\r\n\r\n"),
        TOO_LARGE,
        False,
    ),
    "an endless body beyond the limit": (http("202 OK", b"x" * 21), TOO_LARGE, False),
}


@pytest.mark.parametrize(("raw", "expected", "kept"), RESPONSES.values(), ids=RESPONSES)
async def test_a_response_is_read_or_refused_and_only_a_proper_end_leaves_its_connection(
    raw: bytes | Pieces, expected: str, kept: bool
) -> None:
    async with scripted(raw) as (reported, pool):
        found = await outcome(pool, limit=20)
        start, more, part = expected.partition("...")
        assert (found.startswith(start) and part in found) if more else found == expected
        assert await outcome(pool, limit=2) == "200 ok"
        assert reported.requests == ([1, 1] if kept else [1, 2])


@pytest.mark.parametrize("raw", [PLAIN, CHUNKED, INTERIM], ids=["plain", "chunked", "interim"])
async def test_a_response_is_the_same_wherever_its_pieces_end_and_none_when_it_was_cut(raw: bytes) -> None:
    whole: list[bytes | Pieces] = [raw, [raw[i : i + 1] for i in range(len(raw))], [raw[:40], raw[40:]]]
    cuts = [20, 25, raw.index(b"\r\n\r\n") + 4, len(raw) - 1]
    async with scripted(*whole, *(part for cut in cuts for part in ([raw[:cut], None], OK))) as (reported, pool):
        responses = [await outcome(pool) for _ in range(3)]
        assert responses == responses[:1] * 3
        assert [await outcome(pool) for _ in range(8)] == [CLOSED, "200 ok"] * 4
        assert reported.requests == [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5]


# --- connections ------------------------------------------------------------------------------------------------------

ONCE = {"repeatable": False}


@pytest.mark.parametrize(
    ("script", "requests", "expected", "connections"),
    [
        pytest.param([], [{}, {}, {}], ["200 ok"] * 3, [1, 1, 1], id="all go on one connection"),
        pytest.param([[OK, b"x"]], [{}, ONCE], ["200 ok"] * 2, [1, 2], id="an unrequested response ends a connection"),
        pytest.param([[OK, None]], [{}, ONCE], ["200 ok"] * 2, [1, 2], id="its server ended a connection at rest"),
        pytest.param([OK, [None]], [{}, {}], ["200 ok"] * 2, [1, 1, 2], id="a repeatable one is sent again"),
        pytest.param([OK, [None]], [{}, ONCE], ["200 ok", CLOSED], [1, 1], id="one that could do harm is not"),
        pytest.param([[None]], [{}], [CLOSED], [1], id="nor is one on a new connection"),
        pytest.param(
            [OK, [OK[:30], None]], [{}, {}], ["200 ok", CLOSED], [1, 1], id="nor after a part of the response"
        ),
        pytest.param(
            [OK, [OK[:30], *[b""] * 400, OK[30:]]],
            [{}, {"seconds": 0.1}, {"seconds": 1.0}],
            ["200 ok", "TimeoutError no response within 0.1 s", "200 ok"],
            [1, 1, 2],
            id="nor one that takes too long, whose connection ends",
        ),
        pytest.param(
            [],
            [{"time_left": time_left} for time_left in (lambda: 30.0, lambda: 0.0, lambda: 0.0, lambda: 30.0)],
            ["200 ok", "RequestWithheld", "RequestWithheld", "200 ok"],
            [1, 1],
            id="one past its deadline leaves its connection to others",
        ),
    ],
)
async def test_requests_go_on_open_connections_and_are_sent_again_only_where_that_does_no_harm(
    script: list[bytes | Pieces], requests: list[dict[str, Any]], expected: list[str], connections: list[int]
) -> None:
    found = []
    async with scripted(*script) as (reported, pool):
        for limits in requests:
            found.append(await outcome(pool, **limits))
            await asyncio.sleep(0.05)
    assert (found, reported.requests) == (expected, connections)


async def test_exchanges_at_a_time_end_each_at_its_own_deadline() -> None:
    slow: Pieces = [OK[:30], *[b""] * 400, OK[30:]]
    async with scripted(slow, slow, slow, connections=3) as (reported, pool):
        limits: list[dict[str, Any]] = [{}, {"seconds": 0.2}, {"time_left": lambda: 0.1}]
        found = await asyncio.gather(*(outcome(pool, **each) for each in limits))
        late = [f"TimeoutError no response within {seconds} s" for seconds in (0.2, 0.1)]
        assert found == ["200 ok", *late]
        assert await outcome(pool, seconds=0.5) == "200 ok", "on the connection that is left"
        # Connections that open together are accepted in any order: the last request is the second of its own.
        assert (reported.connections, reported.requests.count(reported.requests[-1])) == (3, 2)


async def test_a_request_that_waits_in_vain_takes_no_connection_from_those_behind_it() -> None:
    async with scripted(http("200 OK|Content-Length: 4", b"late"), wait=0.3, connections=1) as (reported, pool):
        first = asyncio.create_task(outcome(pool))
        await until(lambda: reported.requests == [1], "the request")
        assert await outcome(pool, connect=0.01) == "unsent: no free connection within 0.01 s"
        cancelled, last = asyncio.create_task(outcome(pool)), asyncio.create_task(outcome(pool))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert [await first, await last] == ["200 late", "200 ok"]
        assert await outcome(pool) == "200 ok"
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
    async with scripted(wait=0.2, connections=0) as (reported, pool):
        await asyncio.gather(*(send(pool) for _ in range(20)))
        assert reported.connections == 20, "without a limit no request waits"


async def test_waiting_for_a_place_has_an_end_and_loses_none() -> None:
    async with scripted(wait=0.4) as (_, pool):
        busy = [asyncio.create_task(send(pool)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await outcome(pool, connect=0.05) == "unsent: no free connection within 0.05 s"
        cancelled = asyncio.create_task(send(pool))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        assert [(await task).status for task in busy] == [200, 200]
        assert [response.status for response in await asyncio.gather(*(send(pool) for _ in range(4)))] == [200] * 4


async def test_a_connection_that_rested_for_too_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted() as (reported, pool):
        await asyncio.gather(send(pool), send(pool))
        monkeypatch.setattr("capcard_sched.kube.pool._KEEPALIVE_SECONDS", 0.05)
        await asyncio.sleep(0.1)
        assert (await send(pool)).body == b"ok"
        await until(lambda: reported.ended >= 2, "the end of the connections that rested")
        assert (reported.requests[-1], reported.ended) == (3, 2)


async def test_a_request_sent_once_counts_as_sent_when_no_second_connection_opens() -> None:
    async with scripted(OK, [None], wait=0.1) as (reported, pool):
        await send(pool)
        requested = asyncio.create_task(outcome(pool))
        await until(lambda: len(reported.requests) == 2, "the request")
        pool._port = 9
        assert (await requested).startswith("sent: no connection to")
        assert reported.requests == [1, 1]


async def test_cancelling_or_closing_ends_the_connection_of_a_pending_response() -> None:
    async with scripted(http("200 OK|Content-Length: 4", b"late"), wait=0.2) as (reported, pool):
        late = asyncio.create_task(outcome(pool))
        await until(lambda: reported.requests == [1], "the request")
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert (await outcome(pool), reported.requests) == ("200 ok", [1, 2])
        late = asyncio.create_task(outcome(pool))
        await until(lambda: reported.requests == [1, 2, 2], "the request")
        await pool.close()
        assert await late == "sent: the connection is closed"
        assert reported.requests == [1, 2, 2], "it is not sent again"
        assert await outcome(pool) == "unsent: the connection is closed"


async def test_a_request_that_is_cancelled_as_its_connection_opens_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted() as (reported, pool):
        opened, cancelled = _Connection.connection_made, asyncio.create_task(outcome(pool))

        def cancel_at_once(connection: _Connection, transport: asyncio.BaseTransport) -> None:
            opened(connection, transport)
            cancelled.cancel()

        with monkeypatch.context() as patch:
            patch.setattr(_Connection, "connection_made", cancel_at_once)
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        await reported.all_ended()
        async with asyncio.timeout(5):
            await pool.close()


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
        await until(lambda: reported.connections == 2, "the connection")
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await reported.all_ended()
        assert reported.connections == 2


async def test_a_large_response_and_a_large_request_arrive_whole() -> None:
    body = b"".join(b"%08d" % number for number in range(2**18))
    async with scripted(http(f"200 OK|Content-Length: {len(body)}", body)) as (reported, pool):
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
    more, accept = b"Accept-Encoding: identity\r\nUser-Agent: me\r\n", b"Accept: application/json\r\n"
    first, second = b"Authorization: Bearer first\r\n" + accept, b"Authorization: Basic abc\r\n" + accept
    assert reported.heads == [
        b"GET /clusters/c/api/v1/pods?fieldSelector=a%3Db%20c%2Fd&limit=5 HTTP/1.1\r\n"
        + host + more + first + b"\r\n",
        b"POST /clusters/c/api/v1/pods HTTP/1.1\r\n" + host + more + second + b"Content-Length: 0\r\n\r\n",
        b"DELETE /clusters/c/api/v1/pods HTTP/1.1\r\n" + host + more + second + b"\r\n",
    ]  # fmt: skip


# --- streams ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def streamed(*script: bytes | Pieces) -> AsyncIterator[tuple[Scripted, Stream]]:
    """A server, and the stream of its first response."""
    async with scripted(*script) as (reported, pool):
        response = await pool.exchange(GET, seconds=8, connect=5, limit=10, silence=5)
        assert response.stream is not None
        try:
            yield reported, response.stream
        finally:
            response.stream.abort()


async def read_all(stream: Stream) -> tuple[bytes, str]:
    """The body, and what broke it off: "" for a proper end."""
    parts = []
    try:
        async with asyncio.timeout(10):
            while part := await stream.read():
                parts.append(part)
            assert await stream.read() == b"", "it stays at its end"
    except Unreachable as error:
        return b"".join(parts), str(error)
    return b"".join(parts), ""


WHOLE = b'{"ab":[1,\r\n2,3]}'
#: Id to what the server sends, the body, and what breaks it off.
STREAMS: dict[str, tuple[Pieces, bytes, str]] = {
    "one piece": ([CHUNKED], WHOLE, ""),
    "single bytes": ([CHUNKED[i : i + 1] for i in range(len(CHUNKED))], WHOLE, ""),
    "after interim responses": ([INTERIM[: -len(PLAIN)] + CHUNKED], WHOLE, ""),
    "before another response": ([CHUNKED + OK], WHOLE, ""),
    "without chunks, until the connection ends": ([http("200 OK", b"lines"), None], b"lines", ""),
    "a chunk that is cut": ([HEAD + b"5\r\nli", None], b"li", "the stream broke: the server closed the connection"),
    "no chunk": ([HEAD, b"nonsense\r\n"], b"", "the stream broke: the response is not HTTP"),
}


@pytest.mark.parametrize(("pieces", "body", "problem"), STREAMS.values(), ids=STREAMS)
async def test_a_stream_has_all_parts_of_its_body_and_an_end_or_breaks(
    pieces: Pieces, body: bytes, problem: str
) -> None:
    async with streamed(pieces) as (_, stream):
        found, broken = await read_all(stream)
        assert (found, broken[: len(problem)], bool(broken)) == (body, problem, bool(problem))


async def test_a_slow_reader_of_a_stream_stops_its_server() -> None:
    chunk = b"%x\r\n%b\r\n" % (2**16, b"x" * 2**16)
    async with streamed([HEAD, *[chunk] * 48, b"0\r\n\r\n"]) as (_, stream):
        async with asyncio.timeout(10):
            while stream._size <= 2**20:  # noqa: ASYNC110 - until it stops
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert stream._size < 2**21
        assert len((await read_all(stream))[0]) == 48 * 2**16


async def test_a_watch_that_is_refused_has_a_whole_response_and_leaves_its_connection() -> None:
    async with scripted(http("410 Gone|Content-Length: 4", b"gone"), HEAD + b"1\r\nx\r\n") as (reported, pool):
        responses = [await pool.exchange(GET, seconds=8, connect=5, limit=10, silence=5) for _ in range(2)]
        assert responses[0] == HttpResponse(410, [], b"gone")
        assert responses[1].stream is not None
        assert await responses[1].stream.read() == b"x"
        responses[1].stream.abort()
        assert reported.requests == [1, 1]
