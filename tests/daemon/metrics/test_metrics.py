"""The content of /metrics after events, read back by the Prometheus client's own parser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from capcard_sched.daemon.observability.metric_samples import MOST_SERIES, CoreSample, JobFact
from capcard_sched.daemon.observability.metric_table import BY_NAME, JOB_LATENCY, LATENCY, METRICS
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.framework.api.plugin import Plugin, Sample
from capcard_sched.framework.core import Core
from capcard_sched.model.annotations import NODE_VGPU_REGISTER, VGPU_IDS
from capcard_sched.model.intents import Bind, Evict
from capcard_sched.testing import EPOCH, Harness
from tests.clock import Clock

_CARD = "NVIDIA-H200"
_VGPU = "volcano.sh/vgpu-number"
#: Both quota plugins: what one does not report, the other does.
_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: gang}, {name: drf}, {name: capacity-card}, {name: proportion}, {name: usage}]
- plugins: [{name: deviceshare, arguments: {deviceshare.VGPUEnable: true}}]
- plugins: [{name: extender, arguments: {extender.onSessionCloseVerb: close}}] # without a URL no call leaves
"""
#: Metrics of Volcano's scheduler: name, type, labels.
_REFERENCE: list[tuple[str, str, set[str]]] = [
    ("e2e_scheduling_latency_milliseconds", "histogram", set()),
    ("e2e_job_scheduling_latency_milliseconds", "histogram", set()),
    ("e2e_job_scheduling_duration", "gauge", {"job_name", "queue", "job_namespace"}),
    ("e2e_job_scheduling_start_time", "gauge", {"job_name", "queue", "job_namespace"}),
    ("e2e_job_scheduling_last_time", "gauge", {"job_name", "queue", "job_namespace"}),
    ("plugin_scheduling_latency_milliseconds", "histogram", {"plugin", "OnSession"}),
    ("action_scheduling_latency_milliseconds", "histogram", {"action"}),
    ("task_scheduling_latency_milliseconds", "histogram", set()),
    ("schedule_attempts_total", "counter", {"result"}),
    ("pod_preemption_victims", "gauge", set()),
    ("total_preemption_attempts", "counter", set()),
    ("unschedule_task_count", "gauge", {"job_id", "job_ns"}),
    ("unschedule_job_count", "gauge", set()),
    ("job_retry_counts", "counter", {"job_id", "job_ns"}),
    ("job_share", "gauge", {"job_ns", "job_id"}),
    ("namespace_share", "gauge", {"namespace_name"}),
    ("namespace_weight", "gauge", {"namespace_name"}),
    ("namespace_weighted_share", "gauge", {"namespace_name"}),
    *[
        (f"queue_{kind}_{unit}", "gauge", {"queue_name"} | ({"resource"} if unit == "scalar_resources" else set()))
        for kind in ("allocated", "request", "deserved", "capacity", "real_capacity")
        for unit in ("milli_cpu", "memory_bytes", "scalar_resources")
    ],
    ("queue_share", "gauge", {"queue_name"}),
    ("queue_weight", "gauge", {"queue_name"}),
    ("queue_overused", "gauge", {"queue_name"}),
    # Added here
    ("pods_bound_total", "counter", set()),
    ("bind_errors_total", "counter", set()),
    ("evictions_total", "counter", {"reason"}),
    ("snapshot_seconds", "histogram", set()),
    ("cycle_jobs", "gauge", {"result"}),
    ("api_queue_depth", "gauge", {"lane"}),
]


class Daemon:
    """A harness with metrics around it, as the service puts them together."""

    def __init__(self, conf: str | None = _CONF, plugins: tuple[type[Plugin], ...] = ()) -> None:
        self.clock = Clock(EPOCH)
        self.metrics = Metrics(self.clock)
        self.metrics.leader(leading=True)
        self.h = Harness(conf, run=True, plugins=plugins)
        self.h.core = Core(self.h.core.snapshot().conf, self.h._registry, timer=self.clock)
        self.h.now = self.clock.now = EPOCH + 3600.0  # long after the objects were made

    def step(self, *, bind: bool = True) -> list[Bind]:
        self.clock.now = self.h.now + 1
        result = self.h.step(self.clock.now)
        session = self.h.last_session
        unplaced = len(session.outcomes)
        self.metrics.session(
            result.report, 0.002, intake=0.001, idle=result.idle, unplaced=0 if result.idle else unplaced
        )
        binds = [intent for intent in result.intents if isinstance(intent, Bind)]
        for intent in binds if bind else ():
            self.metrics.bound(intent, 0.01)
        return binds

    def sample(self) -> None:
        if self.metrics.wants_sample:
            self.metrics.plugin_samples(self.metrics.sample(self.h.core))

    def scrape(self) -> dict[str, Metric]:
        self.sample()
        return scrape(self.metrics)

    def value(self, name: str, **labels: str) -> float | None:
        self.sample()
        return value(self.metrics, name, **labels)


