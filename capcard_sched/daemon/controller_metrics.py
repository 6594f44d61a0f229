"""The metrics of `capcard-sched controllers`, a row each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from capcard_sched.controllers.queues import PHASES
from capcard_sched.controllers.view import Observe
from capcard_sched.daemon.observability.metric_table import LATENCY, MetricRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.controllers.view import Increment

_JOB: Final = ("job_name", "queue_name")
CONTROLLER_METRICS: Final = (
    MetricRow("job_completed_phase_count", "counter", _JOB, "counted", "Times a Job became Completed"),
    MetricRow("job_failed_phase_count", "counter", _JOB, "counted", "Times a Job became Failed"),
    MetricRow(
        "controller_job_to_pod_creation_latency_milliseconds",
        "histogram",
        (),
        "counted",
        "Time from the creation of a Job to that of each of its first pods",
        LATENCY,
    ),
    *(
        MetricRow(
            f"queue_pod_group_{phase.lower()}_count", "gauge", ("queue_name",), "sampled", f"PodGroups that are {phase}"
        )
        for phase in PHASES
    ),
    MetricRow("controller_leader", "gauge", (), "counted", "1 while this replica leads"),
    MetricRow(
        "controller_reconcile_errors_total", "counter", ("controller",), "counted", "Passes that ended with an error"
    ),
    MetricRow("controller_queue_length", "gauge", ("controller",), "sampled", "Objects that wait to be reconciled"),
    MetricRow("controller_cached_objects", "gauge", (), "sampled", "Objects in the cache"),
    MetricRow(
        "controller_requests_total",
        "counter",
        ("verb", "resource", "code"),
        "counted",
        "Requests to the API server; code 0: no answer",
    ),
)
_BARE_COUNTERS: Final = tuple(
    row.full_name.encode()
    for row in CONTROLLER_METRICS
    if row.type == "counter" and not row.full_name.endswith("_total")
)


class ControllerMetrics:
    """Counters and gauges on a registry of their own."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._metrics: dict[str, Counter | Gauge] = {
            row.full_name: (Counter if row.type == "counter" else Gauge)(
                row.full_name, row.help, row.labels, registry=self.registry
            )
            for row in CONTROLLER_METRICS
            if row.type != "histogram"
        }
        self._histograms = {
            row.full_name: Histogram(row.full_name, row.help, row.labels, buckets=row.buckets, registry=self.registry)
            for row in CONTROLLER_METRICS
            if row.type == "histogram"
        }
        for collector in (ProcessCollector, PlatformCollector):
            collector(registry=self.registry)
        #: Job (`namespace/name`) to its series, which go with it.
        self._of_jobs: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
        self._queues: set[str] = set()

    def count(self, counted: Increment | Observe) -> None:
        """A counter or a histogram of a controller."""
        if isinstance(counted, Observe):
            elapsed = 1000.0 * max(0.0, time.time() - counted.since)
            for _ in range(counted.times):
                self._histograms[counted.metric].observe(elapsed)
            return
        labels = dict(counted.labels)
        values = tuple(labels[name] for name in _JOB)
        metric = self._metrics[counted.metric].labels(*values)
        metric.inc()
        self._of_jobs.setdefault(values[0], set()).add((counted.metric, values))

    def forget_job(self, job: str) -> None:
        """A Job is gone."""
        for metric, values in self._of_jobs.pop(job, ()):
            self._metrics[metric].remove(*values)

    def request(self, verb: str, resource: str, code: int) -> None:
        """A request ended."""
        self._metrics["volcano_controller_requests_total"].labels(verb, resource, str(code)).inc()

    def failed(self, controller: str) -> None:
        """A pass ended with an error."""
        self._metrics["volcano_controller_reconcile_errors_total"].labels(controller).inc()

    def leads(self, leading: bool) -> None:
        """Leadership began or ended."""
        self._gauge("volcano_controller_leader").set(int(leading))

    def sample(self, queues: Iterable[str], phases: Mapping[str, Mapping[str, int]], cached: int) -> None:
        """PodGroups per queue and phase, and the size of the cache."""
        present = {*queues, *phases}
        for phase in PHASES:
            gauge = self._gauge(f"volcano_queue_pod_group_{phase.lower()}_count")
            for queue in self._queues - present:
                gauge.remove(queue)
            for queue in present:
                gauge.labels(queue).set(phases.get(queue, {}).get(phase, 0))
        self._queues = present
        self._gauge("volcano_controller_cached_objects").set(cached)

    def queue_length(self, controller: str, length: int) -> None:
        """Objects that wait."""
        self._gauge("volcano_controller_queue_length").labels(controller).set(length)

    def _gauge(self, name: str) -> Gauge:
        found = self._metrics[name]
        assert isinstance(found, Gauge)
        return found

    def exposition(self) -> bytes:
        """Everything, in the Prometheus text format."""
        text = generate_latest(self.registry)
        for name in _BARE_COUNTERS:
            text = text.replace(name + b"_total", name)
        return text
