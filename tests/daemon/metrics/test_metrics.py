"""The content of /metrics after events."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from capcard_sched.daemon.observability.metric_samples import MOST_SERIES, CoreSample, JobFact
from capcard_sched.daemon.observability.metric_table import METRICS
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.framework.api.plugin import Plugin, Sample
from capcard_sched.framework.core import Core
from capcard_sched.model.annotations import NODE_VGPU_REGISTER, VGPU_IDS
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.device_objects import ResourceSliceObject
from capcard_sched.model.intents import Bind, Evict
from capcard_sched.testing import EPOCH, Harness
from tests.clock import Clock
from tests.unit.devices.pools import DEFAULT, decode, slices

_CARD = "NVIDIA-H200"
_VGPU = "volcano.sh/vgpu-number"
#: Both quota plugins: what one does not report, the other does.
_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: gang}, {name: drf}, {name: capacity-card}, {name: proportion}, {name: usage}]
- plugins: [{name: deviceshare, arguments: {deviceshare.VGPUEnable: true}}, {name: fragmentation}]
- plugins: [{name: extender, arguments: {extender.onSessionCloseVerb: close}}] # without a URL no call leaves
"""
#: Metrics that have no series in the run of `everything`.
_WITHOUT_SERIES = {"queue_deadline_sessions_total", "metrics_series_dropped", "node_usage_polls_total"}


class Daemon:
    """A harness with metrics around it, as the service puts them together."""

    def __init__(self, conf: str | None = _CONF, plugins: tuple[type[Plugin], ...] = ()) -> None:
        self.clock = Clock(EPOCH)
        self.metrics = Metrics(self.clock)
        self.metrics.leader(leading=True)
        self.metrics.card_seconds.lists_applied()
        self.h = Harness(conf, run=True, plugins=plugins)
        self.h.core = Core(self.h.core.snapshot().conf, self.h._registry, timer=self.clock)
        self.h.now = self.clock.now = EPOCH + 3600.0  # long after the objects were made

    def step(self, *, bind: bool = True) -> list[Bind]:
        self.clock.now = self.h.now + 1
        self.metrics.card_seconds.apply(self.h._deltas)
        result = self.h.step(self.clock.now)
        unplaced = 0 if result.idle else len(self.h.last_session.results.outcomes)
        self.metrics.session(result.report, 0.002, intake=0.001, idle=result.idle, unplaced=unplaced)
        binds = [intent for intent in result.intents if isinstance(intent, Bind)]
        for intent in binds if bind else ():
            self.metrics.bound(intent, 0.01)
        return binds

    def pods(self, group: str, *names: str, **group_fields: Any) -> None:
        """Pods of one card each and their PodGroup."""
        self.h.group(group, **group_fields)
        for name in names:
            self.h.pod(name, group=group, card=_CARD, cards=1, namespace=group_fields.get("namespace", "default"))

    def sample(self) -> None:
        if self.metrics.wants_sample:
            self.metrics.plugin_samples(self.metrics.sample(self.h.core))

    def serves(self, expected: str) -> None:
        self.sample()
        serves(self.metrics, expected)


def serves(metrics: Metrics, expected: str) -> None:
    """Each line is on the page; after `no`, a text that no line of the page has."""
    page = metrics.exposition().decode().replace("volcano_", "").splitlines()
    values = {series: float(value) for series, _, value in (row.rpartition(" ") for row in page if row[0] != "#")}
    for line in expected.strip().splitlines():
        if line.startswith("no "):
            # The process has used any number of seconds, and the collections of garbage so far have any number.
            rows = [row for row in page if not row.startswith(("python_gc", "process_"))]
            assert [row for row in rows if line[3:] in row] == [], line
        elif line not in page:
            series, _, value = line.rpartition(" ")
            assert (series, values.get(series)) == (series, float(value))


@pytest.fixture
def daemon() -> Daemon:
    """Two jobs on eight cards: one of four pods runs, one of eight waits."""
    d = Daemon()
    d.h.queue("q", cards={_CARD: 16}, capability={"cpu": "512", "memory": "2Ti"})
    d.h.gpu_node("n", _CARD, 8)
    for name, pods in (("small", 4), ("big", 8)):
        d.pods(name, *(f"{name}-{index}" for index in range(pods)), min_member=pods)
    return d


