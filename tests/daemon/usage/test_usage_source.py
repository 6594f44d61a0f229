"""The source of measured load: its queries, and its handling of invalid responses."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.usage_source import PrometheusClient, UsageError, UsageSource, of_nodes, queries
from capcard_sched.framework.conf.metrics_section import PrometheusSettings
from capcard_sched.framework.conf.scheduler_conf import Conf, parse_conf
from capcard_sched.model.deltas import Delta, NodeUsageChanged
from capcard_sched.model.usage import NodeUsage
from capcard_sched.testing import registry
from tests.controlplane.processes import free_port

NOW = 1_800_000_000.0
CPU, MEMORY, AGE = queries("instance")
PATIENCE = 20.0


def vector(label: str = "instance", **values: str) -> dict[str, Any]:
    result = [{"metric": {label: name.replace("_", ":")}, "value": [NOW, value]} for name, value in values.items()]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


class Answers:
    """A server of `/api/v1/query`: what it answers to each query, or to all."""

    def __init__(self) -> None:
        self.by_query: dict[str, Any] = {
            CPU: vector(n1="12.345", n2="90"),
            MEMORY: vector(n1="50"),
            AGE: vector(n1="7"),
        }
        self.instead: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.received: list[str] = []
        self.address = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.received.append(request.query["query"])
        if self.instead is not None:
            return await self.instead(request)
        return web.json_response(self.by_query[request.query["query"]])


@asynccontextmanager
async def serving(path: str = "", tls: ssl.SSLContext | None = None) -> AsyncIterator[Answers]:
    answers = Answers()
    app = web.Application()
    app.router.add_get(f"{path}/api/v1/query", answers.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    answers.address = f"http{'s' if tls else ''}://127.0.0.1:{port}{path}"
    try:
        yield answers
    finally:
        await runner.cleanup()


def conf(address: str, interval: str = "20ms", plugin: str = "usage", more: str = "") -> Conf:
    text = f"actions: allocate\ntiers: [{{plugins: [{{name: {plugin}}}]}}]\n"
    text += f"metrics: {{type: prometheus, address: '{address}', interval: {interval}{more}}}\n" if address else ""
    found = parse_conf(text, registry=registry()).conf
    assert found is not None
    return found


class Source:
    """A running source and its deltas."""

    def __init__(self, nodes: set[str], timeout: float = 5.0) -> None:
        self.nodes = nodes
        self.delivered: list[dict[str, NodeUsage]] = []
        self.metrics = Metrics()
        self.now = NOW
        self.source = UsageSource(
            registry(), self.metrics, self._take, self._names, clock=lambda: self.now, timeout=timeout
        )

    def _take(self, deltas: Any) -> None:
        for delta in deltas:
            assert isinstance(delta, NodeUsageChanged)
            self.delivered.append(delta.nodes)

    async def _names(self) -> set[str]:
        return self.nodes

    def polls(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("volcano_node_usage_polls_total", {"result": result}) or 0.0

    async def polled(self, result: str, more: int = 1) -> None:
        """Until so many more questions ended that way."""
        wanted = self.polls(result) + more
        for _ in range(int(PATIENCE / 0.005)):
            if self.polls(result) >= wanted:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"{self.polls(result):g} questions {result}, not {wanted:g}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.source.run())
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


# --- one measurement --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/prometheus/"])
async def test_the_averages_of_all_nodes_come_in_three_questions_with_the_age_of_the_newest_sample(path: str) -> None:
    async with serving(path.rstrip("/")) as server:
        server.by_query = {
            CPU: vector(n1="12.345", n2="100.4", n3="-0.1", n4="50", n5="NaN"),
            MEMORY: vector(n1="50", n2="1e1", n5="60", n6="1"),
            AGE: vector(n1="7", n2="-1", n3="400", n5="0", n7="1"),
        }
        async with PrometheusClient(PrometheusSettings(server.address)) as client:
            assert await client.measure(NOW) == {
                "n1": NodeUsage(12.35, 50.0, NOW - 7),
                "n2": NodeUsage(100.0, 10.0, NOW),
                "n3": NodeUsage(0.0, None, NOW - 400),
                "n5": NodeUsage(None, 60.0, NOW),
            }
        assert server.received == [CPU, MEMORY, AGE]


def test_the_questions_are_those_of_a_node_exporter_by_a_label_of_choice() -> None:
    cpu, memory, age = queries("node")
    assert cpu == 'avg_over_time((100 - 100 * avg by (node) (irate(node_cpu_seconds_total{mode="idle"}[5m])))[10m:30s])'
    assert "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes" in memory
    assert memory.endswith("[10m:30s])")
    assert "by (node)" in age


async def _error(_: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "error", "errorType": "bad_data", "error": "parse error"}, status=400)


async def _broken(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>bad gateway</html>", status=502)


async def _matrix(_: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": []}})


async def _strange(_: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": [{"value": 1}]}})


async def _garbled(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"status": "success", "error": "\xff\xfe"}')


async def _nested(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"status": "success", "data": ' + b"[" * 100_000)


async def _slow(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(PATIENCE)
    return web.json_response(vector())


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(40):
        await response.write(b" " * 2**20)
    return response


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport is not None
    request.transport.abort()
    return response


async def _elsewhere(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (_error, "HTTP 400: bad_data: parse error"),
        (_broken, "HTTP 502, not a Prometheus response"),
        (_matrix, "expected a vector, got a matrix"),
        (_strange, "not a Prometheus response"),
        (_garbled, "not a Prometheus response"),
        (_nested, "not a Prometheus response"),
        (_slow, "no response within 0.5 s"),
        (_endless, "longer than 32 MiB"),
        (_cut, "Client"),
        (_elsewhere, "HTTP 302"),
    ],
)
async def test_an_invalid_response_is_an_error_with_the_reason(answer: Any, why: str) -> None:
    async with serving() as server:
        server.instead = answer
        timeout = 0.5 if answer is _slow else PATIENCE
        async with PrometheusClient(PrometheusSettings(server.address), timeout=timeout) as client:
            with pytest.raises(UsageError, match=why):
                await client.measure(NOW)


async def test_a_server_that_is_not_there_is_an_error_without_its_password() -> None:
    settings = PrometheusSettings(f"http://user:secret@127.0.0.1:{free_port()}")
    async with PrometheusClient(settings) as client:
        with pytest.raises(UsageError) as caught:
            await client.measure(NOW)
    assert "secret" not in str(caught.value)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A self-signed server certificate."""
    folder = tmp_path_factory.mktemp("tls")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_an_unknown_certificate_is_rejected_unless_verification_is_off(certified: ssl.SSLContext) -> None:
    async with serving(tls=certified) as server:
        async with PrometheusClient(PrometheusSettings(server.address)) as client:
            with pytest.raises(UsageError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.measure(NOW)
        async with PrometheusClient(PrometheusSettings(server.address, insecure=True)) as client:
            assert "n1" in await client.measure(NOW)


async def test_credentials_of_the_address_are_sent_to_the_server_only() -> None:
    shown: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        shown.append(request.headers.get("Authorization", ""))
        return web.json_response(vector())

    async with serving() as server:
        server.instead = note
        source = Source({"n1"})
        with capture_logs() as logs:
            source.source.use(conf(server.address.replace("//", "//user:secret@")))
            async with source.running():
                await source.polled("failed")
    assert shown[0] == "Basic dXNlcjpzZWNyZXQ="
    assert "secret" not in repr(logs)


# --- names ------------------------------------------------------------------------------------------------------------

A, B = NodeUsage(1), NodeUsage(2)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({"n1": A, "other": B}, {"n1": A}),
        ({"n1:9100": A}, {"n1": A}),
        ({"n1:9100": A, "n1": B}, {"n1": B}),
        ({"n1": B, "n1:9100": A}, {"n1": B}),
        ({"10.0.0.1:9100": A}, {}),
    ],
)
def test_a_series_belongs_to_the_node_it_names_with_or_without_a_port(
    measured: dict[str, NodeUsage], expected: dict[str, NodeUsage]
) -> None:
    assert of_nodes(measured, {"n1", "n2"}) == expected


