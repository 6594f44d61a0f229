"""Every metric of the daemon, a line each: name, type, labels, who gives the value, and what it says.

Names, labels and buckets are those of core reference §6 with the corrections of §7.4 (W-44), and of the capacity-card
reference §8. `daemon.metrics` counts by this table, docs/metrics.md is a rendering of it, and the tests compare it with
what is served.
"""

# ruff: noqa: E501 - a metric is one line
from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

#: Stands before the name of every metric that is not `bare`.
PREFIX: Final = "volcano_"

Type: TypeAlias = Literal["counter", "gauge", "histogram"]
#: `counted`: by the daemon, as things happen; `plugin`: the plugin of that name reports it when asked; `sampled`: read
#: from the core's state when asked.
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
    #: Without the prefix: a name that is common to many programs.
    bare: bool = False

    @property
    def full_name(self) -> str:
        """The name as it is served."""
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
    MetricRow("snapshot_seconds", "histogram", (), "counted", "Duration of taking what changed into the state before a session", REQUEST),
    MetricRow("cycles_total", "counter", ("result",), "counted", "Turns of the loop: session, or idle when nothing had changed"),
    MetricRow("cycle_age_seconds", "gauge", (), "counted", "Seconds since the last finished cycle of the leader; 0 on a standby"),
    MetricRow("cycle_jobs", "gauge", ("result",), "counted", "Jobs of the last session: enqueued, sent_back (to Pending), visited (by allocate), placed (one pod at least), failed (contained errors)"),
    MetricRow("schedule_attempts_total", "counter", ("result",), "counted", "Attempts to place a pod: scheduled, unschedulable, or error (contained failures)"),
    # Pods and jobs on their way
    MetricRow("task_scheduling_latency_milliseconds", "histogram", (), "counted", "Age of a pod when its binding succeeded; once per binding", LATENCY),
    MetricRow("pod_wait_seconds", "histogram", _QUEUE, "counted", "The same by queue, with bounds for long waits", WAIT),
    MetricRow("e2e_job_scheduling_latency_milliseconds", "histogram", (), "counted", "Age of a PodGroup when its first pods were placed; once per job", JOB_LATENCY),
    MetricRow("e2e_job_scheduling_duration", "gauge", _JOB, "sampled", "Age of a PodGroup when pods of it were last placed, milliseconds"),
    MetricRow("e2e_job_scheduling_start_time", "gauge", _JOB, "sampled", "When the PodGroup was created, Unix seconds"),
    MetricRow("e2e_job_scheduling_last_time", "gauge", _JOB, "sampled", "When pods of the PodGroup were last placed, Unix seconds"),
    MetricRow("pods_bound_total", "counter", (), "counted", "Pods bound"),
    MetricRow("bind_errors_total", "counter", (), "counted", "Bindings that were refused"),
    MetricRow("bind_seconds", "histogram", (), "counted", "From the decision's hand-over to the API server's confirmation of the binding", REQUEST),
    MetricRow("evictions_total", "counter", ("reason",), "counted", "Pods evicted"),
    MetricRow("eviction_errors_total", "counter", (), "counted", "Evictions that were refused"),
    MetricRow("pod_preemption_victims", "gauge", (), "counted", "Evictions decided in the last session that decided any"),
    MetricRow("total_preemption_attempts", "counter", (), "counted", "Sessions that decided evictions"),
    MetricRow("unschedule_task_count", "gauge", ("job_id", "job_ns"), "plugin", "Tasks that a job lacks to its minimum"),
    MetricRow("unschedule_job_count", "gauge", (), "plugin", "Jobs below their minimum"),
    MetricRow("job_retry_counts", "counter", ("job_id", "job_ns"), "plugin", "Sessions at whose end the job was below its minimum"),
    MetricRow("job_share", "gauge", ("job_ns", "job_id"), "plugin", "Dominant share of a job that holds something, 0 to 1"),
    MetricRow("namespace_share", "gauge", ("namespace_name",), "sampled", "Dominant share of what the namespace's jobs hold, 0 to 1"),
    MetricRow("namespace_weight", "gauge", ("namespace_name",), "sampled", "Weight of the namespace: 1, as namespaces are not weighted"),
    MetricRow("namespace_weighted_share", "gauge", ("namespace_name",), "sampled", "namespace_share divided by namespace_weight"),
    # Queues
    *_amounts("allocated", "held by pods of the queue"),
    *_amounts("request", "held or waited for by pods of the queue"),
    *_amounts("deserved", "the queue deserves"),
    *_amounts("inqueue", "promised to admitted jobs of the queue that do not hold it yet"),
    *_amounts("capacity", "the queue may use as configured (absent: no limit)"),
    *_amounts("real_capacity", "the queue may use, limited by what there is"),
    MetricRow("queue_share", "gauge", _QUEUE, "plugin", "What the queue holds as a share of what it deserves"),
    MetricRow("queue_weight", "gauge", _QUEUE, "plugin", "Weight of the queue"),
    MetricRow("queue_overused", "gauge", _QUEUE, "plugin", "1 when the queue has all it deserves"),
    # Cards
    MetricRow("queue_card_capacity", "gauge", _CARD, "plugin", "Quota of the queue, cards"),
    MetricRow("queue_card_deserved", "gauge", _CARD, "plugin", "Cards the queue deserves: its quota"),
    MetricRow("queue_card_allocated", "gauge", _CARD, "plugin", "Cards held by pods of the queue"),
    MetricRow("queue_card_request", "gauge", _CARD, "plugin", "Cards held or waited for; `A|B` for pods that take either"),
    MetricRow("queue_card_inqueue", "gauge", _CARD, "plugin", "Cards promised to admitted jobs that do not hold them yet"),
    MetricRow("queue_card_elastic", "gauge", _CARD, "plugin", "Cards held beyond the minimum of their jobs"),
    MetricRow("card_total", "gauge", ("card",), "plugin", "Cards in the cluster"),
    MetricRow("card_allocated", "gauge", ("card", "service_type"), "plugin", "Cards held, by the kind of service"),
    MetricRow("capacity_card_refusals_total", "counter", ("queue_name", "hook", "reason"), "plugin", "Refusals for lack of quota"),
    MetricRow("capacity_card_evictions_total", "counter", ("victim_queue", "reclaimer_queue", "card"), "plugin", "Pods that had to leave for a pod of another queue"),
    MetricRow("capacity_card_invalid_objects", "gauge", ("kind", "reason"), "plugin", "Objects with card annotations that cannot be read"),
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
    MetricRow("vgpu_device_config_invalid", "gauge", (), "plugin", "Whether the ConfigMap of the device plugin is invalid: 1, else 0"),
    MetricRow("capacity_card_internal_errors_total", "counter", (), "plugin", "Sums of the plugin that did not add up"),
    # The extender
    MetricRow("extender_calls_total", "counter", ("verb",), "plugin", "Calls made to the extender"),
    MetricRow("extender_failures_total", "counter", ("verb", "reason"), "plugin", "Calls without a usable answer: connection, timeout, status, size, answer; and those not made or cut short: breaker, budget, url"),
    MetricRow("extender_seconds_total", "counter", ("verb",), "plugin", "Time that calls to the extender took, added up"),
    MetricRow("extender_breaker_state", "gauge", (), "plugin", "Whether the extender is asked: 0 yes, 1 one call tries whether it is back, 2 no"),
    # The API server
    MetricRow("api_queue_depth", "gauge", ("lane",), "counted", "Writes that wait for the API server"),
    MetricRow("api_writes_total", "counter", ("object", "result"), "counted", "Status patches, conditions, events and annotations: written, failed, or dropped (not worth a write any more)"),
    MetricRow("watch_events_total", "counter", ("resource", "event"), "counted", "Lists and watches: listed, restarted, expired, stalled, cut, missing, forbidden, undecodable, …"),
    MetricRow("cache_age_seconds", "gauge", (), "counted", "Since when nothing was heard from the API server's watches"),
    MetricRow("rest_client_requests_total", "counter", ("code", "method", "resource"), "counted", "Requests to the API server by status code; 0 when no answer came", bare=True),
    MetricRow("rest_client_request_duration_seconds", "histogram", ("method", "resource"), "counted", "Duration of requests to the API server", REQUEST, bare=True),
    # Measured load of nodes
    MetricRow("node_usage_polls_total", "counter", ("result",), "counted", "Questions to the source of measured load: measured, or failed"),
    MetricRow("node_usage_age_seconds", "gauge", (), "counted", "Since when the source measured no load of nodes; 0 while none is to be measured"),
    MetricRow("usage_nodes", "gauge", ("state",), "plugin", "Nodes by what is known of their load: measured, over_threshold (they are measured too), stale"),
    # The daemon itself
    MetricRow("leader", "gauge", (), "counted", "1 while this replica leads"),
    MetricRow("leader_changes_total", "counter", (), "counted", "Times this replica began or ceased to lead"),
    MetricRow("config_reload_total", "counter", ("result",), "counted", "Loads of the scheduler-conf: loaded, rejected, unchanged"),
    MetricRow("config_last_reload_successful", "gauge", (), "counted", "1 unless the scheduler-conf as it stands was rejected"),
    MetricRow("config_last_reload_success_timestamp_seconds", "gauge", (), "counted", "When a scheduler-conf was last taken into use, Unix seconds"),
    MetricRow("config_info", "gauge", ("hash",), "counted", "Hash of the scheduler-conf in use; always 1"),
    MetricRow("internal_errors_total", "counter", ("plugin", "hook"), "counted", "Contained failures, by plugin and hook; no plugin: the framework's own"),
    MetricRow("log_lines_dropped_total", "counter", (), "counted", "Log lines dropped because standard error is blocked or closed"),
    MetricRow("metrics_series_dropped", "gauge", ("family",), "counted", "Series left out of the last scrape, beyond the limit per metric"),
    MetricRow("build_info", "gauge", ("version",), "counted", "Version of the program; always 1"),
)
# fmt: on

#: By the name without prefix.
BY_NAME: Final = {row.name: row for row in METRICS}