def scrape(metrics: Metrics) -> dict[str, Metric]:
    """Families by name as the type line has it. The parser names counters without `_total`."""
    return {family.name: family for family in text_string_to_metric_families(metrics.exposition().decode())}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    found = []
    for line in metrics.exposition().decode().splitlines():
        if line.startswith((f"volcano_{name}{{", f"volcano_{name} ", f"{name}{{")):
            (family,) = text_string_to_metric_families(line + "\n")
            (sample,) = family.samples
            if labels.items() <= sample.labels.items():
                found.append(sample.value)
    assert len(found) <= 1, found
    return found[0] if found else None


@pytest.fixture
def daemon() -> Daemon:
    """Two jobs on eight cards: one of four pods runs, one of eight waits."""
    d = Daemon()
    d.h.queue("q", cards={_CARD: 16}, capability={"cpu": "512", "memory": "2Ti"})
    d.h.gpu_node("n", _CARD, 8)
    for name, pods in (("small", 4), ("big", 8)):
        d.h.group(name, min_member=pods)
        for index in range(pods):
            d.h.pod(f"{name}-{index}", group=name, card=_CARD, cards=1)
    return d


def everything(d: Daemon) -> Metrics:
    """A run in which every metric gets a value."""
    metrics = d.metrics
    d.h.group("greedy", min_member=1)
    d.h.node("vgpu", annotations={NODE_VGPU_REGISTER: "G,10,4914,NVIDIA,true,hami-core:"}, resources={_VGPU: 10})
    d.h.pod("shared", node="vgpu", limits={_VGPU: 1}, annotations={VGPU_IDS: "G,NVIDIA,128,10:"})
    d.h.pod("greedy-0", group="greedy", card=_CARD, cards=17)
    d.h.pod("odd", group=None, requests={"cpu": "?"})
    d.h.group("lost", queue="deleted")
    d.h.pod("lost-0", group="lost", node="n")
    binds = d.step()
    metrics.bind_failed(binds[0], 409, "conflict")
    evict = Evict("default", "small-0", "u", "reclaim", "needed elsewhere")
    metrics.evicted(evict)
    metrics.evict_failed(evict, 429, "budget")
    d.h.plugin("capacity-card").evictions["q", "q", _CARD] = 1  # the counts of a reclaim
    metrics.set_gauge("api_queue_depth", 3, "bind")
    metrics.set_gauge("cache_age_seconds", 0.5)
    metrics.request("create", "pods/binding", 201, 0.01)
    metrics.watch("pods", "listed")
    metrics.written("event", 0.01)
    metrics.write_failed("event", 500, "x")
    metrics.dropped("event", 2)
    metrics.conf_reload("loaded", "0123456789abcdef")
    metrics.increment("internal_errors_total", "", "dump")
    d.sample()
    return metrics


@pytest.mark.parametrize("name, kind, labels", _REFERENCE)
def test_every_metric_of_the_reference_is_served_with_its_type_and_labels(
    daemon: Daemon, name: str, kind: str, labels: set[str]
) -> None:
    text = everything(daemon).exposition().decode()
    assert f"# TYPE volcano_{name} {kind}\n" in text
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in (f"volcano_{name}", f"volcano_{name}_count", f"volcano_{name}_total")
    ]
    assert samples, "declared and never set"
    assert {frozenset(sample.labels) for sample in samples} == {frozenset(labels)}


def test_the_exposition_matches_the_table(daemon: Daemon) -> None:
    metrics = everything(daemon)
    served = {}
    for line in metrics.exposition().decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in served
            served[name] = kind
    runtime = {name for name in served if name.startswith(("process_", "python_"))}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "python_info"} <= runtime
    assert {name: kind for name, kind in served.items() if name not in runtime} == {
        row.full_name: row.type for row in METRICS
    }


def test_names_in_the_table_are_unique_and_every_row_has_the_fields_of_its_type() -> None:
    assert len(BY_NAME) == len(METRICS)
    for row in METRICS:
        assert bool(row.buckets) == (row.type == "histogram"), row.name
        assert row.help
        assert not row.help.endswith("."), row.name
        assert list(row.buckets) == sorted(row.buckets)