@pytest.fixture
def everything(daemon: Daemon) -> Metrics:
    """A run in which every metric gets a value."""
    h, metrics = daemon.h, daemon.metrics
    h.group("greedy", min_member=1)
    h.node("vgpu", annotations={NODE_VGPU_REGISTER: "G,10,4914,NVIDIA,true,hami-core:"}, resources={_VGPU: 10})
    h.pod("shared", node="vgpu", limits={_VGPU: 1}, annotations={VGPU_IDS: "G,NVIDIA,128,10:"})
    h.pod("greedy-0", group="greedy", card=_CARD, cards=17)
    h.pod("odd", group=None, requests={"cpu": "?"})
    h.queue("odd", annotations={"capcard-sched.io/namespaces": "no,,namespaces="})
    h.group("lost", queue="deleted")
    h.pod("lost-0", group="lost", node="n")
    h.apply(ObjectChanged(decode(slices(DEFAULT)[0], ResourceSliceObject)))
    metrics.bind_failed(daemon.step()[0], 409, "conflict")
    metrics.claim_written("allocate", 200)
    metrics.devices_prepared("ready", 2.0)
    metrics.evicted(evict := Evict("default", "small-0", "u", "reclaim", "needed elsewhere"))
    metrics.evict_failed(evict, 429, "budget")
    h.plugin("capacity-card").reports.evictions["q", "q", _CARD] = 1  # the counts of a reclaim
    metrics.set_gauge("api_queue_depth", 3, "bind")
    metrics.set_gauge("cache_age_seconds", 0.5)
    metrics.request("patch", "podgroups", 409, 0.25)
    metrics.watch("pods", "expired")
    metrics.written("event", 0.01)
    metrics.write_failed("event", 500, "x")
    metrics.dropped("event", 2)
    metrics.conf_reload("loaded", "0123456789abcdef")
    metrics.increment("internal_errors_total", "", "dump")
    daemon.sample()
    return metrics


def test_the_page_has_the_metrics_of_the_table_with_their_types_and_labels(everything: Metrics) -> None:
    page = everything.exposition().decode()
    types = sorted(tuple(line.split()[2:]) for line in page.splitlines() if line.startswith("# TYPE "))
    runtime = {name for name, _ in types if name.startswith(("process_", "python_"))}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "python_info"} <= runtime
    assert [each for each in types if each[0] not in runtime] == sorted((row.full_name, row.type) for row in METRICS)
    families = [family for family in text_string_to_metric_families(page) if family.samples]
    labels = {family.name.removesuffix("_total"): {*family.samples[-1].labels} for family in families}
    rows = {row.full_name.removesuffix("_total"): row for row in METRICS if row.name not in _WITHOUT_SERIES}
    assert {name: labels.get(name) for name in rows} == {name: {*row.labels} for name, row in rows.items()}


def test_held_cards_are_counted_in_seconds(daemon: Daemon) -> None:
    daemon.h.pod("bound", group="small", card=_CARD, cards=2, node="n")
    daemon.step()
    series = f'queue_card_seconds_total{{card="{_CARD}",queue="q",service_type="unknown"}}'
    daemon.serves(f"{series} 0")
    daemon.clock.now += 30.0
    assert daemon.metrics.wants_sample is False, "the time alone needs no sample of the core"
    daemon.serves(f"{series} 60")
    daemon.metrics.leader(leading=False)
    daemon.serves("no queue_card_seconds_total{")


def test_partial_gangs_and_warnings_of_queues_last_as_long_as_their_cause() -> None:
    daemon = Daemon('actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]')
    daemon.h.gpu_node("n", _CARD, 8)
    daemon.h.queue("q", cards={_CARD: 4})  # without capacity-card
    daemon.h.group("huge", min_member=20)
    daemon.h.pod("half", group="huge", node="n")
    daemon.step(bind=False)
    daemon.serves('partial_gangs{queue_name="q"} 1\nqueue_warnings{queue_name="q",reason="LimitNotEnforced"} 1')
    daemon.h.queue("q")
    daemon.h.delete_pod("half")
    daemon.step(bind=False)
    daemon.serves('partial_gangs{queue_name="q"} 0\nno queue_warnings{')


def test_callbacks_of_the_backend_are_counted(everything: Metrics) -> None:
    expected = """
evictions_total{reason="reclaim"} 1
eviction_errors_total 1
bind_errors_total 1
watch_events_total{event="expired",resource="pods"} 1
api_writes_total{object="event",result="written"} 1
api_writes_total{object="event",result="failed"} 1
api_writes_total{object="event",result="dropped"} 2
rest_client_requests_total{code="409",method="patch",resource="podgroups"} 1
rest_client_request_duration_seconds_sum{method="patch",resource="podgroups"} 0.25
"""
    serves(everything, expected)


