"""Writes the Grafana dashboards beside this file: `python manifests/grafana/dashboards.py`.

A panel is a line here: title, form, unit, queries. The tests compare the files with it, and the queries with the table
of metrics. Every dashboard selects its Prometheus by the variable `datasource`.
"""

# ruff: noqa: E501 - a panel is one line where it can be
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
#: The grid of Grafana.
_COLUMNS, _HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """`queries`: (PromQL, legend). `width` in columns of 24. In a table the legend is the name of the column."""

    title: str
    form: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    width: int = 12
    about: str = ""


class Row(NamedTuple):
    """A heading, and the panels under it."""

    title: str
    panels: tuple[Panel, ...]


class Dashboard(NamedTuple):
    """`variables`: name to the series and label its values come from."""

    uid: str
    title: str
    variables: dict[str, tuple[str, str]]
    rows: tuple[Row, ...]


def _quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    labels, legend = (f"le, {by}", f" {{{{{by}}}}}") if by else ("le", "")
    return tuple(
        (f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))", f"{name}{legend}")
        for share, name in ((0.5, "p50"), (0.95, "p95"))
    )


_Q, _CARD = 'queue_name=~"$queue"', 'card=~"$card"'
_QC = f"{_Q}, {_CARD}"
_JOBS = 'queue=~"$queue"'

CAPACITY_CARD = Dashboard(
    "capcard-capacity-card",
    "Capacity card",
    {"queue": ("volcano_queue_share", "queue_name"), "card": ("volcano_card_total", "card")},
    (
        Row("Cluster", (
            Panel("Cards in cluster", "stat", "none", ((f"volcano_card_total{{{_CARD}}}", "{{card}}"),), 6),
            Panel("Online / offline use", "bargauge", "none",
                  ((f"sum by (card, service_type) (volcano_card_allocated{{{_CARD}}})", "{{card}} {{service_type}}"),), 9),
            Panel("Quota handed out, of the cluster", "bargauge", "percentunit",
                  ((f"sum by (card) (volcano_queue_card_capacity{{{_CARD}}}) / sum by (card) (volcano_card_total{{{_CARD}}})",
                    "{{card}}"),), 9, "Above 100 %: the quotas exceed the cards of the cluster."),
        )),
        Row("Fragmentation", (
            Panel("Free and stranded cards", "timeseries", "none", (
                (f"volcano_cards_free{{{_CARD}}}", "free {{card}}"),
                (f"volcano_cards_stranded{{{_CARD}}}", "stranded {{card}}"),
            ), 12, "Stranded: free, and no pod of the cluster can use it where it is. With the plugin fragmentation."),
            Panel("Stranded, of the free cards", "timeseries", "percentunit",
                  ((f"volcano_cards_stranded{{{_CARD}}} / (volcano_cards_free{{{_CARD}}} > 0)", "{{card}}"),), 12),
        )),
        Row("Queues", (
            Panel("Queues and cards", "table", "none", (
                (f"volcano_queue_card_capacity{{{_QC}}}", "Quota"),
                (f"volcano_queue_card_allocated{{{_QC}}}", "Allocated"),
                (f"volcano_queue_card_inqueue{{{_QC}}}", "In queue"),
                (f"volcano_queue_card_request{{{_QC}}}", "Requested"),
                (f"volcano_queue_card_request{{{_QC}}} - volcano_queue_card_allocated{{{_QC}}}", "Pending"),
                (f"volcano_queue_card_capacity{{{_QC}}} - volcano_queue_card_allocated{{{_QC}}}", "Headroom"),
            ), 24),
            Panel("Allocated, with quota", "timeseries", "none", (
                (f"volcano_queue_card_allocated{{{_QC}}}", "{{queue_name}} {{card}}"),
                (f"volcano_queue_card_capacity{{{_QC}}}", "quota {{queue_name}} {{card}}"),
            )),
            Panel("Pending requests", "timeseries", "none",
                  ((f"volcano_queue_card_request{{{_QC}}} - volcano_queue_card_allocated{{{_QC}}}",
                    "{{queue_name}} {{card}}"),)),
            Panel("Headroom", "timeseries", "none",
                  ((f"volcano_queue_card_capacity{{{_QC}}} - volcano_queue_card_allocated{{{_QC}}}",
                    "{{queue_name}} {{card}}"),)),
            Panel("Above quota", "table", "none",
                  ((f"volcano_queue_card_allocated{{{_QC}}} > volcano_queue_card_capacity{{{_QC}}}", "Allocated"),), 12,
                  "After a quota or the cluster shrank."),
            Panel("Share", "timeseries", "percentunit", ((f"volcano_queue_share{{{_Q}}}", "{{queue_name}}"),), 8),
            Panel("CPU allocated", "timeseries", "none",
                  ((f"volcano_queue_allocated_milli_cpu{{{_Q}}} / 1000", "{{queue_name}}"),), 8),
            Panel("Memory allocated", "timeseries", "bytes",
                  ((f"volcano_queue_allocated_memory_bytes{{{_Q}}}", "{{queue_name}}"),), 8),
        )),
        Row("Refusals", (
            Panel("Refusals by reason", "timeseries", "ops",
                  ((f"sum by (queue_name, reason) (rate(volcano_capacity_card_refusals_total{{{_Q}}}[$__rate_interval]))",
                    "{{queue_name}} {{reason}}"),), 8),
            Panel("Evictions by reason", "timeseries", "ops",
                  (("sum by (reason) (rate(volcano_evictions_total[$__rate_interval]))", "{{reason}}"),), 8),
            Panel("Malformed objects", "timeseries", "none",
                  (("volcano_capacity_card_invalid_objects", "{{kind}} {{reason}}"),), 8),
        )),
    ),
)  # fmt: skip