# --- the source -------------------------------------------------------------------------------------------------------


async def test_measurements_become_facts_at_the_interval() -> None:
    async with serving() as server:
        source = Source({"n1"})
        source.source.use(conf(server.address))
        async with source.running():
            await source.polled("measured", 3)
    assert source.delivered[:3] == [{"n1": NodeUsage(12.35, 50.0, NOW - 7)}] * 3


async def test_failures_and_staleness_are_logged_once_and_so_is_the_recovery() -> None:
    async with serving() as server:
        source = Source({"n1"})
        with capture_logs() as logs:
            source.source.use(conf(server.address))
            async with source.running():
                await source.polled("measured")
                server.instead = _error
                await source.polled("failed", 2)
                source.now += 299
                await source.polled("failed")
                assert not [log for log in logs if "stale" in log["event"]]
                source.now += 2
                await source.polled("failed", 2)
                assert source.source.age() == pytest.approx(301)
                server.instead = None
                await source.polled("measured")
                assert source.source.age() == 0
    loud = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert loud == [
        "failed to measure node usage",
        "measured node usage is stale and ignored",
    ]
    assert [log for log in logs if log["event"] == "node usage measured again"]


async def test_series_that_name_no_node_are_trouble_with_the_label_that_should() -> None:
    async with serving() as server:
        source = Source({"other"})
        with capture_logs() as logs:
            source.source.use(conf(server.address))
            async with source.running():
                await source.polled("failed", 2)
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert "label instance must be the name of the node, found n1" in warning["err"]
    assert source.delivered == []


