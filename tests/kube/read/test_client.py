"""Requests to a real API server, and what may be concluded when they fail."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import msgspec
import pytest

from capcard_sched.kube.client import ApiError, Client, RequestWithheld, Unreachable
from capcard_sched.kube.connection import Connection, load_connection, ssl_context
from capcard_sched.kube.errors import api_error, parse_retry_after
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.kube.pool import _Connection
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, pod
from tests.controlplane.proxy import Proxy
from tests.kube.read.mirror import Ears
from tests.kube.read.test_pool import scripted

pytestmark = pytest.mark.processes

CONNECTION = Connection("http://127.0.0.1:9", None, lambda: None, "default")


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(connection_of(cluster)) as connected:
        yield connected


@pytest.fixture
async def by_proxy(proxy: Proxy) -> AsyncIterator[Client]:
    async with Client(load_connection(str(proxy.kubeconfig_for()))) as connected:
        yield connected


def connection_of(cluster: Cluster) -> Connection:
    return load_connection(str(cluster.control_plane.kubeconfig))


# --- responses --------------------------------------------------------------------------------------------------------


async def test_objects_are_made_read_and_deleted_and_an_error_carries_status_reason_and_object(
    cluster: Cluster,
) -> None:
    ears, path = Ears(), object_path("Node", "", "n")
    async with Client(connection_of(cluster), observer=ears) as client:
        made = json.loads(await client.request("POST", "/api/v1/nodes", body=json.dumps(node("n")).encode()))
        found = json.loads(await client.request("GET", path))
        assert found["metadata"]["uid"] == made["metadata"]["uid"]
        patch = b'{"metadata":{"labels":{"a":"b"}}}'
        await client.request("PATCH", path, body=patch, content_type="application/merge-patch+json")
        found = json.loads(await client.request("GET", "/api/v1/nodes", params={"labelSelector": "a=b"}))
        assert [item["metadata"]["name"] for item in found["items"]] == ["n"]
        await client.request("DELETE", path)
        with pytest.raises(ApiError, match='404 NotFound: pods "none" not found') as refused:
            await client.request("GET", object_path("Pod", "default", "none"))
        bad = json.dumps({**pod("p"), "spec": {"containers": []}}).encode()
        with pytest.raises(ApiError) as invalid:
            await client.request("POST", "/api/v1/namespaces/default/pods", body=bad)
    assert (refused.value.status, refused.value.reason, refused.value.retry_after) == (404, "NotFound", None)
    assert (refused.value.details.kind, refused.value.details.name) == ("pods", "none")
    assert invalid.value.status == 422
    assert "spec.containers" in {cause.field for cause in invalid.value.details.causes or ()}
    nodes = [("create", 201), ("get", 200), ("patch", 200), ("list", 200), ("delete", 200)]
    assert ears.requests == [
        *((verb, "nodes", status) for verb, status in nodes),
        ("get", "pods", 404),
        ("create", "pods", 422),
    ]


@pytest.mark.parametrize(
    ("status", "retry_after", "reason"), [(429, 7, "TooManyRequests"), (307, None, "")], ids=["retry", "redirect"]
)
async def test_an_error_of_the_server_is_not_followed_and_has_its_retry_after(
    by_proxy: Client, proxy: Proxy, status: int, retry_after: int | None, reason: str
) -> None:
    proxy.answer("GET", "/nodes/n", status, retry_after=retry_after)
    with pytest.raises(ApiError) as refused:
        await by_proxy.request("GET", object_path("Node", "", "n"))
    assert (refused.value.status, refused.value.retry_after) == (status, retry_after)
    assert refused.value.reason == reason or not reason


NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "header, seconds",
    [
        ("5", 5.0),
        (" 0 ", 0.0),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("Sat, 21 Nov 2026 12:00:30", 30.0),
        ("soon", None),
        ("-3", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, NOON) == seconds


@pytest.mark.parametrize(
    "code, body, shown",
    [
        (
            504,
            b'{"reason":"Timeout","message":"wait","details":{"retryAfterSeconds":3}}',
            "504 Timeout: wait after 3",
        ),
        (502, b"<html>bad gateway</html>", "502 BadGateway: <html>bad gateway</html>"),
        (503, b"", "503 ServiceUnavailable: Service Unavailable"),
        (500, b'{"kind":"Status","message":7}', '500 InternalServerError: {"kind":"Status","message":7}'),
        (999, b"x", "999 Unknown: x"),
    ],
)
def test_errors_are_those_of_the_status_which_may_have_a_retry_after_or_the_text(
    code: int, body: bytes, shown: str
) -> None:
    error = api_error(code, {}, body)
    assert f"{error}{f' after {error.retry_after:g}' if error.retry_after else ''}" == shown


# --- no response ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "why", "sent"),
    [
        pytest.param("http://127.0.0.1:9", r"no connection to 127\.0\.0\.1:9", False, id="refused"),
        pytest.param("https://127.0.0.1:{}", "no connection to .*timed out", False, id="no handshake"),
        pytest.param("http://nowhere.invalid:{}", r"no connection to .*nowhere\.invalid", False, id="no address"),
        pytest.param("http://127.0.0.1:{}", r"no response within 0\.4 s", True, id="no response"),
    ],
)
async def test_what_had_no_response_was_sent_only_on_an_open_connection(server: str, why: str, sent: bool) -> None:
    ears, path = Ears(), collection_path("Pod")
    async with scripted([], [], []) as (silent, _):  # no response to any
        connection = msgspec.structs.replace(CONNECTION, server=server.format(silent.port), ssl=ssl_context())
        async with Client(connection, timeout=0.4, observer=ears) as client:
            with pytest.raises(Unreachable, match=f"POST {path}: {why}") as lost:
                await client.request("POST", path, body=b"{}")
            with pytest.raises(Unreachable, match=f"GET {path}: {why.replace('4', '1')}") as read:
                await client.request("GET", path, timeout=0.1)
            with pytest.raises(Unreachable, match=f"GET {path}: {why.replace('4', '2')}") as stream:
                async with client.stream(path, {"watch": "1"}, timeout=0.2):
                    pass
    assert [error.value.sent for error in (lost, read, stream)] == [sent] * 3
    assert ears.requests == [("create", "pods", 0), ("list", "pods", 0), ("watch", "pods", 0)]


@pytest.mark.parametrize("connecting", [True, False], ids=["as it connects", "unanswered"])
async def test_no_connection_outlives_the_client(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, connecting: bool
) -> None:
    control_plane, ended = cluster.control_plane, threading.Event()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(control_plane.ca, control_plane.ca.with_suffix(".key"))

    def read_one_request(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with tls.wrap_socket(accepted, server_side=True) as stream:
            stream.recv(2**16)
            ended.wait(30)  # not even a shutdown is answered

    async def cancel_a_watch(server: str) -> None:
        async def watch() -> None:
            async with client.stream(collection_path("Pod"), {"watch": "1"}, timeout=1):
                pass

        def connection_made(self: _Connection, transport: asyncio.BaseTransport) -> None:
            made(self, transport)
            task.cancel()

        made = _Connection.connection_made
        if connecting:
            monkeypatch.setattr(_Connection, "connection_made", connection_made)
        async with Client(msgspec.structs.replace(connection_of(cluster), server=server)) as client:
            task = asyncio.create_task(watch())
            with pytest.raises(asyncio.CancelledError if connecting else Unreachable):
                await task

    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        reader = threading.Thread(target=read_one_request, args=(listener,))
        reader.start()
        await asyncio.to_thread(asyncio.run, cancel_a_watch(f"https://127.0.0.1:{listener.getsockname()[1]}"))
        gc.collect()
        ended.set()
        reader.join()
    assert [str(warning.message) for warning in left] == []


async def test_a_lost_response_leaves_the_outcome_open(cluster: Cluster, proxy: Proxy, by_proxy: Client) -> None:
    proxy.lose_answer("POST", "nodes")
    with pytest.raises(Unreachable) as lost:
        await by_proxy.request("POST", "/api/v1/nodes", body=json.dumps(node("n")).encode())
    assert lost.value.sent
    assert await cluster.find("nodes", "n") is not None


async def test_the_certificate_of_the_server_is_verified_and_the_client_must_be_open(cluster: Cluster) -> None:
    direct = connection_of(cluster)
    plain = msgspec.structs.replace(direct, ssl=ssl_context())
    named = msgspec.structs.replace(direct, server_name="not-this-one.example.com")
    for connection, problem in ((plain, "certificate"), (named, r"not-this-one\.example\.com")):
        async with Client(connection) as client:
            with pytest.raises(Unreachable, match=problem) as lost:
                await client.request("GET", "/version")
        assert not lost.value.sent
    unverified = Client(msgspec.structs.replace(plain, ssl=ssl_context(verify=False)))
    with pytest.raises(RuntimeError, match="async with"):
        await unverified.request("GET", "/version")
    async with unverified as client:
        assert b"gitVersion" in await client.request("GET", "/version")


# --- tokens -----------------------------------------------------------------------------------------------------------


class Tokens:
    """A source of tokens that goes stale until it is renewed."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.renewals = 0

    def token(self) -> str:
        return self.tokens[0]

    def renew(self) -> None:
        self.renewals += 1
        if len(self.tokens) > 1:
            self.tokens.pop(0)

    def within(self, connection: Connection) -> Connection:
        return msgspec.structs.replace(connection, token=self.token, renew=self.renew)