def test_histograms_have_the_buckets_of_the_reference() -> None:
    kinds = ("e2e_scheduling", "task_scheduling", "action_scheduling", "plugin_scheduling")
    assert {BY_NAME[f"{kind}_latency_milliseconds"].buckets for kind in kinds} == {LATENCY}
    assert BY_NAME["e2e_job_scheduling_latency_milliseconds"].buckets == JOB_LATENCY
    assert (LATENCY[0], LATENCY[-1], JOB_LATENCY[0], JOB_LATENCY[-1]) == (5, 5 * 2**14, 32, 32 * 2**9)


# --- latencies --------------------------------------------------------------------------------------------------------


def test_the_age_of_a_pod_is_counted_once_when_its_binding_succeeded(daemon: Daemon) -> None:
    binds = daemon.step(bind=False)
    assert daemon.value("task_scheduling_latency_milliseconds_count") == 0
    daemon.clock.now += 2
    for bind in binds:
        daemon.metrics.bound(bind, 0.01)
    assert daemon.value("task_scheduling_latency_milliseconds_count") == len(binds) == 4
    ages = [daemon.clock.now - daemon.h.task(bind.name).created for bind in binds]
    assert daemon.value("task_scheduling_latency_milliseconds_sum") == pytest.approx(sum(ages) * 1000)
    assert daemon.value("pod_wait_seconds_sum", queue_name="q") == pytest.approx(sum(ages))
    daemon.metrics.bound(binds[0], 0.01)  # reported twice: a repeated bind
    assert daemon.value("task_scheduling_latency_milliseconds_count") == 4


def test_a_binding_that_succeeds_before_its_session_ends_is_counted_all_the_same(daemon: Daemon) -> None:
    result = daemon.h.step()
    binds = [intent for intent in result.intents if isinstance(intent, Bind)]
    for bind in binds:
        daemon.metrics.bound(bind, 0.01)
    bound_at = daemon.clock.now
    daemon.clock.now += 5
    daemon.metrics.session(result.report, 0.1, idle=False)
    ages = [max(0.0, bound_at - daemon.h.task(bind.name).created) for bind in binds]
    assert daemon.value("task_scheduling_latency_milliseconds_count") == 4
    assert daemon.value("task_scheduling_latency_milliseconds_sum") == pytest.approx(sum(ages) * 1000)
    assert not daemon.metrics._early


def test_the_age_of_a_job_is_counted_once_however_many_pods_it_has(daemon: Daemon) -> None:
    daemon.step()
    assert daemon.value("e2e_job_scheduling_latency_milliseconds_count") == 1
    daemon.h.pod("small-late", group="small", card=_CARD, cards=1)
    daemon.step()
    daemon.step()
    assert daemon.h.binds["small-late"] == "n"
    assert daemon.value("e2e_job_scheduling_latency_milliseconds_count") == 1


def test_a_job_placed_by_a_former_leader_is_not_counted_as_placed_again(daemon: Daemon) -> None:
    daemon.step()
    daemon.step()
    taken_over = Metrics(daemon.clock)
    taken_over.leader(leading=True)
    daemon.metrics = taken_over
    daemon.h.pod("small-late", group="small", card=_CARD, cards=1)
    daemon.step()
    assert daemon.value("pods_bound_total") == 1
    assert daemon.value("e2e_job_scheduling_latency_milliseconds_count") == 0


def test_the_times_of_a_job_are_in_the_units_of_the_reference(daemon: Daemon) -> None:
    daemon.step()
    job = daemon.h.job("small")
    labels = {"job_name": "small", "queue": "q", "job_namespace": "default"}
    assert daemon.value("e2e_job_scheduling_start_time", **labels) == job.created
    assert daemon.value("e2e_job_scheduling_last_time", **labels) == daemon.clock.now
    age = (daemon.clock.now - job.created) * 1000
    assert daemon.value("e2e_job_scheduling_duration", **labels) == pytest.approx(max(0, age))
    assert daemon.value("e2e_job_scheduling_start_time", job_name="big") == daemon.h.job("big").created
    assert daemon.value("e2e_job_scheduling_last_time", job_name="big") is None, "it was never placed"