async def test_nodes_without_usage_are_counted_once() -> None:
    async with serving() as server:
        source = Source({"n1", "n9", "n8"})
        with capture_logs() as logs:
            source.source.use(conf(server.address))
            async with source.running():
                await source.polled("measured", 3)
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert (warning["event"], warning["nodes"], warning["of"]) == ("nodes without measured usage", 2, 3)


async def test_another_scheduler_conf_counts_at_once_in_the_middle_of_a_long_interval() -> None:
    async with serving() as server, serving() as other:
        other.by_query = {CPU: vector(n1="1"), MEMORY: vector(n1="2"), AGE: vector(n1="0")}
        source = Source({"n1"})
        source.source.use(conf(server.address, "1h"))
        async with source.running():
            await source.polled("measured")
            source.source.use(conf(other.address, "1h"))
            await source.polled("measured")
            assert source.delivered[-1] == {"n1": NodeUsage(1.0, 2.0, NOW)}
            source.source.use(conf(other.address, "1h", plugin="gang"))
            await asyncio.sleep(0.1)
            assert (len(other.received), source.source.age()) == (3, None)
            source.source.use(conf(other.address, "1h"))
            await source.polled("measured")


@pytest.mark.parametrize(
    ("plugin", "warnings"), [("usage", 1), ("gang", 0)], ids=["a plugin uses usage", "no plugin uses it"]
)
async def test_without_a_source_nothing_is_queried_and_a_warning_is_logged(plugin: str, warnings: int) -> None:
    source = Source({"n1"})
    with capture_logs() as logs:
        source.source.use(conf("", plugin=plugin))
        async with source.running():
            await asyncio.sleep(0.05)
    logged = [log for log in logs if log["log_level"] == "warning"]
    assert len(logged) == warnings
    if logged:
        assert logged[0]["plugins"] == ["usage"]
        assert "type: prometheus" in logged[0]["accepted"]
    assert source.source.age() is None


def test_a_measurement_is_read_back_from_a_recording() -> None:

    delta = NodeUsageChanged({"n1": NodeUsage(12.35, None, NOW)})
    assert msgspec.json.decode(msgspec.json.encode(delta), type=Delta) == delta
    assert json.loads(msgspec.json.encode(delta))["delta"] == "NodeUsageChanged"