# --- latencies and counts ---------------------------------------------------------------------------------------------


def test_a_session_is_timed_and_counted_with_the_outcomes_of_its_jobs_and_pods(daemon: Daemon) -> None:
    """The pods of job `small` wait for 3,594 to 3,597 s until their session, the job for 3,598 s."""
    daemon.step()
    daemon.serves("""
e2e_scheduling_latency_milliseconds_sum 2
snapshot_seconds_sum 0.001
action_scheduling_latency_milliseconds_count{action="enqueue"} 1
action_scheduling_latency_milliseconds_count{action="allocate"} 1
action_scheduling_latency_milliseconds_count{action="backfill"} 1
plugin_scheduling_latency_milliseconds_count{OnSession="OnSessionOpen",plugin="capacity-card"} 1
plugin_scheduling_latency_milliseconds_count{OnSession="OnSessionClose",plugin="capacity-card"} 1
schedule_attempts_total{result="scheduled"} 4
schedule_attempts_total{result="unschedulable"} 8
cycle_jobs{result="considered"} 2
cycle_jobs{result="placed"} 1
pods_bound_total 4
task_scheduling_latency_milliseconds_count 4
task_scheduling_latency_milliseconds_sum 14382000
pod_wait_seconds_sum{queue_name="q"} 14382
e2e_job_scheduling_latency_milliseconds_sum 3598000
e2e_job_scheduling_start_time{job_name="small",job_namespace="default",queue="q"} 1767225603
e2e_job_scheduling_last_time{job_name="small",job_namespace="default",queue="q"} 1767229201
e2e_job_scheduling_duration{job_name="small",job_namespace="default",queue="q"} 3598000
e2e_job_scheduling_start_time{job_name="big",job_namespace="default",queue="q"} 1767225608
no e2e_job_scheduling_last_time{job_name="big"
namespace_share{namespace_name="default"} 0.5
namespace_weight{namespace_name="default"} 1
namespace_weighted_share{namespace_name="default"} 0.5
quota_evasions_ignored_total 0
""")


def test_the_age_of_a_pod_is_counted_once_when_its_binding_succeeded(daemon: Daemon) -> None:
    binds = daemon.step(bind=False)
    daemon.serves("task_scheduling_latency_milliseconds_count 0")
    daemon.clock.now += 2
    for bind in [*binds, binds[0]]:  # a repeated bind is reported twice
        daemon.metrics.bound(bind, 0.01)
    daemon.serves("task_scheduling_latency_milliseconds_count 4\ntask_scheduling_latency_milliseconds_sum 14390000")


def test_a_binding_that_succeeds_before_its_session_ends_is_counted_all_the_same(daemon: Daemon) -> None:
    result = daemon.h.step(EPOCH + 3601)
    daemon.clock.now += 1
    for bind in (intent for intent in result.intents if isinstance(intent, Bind)):
        daemon.metrics.bound(bind, 0.01)
    daemon.clock.now += 5
    daemon.metrics.session(result.report, 0.1, idle=False)
    daemon.serves("task_scheduling_latency_milliseconds_count 4\ntask_scheduling_latency_milliseconds_sum 14382000")


def test_the_age_of_a_job_is_counted_once_by_one_leader(daemon: Daemon) -> None:
    daemon.step()
    daemon.step()
    former, daemon.metrics = daemon.metrics, Metrics(daemon.clock)
    daemon.metrics.leader(leading=True)
    daemon.h.pod("small-late", group="small", card=_CARD, cards=1)
    daemon.step()
    daemon.serves("pods_bound_total 1\ne2e_job_scheduling_latency_milliseconds_count 0")
    daemon.metrics = former
    daemon.h.pod("small-later", group="small", card=_CARD, cards=1)
    daemon.step()
    daemon.serves("pods_bound_total 5\ne2e_job_scheduling_latency_milliseconds_count 1")


def test_an_idle_step_is_counted_and_nothing_else_and_evictions_of_a_session_are_one_attempt(daemon: Daemon) -> None:
    report = daemon.h.step().report
    for uid in ("a", "b"):
        report.add_evicted(uid)
    daemon.metrics.session(report, 0.1, idle=False)
    daemon.serves("total_preemption_attempts 1\npod_preemption_victims 2")
    daemon.h.settle()
    daemon.step()
    daemon.serves('cycles_total{result="idle"} 1\ne2e_scheduling_latency_milliseconds_count 1')
    assert daemon.metrics.wants_sample is False
    daemon.step()
    assert daemon.metrics.wants_sample is False, "no change: plugins are not sampled again"