async def test_a_refused_token_is_renewed_once_for_all_requests_and_for_a_watch(cluster: Cluster) -> None:
    await cluster.create(node("n"))
    tokens = Tokens("stale", cluster.control_plane.token("admin"))
    async with Client(tokens.within(connection_of(cluster))) as client:
        responses = await asyncio.gather(*(client.request("GET", "/api/v1/nodes") for _ in range(8)))
    assert (len(responses), tokens.renewals) == (8, 1)
    tokens = Tokens("stale", cluster.control_plane.token("admin"))
    async with (
        Client(tokens.within(connection_of(cluster))) as client,
        client.stream("/api/v1/nodes", {"watch": "1"}) as stream,
    ):
        assert b'"ADDED"' in await stream.read()


async def test_the_send_deadline_is_checked_again_when_a_new_token_repeats_a_request(cluster: Cluster) -> None:
    tokens, ears, responses = Tokens("stale", cluster.control_plane.token("admin")), Ears(), [30.0, 0.0, 30.0]
    async with Client(tokens.within(connection_of(cluster)), observer=ears) as client:
        with pytest.raises(RequestWithheld):
            await client.request("GET", "/version", time_left=lambda: responses.pop(0))
        assert (responses, len(ears.requests)) == ([30.0], 1), "what is withheld is no request"
        await client.request("GET", "/version", time_left=lambda: responses.pop(0))


