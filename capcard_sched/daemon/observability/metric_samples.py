"""Metrics with values from the core: reported by plugins or read from its state.

`sample_core` runs in the scheduler thread and returns one immutable message; scrapes render the last message. No series
outlives its object, and an unchanged cluster costs nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from capcard_sched.daemon.observability.device_samples import DeviceSeries, device_series
from capcard_sched.daemon.observability.metric_table import BY_NAME, PREFIX, MetricRow
from capcard_sched.framework.api.dispatch import error_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.framework.api.plugin import Sample
    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.framework.toolkit.device_cards import DeviceStateCounts
    from capcard_sched.ledger.card_seconds import CardSecondsCounter

#: Series: maximum per metric; `metrics_series_dropped` counts the rest.
MOST_SERIES: Final = 10_000
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_SUFFIXES: Final = ("_bucket", "_count", "_sum", "_created")


class JobFact(NamedTuple):
    """An existing PodGroup. `created` in Unix seconds."""

    namespace: str
    name: str
    queue: str
    created: float


class CoreSample(NamedTuple):
    """Values of the core at one moment. Immutable; created by `sample_core`."""

    #: (plugin, its samples), in order of the tiers, without failed plugins.
    plugins: tuple[tuple[str, tuple[Sample, ...]], ...] = ()
    #: (plugin, error) of failed plugins.
    failed: tuple[tuple[str, str], ...] = ()
    jobs: tuple[JobFact, ...] = ()
    queues: frozenset[str] = frozenset()
    #: Namespace to the dominant share of its jobs.
    namespace_shares: tuple[tuple[str, float], ...] = ()
    #: Kind to the number of invalid objects.
    invalid: tuple[tuple[str, int], ...] = ()
    #: Queues that do not exist, with the number of bound pods of their jobs.
    deleted_queues: tuple[tuple[str, int], ...] = ()
    #: Existing queues with the number of jobs with bound pods below their minimum.
    partial_gangs: tuple[tuple[str, int], ...] = ()
    #: Queue and the code of an event reason.
    queue_warnings: tuple[tuple[str, str], ...] = ()
    #: Objects with an ignored edit since the start; None before the first sample.
    ignored_edits: int | None = None
    #: Series of devices and claims.
    devices: tuple[DeviceSeries, ...] = ()


class JobTimes(NamedTuple):
    """Creation of a job and last placement of its pods; Unix seconds."""

    created: float
    last: float


def sample_core(snapshot: CoreSnapshot, states: DeviceStateCounts) -> CoreSample:
    """Sample plugins and state. For the scheduler thread, between steps. O(jobs + queues x cards).

    `states` counts the devices of pools that changed since its last use, and is kept by the caller.

    A plugin that raises has no series in this sample and is listed in `failed`.
    """
    plugins: list[tuple[str, tuple[Sample, ...]]] = []
    failed: list[tuple[str, str]] = []
    for name, metrics in snapshot.dispatch.entries("metrics"):
        try:
            plugins.append((name, tuple(metrics())))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            failed.append((name, error_text(error)))
    state = snapshot.state
    # Implicit jobs of pods without a PodGroup are named after a uid: their series would be useless.
    jobs = tuple(
        JobFact(job.namespace, job.name, job.queue, job.created)
        for job in state.jobs.values()
        if job.uid and not job.implicit
    )
    return CoreSample(
        tuple(plugins),
        tuple(failed),
        jobs,
        frozenset(state.queues),
        tuple(_namespace_shares(snapshot)),
        tuple(sorted(Counter(ref.kind for ref in state.problems).items())),
        tuple(
            (name, sum(job.bound for job in queue.jobs.values()))
            for name, queue in sorted(state.deleted_queues.items())
        ),
        tuple(
            (name, sum(job.is_partial() for job in queue.jobs.values())) for name, queue in sorted(state.queues.items())
        ),
        tuple(
            (name, reason)
            for name, reasons in sorted(snapshot.queue_warnings.items())
            if name in state.queues
            for reason in reasons
        ),
        state.ignored_edits.total,
        tuple(device_series(state.devices, state.claims, states, state.tasks)),
    )


def _namespace_shares(snapshot: CoreSnapshot) -> Iterator[tuple[str, float]]:
    columns = snapshot.state.columns
    allocated: dict[str, list[int]] = {}
    for job in snapshot.state.jobs.values():
        amounts = job.allocated.tolist()
        if any(amounts):
            sums = allocated.setdefault(job.namespace, [0] * columns.width)
            allocated[job.namespace] = [
                total + amounts[column] if column < len(amounts) else total for column, total in enumerate(sums)
            ]
    totals = columns.fit(snapshot.state.nodes.total_allocatable).tolist()
    for namespace in sorted(allocated):
        shares = [
            (amount / total if total else 1.0)
            for amount, total in zip(allocated[namespace], totals, strict=False)
            if amount > 0
        ]
        yield namespace, max(shares, default=0.0)


class SampleError(Exception):
    """An invalid sample; the text has the reason."""


class CoreSeries(Collector):
    """Renders the last CoreSample. `publish` and `collect` may run in different threads."""

    def __init__(self, times: Mapping[tuple[str, str], JobTimes], card_seconds: CardSecondsCounter) -> None:
        """`times`: (namespace, name) of a job to its times; both are read by `collect`."""
        self._times, self._card_seconds = times, card_seconds
        self._sample = CoreSample()
        #: Metric to the number of series omitted from the last scrape.
        self.dropped: dict[str, int] = {}
        #: (plugin, text) of invalid samples in the last scrape.
        self.rejected: list[tuple[str, str]] = []

    def publish(self, sample: CoreSample) -> None:
        self._sample = sample

    def clear(self) -> None:
        """Render no series: a standby's are outdated."""
        self._sample = CoreSample()

    def collect(self) -> Iterator[Metric]:
        """All families with a series. The first plugin in the tiers that reports a series wins."""
        sample = self._sample
        self.dropped, self.rejected = {}, []
        families: dict[str, tuple[Metric, dict[tuple[str, ...], float]]] = {}
        for plugin, samples in sample.plugins:
            for name, labels, value in samples:
                try:
                    self._add(families, name, labels, value)
                except (SampleError, TypeError, ValueError, AttributeError) as error:
                    self.rejected.append((plugin, f"{name}: {error}"))
        for name in sorted(families):
            yield families[name][0]
        own: dict[str, Metric] = {}
        series = ((name, "", labels, value) for name, labels, value in self._state_series(sample))
        for name, suffix, labels, value in (*series, *sample.devices):
            metric = own.get(name)
            if metric is None:
                row = BY_NAME[name]
                metric = own[name] = _metric(row.full_name, row.help, row.type)
            metric.add_sample(f"{BY_NAME[name].full_name}{suffix}", labels, value)
        yield from own.values()

    def _add(
        self,
        families: dict[str, tuple[Metric, dict[tuple[str, ...], float]]],
        name: str,
        labels: Mapping[str, str],
        value: float,
    ) -> None:
        known = families.get(name)
        if known is None:
            known = families[name] = _family(name), {}
        metric, seen = known
        row = BY_NAME.get(name)
        wanted = row.labels if row is not None else tuple(sorted(labels))
        if row is not None and set(labels) != set(row.labels):
            raise SampleError(f"labels {', '.join(sorted(labels))} instead of {', '.join(row.labels)}")
        if row is None and not all(_LABEL.fullmatch(label) for label in wanted):
            raise SampleError(f"invalid label names: {', '.join(wanted)}")
        series = tuple(str(labels[label]) for label in wanted)
        key = (*wanted, *series)
        if key in seen:
            return
        if len(seen) >= MOST_SERIES:
            self.dropped[name] = self.dropped.get(name, 0) + 1
            return
        seen[key] = float(value)
        metric.add_sample(f"{PREFIX}{name}", dict(zip(wanted, series, strict=True)), seen[key])

    def _job_series(self, facts: Sequence[JobFact]) -> Iterator[tuple[str, dict[str, str], float]]:
        """As `_state_series`: those of jobs, the youngest ones where they are many."""
        jobs = facts
        if len(facts) > MOST_SERIES:
            jobs = sorted(facts, key=lambda job: -job.created)[:MOST_SERIES]
            self.dropped["e2e_job_scheduling_start_time"] = len(facts) - MOST_SERIES
        for job in jobs:
            labels = {"job_name": job.name, "queue": job.queue, "job_namespace": job.namespace}
            yield "e2e_job_scheduling_start_time", labels, job.created
            times = self._times.get((job.namespace, job.name))
            if times is not None and times.created == job.created:
                yield "e2e_job_scheduling_last_time", labels, times.last
                yield "e2e_job_scheduling_duration", labels, max(0.0, times.last - job.created) * 1000

    def _state_series(self, sample: CoreSample) -> Iterator[tuple[str, dict[str, str], float]]:
        """Name without prefix, labels and value of each series that is read from the state."""
        yield from self._job_series(sample.jobs)
        for namespace, share in sample.namespace_shares[:MOST_SERIES]:
            for what, value in (("share", share), ("weight", 1.0), ("weighted_share", share)):
                yield f"namespace_{what}", {"namespace_name": namespace}, value
        for kind, count in sample.invalid:
            yield "invalid_objects", {"kind": kind}, count
        for queue, count in sample.deleted_queues[:MOST_SERIES]:
            yield "deleted_queue_pods", {"queue_name": queue}, count
        for queue, count in sample.partial_gangs[:MOST_SERIES]:
            yield "partial_gangs", {"queue_name": queue}, count
        for queue, reason in sample.queue_warnings[:MOST_SERIES]:
            yield "queue_warnings", {"queue_name": queue, "reason": reason}, 1
        card_seconds = self._card_seconds.read()
        if len(card_seconds) > MOST_SERIES:
            self.dropped["queue_card_seconds_total"] = len(card_seconds) - MOST_SERIES
        for series, value in card_seconds[:MOST_SERIES]:
            yield "queue_card_seconds_total", series._asdict(), value
        if sample.ignored_edits is not None:
            yield "quota_evasions_ignored_total", {}, sample.ignored_edits


def _metric(name: str, text: str, kind: str) -> Metric:
    # The library appends `_total` to counters in the header.
    return Metric(name.removesuffix("_total") if kind == "counter" else name, text, kind)


def _family(name: str) -> Metric:
    """An empty family for a plugin's metric. Raises SampleError."""
    row: MetricRow | None = BY_NAME.get(name)
    if row is not None and row.source != "plugin":
        raise SampleError("name of a metric of the daemon")
    if row is None and (_NAME.fullmatch(name) is None or _shadows(name)):
        raise SampleError("invalid metric name")
    kind = row.type if row is not None else "counter" if name.endswith("_total") else "gauge"
    text = row.help if row is not None else "Reported by a plugin"
    return _metric(f"{PREFIX}{name}", text, kind)


def _shadows(name: str) -> bool:
    """Whether the name is a series of one of our histograms."""
    return any(
        (row := BY_NAME.get(name.removesuffix(suffix))) is not None and row.type == "histogram"
        for suffix in _SUFFIXES
        if name.endswith(suffix)
    )