def test_reloads_of_the_conf_are_counted_and_the_hash_is_that_of_the_conf_in_use() -> None:
    clock = Clock(1000)
    metrics = Metrics(clock)
    for result, digest, successful, loaded_at, in_use in (
        ("loaded", "aaaa", 1, 1000, "aaaa"),
        ("rejected", "", 0, 1000, "aaaa"),
        ("loaded", "bbbb", 1, 1120, "bbbb"),
    ):
        metrics.conf_reload(result, digest)
        serves(metrics, f'config_last_reload_successful {successful}\nconfig_info{{hash="{in_use}"}} 1')
        serves(metrics, f"config_last_reload_success_timestamp_seconds {loaded_at}")
        clock.now += 60
    serves(metrics, 'no aaaa\nconfig_reload_total{result="loaded"} 2\nconfig_reload_total{result="rejected"} 1')


def test_ignored_edits_invalid_objects_and_deleted_queues_are_counted(daemon: Daemon) -> None:
    h = daemon.h
    h.queue("lost")
    h.group("edited", queue="lost")
    h.pod("edited-0", group="edited", node="n")
    daemon.step()
    h.pod("edited-0", group="edited", node="n", annotations={"volcano.sh/card.name": "B"})
    h.group("edited", queue="q")
    h.pod("odd", group=None, requests={"cpu": "?"})
    h.delete_queue("lost")
    daemon.step()
    daemon.serves("quota_evasions_ignored_total 2")
    daemon.serves('invalid_objects{kind="Pod"} 1\ndeleted_queue_pods{queue_name="lost"} 1')


# --- series come and go with their objects ----------------------------------------------------------------------------


def test_series_of_a_job_go_with_it_and_a_pod_without_a_group_has_none(daemon: Daemon) -> None:
    daemon.pods("small", "p", min_member=9, namespace="other")
    daemon.h.pod("alone", group=None, requests={"cpu": "1"}, annotations={"scheduling.volcano.sh/queue-name": "q"})
    daemon.step()
    daemon.step()
    assert "alone" in daemon.h.binds
    others = """
unschedule_task_count{job_id="small",job_ns="other"} 9
e2e_job_scheduling_start_time{job_name="small",job_namespace="other",queue="q"} 1767225617
no job_name="alone"
no job_name="podgroup"
"""
    daemon.serves(f'job_share{{job_id="small",job_ns="default"}} 0.5{others}')
    for index in range(4):
        daemon.h.delete_pod(f"small-{index}")
    daemon.h.delete_group("small")
    daemon.step()
    daemon.serves(f'no "small",job_ns="default"\nno "small",job_namespace="default"{others}')
    assert ("default", "small") not in daemon.metrics._jobs


def test_series_of_a_queue_go_with_it_but_for_its_bound_pods(daemon: Daemon) -> None:
    daemon.h.queue("r", cards={_CARD: 1}, capability={"cpu": "8", "memory": "8Gi"})
    daemon.pods("other", "other-0", queue="r")
    daemon.step()
    daemon.serves('queue_card_capacity{card="NVIDIA-H200",queue_name="r"} 1\npod_wait_seconds_count{queue_name="r"} 1')
    daemon.h.delete_queue("r")
    daemon.step()
    daemon.sample()
    left = [line for line in daemon.metrics.exposition().decode().splitlines() if 'queue_name="r"' in line]
    assert left == ['volcano_deleted_queue_pods{queue_name="r"} 1.0']


def test_a_session_after_the_sample_was_taken_makes_it_old(daemon: Daemon) -> None:
    daemon.step()
    taken = daemon.metrics.sample(daemon.h.core)
    daemon.h.queue("late", cards={_CARD: 1})
    daemon.step()
    daemon.metrics.plugin_samples(taken)
    assert daemon.metrics.wants_sample is True
    daemon.serves(f'queue_card_capacity{{card="{_CARD}",queue_name="late"}} 1')