SCHEDULER = Dashboard(
    "capcard-scheduler",
    "Scheduler",
    {},
    (
        Row("State", (
            Panel("Leader", "table", "none", (("volcano_leader", "Leads"),), 6),
            Panel("Reload failures, 1 h", "stat", "none",
                  (('sum(increase(volcano_config_reload_total{result="rejected"}[1h]))', ""),), 4),
            Panel("Scheduler-conf accepted", "stat", "none", (("min(volcano_config_last_reload_successful)", ""),), 4),
            Panel("Scheduler-conf in use", "table", "none", (("volcano_config_info", "Replicas"),), 6),
            Panel("Internal errors, 1 h", "stat", "none", (("sum(increase(volcano_internal_errors_total[1h])) or vector(0)", ""),), 4),
        )),
        Row("Sessions", (
            Panel("Cycle time", "timeseries", "ms", _quantiles("volcano_e2e_scheduling_latency_milliseconds")),
            Panel("Actions", "timeseries", "ms",
                  _quantiles("volcano_action_scheduling_latency_milliseconds", "action")),
            Panel("Wait of pods by queue", "timeseries", "s", _quantiles("volcano_pod_wait_seconds", "queue_name")),
            Panel("Attempts", "timeseries", "ops",
                  (("sum by (result) (rate(volcano_schedule_attempts_total[$__rate_interval]))", "{{result}}"),)),
            Panel("Jobs of the last session", "timeseries", "none", (("volcano_cycle_jobs", "{{result}}"),)),
            Panel("Jobs below their minimum", "timeseries", "none", (("volcano_unschedule_job_count", ""),)),
        )),
        Row("API server", (
            Panel("Pods bound", "timeseries", "ops", (
                ("sum(rate(volcano_pods_bound_total[$__rate_interval]))", "bound"),
                ("sum(rate(volcano_bind_errors_total[$__rate_interval]))", "refused"),
            )),
            Panel("Binding", "timeseries", "s", _quantiles("volcano_bind_seconds")),
            Panel("Writes that wait", "timeseries", "none", (("volcano_api_queue_depth", "{{lane}}"),)),
            Panel("Requests", "timeseries", "ops",
                  (("sum by (method, resource, code) (rate(rest_client_requests_total[$__rate_interval]))",
                    "{{method}} {{resource}} {{code}}"),)),
            Panel("Watches", "timeseries", "ops",
                  (("sum by (resource, event) (rate(volcano_watch_events_total[$__rate_interval]))",
                    "{{resource}} {{event}}"),)),
            Panel("Age of what is known", "timeseries", "s", (("volcano_cache_age_seconds", "{{instance}}"),)),
        )),
        Row("Dynamic resource allocation", (
            Panel("Devices by state", "timeseries", "none",
                  (("sum by (card, state) (capcard_dra_devices)", "{{card}} {{state}}"),), 8,
                  "Blocked: other devices use the counters that the device needs."),
            Panel("ResourceClaims", "timeseries", "none",
                  (("sum by (state) (capcard_dra_claims)", "{{state}}"),), 8),
            Panel("Pods that wait for devices to be prepared", "timeseries", "none",
                  (("sum(capcard_dra_waiting_pods)", "pods"),), 8, "Binding conditions of devices."),
            Panel("Wait for devices to be prepared", "timeseries", "s",
                  _quantiles("capcard_dra_binding_conditions_seconds", "result"), 8),
            Panel("Searches for devices", "timeseries", "ops",
                  (("sum by (result) (rate(capcard_dra_allocations_total[$__rate_interval]))", "{{result}}"),), 8),
            Panel("Trials of a search", "timeseries", "none", _quantiles("capcard_dra_allocation_trials")),
            Panel("Writes to ResourceClaims", "timeseries", "ops",
                  (("sum by (step, code) (rate(capcard_dra_claim_writes_total[$__rate_interval]))",
                    "{{step}} {{code}}"),)),
        )),
        Row("Process", (
            Panel("CPU", "timeseries", "percentunit",
                  (("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}}"),)),
            Panel("Memory", "timeseries", "bytes", (("process_resident_memory_bytes", "{{instance}}"),)),
        )),
    ),
)  # fmt: skip