def test_a_session_is_timed_and_counted_with_the_outcomes_of_its_jobs_and_pods(daemon: Daemon) -> None:
    daemon.step()
    expected: list[tuple[str, dict[str, str], float]] = [
        ("e2e_scheduling_latency_milliseconds_sum", {}, 2.0),
        *(
            ("action_scheduling_latency_milliseconds_count", {"action": action}, 1)
            for action in ("enqueue", "allocate", "backfill")
        ),
        *(
            ("plugin_scheduling_latency_milliseconds_count", {"plugin": "capacity-card", "OnSession": phase}, 1)
            for phase in ("OnSessionOpen", "OnSessionClose")
        ),
        ("schedule_attempts_total", {"result": "scheduled"}, 4),
        ("schedule_attempts_total", {"result": "unschedulable"}, 8),
        ("cycle_jobs", {"result": "considered"}, 2),
        ("cycle_jobs", {"result": "placed"}, 1),
        ("pods_bound_total", {}, 4),
        ("namespace_share", {"namespace_name": "default"}, 4 / 8),
        ("namespace_weight", {"namespace_name": "default"}, 1),
        ("namespace_weighted_share", {"namespace_name": "default"}, 4 / 8),
    ]
    for name, labels, figure in expected:
        assert daemon.value(name, **labels) == pytest.approx(figure), (name, labels)


# --- counts -----------------------------------------------------------------------------------------------------------


def test_an_idle_step_is_counted_and_nothing_else(daemon: Daemon) -> None:
    daemon.h.settle()
    daemon.step()
    assert daemon.value("cycles_total", result="idle") == 1
    assert daemon.value("e2e_scheduling_latency_milliseconds_count") == 0
    daemon.sample()
    assert daemon.metrics.wants_sample is False
    daemon.step()
    assert daemon.metrics.wants_sample is False, "no change: plugins are not sampled again"


@pytest.mark.parametrize(
    "call, name, labels, expected",
    [
        (lambda m: m.evicted(Evict("n", "p", "u", "reclaim", "")), "evictions_total", {"reason": "reclaim"}, 1),
        (lambda m: m.evict_failed(Evict("n", "p", "u", "r", ""), 429, ""), "eviction_errors_total", {}, 1),
        (lambda m: m.bind_failed(Bind("n", "p", "u", "x"), 403, ""), "bind_errors_total", {}, 1),
        (lambda m: m.watch("pods", "expired"), "watch_events_total", {"resource": "pods", "event": "expired"}, 1),
        (lambda m: m.dropped("event", 5), "api_writes_total", {"object": "event", "result": "dropped"}, 5),
        (
            lambda m: m.request("patch", "podgroups", 409, 0.1),
            "rest_client_requests_total",
            {"code": "409", "method": "patch", "resource": "podgroups"},
            1,
        ),
    ],
)
def test_callbacks_of_the_backend_are_counted(
    call: Callable[[Metrics], None], name: str, labels: dict[str, str], expected: float
) -> None:
    metrics = Metrics()
    call(metrics)
    assert value(metrics, name, **labels) == expected


def test_evictions_of_a_session_count_as_one_attempt(daemon: Daemon) -> None:
    result = daemon.h.step()
    for uid in ("a", "b"):
        result.report.add_evicted(uid)
    daemon.metrics.session(result.report, 0.1, idle=False)
    assert daemon.value("total_preemption_attempts") == 1
    assert daemon.value("pod_preemption_victims") == 2


def test_reloads_of_the_conf_are_counted_and_the_hash_is_that_of_the_conf_in_use() -> None:
    clock = Clock(EPOCH)
    metrics = Metrics(clock)
    metrics.conf_reload("loaded", "aaaa")
    assert value(metrics, "config_last_reload_successful") == 1
    clock.now += 60
    metrics.conf_reload("rejected")
    assert value(metrics, "config_last_reload_successful") == 0
    assert value(metrics, "config_info", hash="aaaa") == 1
    assert value(metrics, "config_last_reload_success_timestamp_seconds") == EPOCH
    metrics.conf_reload("loaded", "bbbb")
    assert value(metrics, "config_info", hash="aaaa") is None
    assert value(metrics, "config_info", hash="bbbb") == 1
    assert value(metrics, "config_reload_total", result="loaded") == 2
    assert value(metrics, "config_reload_total", result="rejected") == 1


# --- series come and go with their objects ----------------------------------------------------------------------------

_PER_JOB = [
    ("e2e_job_scheduling_duration", "job_name"),
    ("e2e_job_scheduling_start_time", "job_name"),
    ("e2e_job_scheduling_last_time", "job_name"),
    ("unschedule_task_count", "job_id"),
    ("job_share", "job_id"),
]