def test_a_standby_exports_no_series_of_queues_and_jobs(daemon: Daemon) -> None:
    daemon.step()
    daemon.serves(f'leader 1\nqueue_card_allocated{{card="{_CARD}",queue_name="q"}} 4')
    late = daemon.metrics.sample(daemon.h.core)
    daemon.metrics.leader(leading=False)
    daemon.metrics.plugin_samples(late)
    assert daemon.metrics.wants_sample is False
    daemon.serves("leader 0\nleader_changes_total 2\npods_bound_total 4\nno queue_card\nno job_name")


# --- samples of plugins -----------------------------------------------------------------------------------------------


def reported(*samples: Sample | Exception, other: str = "gang") -> Metrics:
    """After a session of a plugin that reports these samples, beside another plugin."""

    class Odd(Plugin):
        name = "odd"

        def metrics(self) -> Iterator[Sample]:
            for sample in samples:
                if isinstance(sample, Exception):
                    raise sample
                yield sample

    d = Daemon(f'actions: "allocate"\ntiers: [{{plugins: [{{name: odd}}, {{name: {other}}}]}}]', plugins=(Odd,))
    d.h.queue("q", weight=3)
    d.pods("g", "p")
    d.step()
    d.sample()
    return d.metrics


def test_a_plugin_may_report_metrics_of_its_own_and_the_first_one_counts() -> None:
    own = reported(Sample("odd_total", {"of": 'a "b"\n\\c'}, 3), Sample("odd", {}, float("nan")))
    serves(own, 'odd_total{of="a \\"b\\"\\n\\\\c"} 3\n# TYPE odd_total counter\n# TYPE odd gauge')
    both = reported(Sample("queue_weight", {"queue_name": "q"}, 99), other="proportion")
    serves(both, 'queue_weight{queue_name="q"} 99')


def test_a_plugin_that_raises_loses_its_own_series_only() -> None:
    metrics = reported(Sample("odd_one", {}, 1), ZeroDivisionError("division by zero"))
    serves(metrics, 'no odd_one\nunschedule_job_count 1\ninternal_errors_total{hook="metrics",plugin="odd"} 1')


@pytest.mark.parametrize(
    "sample",
    [
        Sample("pods_bound_total", {}, 5),
        Sample("e2e_scheduling_latency_milliseconds", {}, 5),
        Sample("e2e_scheduling_latency_milliseconds_count", {}, 5),
        Sample("no name", {}, 5),
        Sample("odd", {"no label": "x"}, 5),
        Sample("odd", {"__name__": "x"}, 5),
        Sample("queue_share", {"queue": "q"}, 5),
        Sample("odd", {}, "many"),  # type: ignore[arg-type]
        Sample("odd", None, 5),  # type: ignore[arg-type]
    ],
)
def test_a_sample_that_cannot_be_served_is_left_out_and_counted(sample: Sample) -> None:
    metrics = reported(sample, Sample("fine", {}, 1))
    serves(metrics, "fine 1\nno  5.0\nno  many\nno no name")
    serves(metrics, 'internal_errors_total{hook="metrics",plugin="odd"} 1')  # the next scrape has the count


def test_a_metric_with_too_many_series_is_truncated_and_reported() -> None:
    metrics = Metrics()
    metrics.leader(leading=True)
    samples = tuple(Sample("odd", {"id": str(i)}, i) for i in range(MOST_SERIES + 3))
    jobs = tuple(JobFact("default", f"j{i}", "q", float(i)) for i in range(MOST_SERIES + 2))
    metrics.plugin_samples(CoreSample((("odd", samples),), jobs=jobs))
    page = metrics.exposition().decode()
    assert page.count("\nvolcano_odd{") == page.count("\nvolcano_e2e_job_scheduling_start_time{") == MOST_SERIES
    serves(metrics, 'metrics_series_dropped{family="odd"} 3\nno job_name="j0"\nno job_name="j1"')
    serves(metrics, 'metrics_series_dropped{family="e2e_job_scheduling_start_time"} 2')


def test_scrapes_from_several_threads_while_things_happen_are_each_whole(daemon: Daemon) -> None:
    daemon.step()
    daemon.sample()

    def scrape_often() -> None:
        for _ in range(20):
            serves(daemon.metrics, "leader 1")

    with ThreadPoolExecutor(3) as threads:
        scrapes = [threads.submit(scrape_often) for _ in range(3)]
        for index in map(str, range(2000)):
            daemon.metrics.bound(Bind("default", index, index, "n"), 0.01)
            daemon.metrics.request("get", index[-2:], 200, 0.1)
        for scrape in scrapes:
            scrape.result()
    daemon.serves("pods_bound_total 2004")
