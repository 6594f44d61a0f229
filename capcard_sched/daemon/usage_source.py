"""Measured usage of nodes, queried from Prometheus at an interval.

Three queries cover all nodes: the averages of cpu and memory over ten minutes, and the age of the newest sample by
Prometheus's clock, so that a dead exporter is detected within minutes although its average persists. The result is a
delta of the core. A failure is logged once and retried with backoff; its only effect is that measurements become stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Final, Self

import msgspec
import structlog

from capcard_sched.framework.api.plugin import Reads
from capcard_sched.framework.conf.metrics_section import PROMETHEUS, PrometheusSettings, prometheus_of, without_password
from capcard_sched.kube.errors import cancellations
from capcard_sched.kube.writes.write_backoff import RetryBackoff
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.deltas import NodeUsageChanged
from capcard_sched.model.usage import PERIOD, STALE_SECONDS, NodeUsage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import aiohttp

    from capcard_sched.daemon.observability.metrics import Metrics
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.model.deltas import Delta

#: Seconds: timeout of a measurement, and of a connection.
_TIMEOUT_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 10.0
#: Bytes: maximum response; five thousand nodes take half a megabyte.
_MOST_BYTES: Final = 32 * 2**20
#: Seconds: backoff after the first failure.
_FIRST_RETRY: Final = 1.0
#: Seconds: maximum backoff after failures, unless the interval is longer.
_LONGEST_WAIT: Final = 60.0
#: PromQL duration: resolution of the averages, whose samples are aligned to it.
_STEP: Final = "30s"
_SHOWN: Final = 200


class UsageError(Exception):
    """A failed measurement; the text has the reason and no password."""


class PrometheusSeries(msgspec.Struct, frozen=True):
    """One series of an instant vector."""

    metric: dict[str, str]
    #: Unix seconds of the evaluation, and a number as text.
    value: tuple[float, str]

    @property
    def number(self) -> float | None:
        """The value; None for one that is no finite number."""
        try:
            found = float(self.value[1])
        except ValueError:
            return None
        return found if math.isfinite(found) else None


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _PrometheusResponse(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""


_response: Final = msgspec.json.Decoder(_PrometheusResponse)
_vector: Final = msgspec.json.Decoder(tuple[PrometheusSeries, ...])


def queries(label: str, step: str = _STEP) -> tuple[str, str, str]:
    """PromQL for cpu and memory in percent, and for the age of the newest sample in seconds, each by `label`."""
    # `rate` divides by the whole range: a node first scraped seconds ago would seem busy for minutes.
    idle = f'avg by ({label}) (irate(node_cpu_seconds_total{{mode="idle"}}[5m]))'
    available = "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes"
    return (
        f"avg_over_time((100 - 100 * {idle})[{PERIOD}:{step}])",
        f"avg_over_time((100 - 100 * avg by ({label}) ({available}))[{PERIOD}:{step}])",
        f"time() - max by ({label}) (timestamp(node_memory_MemAvailable_bytes))",
    )


class PrometheusClient:
    """Client of one Prometheus server. An async context manager."""

    def __init__(self, settings: PrometheusSettings, *, timeout: float = _TIMEOUT_SECONDS, step: str = _STEP) -> None:
        """`timeout` in seconds for a whole measurement; `step`: resolution of the averages, a PromQL duration."""
        self._settings = settings
        self._step = step
        self._url = f"{settings.address}/api/v1/query"
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp  # with its servers it takes a sixth of a start, and most clusters have no Prometheus here

        connector = aiohttp.TCPConnector(limit=3, ssl=not self._settings.insecure, ttl_dns_cache=10)
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def measure(self, now: float) -> dict[str, NodeUsage]:
        """Usage by the value of the node label. `now`: the current time in Unix seconds. Raises UsageError."""
        cpu_query, memory_query, age_query = queries(self._settings.node_label, self._step)
        try:
            async with asyncio.timeout(self._timeout):
                # Sequential: each query may be expensive for Prometheus.
                cpu, memory = await self.query(cpu_query), await self.query(memory_query)
                age = await self.query(age_query)
        except TimeoutError as error:
            raise UsageError(f"no response within {self._timeout:g} s") from error
        return {
            name: NodeUsage(_percent(cpu.get(name)), _percent(memory.get(name)), now - max(0.0, age[name]))
            for name in sorted(age)
            if name in cpu or name in memory
        }

    async def query(self, query: str) -> dict[str, float]:
        """An instant vector as numbers by node label; values that are not finite are omitted. Raises UsageError."""
        return _numbers(await self.vector(query), self._settings.node_label)

    async def vector(self, query: str, at: float | None = None) -> tuple[PrometheusSeries, ...]:
        """An instant vector at a moment (Unix seconds, default: now). Raises UsageError."""
        import aiohttp

        assert self._session is not None
        params = {"query": query} if at is None else {"query": query, "time": f"{at:.3f}"}
        try:
            before = cancellations()
            async with self._session.get(self._url, params=params, allow_redirects=False) as response:
                if cancellations() > before:
                    raise asyncio.CancelledError
                content = await _content(response)
                status = response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UsageError(_text(error)) from error
        try:
            decoded = _response.decode(content)
            if decoded.status != "success" or decoded.data is None:
                kind = f"{decoded.error_type}: " if decoded.error_type else ""
                raise UsageError(f"HTTP {status}: {kind}{decoded.error or decoded.status}"[:_SHOWN])
            if decoded.data.result_type != "vector":
                raise UsageError(f"expected a vector, got a {decoded.data.result_type}")
            return _vector.decode(decoded.data.result)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            prefix = "" if status == 200 else f"HTTP {status}, "
            raise UsageError(f"{prefix}not a Prometheus response: {field_problem(error)}"[:_SHOWN]) from error


async def _content(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_chunked(2**16):
        size += len(part)
        if size > _MOST_BYTES:
            raise UsageError(f"the response is longer than {_MOST_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _numbers(series: Iterable[PrometheusSeries], label: str) -> dict[str, float]:
    return {each.metric[label]: each.number for each in series if label in each.metric and each.number is not None}


def _percent(value: float | None) -> float | None:
    """Clamped to 0 to 100 and rounded to a hundredth, the precision of the counters."""
    return None if value is None else round(min(100.0, max(0.0, value)), 2)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:_SHOWN]


def of_nodes(measured: Mapping[str, NodeUsage], nodes: AbstractSet[str]) -> dict[str, NodeUsage]:
    """Usage of known nodes, by name, or by name and port."""
    found: dict[str, NodeUsage] = {}
    for name, usage in measured.items():
        host = name if name in nodes else name.rpartition(":")[0]
        if host in nodes and (host == name or host not in measured):
            found[host] = usage
    return found


def wants_usage(conf: Conf, registry: Registry) -> list[str]:
    """The plugins of a scheduler-conf that use measured usage."""
    options = [option.name for tier in conf.tiers for option in tier]
    return [name for name in options if (plugin := registry.plugin(name)) is not None and Reads.USAGE in plugin.reads]


class UsageSource:
    """Measures while the scheduler-conf has a Prometheus address and a plugin that uses node usage."""

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        deliver: Callable[[Sequence[Delta]], None],
        nodes: Callable[[], Awaitable[AbstractSet[str]]],
        *,
        clock: Callable[[], float] = time.time,
        timeout: float = _TIMEOUT_SECONDS,
        first_retry: float = _FIRST_RETRY,
        step: str = _STEP,
    ) -> None:
        """`deliver` receives deltas, `nodes` returns the names of known nodes; `clock`: Unix seconds.

        `first_retry`: backoff after the first failure in seconds, at most the interval; `step`: resolution of the
        averages, a PromQL duration.
        """
        self._registry = registry
        self._metrics = metrics
        self._deliver = deliver
        self._nodes = nodes
        self._clock = clock
        self._timeout = timeout
        self._first_retry = first_retry
        self._step = step
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._settings: PrometheusSettings | None = None
        self._changed = asyncio.Event()
        #: Unix seconds of the last measurement, or of the start.
        self._measured_at: float | None = None
        #: The last logged failure, and whether staleness is logged.
        self._error = ""
        self._stale = False
        self._unmatched = False

    def use(self, conf: Conf) -> None:
        """Apply a new scheduler-conf."""
        plugins = wants_usage(conf, self._registry)
        settings = prometheus_of(conf.metrics) if plugins else None
        if plugins and settings is None:
            self._log.warning(
                "node usage is not measured: the scheduler-conf has no metrics source",
                plugins=plugins,
                accepted=f"type: {PROMETHEUS}, address: a URL",
            )
        if settings == self._settings:
            return
        self._settings = settings
        self._measured_at = None if settings is None else self._clock()
        self._error, self._stale, self._unmatched = "", False, False
        self._changed.set()
        if settings is not None:
            shown = without_password(settings.address)
            self._log.info("measuring node usage", address=shown, interval=settings.interval)
            if settings.insecure:
                self._log.warning("certificate of the metrics source is not verified", address=shown)

    def age(self) -> float | None:
        """Seconds since the last measurement, or since the start; None without a source."""
        return None if self._measured_at is None else max(0.0, self._clock() - self._measured_at)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._changed.clear()
            settings = self._settings
            if settings is None:
                await self._changed.wait()
            else:
                async with PrometheusClient(settings, timeout=self._timeout, step=self._step) as client:
                    await self._poll(client, settings)

    async def _poll(self, client: PrometheusClient, settings: PrometheusSettings) -> None:
        """Measure at the interval until the scheduler-conf changes."""
        first = min(self._first_retry, settings.interval)
        backoff = RetryBackoff(first, max(settings.interval, _LONGEST_WAIT))
        while not self._changed.is_set():
            began = time.monotonic()
            try:
                measured = await client.measure(self._clock())
            except UsageError as error:
                self._failed(str(error))
                wait = max(settings.interval, backoff.next())
            else:
                backoff.reset()
                await self._publish(measured, settings)
                wait = settings.interval - (time.monotonic() - began)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait)):
                    await self._changed.wait()

    async def _publish(self, measured: Mapping[str, NodeUsage], settings: PrometheusSettings) -> None:
        nodes = await self._nodes()
        found = of_nodes(measured, nodes)
        if found:
            self._deliver([NodeUsageChanged(found)])
        if nodes and not found:
            label = settings.node_label
            seen = ", ".join(sorted(measured)[:3]) or "no series of a node exporter"
            self._failed(f"no series matches a node: label {label} must be the name of the node, found {seen}")
            return
        missing = len(nodes - found.keys())
        if missing and not self._unmatched:
            self._log.warning("nodes without measured usage", nodes=missing, of=len(nodes), label=settings.node_label)
        self._unmatched = bool(missing)
        self._metrics.increment("node_usage_polls_total", "measured")
        if not nodes:
            return  # nodes are not listed yet
        self._measured_at = self._clock()
        if self._error or self._stale:
            self._log.info("node usage measured again")
        self._error, self._stale = "", False

    def _failed(self, error: str) -> None:
        self._metrics.increment("node_usage_polls_total", "failed")
        log = self._log.warning if error != self._error else self._log.debug
        log("failed to measure node usage", err=error)
        self._error = error
        if not self._stale and (self.age() or 0.0) >= STALE_SECONDS:
            self._stale = True
            self._log.warning("measured node usage is stale and ignored")
