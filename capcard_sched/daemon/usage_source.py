"""The measured load of nodes, asked of a Prometheus every now and then (plugins reference §15).

It asks what a node exporter's series say of all nodes at once: the averages of cpu and memory over ten minutes, and the
age of the newest sample on Prometheus's own clock, so that an exporter that is gone is noticed within minutes though
its average lives on. What comes of it reaches the core as a fact. Failures are told once, tried again ever less
often, and have no other effect than that measurements grow old.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Final, Self

import aiohttp
import msgspec
import structlog

from capcard_sched.framework.conf.metrics_section import PROMETHEUS, PrometheusSettings, prometheus_of, without_password
from capcard_sched.kube.backoff import RetryBackoff
from capcard_sched.kube.cancellation import cancellations
from capcard_sched.model.deltas import NodeUsageChanged
from capcard_sched.model.usage import PERIOD, STALE_SECONDS, NodeUsage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from capcard_sched.daemon.observability.metrics import Metrics
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.model.deltas import Delta

#: The longest a measurement may take, and an answer be: one of five thousand nodes has half a megabyte.
_TIMEOUT_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 32 * 2**20
#: The longest wait after failures, in seconds, unless the interval itself is longer.
_LONGEST_WAIT: Final = 60.0
_STEP: Final = "30s"
_SHOWN: Final = 200


class UsageError(Exception):
    """The load could not be measured; the text says why and names no password."""


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    #: Unix seconds of the evaluation, and a number as text.
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _PrometheusResponse(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""


_answer: Final = msgspec.json.Decoder(_PrometheusResponse)
_vector: Final = msgspec.json.Decoder(tuple[_Series, ...])


def queries(label: str) -> tuple[str, str, str]:
    """PromQL for cpu and memory in percent, and for the age of the newest sample in seconds, each by `label`."""
    # `rate` divides by the whole range: a node that was first scraped seconds ago would look busy for minutes.
    idle = f'avg by ({label}) (irate(node_cpu_seconds_total{{mode="idle"}}[5m]))'
    available = "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes"
    return (
        f"avg_over_time((100 - 100 * {idle})[{PERIOD}:{_STEP}])",
        f"avg_over_time((100 - 100 * avg by ({label}) ({available}))[{PERIOD}:{_STEP}])",
        f"time() - max by ({label}) (timestamp(node_memory_MemAvailable_bytes))",
    )


class PrometheusClient:
    """Questions to one Prometheus. An async context manager."""

    def __init__(self, settings: PrometheusSettings, *, timeout: float = _TIMEOUT_SECONDS) -> None:
        """`timeout` in seconds for a whole measurement."""
        self._settings = settings
        self._url = f"{settings.address}/api/v1/query"
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
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
        """The load by what the label of the series says. `now`: Unix seconds of this moment. Raises UsageError."""
        cpu_query, memory_query, age_query = queries(self._settings.node_label)
        try:
            async with asyncio.timeout(self._timeout):
                # One after the other: each may keep Prometheus busy.
                cpu, memory = await self.ask(cpu_query), await self.ask(memory_query)
                age = await self.ask(age_query)
        except TimeoutError as error:
            raise UsageError(f"no answer within {self._timeout:g} s") from error
        return {
            name: NodeUsage(_percent(cpu.get(name)), _percent(memory.get(name)), now - max(0.0, age[name]))
            for name in sorted(age)
            if name in cpu or name in memory
        }

    async def ask(self, query: str) -> dict[str, float]:
        """An instant vector as numbers by the label that names the node; what is no number is left out."""
        assert self._session is not None
        try:
            before = cancellations()
            async with self._session.get(self._url, params={"query": query}, allow_redirects=False) as response:
                if cancellations() > before:
                    raise asyncio.CancelledError
                content = await _content(response)
                status = response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UsageError(_text(error)) from error
        try:
            answer = _answer.decode(content)
            if answer.status != "success" or answer.data is None:
                kind = f"{answer.error_type}: " if answer.error_type else ""
                raise UsageError(f"HTTP {status}: {kind}{answer.error or answer.status}"[:_SHOWN])
            if answer.data.result_type != "vector":
                raise UsageError(f"a {answer.data.result_type} came for a vector")
            series = _vector.decode(answer.data.result)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            why = "" if status == 200 else f"HTTP {status}, and "
            raise UsageError(f"{why}what came is no answer of a Prometheus: {error}"[:_SHOWN]) from error
        return _numbers(series, self._settings.node_label)


async def _content(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_chunked(2**16):
        size += len(part)
        if size > _MOST_BYTES:
            raise UsageError(f"the answer is longer than {_MOST_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _numbers(series: Iterable[_Series], label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in series:
        with contextlib.suppress(ValueError):
            value = float(each.value[1])
            if math.isfinite(value) and label in each.metric:
                found[each.metric[label]] = value
    return found


def _percent(value: float | None) -> float | None:
    """Within bounds, to a hundredth: counters are no better."""
    return None if value is None else round(min(100.0, max(0.0, value)), 2)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:_SHOWN]


def of_nodes(measured: Mapping[str, NodeUsage], nodes: AbstractSet[str]) -> dict[str, NodeUsage]:
    """What is said of known nodes: by their name, else by their name and a port."""
    found: dict[str, NodeUsage] = {}
    for name, usage in measured.items():
        host = name if name in nodes else name.rpartition(":")[0]
        if host in nodes and (host == name or host not in measured):
            found[host] = usage
    return found


def wants_usage(conf: Conf, registry: Registry) -> list[str]:
    """The plugins of a scheduler-conf that look at measured load."""
    options = [option.name for tier in conf.tiers for option in tier]
    return [name for name in options if (plugin := registry.plugin(name)) is not None and "usage" in plugin.wakes_on]


class UsageSource:
    """Measures as long as the scheduler-conf names a Prometheus and a plugin that looks at load."""

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        deliver: Callable[[Sequence[Delta]], None],
        nodes: Callable[[], Awaitable[AbstractSet[str]]],
        *,
        clock: Callable[[], float] = time.time,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        """`deliver` takes facts, `nodes` tells the names of those that are known; `clock`: Unix seconds."""
        self._registry = registry
        self._metrics = metrics
        self._deliver = deliver
        self._nodes = nodes
        self._clock = clock
        self._timeout = timeout
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._settings: PrometheusSettings | None = None
        self._changed = asyncio.Event()
        #: When a measurement last came, or measuring began, Unix seconds.
        self._measured_at: float | None = None
        #: The failure that was told, and whether it was told that measurements are stale.
        self._trouble = ""
        self._stale = False
        self._unmatched = False

    def use(self, conf: Conf) -> None:
        """Go by another scheduler-conf from now on."""
        plugins = wants_usage(conf, self._registry)
        settings = prometheus_of(conf.metrics) if plugins else None
        if plugins and settings is None:
            self._log.warning(
                "no load of nodes is measured: the scheduler-conf's metrics name no source",
                plugins=plugins,
                accepted=f"type: {PROMETHEUS}, address: a URL",
            )
        if settings == self._settings:
            return
        self._settings = settings
        self._measured_at = None if settings is None else self._clock()
        self._trouble, self._stale, self._unmatched = "", False, False
        self._changed.set()
        if settings is not None:
            shown = without_password(settings.address)
            self._log.info("measuring the load of nodes", address=shown, interval=settings.interval)
            if settings.insecure:
                self._log.warning("the certificate of the source of load is not checked", address=shown)

    def age(self) -> float | None:
        """Seconds since the last measurement, or since measuring began; None while nothing is to be measured."""
        return None if self._measured_at is None else max(0.0, self._clock() - self._measured_at)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._changed.clear()
            settings = self._settings
            if settings is None:
                await self._changed.wait()
            else:
                async with PrometheusClient(settings, timeout=self._timeout) as client:
                    await self._follow(client, settings)

    async def _follow(self, client: PrometheusClient, settings: PrometheusSettings) -> None:
        """Measure at the interval until the scheduler-conf says otherwise."""
        backoff = RetryBackoff(min(1.0, settings.interval), max(settings.interval, _LONGEST_WAIT))
        while not self._changed.is_set():
            began = time.monotonic()
            try:
                measured = await client.measure(self._clock())
            except UsageError as error:
                self._failed(str(error))
                wait = max(settings.interval, backoff.next())
            else:
                backoff.reset()
                await self._tell(measured, settings)
                wait = settings.interval - (time.monotonic() - began)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait)):
                    await self._changed.wait()

    async def _tell(self, measured: Mapping[str, NodeUsage], settings: PrometheusSettings) -> None:
        nodes = await self._nodes()
        found = of_nodes(measured, nodes)
        if found:
            self._deliver([NodeUsageChanged(found)])
        if nodes and not found:
            label = settings.node_label
            seen = ", ".join(sorted(measured)[:3]) or "no series of a node exporter at all"
            self._failed(f"no series names a node of the cluster: label {label} should be its name, found {seen}")
            return
        missing = len(nodes - found.keys())
        if missing and not self._unmatched:
            self._log.warning("nodes without measured load", nodes=missing, of=len(nodes), label=settings.node_label)
        self._unmatched = bool(missing)
        self._metrics.usage_poll("measured")
        if not nodes:
            return  # the watches have not brought any yet
        self._measured_at = self._clock()
        if self._trouble or self._stale:
            self._log.info("the load of nodes is measured again")
        self._trouble, self._stale = "", False

    def _failed(self, why: str) -> None:
        self._metrics.usage_poll("failed")
        tell = self._log.warning if why != self._trouble else self._log.debug
        tell("the load of nodes cannot be measured", why=why)
        self._trouble = why
        if not self._stale and (self.age() or 0.0) >= STALE_SECONDS:
            self._stale = True
            self._log.warning("measured load is stale: it counts for nothing until it is measured again")