def test_series_of_a_job_go_with_it(daemon: Daemon) -> None:
    daemon.step()
    daemon.step()
    for name, label in _PER_JOB:
        assert daemon.value(name, **{label: "small"}) is not None, name
    for index in range(4):
        daemon.h.delete_pod(f"small-{index}")
    daemon.h.delete_group("small")
    daemon.step()
    for name, label in _PER_JOB:
        assert daemon.value(name, **{label: "small"}) is None, name
    assert ("default", "small") not in daemon.metrics._jobs


def test_jobs_of_one_name_in_two_namespaces_have_a_series_each(daemon: Daemon) -> None:
    daemon.h.group("big", min_member=9, namespace="other")
    daemon.h.pod("p", group="big", namespace="other", card=_CARD, cards=1)
    daemon.step()
    assert daemon.value("unschedule_task_count", job_id="big", job_ns="default") == 8 - 4
    assert daemon.value("unschedule_task_count", job_id="big", job_ns="other") == 9
    assert daemon.value("e2e_job_scheduling_start_time", job_name="big", job_namespace="other") is not None


def test_series_of_a_queue_go_with_it(daemon: Daemon) -> None:
    daemon.h.queue("r", cards={_CARD: 1}, capability={"cpu": "8", "memory": "8Gi"})
    daemon.h.group("other", queue="r")
    daemon.h.pod("other-0", group="other", card=_CARD, cards=1)
    daemon.step()
    assert daemon.value("queue_card_capacity", queue_name="r", card=_CARD) == 1
    assert daemon.value("pod_wait_seconds_count", queue_name="r") == 1
    daemon.h.delete_queue("r")
    daemon.step()
    text = daemon.metrics.exposition()
    daemon.sample()
    assert b'queue_card_capacity{card="NVIDIA-H200",queue_name="r"}' in text
    left = [line for line in daemon.metrics.exposition().decode().splitlines() if 'queue_name="r"' in line]
    assert left == ['volcano_deleted_queue_pods{queue_name="r"} 1.0'], "its bound pod stays visible"


def test_a_pod_without_a_group_gets_no_series_of_its_own(daemon: Daemon) -> None:
    daemon.h.pod("alone", group=None, requests={"cpu": "1"}, annotations={"scheduling.volcano.sh/queue-name": "q"})
    daemon.step()
    assert "alone" in daemon.h.binds
    assert daemon.value("pods_bound_total") == 5
    daemon.sample()
    families = [name for name, _ in _PER_JOB if name.startswith("e2e")]
    names = {s.labels["job_name"] for family in families for s in scrape(daemon.metrics)[f"volcano_{family}"].samples}
    assert names == {"small", "big"}


def test_a_session_after_the_sample_was_taken_makes_it_old(daemon: Daemon) -> None:
    daemon.step()
    taken = daemon.metrics.sample(daemon.h.core)
    daemon.h.queue("late", cards={_CARD: 1})
    daemon.step()
    daemon.metrics.plugin_samples(taken)
    assert daemon.metrics.wants_sample is True
    assert daemon.value("queue_card_capacity", queue_name="late", card=_CARD) == 1


def test_a_standby_exports_no_series_of_queues_and_jobs(daemon: Daemon) -> None:
    daemon.step()
    assert daemon.value("leader") == 1
    assert daemon.value("queue_card_allocated", queue_name="q", card=_CARD) == 4
    late = daemon.metrics.sample(daemon.h.core)
    daemon.metrics.leader(leading=False)
    daemon.metrics.plugin_samples(late)
    assert daemon.metrics.wants_sample is False
    assert value(daemon.metrics, "leader") == 0
    assert value(daemon.metrics, "leader_changes_total") == 2
    assert b"queue_card" not in daemon.metrics.exposition()
    assert b"job_name" not in daemon.metrics.exposition()
    assert value(daemon.metrics, "pods_bound_total") == 4, "counters go on"


# --- samples of plugins -----------------------------------------------------------------------------------------------


def raising() -> Iterator[Sample]:
    yield Sample("odd_one", {}, 1)
    raise ZeroDivisionError("division by zero")


def run_with(samples: Callable[[], Iterator[Sample]], other: str = "gang") -> Daemon:
    class Odd(Plugin):
        name = "odd"

        def metrics(self) -> Iterator[Sample]:
            return samples()

    conf = f'actions: "allocate"\ntiers: [{{plugins: [{{name: odd}}, {{name: {other}}}]}}]'
    d = Daemon(conf, plugins=(Odd,))
    d.h.queue("q", weight=3)
    d.h.node("n")
    d.h.group("g")
    d.h.pod("p")
    d.step()
    return d


