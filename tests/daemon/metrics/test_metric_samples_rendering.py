"""The table of metrics, and the queries of the dashboards."""

from __future__ import annotations

import importlib.util
import json
import re
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from capcard_sched.daemon.observability.metric_table import BY_NAME, JOB_LATENCY, LATENCY, METRICS

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "manifests" / "grafana"
FILES = sorted(GRAFANA.glob("*.json"))
#: Series of Prometheus itself or of the process collector.
_ELSEWHERE = {"process_cpu_seconds_total", "process_resident_memory_bytes"}

#: Metrics of Volcano's scheduler and ours beside them: type and labels, names.
_REFERENCE = """
histogram: e2e_scheduling_latency_milliseconds e2e_job_scheduling_latency_milliseconds
histogram: task_scheduling_latency_milliseconds snapshot_seconds
histogram plugin OnSession: plugin_scheduling_latency_milliseconds
histogram action: action_scheduling_latency_milliseconds
counter: total_preemption_attempts pods_bound_total bind_errors_total
counter result: schedule_attempts_total
counter job_id job_ns: job_retry_counts
counter reason: evictions_total
gauge: pod_preemption_victims unschedule_job_count
gauge job_name queue job_namespace: e2e_job_scheduling_duration e2e_job_scheduling_start_time
gauge job_name queue job_namespace: e2e_job_scheduling_last_time
gauge job_id job_ns: unschedule_task_count job_share
gauge namespace_name: namespace_share namespace_weight namespace_weighted_share
gauge queue_name: queue_share queue_weight queue_overused queue_{}_milli_cpu queue_{}_memory_bytes
gauge queue_name resource: queue_{}_scalar_resources
gauge result: cycle_jobs
gauge lane: api_queue_depth
"""


def test_the_table_has_the_metrics_of_the_reference_with_their_types_labels_and_buckets() -> None:
    for line in _REFERENCE.strip().splitlines():
        (kind, *labels), names = (part.split() for part in line.split(":"))
        for amount in ("allocated", "request", "deserved", "capacity", "real_capacity"):
            for row in (BY_NAME[name.format(amount)] for name in names):
                assert (row.type, {*row.labels}) == (kind, {*labels}), row.name
    kinds = ("e2e_scheduling", "task_scheduling", "action_scheduling", "plugin_scheduling")
    assert {BY_NAME[f"{kind}_latency_milliseconds"].buckets for kind in kinds} == {LATENCY}
    assert BY_NAME["e2e_job_scheduling_latency_milliseconds"].buckets == JOB_LATENCY
    assert (LATENCY[0], LATENCY[-1], JOB_LATENCY[0], JOB_LATENCY[-1]) == (5, 5 * 2**14, 32, 32 * 2**9)
    assert len(BY_NAME) == len(METRICS), "unique names"
    for row in METRICS:
        assert (bool(row.buckets), row.help[-1:] in {"", "."}) == (row.type == "histogram", False), row.name


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"rendering_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_dashboards_are_current() -> None:
    source = module(GRAFANA / "dashboards.py")
    assert {path.name for path in FILES} == set(source.DASHBOARDS)
    for path in FILES:
        assert path.read_text() == source.render(source.DASHBOARDS[path.name]), "run manifests/grafana/dashboards.py"


def panels(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_query_uses_existing_metrics_and_labels(path: Path) -> None:
    series: dict[str, set[str]] = {}
    for row in METRICS:
        names = [row.full_name]
        if row.type == "histogram":
            names = [f"{row.full_name}_{suffix}" for suffix in ("bucket", "sum", "count")]
        series |= {name: {*row.labels, *(["le"] if row.type == "histogram" else [])} for name in names}
    queries = [target["expr"] for panel in panels(path) for target in panel.get("targets", [])]
    assert queries
    for query in queries:
        queried = set(re.findall(r"\b(?:volcano|capcard|rest_client|process)_[a-z0-9_]+", query)) - {
            "rest_client",
            *_ELSEWHERE,
        }
        assert queried <= set(series), query
        labels = {label for name in queried for label in series[name]} | {"instance"}
        matched = re.findall(r"[{,] *([a-zA-Z_]+) *=", query)
        grouped = [label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")]
        assert {*matched, *grouped} <= labels, query


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_dashboard_is_well_formed(path: Path) -> None:
    document = json.loads(path.read_text())
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(numbers) == len(set(numbers))
    for one, other in combinations([panel["gridPos"] for panel in document["panels"]], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(place["x"] + place["w"] <= 24 for place in (panel["gridPos"] for panel in document["panels"]))
    variables = {variable["name"] for variable in document["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]+)", path.read_text())) <= variables


def test_the_dashboards_keep_volcanos_titles_and_have_the_projects_panels() -> None:
    titles = {path.name: {panel["title"] for panel in panels(path)} for path in FILES}
    assert json.loads((GRAFANA / "volcano-queue-view.json").read_text())["title"] == "Volcano Queue View"
    assert {"Tasks scheduled in 1 h", "Fairness", "Effectiveness"} <= titles["volcano-global-overview.json"]
    assert {"Queues and cards", "Headroom", "Pending requests"} <= titles["capacity-card.json"]
    wanted = {"Cycle time", "Wait of pods by queue", "Leader", "Reload failures, 1 h"}
    assert wanted <= titles["scheduler.json"]
