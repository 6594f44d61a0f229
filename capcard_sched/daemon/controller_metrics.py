"""The metrics of `capcard-sched controllers`, a row each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from capcard_sched.controllers.queues import PHASES
from capcard_sched.controllers.view import Observe
from capcard_sched.daemon.observability.metric_table import LATENCY, PREFIX, MetricRow, MetricSet
from capcard_sched.kube.instrumentation import Observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.controllers.view import Increment

#: Of a NamespaceQueue: `namespace/name`.
_QUEUE: Final = ("queue_name",)
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
    MetricRow("namespacequeue_ready", "gauge", _QUEUE, "sampled", "1 for a NamespaceQueue that accepts pods, else 0"),
    MetricRow(
        "namespacequeue_blocked",
        "gauge",
        (*_QUEUE, "reason"),
        "sampled",
        "1 for a NamespaceQueue that accepts no pods, by the reason of its condition Ready or its state",
    ),
    MetricRow("controller_leader", "gauge", (), "counted", "1 while this replica leads"),
    MetricRow("controller_reconcile_errors_total", "counter", ("controller",), "counted", "Failed reconciliations"),
    MetricRow("controller_queue_length", "gauge", ("controller",), "sampled", "Length of the work queue"),
    MetricRow("controller_cached_objects", "gauge", (), "sampled", "Objects in the cache"),
    MetricRow(
        "controller_requests_total",
        "counter",
        ("verb", "resource", "code"),
        "counted",
        "Requests to the API server; code 0: no answer",
    ),
)


class ControllerMetrics(MetricSet, Observer):
    """The metrics of the controllers; a `kube.instrumentation.Observer`."""

    def __init__(self) -> None:
        super().__init__(CONTROLLER_METRICS, ProcessCollector, PlatformCollector)
        #: Job (`namespace/name`) to its series, which go with it.
        self._of_jobs: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
        self._queues: set[str] = set()
        #: NamespaceQueue to the reason why it accepts no pods, "" if it does.
        self._local: dict[str, str] = {}

    def count(self, counted: Increment | Observe) -> None:
        """A counter or a histogram of a controller."""
        if isinstance(counted, Observe):
            elapsed = 1000.0 * max(0.0, time.time() - counted.since)
            for _ in range(counted.times):
                self._histograms[counted.metric.removeprefix(PREFIX)].observe(elapsed)
            return
        labels = dict(counted.labels)
        values = tuple(labels[name] for name in _JOB)
        metric = counted.metric.removeprefix(PREFIX)
        self._counters[metric].labels(*values).inc()
        self._of_jobs.setdefault(values[0], set()).add((metric, values))

    def forget_job(self, job: str) -> None:
        """Drops the series of a Job that is gone."""
        for metric, values in self._of_jobs.pop(job, ()):
            self._counters[metric].remove(*values)

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:  # noqa: ARG002 - not measured
        self._counters["controller_requests_total"].labels(verb, resource, str(code)).inc()

    def sample(self, queues: Iterable[str], phases: Mapping[str, Mapping[str, int]], cached: int) -> None:
        """PodGroups per queue and phase, and the size of the cache."""
        present = {*queues, *phases}
        for phase in PHASES:
            gauge = self._gauges[f"queue_pod_group_{phase.lower()}_count"]
            for queue in self._queues - present:
                gauge.remove(queue)
            for queue in present:
                gauge.labels(queue).set(phases.get(queue, {}).get(phase, 0))
        self._queues = present
        self._gauges["controller_cached_objects"].set(cached)

    def sample_namespace_queues(self, reasons: Mapping[str, str]) -> None:
        """Which NamespaceQueues accept pods. `reasons`: id to the reason why it accepts none, "" if it does."""
        ready, blocked = self._gauges["namespacequeue_ready"], self._gauges["namespacequeue_blocked"]
        for queue, reason in self._local.items():
            if queue not in reasons:
                ready.remove(queue)
            if reason and reasons.get(queue) != reason:
                blocked.remove(queue, reason)
        for queue, reason in reasons.items():
            ready.labels(queue).set(not reason)
            if reason:
                blocked.labels(queue, reason).set(1)
        self._local = dict(reasons)