_VARIATION = (
    "stddev(avg by ({by}) (volcano_e2e_job_scheduling_duration)) / "
    "avg(avg by ({by}) (volcano_e2e_job_scheduling_duration))"
)
_LAST = "max by (job_name, queue, job_namespace) (volcano_e2e_job_scheduling_duration{%s})"

OVERVIEW = Dashboard(
    "volcano-global-overview",
    "Volcano Global Overview",
    {},
    (
        Row("Scheduling", (
            Panel("Tasks scheduled in 1 h", "stat", "none", (("sum(increase(volcano_pods_bound_total[1h]))", ""),), 6),
            Panel("Cards, total and allocated", "bargauge", "none", (
                ("volcano_card_total", "{{card}} total"), ("sum by (card) (volcano_card_allocated)", "{{card}} allocated"),
            ), 18),
            Panel("Scheduling latency", "heatmap", "ms",
                  (("sum by (le) (increase(volcano_e2e_job_scheduling_latency_milliseconds_bucket[$__rate_interval]))",
                    "{{le}}"),), 24),
            Panel("Average scheduling duration by queue", "timeseries", "ms",
                  (("avg by (queue) (volcano_e2e_job_scheduling_duration)", "{{queue}}"),)),
            Panel("Average scheduling duration by namespace", "timeseries", "ms",
                  (("avg by (job_namespace) (volcano_e2e_job_scheduling_duration)", "{{job_namespace}}"),)),
            Panel("CPU by queue", "timeseries", "none",
                  (("volcano_queue_allocated_milli_cpu / 1000", "{{queue_name}}"),), 8),
            Panel("Memory by queue", "timeseries", "bytes",
                  (("volcano_queue_allocated_memory_bytes", "{{queue_name}}"),), 8),
            Panel("Cards by queue", "timeseries", "none",
                  (("volcano_queue_card_allocated", "{{queue_name}} {{card}}"),), 8),
            Panel("Job scheduling latency", "table", "ms", ((_LAST % "", "Latency"),), 24),
        )),
        Row("Fairness", (
            Panel("Variation of durations among queues", "stat", "percentunit",
                  ((_VARIATION.format(by="queue"), ""),)),
            Panel("Variation of durations among namespaces", "stat", "percentunit",
                  ((_VARIATION.format(by="job_namespace"), ""),)),
        )),
        Row("Effectiveness", (
            Panel("Cards in use", "timeseries", "percentunit",
                  (("sum by (card) (volcano_card_allocated) / sum by (card) (volcano_card_total)", "{{card}}"),)),
            Panel("Shares of namespaces", "timeseries", "percentunit",
                  (("volcano_namespace_share", "{{namespace_name}}"),)),
        )),
    ),
)  # fmt: skip

