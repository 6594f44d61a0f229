"""Metrics on a registry of their own, built from rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from capcard_sched.daemon.observability.metric_table import MetricRow, Source


class MetricSet:
    """Counters, gauges and histograms by their names in the table."""

    #: OpenMetrics would rename counters without `_total`, which existing dashboards use: all scrapes get this format.
    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self, table: Iterable[MetricRow], *collectors: Callable[..., Any], left_out: Collection[Source] = ()
    ) -> None:
        """`collectors`: of the library, about the process; `left_out`: sources of rows that other collectors serve."""
        # `_created` series are unused and would double the exposition.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        #: Counters of Volcano whose names lack the `_total` that the library adds.
        self._bare_counters: list[bytes] = []
        for row in table:
            if row.type == "counter" and not row.name.endswith("_total"):
                self._bare_counters.append(row.full_name.encode())
            if row.source in left_out:
                continue
            if row.type == "counter":
                self._counters[row.name] = Counter(row.full_name, row.help, row.labels, registry=self.registry)
            elif row.type == "gauge":
                self._gauges[row.name] = Gauge(row.full_name, row.help, row.labels, registry=self.registry)
            else:
                self._histograms[row.name] = Histogram(
                    row.full_name, row.help, row.labels, buckets=row.buckets, registry=self.registry
                )
        for collector in collectors:
            collector(registry=self.registry)

    def set_gauge(self, name: str, value: float, *labels: str) -> None:
        """Set the gauge of a row."""
        gauge = self._gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    def increment(self, name: str, *labels: str) -> None:
        """Increment the counter of a row, which has labels."""
        self._counters[name].labels(*labels).inc()

    def exposition(self) -> bytes:
        """All series in the Prometheus text format 0.0.4. O(series); call it in a thread of its own."""
        text = generate_latest(self.registry)
        for name in self._bare_counters:
            text = text.replace(name + b"_total", name)
        return text
