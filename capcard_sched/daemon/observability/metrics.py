"""The daemon's metrics, built from `metric_table`.

All methods are thread-safe, take microseconds and never block; `exposition` takes time proportional to the series and
runs in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from capcard_sched import __version__
from capcard_sched.daemon.observability.metric_samples import CoreSample, CoreSeries, JobTimes, sample_core
from capcard_sched.daemon.observability.metric_table import BY_NAME, METRICS, MetricSet
from capcard_sched.framework.toolkit.device_cards import DeviceStateCounts
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.ledger.card_seconds import CardSecondsCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Counter, Histogram

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.core import Core
    from capcard_sched.framework.session.report import HookError, SessionReport
    from capcard_sched.model.intents import Bind, Evict
    from capcard_sched.model.job import Job

#: Entries: bound on jobs and assumed binds in memory, which normally shrink at each scrape.
_MOST_REMEMBERED: Final = 100_000
_K = TypeVar("_K")
_V = TypeVar("_V")


class Metrics(MetricSet, Observer):
    """The metrics of one daemon; a `kube.instrumentation.Observer`."""

    def __init__(self, clock: Callable[[], float] = time.time, default_queue: str = "default") -> None:
        """`clock`: Unix seconds; `default_queue`: of PodGroups that name none."""
        collectors = ProcessCollector, PlatformCollector, GCCollector
        super().__init__(METRICS, *collectors, left_out=("plugin", "sampled"))
        self._clock = clock
        #: uid of an assumed pod to its creation and queue, until the API server confirms the bind.
        self._assumed: dict[str, tuple[float, str]] = {}
        #: uid of a pod to the time its bind succeeded, until the deciding session is reported.
        self._early: dict[str, float] = {}
        #: Cached series of requests.
        self._requests: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        #: Kind of a write to its series.
        self._written: dict[str, Counter] = {}
        #: (namespace, name) of a job to the time its pods were last placed.
        self._jobs: dict[tuple[str, str], JobTimes] = {}
        self.card_seconds = CardSecondsCounter(default_queue, clock)
        self._core = CoreSeries(self._jobs, self.card_seconds)
        self._device_states = DeviceStateCounts()
        self.registry.register(self._core)
        self._stale = True
        self._leading = False
        self._log_lines_dropped = 0
        self._scrape = threading.Lock()
        # Series observed for every pod, looked up once.
        self._bound = self._counters["pods_bound_total"]
        self._bind_seconds = self._histograms["bind_seconds"]
        self._scheduling_latency = self._histograms["task_scheduling_latency_milliseconds"]
        #: Queue to its series of `pod_wait_seconds`.
        self._waits: dict[str, Histogram] = {}
        self._gauges["build_info"].labels(__version__).set(1)
        for result in ("loaded", "rejected", "unchanged"):
            self._counters["config_reload_total"].labels(result)
        for result in ("scheduled", "unschedulable", "error"):
            self._counters["schedule_attempts_total"].labels(result)
        for result in ("ready", "failed"):
            self._histograms["capcard_dra_binding_conditions_seconds"].labels(result)

    def session(
        self, report: SessionReport, seconds: float, *, intake: float = 0.0, idle: bool, unplaced: int = 0
    ) -> None:
        """Record a step of the core. Must be called before the next step, which may change the reported objects.

        `seconds`: from the opening of the session to the end of its close; `intake`: duration of applying changes
        before it; `unplaced`: pods that were tried and stay pending. Of an idle step only the cycle is counted.
        """
        if idle:
            self._counters["cycles_total"].labels("idle").inc()
            return
        self._stale = True
        self._counters["cycles_total"].labels("session").inc()
        self._histograms["snapshot_seconds"].observe(intake)
        self._histograms["e2e_scheduling_latency_milliseconds"].observe(seconds * 1000)
        for kind, name, phase, took in report.timings:
            if kind == "action":
                self._histograms["action_scheduling_latency_milliseconds"].labels(name).observe(took * 1000)
            else:
                self._histograms["plugin_scheduling_latency_milliseconds"].labels(name, phase).observe(took * 1000)
        for queue in report.cuts:
            self._counters["queue_deadline_sessions_total"].labels(queue).inc()
        attempts = self._counters["schedule_attempts_total"]
        attempts.labels("scheduled").inc(len(report.bound))
        attempts.labels("unschedulable").inc(unplaced)
        attempts.labels("error").inc(len(report.errors))
        jobs = self._gauges["cycle_jobs"]
        for result, count in (
            ("enqueued", len(report.enqueued)),
            ("requeued", len(report.requeued)),
            ("considered", report.visited_jobs),
            ("placed", self._place(report.placements)),
            ("failed", len(report.errors)),
        ):
            jobs.labels(result).set(count)
        if report.evicted:
            self._counters["total_preemption_attempts"].inc()
            self._gauges["pod_preemption_victims"].set(len(report.evicted))
        self.internal_errors(report.errors)

    def _place(self, placements: Iterable[Placement]) -> int:
        """Record when pods and jobs were placed. Returns the number of jobs."""
        now, times, assumed, early = self._clock(), self._jobs, self._assumed, self._early
        jobs: dict[str, tuple[Job, int]] = {}
        for placement in placements:
            job, tasks = placement.job, placement.tasks
            jobs[job.key] = job, jobs.get(job.key, (job, 0))[1] + len(tasks)
            for task in tasks:
                assumed[task.uid] = task.created, job.queue
                if task.uid in early:  # gangs are handed over as they commit: already bound
                    self._confirmed(task.uid, early.pop(task.uid, now))
        for job, count in jobs.values():
            known = times.pop((job.namespace, job.name), None)
            # Not for jobs with pods placed by a former leader or before a restart.
            if (known is None or known.created != job.created) and job.allocated_tasks <= count:
                age = max(0.0, now - job.created)
                self._histograms["e2e_job_scheduling_latency_milliseconds"].observe(age * 1000)
            times[job.namespace, job.name] = JobTimes(job.created, now)
        _forget_oldest(times)
        _forget_oldest(assumed)
        _forget_oldest(early)
        return len(jobs)

    def _confirmed(self, uid: str, now: float) -> bool:
        """Record a bind at `now`. False if the deciding session is not reported yet."""
        known = self._assumed.pop(uid, None)
        if known is None:
            return False
        age = max(0.0, now - known[0])
        self._scheduling_latency.observe(age * 1000)
        waits = self._waits.get(known[1])
        if waits is None:
            waits = self._waits[known[1]] = self._histograms["pod_wait_seconds"].labels(known[1])
        waits.observe(age)
        return True

    def internal_errors(self, errors: Iterable[HookError]) -> None:
        for error in errors:
            self._counters["internal_errors_total"].labels(error.plugin, error.hook).inc()

    @property
    def wants_sample(self) -> bool:
        """Whether this replica leads and the state may have changed since the last sample."""
        return self._leading and self._stale

    def sample(self, core: Core) -> CoreSample:
        """Sample plugins and state. In the scheduler thread, so that no session ends between the two lines."""
        self._stale = False
        return sample_core(core.snapshot(), self._device_states)

    def plugin_samples(self, sample: CoreSample) -> None:
        """Publish the result of `sample` and drop series of deleted jobs and queues. Ignored by a standby."""
        if not self._leading:
            return
        self._core.publish(sample)
        for plugin, _ in sample.failed:
            self._counters["internal_errors_total"].labels(plugin, "metrics").inc()
        alive = {(job.namespace, job.name) for job in sample.jobs}
        for key in [key for key in tuple(self._jobs) if key not in alive]:
            self._jobs.pop(key, None)
        waits = self._histograms["pod_wait_seconds"]
        for by_queue in (waits, self._counters["queue_deadline_sessions_total"]):
            for (queue,) in _label_values(by_queue):
                if queue not in sample.queues:
                    by_queue.remove(queue)
        for queue in [queue for queue in tuple(self._waits) if queue not in sample.queues]:
            self._waits.pop(queue, None)

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        series = self._requests.get((verb, resource, code))
        if series is None:
            series = self._requests[verb, resource, code] = (
                self._counters["rest_client_requests_total"].labels(str(code), verb, resource),
                self._histograms["rest_client_request_duration_seconds"].labels(verb, resource),
            )
        series[0].inc()
        series[1].observe(seconds)

    def watch(self, resource: str, event: str, detail: str = "") -> None:  # noqa: ARG002 - details are for logs
        self._counters["watch_events_total"].labels(resource, event).inc()

    def bound(self, bind: Bind, seconds: float) -> None:
        self._bound.inc()
        self._bind_seconds.observe(seconds)
        now = self._clock()
        if not self._confirmed(bind.uid, now):
            self._early[bind.uid] = now
            if self._confirmed(bind.uid, now):  # reported by the scheduler thread in between
                self._early.pop(bind.uid, None)

    def bind_failed(self, bind: Bind, code: int, message: str) -> None:  # noqa: ARG002 - texts are for logs
        self._counters["bind_errors_total"].inc()
        self._assumed.pop(bind.uid, None)

    def evicted(self, evict: Evict) -> None:
        self._counters["evictions_total"].labels(evict.reason).inc()

    def evict_failed(self, evict: Evict, code: int, message: str) -> None:  # noqa: ARG002 - texts are for logs
        self._counters["eviction_errors_total"].inc()

    def written(self, kind: str, seconds: float) -> None:  # noqa: ARG002 - the request's duration is counted there
        series = self._written.get(kind)
        if series is None:
            series = self._written[kind] = self._counters["api_writes_total"].labels(kind, "written")
        series.inc()

    def write_failed(self, kind: str, code: int, message: str) -> None:  # noqa: ARG002 - texts are for logs
        self._counters["api_writes_total"].labels(kind, "failed").inc()

    def claim_written(self, step: str, code: int) -> None:
        self._counters["capcard_dra_claim_writes_total"].labels(step, str(int(code))).inc()

    def devices_prepared(self, result: str, seconds: float) -> None:
        self._histograms["capcard_dra_binding_conditions_seconds"].labels(result).observe(seconds)

    def dropped(self, kind: str, count: int) -> None:
        self._counters["api_writes_total"].labels(kind, "dropped").inc(count)

    def log_lines_dropped(self, total: int) -> None:
        """The log dropped `total` lines since the start."""
        self._counters["log_lines_dropped_total"].inc(total - self._log_lines_dropped)
        self._log_lines_dropped = total

    def leader(self, leading: bool) -> None:
        """Record leadership. A standby exports no series of queues and jobs."""
        if leading != self._leading:
            self._counters["leader_changes_total"].inc()
        self._leading = leading
        self.card_seconds.lead(leading)
        self._gauges["leader"].set(float(leading))
        if not leading:
            self._core.clear()
            self._jobs.clear()
            self._assumed.clear()
            self._early.clear()
            self._stale = True

    def conf_reload(self, result: str, digest: str = "") -> None:
        """A scheduler-conf is `loaded`, `rejected` or `unchanged`; `digest`: hash of the one in use."""
        self._counters["config_reload_total"].labels(result).inc()
        self._gauges["config_last_reload_successful"].set(float(result != "rejected"))
        if result == "loaded":
            self._gauges["config_last_reload_success_timestamp_seconds"].set(self._clock())
        if digest and result != "rejected":
            self.conf_in_use(digest)

    def conf_in_use(self, digest: str) -> None:
        self._gauges["config_info"].clear()
        self._gauges["config_info"].labels(digest).set(1)

    def exposition(self) -> bytes:
        with self._scrape:
            text = super().exposition()
            for plugin, _ in self._core.rejected:
                self._counters["internal_errors_total"].labels(plugin, "metrics").inc()
            gauge = self._gauges["metrics_series_dropped"]
            gauge.clear()
            for family, count in self._core.dropped.items():
                gauge.labels(BY_NAME[family].full_name if family in BY_NAME else family).set(count)
        return text


def _forget_oldest(remembered: dict[_K, _V]) -> None:
    """Drop the oldest entries. A dict is in insertion order."""
    surplus = len(remembered) - _MOST_REMEMBERED
    for key in list(remembered)[:surplus] if surplus > 0 else ():
        remembered.pop(key, None)


def _label_values(metric: Histogram | Counter) -> list[tuple[str, ...]]:
    return sorted({(sample.labels["queue_name"],) for family in metric.collect() for sample in family.samples})