QUEUE = Dashboard(
    "volcano-queue-view",
    "Volcano Queue View",
    {"queue": ("volcano_queue_share", "queue_name")},
    (
        Row("Now", (
            Panel("Share", "stat", "percentunit", ((f"volcano_queue_share{{{_Q}}}", "{{queue_name}}"),), 6),
            Panel("CPU", "stat", "none", ((f"volcano_queue_allocated_milli_cpu{{{_Q}}} / 1000", "{{queue_name}}"),), 6),
            Panel("Memory", "stat", "bytes", ((f"volcano_queue_allocated_memory_bytes{{{_Q}}}", "{{queue_name}}"),), 6),
            Panel("Cards", "stat", "none", ((f"volcano_queue_card_allocated{{{_Q}}}", "{{queue_name}} {{card}}"),), 6),
        )),
        Row("Over time", (
            Panel("CPU, allocated and requested", "timeseries", "none", (
                (f"volcano_queue_allocated_milli_cpu{{{_Q}}} / 1000", "allocated {{queue_name}}"),
                (f"volcano_queue_request_milli_cpu{{{_Q}}} / 1000", "requested {{queue_name}}"),
            ), 8),
            Panel("Memory, allocated and requested", "timeseries", "bytes", (
                (f"volcano_queue_allocated_memory_bytes{{{_Q}}}", "allocated {{queue_name}}"),
                (f"volcano_queue_request_memory_bytes{{{_Q}}}", "requested {{queue_name}}"),
            ), 8),
            Panel("Cards, allocated and requested", "timeseries", "none", (
                (f"volcano_queue_card_allocated{{{_Q}}}", "allocated {{queue_name}} {{card}}"),
                (f"volcano_queue_card_request{{{_Q}}}", "requested {{queue_name}} {{card}}"),
            ), 8),
            Panel("Job scheduling latency", "table", "ms", ((_LAST % _JOBS, "Latency"),), 24),
        )),
    ),
)  # fmt: skip

NAMESPACE = Dashboard(
    "volcano-namespace-view",
    "Volcano Namespace View",
    {"namespace": ("volcano_e2e_job_scheduling_start_time", "job_namespace")},
    (
        Row("Jobs", (
            Panel("Jobs", "stat", "none",
                  (('count(volcano_e2e_job_scheduling_start_time{job_namespace=~"$namespace"})', ""),), 6),
            Panel("Tasks short of their minimum", "stat", "none",
                  (('sum(volcano_unschedule_task_count{job_ns=~"$namespace"})', ""),), 6),
            Panel("Share", "timeseries", "percentunit",
                  (('volcano_namespace_share{namespace_name=~"$namespace"}', "{{namespace_name}}"),)),
            Panel("Shares of jobs", "timeseries", "percentunit",
                  (('topk(20, volcano_job_share{job_ns=~"$namespace"})', "{{job_ns}}/{{job_id}}"),), 24),
            Panel("Job scheduling latency", "table", "ms", ((_LAST % 'job_namespace=~"$namespace"', "Latency"),), 24),
        )),
    ),
)  # fmt: skip

DASHBOARDS = {
    "capacity-card.json": CAPACITY_CARD,
    "scheduler.json": SCHEDULER,
    "volcano-global-overview.json": OVERVIEW,
    "volcano-queue-view.json": QUEUE,
    "volcano-namespace-view.json": NAMESPACE,
}


def render(dashboard: Dashboard) -> str:
    """The JSON that Grafana imports."""
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["capcard-sched"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(*item) for item in dashboard.variables.items())]},
        "panels": _panels(dashboard),
    }
    return json.dumps(document, indent=2) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(name: str, source: tuple[str, str]) -> dict[str, Any]:
    query = f"label_values({source[0]}, {source[1]})"
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        top, left = top + 1, 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                top, left = top + _HEIGHT, 0
            place = {"x": left, "y": top, "w": panel.width, "h": _HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, place))
            left += panel.width
        top += _HEIGHT
    return panels


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    instant = panel.form in ("table", "stat", "bargauge")
    document: dict[str, Any] = {
        "id": number,
        "type": panel.form,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": instant,
                "range": not instant,
                "format": {"table": "table", "heatmap": "heatmap"}.get(panel.form, "time_series"),
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }
    if panel.form == "table":
        values = {f"Value #{chr(ord('A') + index)}": legend for index, (_, legend) in enumerate(panel.queries)}
        if len(panel.queries) == 1:
            values = {"Value": panel.queries[0][1]}
        hidden = {"Time": True, "__name__": True, "job": True, "endpoint": True, "service": True, "container": True}
        document["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden, "renameByName": values}},
        ]
    return document


def main() -> int:
    """Write every file that changed."""
    for name, dashboard in DASHBOARDS.items():
        path, text = FOLDER / name, render(dashboard)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            sys.stdout.write(f"wrote {path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