async def test_a_token_that_stays_refused_is_an_error(cluster: Cluster) -> None:
    tokens = Tokens("stale", "stale too")
    async with Client(tokens.within(connection_of(cluster))) as client:
        with pytest.raises(ApiError) as refused:
            await client.request("GET", "/api/v1/nodes")
        assert tokens.renewals == 1
        with pytest.raises(ApiError) as again:
            async with client.stream("/api/v1/nodes", {"watch": "1"}):
                pass
    assert (refused.value.status, again.value.status) == (401, 401)


async def test_a_token_that_changes_is_noticed_without_a_refusal(cluster: Cluster) -> None:
    tokens = Tokens(cluster.control_plane.token("admin"), cluster.control_plane.token("scheduler-a"))
    now = 100.0
    async with Client(tokens.within(connection_of(cluster)), clock=lambda: now) as client:
        whoami = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}

        async def user() -> str:
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            output = json.loads(await client.request("POST", path, body=json.dumps(whoami).encode()))
            return str(output["status"]["userInfo"]["username"])

        assert await user() == "admin"
        tokens.tokens.pop(0)
        now += 11.0
        assert await user() == "scheduler-a"
    assert tokens.renewals == 0


# --- streams and limits -----------------------------------------------------------------------------------------------


async def test_a_stream_ends_properly_silently_or_by_a_break(cluster: Cluster, proxy: Proxy, by_proxy: Client) -> None:
    version = str(cluster.control_plane.revision())

    async def last(within: dict[str, str], silence: float, happen: Callable[[], object]) -> bytes:
        params = {"watch": "1", "resourceVersion": version, **within}
        async with by_proxy.stream("/api/v1/nodes", params, silence=silence) as stream:
            happen()
            return await stream.read()

    assert await last({"timeoutSeconds": "1"}, 30.0, lambda: None) == b""
    with pytest.raises(TimeoutError):
        await last({}, 0.2, lambda: None)
    with pytest.raises(Unreachable, match="the stream broke"):
        await last({}, 30.0, lambda: proxy.reset_streams("nodes"))


async def test_a_stream_without_a_reader_ends_for_the_server_too(proxy: Proxy, by_proxy: Client) -> None:
    for _ in range(2):
        async with by_proxy.stream("/api/v1/nodes", {"watch": "1"}) as stream:
            await stream.pause(0.01)
            assert proxy.watching("nodes") == 1
        await until(lambda: not proxy.watching("nodes"), "the end of the stream", within=2.0)


async def test_open_streams_take_no_connection_from_requests(cluster: Cluster) -> None:
    async with Client(connection_of(cluster), connections=1, timeout=5) as client:
        params = {"watch": "1", "timeoutSeconds": "30"}
        async with client.stream("/api/v1/nodes", params), client.stream("/api/v1/pods", params):
            await asyncio.gather(*(client.request("GET", "/api/v1/nodes") for _ in range(5)))


async def test_requests_keep_to_the_rate_and_urgent_ones_go_past_it(cluster: Cluster) -> None:
    async with Client(connection_of(cluster), qps=5, burst=1) as client:
        loop = asyncio.get_running_loop()
        await client.request("GET", "/version")
        started = loop.time()
        await client.request("GET", "/version", throttled=False)
        urgent = loop.time() - started
        await asyncio.gather(*(client.request("GET", "/version") for _ in range(3)))
        assert loop.time() - started >= 0.5
        assert urgent < 0.2


async def test_urgent_requests_wait_for_no_connection(proxy: Proxy) -> None:
    slow = proxy.delay("GET", "/nodes/n", 2.0)
    async with Client(load_connection(str(proxy.kubeconfig_for())), connections=1) as client:
        waiting = asyncio.create_task(client.request("GET", object_path("Node", "", "n")))
        await slow.struck()
        async with asyncio.timeout(1.0):
            await client.request("GET", "/version", throttled=False)
        assert not waiting.done()
        with pytest.raises(ApiError):
            await waiting
