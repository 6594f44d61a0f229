"""Summarizes a recorded run as tables: cards in use, cards per service type, evictions, waiting times, quota waits."""

from __future__ import annotations

import statistics
from collections import defaultdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.model.timestamps import span
from capcard_sched.reports.evictions import preemptor_text
from capcard_sched.reports.recording import EvictionRecord
from capcard_sched.reports.tables import titled
from capcard_sched.reports.terminal import format_base_amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.reports.recording import Recorder

#: Rows of the table of cards in use.
_BUCKETS = 24
#: Rows of the table of quota waits.
_QUOTA_WAITS_SHOWN = 20
#: Rows of the table of evictions.
_EVICTIONS_SHOWN = 50
#: Name prefix of PodGroups created by the PodGroup controller.
_GENERATED_GROUP = "podgroup-"
#: Service types in the order of columns; "" is neither.
_SERVICES = ("inference", "training", "")
_NEITHER = "neither"
_ALL_QUEUES = ""


class TimeBucket(msgspec.Struct, frozen=True):
    """Cards in use in one interval: mean and peak."""

    #: Seconds since the start of the run.
    begin: float
    end: float
    mean: dict[str, float]
    peak: dict[str, int]


class QueueWaits(msgspec.Struct, frozen=True):
    """Waiting times of a queue's pods from creation to binding, in seconds. `queue` is "" for all queues together."""

    queue: str
    pods: int
    #: Still pending at the end; counted with the time so far.
    pending: int
    mean: float
    median: float
    percentile_90: float
    percentile_99: float
    longest: float
    longest_pod: str


class QuotaWaits(msgspec.Struct, frozen=True):
    """Jobs blocked by one quota of one queue."""

    queue: str
    resource: str
    #: Base units, as last seen.
    limit: int
    jobs: int
    #: Jobs still blocked at the end.
    blocked_at_end: int
    #: Sum over the jobs of the time from a refusal to the next placement.
    seconds: float
    longest: float
    #: The job, or its pod if it has only one.
    longest_job: str


class ServiceUse(msgspec.Struct, frozen=True):
    """Use of one card by one service type (inference, training, "" for neither) over the run."""

    service: str
    card: str
    card_hours: float
    #: Cards in use: mean over each interval of `Timeline.buckets`.
    means: list[float]


class Timeline(msgspec.Struct, frozen=True):
    """The whole run. Queues are sorted by name, quotas by blocked time (longest first), evictions by time."""

    seconds: float
    #: Cards of the cluster at the end.
    cards: dict[str, int]
    buckets: list[TimeBucket]
    waits: list[QueueWaits]
    quota_waits: list[QuotaWaits]
    #: By service type (inference, training, neither), then card; empty if no PodGroup has a service type.
    services: list[ServiceUse] = []
    evictions: list[EvictionRecord] = []
    #: Cards of every type together per interval: mean and peak; empty with one type or none.
    total: list[tuple[float, int]] = []


def timeline_of(recorder: Recorder, buckets: int = _BUCKETS) -> Timeline:
    """Summarize a recorded run in `buckets` intervals of equal length; an empty run has none."""
    begin = recorder.begin if recorder.begin is not None else recorder.end
    seconds = recorder.end - begin
    edges = [begin + seconds * i / buckets for i in range(buckets + 1)] if seconds > 0 else []
    return Timeline(
        seconds=seconds,
        cards={card: count for card, count in sorted(recorder.totals.items()) if count},
        buckets=_buckets(recorder, edges),
        waits=_waits(recorder),
        quota_waits=_quota_waits(recorder),
        services=_services(recorder, edges) if edges else [],
        evictions=recorder.evictions,
        total=_total(recorder, edges),
    )


def _total(recorder: Recorder, edges: Sequence[float]) -> list[tuple[float, int]]:
    """Mean and peak per interval over all types of cards."""
    if len(recorder.use) < 2:
        return []
    changes: dict[float, int] = defaultdict(int)
    for use in recorder.use.values():
        for (_, before), (moment, now) in pairwise([(0.0, 0), *use]):
            changes[moment] += now - before
    return _use_between(_running_sums(changes), edges)


def _buckets(recorder: Recorder, edges: Sequence[float]) -> list[TimeBucket]:
    per_card = {card: _use_between(changes, edges) for card, changes in sorted(recorder.use.items())}
    return [
        TimeBucket(
            left - edges[0],
            right - edges[0],
            {card: use[i][0] for card, use in per_card.items()},
            {card: use[i][1] for card, use in per_card.items()},
        )
        for i, (left, right) in enumerate(pairwise(edges))
    ]