def test_a_third_party_plugin_may_report_metrics_of_its_own() -> None:
    d = run_with(lambda: iter([Sample("odd_total", {"of": 'a "b"\n\\c'}, 3), Sample("odd", {}, float("nan"))]))
    assert d.value("odd_total", of='a "b"\n\\c') == 3
    text = d.metrics.exposition().decode()
    assert "# TYPE volcano_odd_total counter\n" in text
    assert "# TYPE volcano_odd gauge\n" in text


def test_a_plugin_that_raises_loses_its_own_series_only() -> None:
    d = run_with(raising)
    assert d.value("odd_one") is None
    assert d.value("unschedule_job_count") == 0
    assert d.value("internal_errors_total", plugin="odd", hook="metrics") == 1


@pytest.mark.parametrize(
    "sample",
    [
        Sample("pods_bound_total", {}, 5),
        Sample("e2e_scheduling_latency_milliseconds", {}, 5),
        Sample("e2e_scheduling_latency_milliseconds_count", {}, 5),
        Sample("no name", {}, 1),
        Sample("odd", {"no label": "x"}, 1),
        Sample("odd", {"__name__": "x"}, 1),
        Sample("queue_share", {"queue": "q"}, 1),
        Sample("odd", {}, "many"),  # type: ignore[arg-type]
        Sample("odd", None, 1),  # type: ignore[arg-type]
    ],
)
def test_a_sample_that_cannot_be_served_is_left_out_and_counted(sample: Sample) -> None:
    d = run_with(lambda: iter([sample, Sample("fine", {}, 1)]))
    before = {family for family in d.scrape() if family.startswith("volcano_odd")}
    assert not any(scrape(d.metrics)[family].samples for family in before)
    assert d.value("fine") == 1
    assert (d.value("internal_errors_total", plugin="odd", hook="metrics") or 0) >= 1


def test_of_two_plugins_that_report_one_series_the_first_counts() -> None:
    d = run_with(lambda: iter([Sample("queue_weight", {"queue_name": "q"}, 99)]), "proportion")
    assert d.value("queue_weight", queue_name="q") == 99


def test_a_metric_with_too_many_series_is_truncated_and_reported() -> None:
    metrics = Metrics()
    metrics.leader(leading=True)
    samples = tuple(Sample("odd", {"id": str(i)}, i) for i in range(MOST_SERIES + 3))
    jobs = tuple(JobFact("default", f"j{i}", "q", float(i)) for i in range(MOST_SERIES + 2))
    metrics.plugin_samples(CoreSample((("odd", samples),), jobs=jobs))
    families = scrape(metrics)
    assert len(families["volcano_odd"].samples) == MOST_SERIES
    started = families["volcano_e2e_job_scheduling_start_time"].samples
    assert {"j0", "j1"}.isdisjoint(sample.labels["job_name"] for sample in started), "the oldest are left out"
    assert value(metrics, "metrics_series_dropped", family="odd") == 3
    assert value(metrics, "metrics_series_dropped", family="volcano_e2e_job_scheduling_start_time") == 2


def test_scrapes_from_several_threads_while_things_happen_are_each_whole(daemon: Daemon) -> None:
    daemon.step()
    daemon.sample()
    broken: list[BaseException] = []

    def scrape_often() -> None:
        try:
            for _ in range(20):
                families = scrape(daemon.metrics)
                (count,) = [s.value for s in families["volcano_bind_seconds"].samples if s.name.endswith("_count")]
                assert count >= 4
        except BaseException as error:  # noqa: BLE001 - raised in the test
            broken.append(error)

    threads = [threading.Thread(target=scrape_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for index in range(2000):
        daemon.metrics.bound(Bind("default", f"p{index}", f"u{index}", "n"), 0.01)
        daemon.metrics.request("get", f"r{index % 50}", 200, 0.1)
    for thread in threads:
        thread.join()
    assert broken == []
    assert daemon.value("pods_bound_total") == 2004


def test_ignored_edits_invalid_objects_and_deleted_queues_are_counted(daemon: Daemon) -> None:
    daemon.step()
    assert daemon.value("quota_evasions_ignored_total") == 0
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
    assert daemon.value("quota_evasions_ignored_total") == 2
    assert daemon.value("invalid_objects", kind="Pod") == 1
    assert daemon.value("deleted_queue_pods", queue_name="lost") == 1
