"""Every metric of the daemon, one line each: name, type, labels, source of the value, help text.

Names, labels and buckets are Volcano's where it has the metric (docs/rulings.md#metrics-keep-names). `Metrics` is built
from this table, docs/metrics.md is rendered from it, and tests compare it with the exposition.
"""

# ruff: noqa: E501 - a metric is one line

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from capcard_sched.devices.searches import TRIALS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

#: Prefix of every metric that is not `bare`.
PREFIX: Final = "volcano_"

Type: TypeAlias = Literal["counter", "gauge", "histogram"]
#: `counted`: by the daemon, on each occurrence; `plugin`: reported by plugins at a scrape; `sampled`: read from the
#: core's state at a scrape.
Source: TypeAlias = Literal["counted", "plugin", "sampled"]

#: Bounds in milliseconds.
LATENCY: Final = tuple(5.0 * 2**k for k in range(15))
JOB_LATENCY: Final = tuple(32.0 * 2**k for k in range(10))
#: Bounds in seconds: requests; and waits of pods, from a tenth of a second to a day.
REQUEST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WAIT: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)


class MetricRow(NamedTuple):
    """One metric."""

    name: str
    type: Type
    labels: tuple[str, ...]
    source: Source
    help: str
    #: Upper bounds of a histogram.
    buckets: tuple[float, ...] = ()
    #: Without the prefix: a name that many programs share, or a subject that Volcano has no metrics of.
    bare: bool = False

    @property
    def full_name(self) -> str:
        return self.name if self.bare else f"{PREFIX}{self.name}"


def _amounts(kind: str, text: str) -> tuple[MetricRow, MetricRow, MetricRow]:
    """The three families of one quantity of a queue."""
    queue = ("queue_name",)
    return (
        MetricRow(f"queue_{kind}_milli_cpu", "gauge", queue, "plugin", f"CPU {text}, thousandths of a core"),
        MetricRow(f"queue_{kind}_memory_bytes", "gauge", queue, "plugin", f"Memory {text}, bytes"),
        MetricRow(f"queue_{kind}_scalar_resources", "gauge", (*queue, "resource"), "plugin",
            f"Devices and cards {text}, thousandths"),
    )  # fmt: skip


_JOB: Final = ("job_name", "queue", "job_namespace")
_QUEUE: Final = ("queue_name",)
_CARD: Final = ("queue_name", "card")
_DEVICE: Final = ("devID", "NodeName")