def _services(recorder: Recorder, edges: Sequence[float]) -> list[ServiceUse]:
    """Cards by service type; a pod has the type of its PodGroup at the end of the run. O(pods with cards)."""
    if not any(recorder.services.values()):
        return []
    changes: dict[tuple[str, str], dict[float, int]] = defaultdict(lambda: defaultdict(int))
    hours: dict[tuple[str, str], float] = defaultdict(float)
    for interval in recorder.card_intervals:
        key = recorder.services.get(interval.job, ""), interval.card
        until = recorder.end if interval.until is None else interval.until
        hours[key] += interval.cards * (until - interval.since) / 3600
        changes[key][interval.since] += interval.cards
        changes[key][until] -= interval.cards
    found = []
    for service, card in sorted(changes, key=lambda key: (_SERVICES.index(key[0]), key[1])):
        means = [mean for mean, _ in _use_between(_running_sums(changes[service, card]), edges)]
        found.append(ServiceUse(service, card, hours[service, card], means))
    return found


def _running_sums(changes: Mapping[float, int]) -> list[tuple[float, int]]:
    """Cards in use from each change on."""
    return list(zip(sorted(changes), accumulate(changes[at] for at in sorted(changes)), strict=True))


def _use_between(changes: Sequence[tuple[float, int]], edges: Sequence[float]) -> list[tuple[float, int]]:
    """(mean, peak) of each interval between consecutive `edges`; O(changes + edges)."""
    found = []
    used, position = 0, 0
    for left, right in pairwise(edges):
        area, peak, moment = 0.0, used, left
        while position < len(changes) and changes[position][0] < right:
            at, next_used = changes[position]
            area += used * (at - moment)
            if at <= left:
                peak = next_used  # earlier use belongs to the interval before
            used, moment = next_used, max(at, left)
            peak = max(peak, used)
            position += 1
        area += used * (right - moment)
        found.append((area / (right - left), peak))
    return found


def _waits(recorder: Recorder) -> list[QueueWaits]:
    per_queue: dict[str, list[tuple[float, str]]] = defaultdict(list)
    pending: dict[str, int] = defaultdict(int)
    for record in recorder.pods.values():
        queue = recorder.queues.get(record.job)
        if queue is None:
            continue
        until = recorder.end if record.bound is None else record.bound
        per_queue[queue].append((until - record.created, record.key))
        pending[queue] += record.bound is None
    if len(per_queue) > 1:
        per_queue[_ALL_QUEUES] = [wait for waits in per_queue.values() for wait in waits]
        pending[_ALL_QUEUES] = sum(pending.values())
    found = []
    for queue, waits in sorted(per_queue.items(), key=lambda item: (item[0] == _ALL_QUEUES, item[0])):
        times = sorted(seconds for seconds, _ in waits)
        longest, pod = min(waits, key=lambda wait: (-wait[0], wait[1]))
        found.append(
            QueueWaits(
                queue=queue,
                pods=len(times),
                pending=pending[queue],
                mean=statistics.fmean(times),
                median=statistics.median(times),
                percentile_90=times[min(len(times) - 1, int(len(times) * 0.90))],
                percentile_99=times[min(len(times) - 1, int(len(times) * 0.99))],
                longest=longest,
                longest_pod=pod,
            )
        )
    return found


def _quota_waits(recorder: Recorder) -> list[QuotaWaits]:
    members: dict[str, list[str]] = defaultdict(list)
    for record in recorder.pods.values():
        members[record.job].append(record.key)
    shown = {job: _display_name(job, pods) for job, pods in members.items()}
    per_quota: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    limits: dict[tuple[str, str], int] = {}
    blocked: dict[tuple[str, str], int] = defaultdict(int)
    for wait in recorder.quota_waits.values():
        key = (wait.queue, wait.resource)
        seconds = wait.seconds + (recorder.end - wait.since if wait.since is not None else 0.0)
        per_quota[key].append((seconds, shown.get(wait.job, wait.job)))
        limits[key] = wait.limit
        blocked[key] += wait.since is not None
    found = []
    for key, jobs in per_quota.items():
        longest, job = min(jobs, key=lambda item: (-item[0], item[1]))
        total = sum(seconds for seconds, _ in jobs)
        found.append(QuotaWaits(*key, limits[key], len(jobs), blocked[key], total, longest, job))
    return sorted(found, key=lambda item: (-item.seconds, -item.jobs, item.queue, item.resource))


