"""The source of measured load: its queries, and its handling of invalid responses."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.usage_source import PrometheusClient, UsageError, UsageSource, of_nodes, queries
from capcard_sched.framework.conf.metrics_section import PrometheusSettings
from capcard_sched.framework.conf.scheduler_conf import Conf, parse_conf
from capcard_sched.model.deltas import NodeUsageChanged
from capcard_sched.model.usage import NodeUsage
from capcard_sched.testing import registry
from tests.clock import until
from tests.controlplane.processes import free_port

NOW = 1_800_000_000.0
CPU, MEMORY, AGE = queries("instance")
PATIENCE = 20.0


def vector(label: str = "instance", **values: str) -> dict[str, Any]:
    result = [{"metric": {label: name.replace("_", ":")}, "value": [NOW, value]} for name, value in values.items()]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Answers:
    """A server of `/api/v1/query`: what it answers to each query, or to all."""

    def __init__(self) -> None:
        self.by_query: dict[str, Any] = {
            CPU: vector(n1="12.345", n2="90"),
            MEMORY: vector(n1="50"),
            AGE: vector(n1="7"),
        }
        self.instead: Answer | None = None
        self.received: list[str] = []
        self.address = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.received.append(request.query["query"])
        if self.instead is not None:
            return await self.instead(request)
        return web.json_response(self.by_query[request.query["query"]])


def warnings_of(logs: list[Any]) -> list[Any]:
    return [log for log in logs if log["log_level"] == "warning"]


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
        await until(lambda: self.polls(result) >= wanted, f"{wanted:g} questions {result}", within=PATIENCE)

    @asynccontextmanager
    async def running(self, address: str, interval: str = "20ms", plugin: str = "usage") -> AsyncIterator[list[Any]]:
        """The source with a conf; yields its log."""
        with capture_logs() as logs:
            self.source.use(conf(address, interval, plugin))
            async with self._running():
                yield logs

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
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


async def _slow(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(PATIENCE)
    return web.json_response(vector())


async def _written(request: web.Request, content: bytes, *, cut: bool) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(content)
    if cut:
        assert request.transport is not None
        request.transport.abort()
    return response


def page(content: str | bytes, status: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        body = content.encode() if isinstance(content, str) else content
        return web.Response(body=body, status=status, headers={"Location": "http://127.0.0.1:1/"})

    return answer


ERROR = page('{"status": "error", "errorType": "bad_data", "error": "parse error"}', 400)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ERROR, "HTTP 400: bad_data: parse error"),
        (page("<html>bad gateway</html>", 502), "HTTP 502, not a Prometheus response"),
        (
            page('{"status": "success", "data": {"resultType": "matrix", "result": []}}'),
            "expected a vector, got a matrix",
        ),
        (page('{"status": "success", "data": {"resultType": "vector", "result": [{"value": 1}]}}'), "not a Prometheus"),
        (page(b'{"status": "success", "error": "\xff\xfe"}'), "not a Prometheus response"),
        (page('{"status": "success", "data": ' + "[" * 100_000), "not a Prometheus response"),
        (page("", 302), "HTTP 302"),
        (_slow, "no response within 0.5 s"),
        (functools.partial(_written, content=b" " * 2**20 * 40, cut=False), "longer than 32 MiB"),
        (functools.partial(_written, content=b"{", cut=True), "Client"),
    ],
)
async def test_an_invalid_response_is_an_error_with_the_reason(answer: Answer, why: str) -> None:
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


async def test_an_unknown_certificate_is_rejected_unless_verification_is_off(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with serving(tls=context) as server:
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
        async with source.running(server.address.replace("//", "//user:secret@")) as logs:
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
        async with source.running(server.address):
            await source.polled("measured", 3)
    assert source.delivered[:3] == [{"n1": NodeUsage(12.35, 50.0, NOW - 7)}] * 3


async def test_failures_and_staleness_are_logged_once_and_so_is_the_recovery() -> None:
    async with serving() as server:
        source = Source({"n1"})
        async with source.running(server.address) as logs:
            await source.polled("measured")
            server.instead = ERROR
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
    loud = [log["event"] for log in warnings_of(logs)]
    assert loud == ["failed to measure node usage", "measured node usage is stale and ignored"]
    assert [log for log in logs if log["event"] == "node usage measured again"]


async def test_series_that_name_no_node_are_trouble_with_the_label_that_should() -> None:
    async with serving() as server:
        source = Source({"other"})
        async with source.running(server.address) as logs:
            await source.polled("failed", 2)
    (warning,) = warnings_of(logs)
    assert "label instance must be the name of the node, found n1" in warning["err"]
    assert source.delivered == []


async def test_nodes_without_usage_are_counted_once() -> None:
    async with serving() as server:
        source = Source({"n1", "n9", "n8"})
        async with source.running(server.address) as logs:
            await source.polled("measured", 3)
    (warning,) = warnings_of(logs)
    assert (warning["event"], warning["nodes"], warning["of"]) == ("nodes without measured usage", 2, 3)


async def test_another_scheduler_conf_counts_at_once_in_the_middle_of_a_long_interval() -> None:
    async with serving() as server, serving() as other:
        other.by_query = {CPU: vector(n1="1"), MEMORY: vector(n1="2"), AGE: vector(n1="0")}
        source = Source({"n1"})
        async with source.running(server.address, "1h"):
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
    async with source.running("", plugin=plugin) as logs:
        await asyncio.sleep(0.05)
    logged = warnings_of(logs)
    assert len(logged) == warnings
    if logged:
        assert logged[0]["plugins"] == ["usage"]
        assert "type: prometheus" in logged[0]["accepted"]
    assert source.source.age() is None