# fmt: off
METRICS: Final[tuple[MetricRow, ...]] = (
    # Sessions
    MetricRow("e2e_scheduling_latency_milliseconds", "histogram", (), "counted", "Duration of a session, from its opening to the end of its close", LATENCY),
    MetricRow("action_scheduling_latency_milliseconds", "histogram", ("action",), "counted", "Duration of an action in a session", LATENCY),
    MetricRow("plugin_scheduling_latency_milliseconds", "histogram", ("plugin", "OnSession"), "counted", "Duration of a plugin's opening and closing of a session", LATENCY),
    MetricRow("snapshot_seconds", "histogram", (), "counted", "Duration of applying changes to the state before a session", REQUEST),
    MetricRow("cycles_total", "counter", ("result",), "counted", "Scheduling cycles: session, or idle without changes"),
    MetricRow("cycle_age_seconds", "gauge", (), "counted", "Seconds since the last finished cycle of the leader; 0 on a standby"),
    MetricRow("cycle_jobs", "gauge", ("result",), "counted", "Jobs of the last session: enqueued, requeued (returned to Pending), considered (by allocate), placed (at least one pod), failed (plugin errors)"),
    MetricRow("queue_deadline_sessions_total", "counter", _QUEUE, "counted", "Sessions in which the queue used its share of the session deadline (`--session-deadline`)"),
    MetricRow("schedule_attempts_total", "counter", ("result",), "counted", "Attempts to schedule a pod: scheduled, unschedulable, or error (plugin errors)"),
    # Pods and jobs
    MetricRow("task_scheduling_latency_milliseconds", "histogram", (), "counted", "Age of a pod when its bind succeeded; once per bind", LATENCY),
    MetricRow("pod_wait_seconds", "histogram", _QUEUE, "counted", "Age of a pod when its bind succeeded, by queue, with buckets for long waits", WAIT),
    MetricRow("e2e_job_scheduling_latency_milliseconds", "histogram", (), "counted", "Age of a PodGroup when its first pods were placed; once per job", JOB_LATENCY),
    MetricRow("e2e_job_scheduling_duration", "gauge", _JOB, "sampled", "Age of a PodGroup when pods of it were last placed, milliseconds"),
    MetricRow("e2e_job_scheduling_start_time", "gauge", _JOB, "sampled", "When the PodGroup was created, Unix seconds"),
    MetricRow("e2e_job_scheduling_last_time", "gauge", _JOB, "sampled", "When pods of the PodGroup were last placed, Unix seconds"),
    MetricRow("pods_bound_total", "counter", (), "counted", "Pods bound"),
    MetricRow("bind_errors_total", "counter", (), "counted", "Failed binds"),
    MetricRow("bind_seconds", "histogram", (), "counted", "Time from the decision to the API server's confirmation of the bind", REQUEST),
    MetricRow("evictions_total", "counter", ("reason",), "counted", "Pods evicted"),
    MetricRow("eviction_errors_total", "counter", (), "counted", "Failed evictions"),
    MetricRow("pod_preemption_victims", "gauge", (), "counted", "Evictions of the last session with evictions"),
    MetricRow("total_preemption_attempts", "counter", (), "counted", "Sessions with evictions"),
    MetricRow("unschedule_task_count", "gauge", ("job_id", "job_ns"), "plugin", "Tasks missing to the minimum of a job"),
    MetricRow("unschedule_job_count", "gauge", (), "plugin", "Jobs below their minimum"),
    MetricRow("job_retry_counts", "counter", ("job_id", "job_ns"), "plugin", "Scheduling attempts that left the job below minAvailable"),
    MetricRow("job_share", "gauge", ("job_ns", "job_id"), "plugin", "Dominant share of a job with allocated resources, 0 to 1"),
    MetricRow("namespace_share", "gauge", ("namespace_name",), "sampled", "Dominant share of the namespace's jobs, 0 to 1"),
    MetricRow("namespace_weight", "gauge", ("namespace_name",), "sampled", "Weight of the namespace, always 1"),
    MetricRow("namespace_weighted_share", "gauge", ("namespace_name",), "sampled", "namespace_share divided by namespace_weight"),
    MetricRow("invalid_objects", "gauge", ("kind",), "sampled", "Objects with invalid or undecodable fields, which keep defaults or their last known facts"),
    MetricRow("quota_evasions_ignored_total", "counter", (), "sampled", "Bound pods and PodGroups with an ignored edit of queue, group or card"),
    MetricRow("deleted_queue_pods", "gauge", ("queue_name",), "sampled", "Bound pods of a queue that does not exist"),
    MetricRow("partial_gangs", "gauge", _QUEUE, "sampled", "Jobs of the queue with bound pods, and fewer than their minimum"),
    # Queues
    MetricRow("queue_warnings", "gauge", ("queue_name", "reason"), "sampled", "1 for each present warning event of the queue: limits that no plugin enforces, an invalid list of namespaces"),
    *_amounts("allocated", "allocated to pods of the queue"),
    *_amounts("request", "requested by pods of the queue, allocated or pending"),
    *_amounts("deserved", "deserved by the queue"),
    *_amounts("inqueue", "reserved for admitted jobs of the queue"),
    *_amounts("capacity", "capability of the queue (absent: no limit)"),
    *_amounts("real_capacity", "capability of the queue, limited by the cluster"),
    MetricRow("queue_share", "gauge", _QUEUE, "plugin", "Allocated as a share of deserved"),
    MetricRow("queue_weight", "gauge", _QUEUE, "plugin", "Weight of the queue"),
    MetricRow("queue_overused", "gauge", _QUEUE, "plugin", "1 when the queue has reached its deserved share"),
    # Cards
    MetricRow("queue_card_capacity", "gauge", _CARD, "plugin", "Card quota of the queue; absent for a parent without one"),
    MetricRow("queue_card_deserved", "gauge", _CARD, "plugin", "Deserved cards of the queue: its quota"),
    MetricRow("queue_card_allocated", "gauge", _CARD, "plugin", "Cards allocated to pods of the queue and of queues below it"),
    MetricRow("queue_card_request", "gauge", _CARD, "plugin", "Cards requested by pods of the queue, allocated or pending; `A|B` for pods that accept either"),
    MetricRow("queue_card_inqueue", "gauge", _CARD, "plugin", "Cards reserved for admitted jobs"),
    MetricRow("queue_card_elastic", "gauge", _CARD, "plugin", "Cards allocated above the minimum of jobs"),
    MetricRow("queue_card_seconds_total", "counter", ("queue", "card", "service_type"), "sampled", "Card-seconds that pods of the queue held while this replica led, from their binding until they finished or were gone"),
    MetricRow("card_total", "gauge", ("card",), "plugin", "Cards in the cluster"),
    MetricRow("card_allocated", "gauge", ("card", "service_type"), "plugin", "Cards allocated, by service type"),
    MetricRow("capacity_card_refusals_total", "counter", ("queue_name", "hook", "reason"), "plugin", "Refusals by card quota; a job or pod counts once per session and hook, trials do not count"),
    MetricRow("capacity_card_evictions_total", "counter", ("victim_queue", "reclaimer_queue", "card"), "plugin", "Pods evicted by cross-queue reclaim"),
    MetricRow("capacity_card_invalid_objects", "gauge", ("kind", "reason"), "plugin", "Objects with invalid card annotations"),
    *(
        MetricRow(f"vgpu_device_{name}", "gauge", labels, "plugin", text)
        for name, labels, text in (
            ("shared_number", _DEVICE, "The number of vgpu tasks sharing this card"),
            ("allocated_memory", _DEVICE, "The number of vgpu memory allocated in this card"),
            ("allocated_cores", _DEVICE, "The percentage of gpu compute cores allocated in this card"),
            ("memory_limit", _DEVICE, "The number of total device memory in this card"),
            ("memory_allocation_for_a_certain_pod", (*_DEVICE, "podName"), "The vgpu device memory allocated for a certain pod"),
            ("core_allocation_for_a_certain_pod", (*_DEVICE, "podName"), "The vgpu device core allocated for a certain pod"),
        )
    ),
    MetricRow("vgpu_device_config_invalid", "gauge", (), "plugin", "1 if the ConfigMap of the device plugin is invalid"),
    MetricRow("cards_free", "gauge", ("card",), "plugin", "Free cards, shares in parts of a card"),
    MetricRow("cards_stranded", "gauge", ("card",), "plugin", "Free cards that no pod of the cluster's mix of requests can use"),
    MetricRow("capacity_card_internal_errors_total", "counter", (), "plugin", "Internal accounting errors detected"),
    # Extender
    MetricRow("extender_calls_total", "counter", ("verb",), "plugin", "Calls to the extender"),
    MetricRow("extender_failures_total", "counter", ("verb", "reason"), "plugin", "Failed calls: connection, timeout, status, size, answer (invalid response), breaker (circuit breaker open), budget (session timeout), url"),
    MetricRow("extender_seconds_total", "counter", ("verb",), "plugin", "Total duration of calls to the extender"),
    MetricRow("extender_breaker_state", "gauge", (), "plugin", "State of the circuit breaker: 0 closed, 1 half-open, 2 open"),
    # API server
    MetricRow("api_queue_depth", "gauge", ("lane",), "counted", "Writes waiting to be sent"),
    MetricRow("api_writes_total", "counter", ("object", "result"), "counted", "Status patches, conditions, events and annotations: written, failed, or dropped (superseded or leadership lost)"),
    MetricRow("watch_events_total", "counter", ("resource", "event"), "counted", "List and watch events: listed, restarted, expired, stalled, cut, missing, forbidden, undecodable, …"),
    MetricRow("cache_age_seconds", "gauge", (), "counted", "Seconds since the last watch event"),
    MetricRow("rest_client_requests_total", "counter", ("code", "method", "resource"), "counted", "Requests to the API server by status code; 0 without a response", bare=True),
    MetricRow("rest_client_request_duration_seconds", "histogram", ("method", "resource"), "counted", "Duration of requests to the API server", REQUEST, bare=True),
    # Node usage
    MetricRow("node_usage_polls_total", "counter", ("result",), "counted", "Node-usage queries: measured, or failed"),
    MetricRow("node_usage_age_seconds", "gauge", (), "counted", "Seconds since the last successful node-usage query; 0 when not configured"),
    MetricRow("usage_nodes", "gauge", ("state",), "plugin", "Nodes by state of their usage: measured, over_threshold (also counted as measured), stale"),
    # Dynamic resource allocation
    MetricRow("capcard_dra_allocations_total", "counter", ("result",), "sampled", "Searches of devices for the claims of a pod on a node: allocated, no_devices, incomplete_pool, invalid_pool, gave_up (10,000 trials of devices, or 96,000,000 steps of the selectors of a claim), selector_error, invalid_claim, unsupported; results that are kept are not counted again", bare=True),
    MetricRow("capcard_dra_allocation_trials", "histogram", (), "sampled", "Trials of devices of a search", TRIALS, bare=True),
    MetricRow("capcard_dra_claims", "gauge", ("state",), "sampled", "ResourceClaims: unallocated, assumed (the API server does not show the allocation yet), allocated", bare=True),
    MetricRow("capcard_dra_devices", "gauge", ("card", "state"), "sampled", "Devices of complete pools: used, tainted (NoSchedule or NoExecute), blocked (other devices use its counters), free; without card: devices that are no card", bare=True),
    MetricRow("capcard_dra_waiting_pods", "gauge", (), "sampled", "Placed pods that are bound once their devices have all binding conditions", bare=True),
    MetricRow("capcard_dra_binding_conditions_seconds", "histogram", ("result",), "counted", "Time from an allocation to the end of the pod's wait for binding conditions: ready, or failed (failure condition, or predicate.DRABindingTimeout)", WAIT, bare=True),
    MetricRow("capcard_dra_double_allocations_total", "counter", (), "sampled", "Allocations of a whole device that another ResourceClaim has: of two schedulers or two leaders", bare=True),
    MetricRow("capcard_dra_claim_writes_total", "counter", ("step", "code"), "counted", "Writes to ResourceClaims by status code, 0 without a response: create and delete (claims for extended resources), protect (finalizer, annotations of queue and cards) and unprotect (finalizer), allocate, reserve, release", bare=True),
    # Daemon
    MetricRow("leader", "gauge", (), "counted", "1 if this replica is the leader"),
    MetricRow("leader_changes_total", "counter", (), "counted", "Times this replica became or stopped being leader"),
    MetricRow("config_reload_total", "counter", ("result",), "counted", "Loads of the scheduler-conf: loaded, rejected, unchanged"),
    MetricRow("config_last_reload_successful", "gauge", (), "counted", "1 unless the current scheduler-conf file is rejected"),
    MetricRow("config_last_reload_success_timestamp_seconds", "gauge", (), "counted", "Time of the last successful load of a scheduler-conf, Unix seconds"),
    MetricRow("config_info", "gauge", ("hash",), "counted", "Hash of the scheduler-conf in use; always 1"),
    MetricRow("internal_errors_total", "counter", ("plugin", "hook"), "counted", "Recovered errors by plugin and hook; without plugin: of the framework"),
    MetricRow("log_lines_dropped_total", "counter", (), "counted", "Log lines dropped because standard error is blocked or closed"),
    MetricRow("metrics_series_dropped", "gauge", ("family",), "counted", "Series omitted from the last scrape, above the limit per metric"),
    MetricRow("build_info", "gauge", ("version",), "counted", "Version of the program; always 1"),
)
# fmt: on

#: By the name without prefix.
BY_NAME: Final = {row.name: row for row in METRICS}


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