def _display_name(job: str, pods: Sequence[str]) -> str:
    """The job's name; for a generated PodGroup, the common prefix of its pods."""
    if len(pods) == 1:
        return pods[0]
    if not job.partition("/")[2].startswith(_GENERATED_GROUP):
        return job
    first, last = min(pods), max(pods)
    same = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return f"{first[:same]}*"


# --- tables -----------------------------------------------------------------------------------------------------------


def timeline_lines(timeline: Timeline) -> list[str]:
    """Tables of cards in use, service types, evictions, waiting times and quota waits; empty ones are a sentence."""
    services = _services_table(timeline) if timeline.services else []
    evictions = _evictions_table(timeline) if timeline.evictions else []
    return [*_use_table(timeline), *services, *evictions, *_waits_table(timeline), *_quota_table(timeline)]


def _use_table(timeline: Timeline) -> list[str]:
    cards = sorted({card for bucket in timeline.buckets for card in bucket.mean})
    if not cards:
        return ["No card was in use."]
    headers = ["FROM", *(f"{card} of {timeline.cards.get(card, 0)}" for card in cards)]
    if timeline.total:
        headers.append(f"all {sum(timeline.cards.values())}")
    rows = []
    for index, bucket in enumerate(timeline.buckets):
        figures = [(bucket.mean[card], bucket.peak[card]) for card in cards] + timeline.total[index : index + 1]
        rows.append((span(round(bucket.begin)), *(f"{mean:.1f} ({peak})" for mean, peak in figures)))
    return titled("Cards in use: mean (peak)", headers, rows)


def _services_table(timeline: Timeline) -> list[str]:
    """Cards in use by service type and interval; the last row has card-hours."""
    headers = ["FROM", *(f"{use.service or _NEITHER}: {use.card}" for use in timeline.services)]
    rows = [
        (span(round(bucket.begin)), *(f"{use.means[index]:.1f}" for use in timeline.services))
        for index, bucket in enumerate(timeline.buckets)
    ]
    rows.append(("card-hours", *(f"{use.card_hours:.1f}" for use in timeline.services)))
    return titled("Cards by service type: mean", headers, rows)


def _evictions_table(timeline: Timeline) -> list[str]:
    rows = []
    for one in timeline.evictions[:_EVICTIONS_SHOWN]:
        cards = f"{one.cards} {one.card} on {one.node}" if one.cards else f"none on {one.node}"
        rows.append((span(round(one.at)), one.pod, one.queue, cards, preemptor_text(one.message)))
    headers = ("AT", "POD", "QUEUE", "CARDS", "PREEMPTOR")
    return [*titled("Evictions", headers, rows, headers[1:]), *_more(timeline.evictions, _EVICTIONS_SHOWN)]


def _more(rows: Sequence[object], shown: int) -> list[str]:
    return [f"and {len(rows) - shown} more"] if len(rows) > shown else []


def _waits_table(timeline: Timeline) -> list[str]:
    if not timeline.waits:
        return ["No pod waited for a node."]
    rows = []
    for wait in timeline.waits:
        spans = (wait.mean, wait.median, wait.percentile_90, wait.percentile_99, wait.longest)
        queue = wait.queue or "all queues"
        rows.append((queue, str(wait.pods), str(wait.pending), *map(span, map(round, spans)), wait.longest_pod))
    headers = ("QUEUE", "PODS", "PENDING", "MEAN", "MEDIAN", "P90", "P99", "LONGEST", "POD")
    return titled("Waiting times from creation to binding", headers, rows, {"QUEUE", "POD"})


def _quota_table(timeline: Timeline) -> list[str]:
    if not timeline.quota_waits:
        return ["No job was blocked by quota."]
    rows = [
        (
            wait.queue,
            wait.resource,
            format_base_amount(wait.resource, wait.limit),
            str(wait.jobs),
            str(wait.blocked_at_end),
            span(round(wait.seconds)),
            span(round(wait.longest)),
            wait.longest_job,
        )
        for wait in timeline.quota_waits[:_QUOTA_WAITS_SHOWN]
    ]
    headers = ("QUEUE", "CARD OR RESOURCE", "QUOTA", "JOBS", "AT THE END", "BLOCKED TIME", "LONGEST", "JOB")
    left = {"QUEUE", "CARD OR RESOURCE", "JOB"}
    more = _more(timeline.quota_waits, _QUOTA_WAITS_SHOWN)
    return [*titled("Jobs blocked by quota", headers, rows, left), *more]
