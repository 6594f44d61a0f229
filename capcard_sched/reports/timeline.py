"""A recorded run as figures and as tables: use of cards, the tide, evictions, waiting times, what quotas held back."""

from __future__ import annotations

import statistics
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from capcard_sched.model.timestamps import span
from capcard_sched.reports.terminal import amount_for_people, console_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from capcard_sched.reports.recording import Recorder

#: Rows of the table of use.
_BUCKETS = 24
#: Rows of the table of quotas; the JSON has all.
_HOLDS_SHOWN = 20
#: Rows of the table of evictions; the JSON has all.
_EVICTIONS_SHOWN = 50
#: How groups are called that the PodGroup controller makes.
_MADE_GROUP = "podgroup-"
#: Kinds of service in the order of columns; "" is neither.
_SERVICES = ("inference", "training", "")
_UNSAID = "neither"


class TimeBucket(msgspec.Struct, frozen=True):
    """Cards in use in one stretch of time: mean over the time, and the highest."""

    #: Seconds since the start of the run.
    begin: float
    end: float
    mean: dict[str, float]
    peak: dict[str, int]


class QueueWaits(msgspec.Struct, frozen=True):
    """How long the pods of a queue waited for their nodes, in seconds."""

    queue: str
    pods: int
    #: Still waiting at the end; they count with the time so far.
    waiting: int
    mean: float
    median: float
    percentile_95: float
    longest: float
    longest_pod: str


class QuotaHolds(msgspec.Struct, frozen=True):
    """What one quota of one queue held back."""

    queue: str
    resource: str
    #: Base units, as last seen.
    limit: int
    jobs: int
    #: Of these, how many were still held at the end.
    held_at_end: int
    #: Sum over the jobs of the time from a refusal to the next placement.
    seconds: float
    longest: float
    #: The job, or its pod where it has but one.
    longest_job: str


class ServiceUse(msgspec.Struct, frozen=True):
    """What one kind of service (inference, training, "" for neither) had of one card over the run."""

    service: str
    card: str
    card_hours: float
    #: Cards in use: mean over each stretch of `Timeline.buckets`.
    means: list[float]


class EvictionEntry(msgspec.Struct, frozen=True):
    """One pod that had to leave."""

    #: Seconds since the start of the run.
    at: float
    pod: str
    queue: str
    node: str
    #: The card it held and how many; "" and 0 without one.
    card: str
    cards: int
    message: str


class Timeline(msgspec.Struct, frozen=True):
    """The whole run. Lists are sorted: queues by name, quotas by what they held, most first, evictions by time."""

    seconds: float
    #: Cards of the cluster at the end.
    cards: dict[str, int]
    buckets: list[TimeBucket]
    waits: list[QueueWaits]
    holds: list[QuotaHolds]
    #: By kind (inference, training, neither), then card; empty when no PodGroup says its kind.
    services: list[ServiceUse] = []
    evictions: list[EvictionEntry] = []


def timeline_of(recorder: Recorder[Any], buckets: int = _BUCKETS) -> Timeline:
    """Sum up a recorded run in so many stretches of equal length. An empty run has no stretches."""
    begin = recorder.begin if recorder.begin is not None else recorder.end
    seconds = recorder.end - begin
    return Timeline(
        seconds=seconds,
        cards={card: count for card, count in sorted(recorder.totals.items()) if count},
        buckets=_buckets(recorder, begin, seconds, buckets) if seconds > 0 else [],
        waits=_waits(recorder),
        holds=_holds(recorder),
        services=_services(recorder, begin, seconds, buckets) if seconds > 0 else [],
        evictions=_evictions(recorder, begin),
    )


def _buckets(recorder: Recorder[Any], begin: float, seconds: float, count: int) -> list[TimeBucket]:
    edges = [begin + seconds * i / count for i in range(count + 1)]
    per_card = {card: _use_between(changes, edges) for card, changes in sorted(recorder.use.items())}
    return [
        TimeBucket(
            edges[i] - begin,
            edges[i + 1] - begin,
            {card: use[i][0] for card, use in per_card.items()},
            {card: use[i][1] for card, use in per_card.items()},
        )
        for i in range(count)
    ]


def _services(recorder: Recorder[Any], begin: float, seconds: float, count: int) -> list[ServiceUse]:
    """Who had the cards. A pod is of the kind that its PodGroup says at the end of the run. O(pods that held cards)."""
    if not any(recorder.services.values()):
        return []
    edges = [begin + seconds * i / count for i in range(count + 1)]
    changes: dict[tuple[str, str], dict[float, int]] = defaultdict(lambda: defaultdict(int))
    hours: dict[tuple[str, str], float] = defaultdict(float)
    for stay in recorder.stays:
        key = recorder.services.get(stay.job, ""), stay.card
        until = recorder.end if stay.until is None else stay.until
        hours[key] += stay.cards * (until - stay.since) / 3600
        changes[key][stay.since] += stay.cards
        changes[key][until] -= stay.cards
    found = []
    for service, card in sorted(changes, key=lambda key: (_SERVICES.index(key[0]), key[1])):
        used, steps = 0, []
        for moment, change in sorted(changes[service, card].items()):
            used += change
            steps.append((moment, used))
        means = [mean for mean, _ in _use_between(steps, edges)]
        found.append(ServiceUse(service, card, hours[service, card], means))
    return found


def _evictions(recorder: Recorder[Any], begin: float) -> list[EvictionEntry]:
    found = []
    for departure in recorder.departures:
        record = recorder.pods.get(departure.uid)
        card, cards = ("", 0) if record is None else (record.card, record.cards)
        queue = recorder.queues.get(departure.job, "")
        at = departure.at - begin
        found.append(EvictionEntry(at, departure.pod, queue, departure.node, card, cards, departure.message))
    return found


def _use_between(changes: Sequence[tuple[float, int]], edges: Sequence[float]) -> list[tuple[float, int]]:
    """(mean, peak) between each two neighbours of `edges`; O(changes + edges)."""
    found = []
    used, position = 0, 0
    for left, right in pairwise(edges):
        area, peak, moment = 0.0, used, left
        while position < len(changes) and changes[position][0] < right:
            at, next_used = changes[position]
            area += used * (at - moment)
            if at <= left:
                peak = next_used  # what was in use before is not of this stretch
            used, moment = next_used, max(at, left)
            peak = max(peak, used)
            position += 1
        area += used * (right - moment)
        found.append((area / (right - left), peak))
    return found


def _waits(recorder: Recorder[Any]) -> list[QueueWaits]:
    per_queue: dict[str, list[tuple[float, str]]] = defaultdict(list)
    waiting: dict[str, int] = defaultdict(int)
    for record in recorder.pods.values():
        queue = recorder.queues.get(record.job)
        if queue is None:
            continue
        until = recorder.end if record.bound is None else record.bound
        per_queue[queue].append((until - record.created, record.key))
        waiting[queue] += record.bound is None
    found = []
    for queue, waits in sorted(per_queue.items()):
        times = sorted(seconds for seconds, _ in waits)
        longest, pod = min(waits, key=lambda wait: (-wait[0], wait[1]))
        found.append(
            QueueWaits(
                queue=queue,
                pods=len(times),
                waiting=waiting[queue],
                mean=statistics.fmean(times),
                median=statistics.median(times),
                percentile_95=times[min(len(times) - 1, int(len(times) * 0.95))],
                longest=longest,
                longest_pod=pod,
            )
        )
    return found


def _holds(recorder: Recorder[Any]) -> list[QuotaHolds]:
    members: dict[str, list[str]] = defaultdict(list)
    for record in recorder.pods.values():
        members[record.job].append(record.key)
    shown = {job: _name_for_people(job, pods) for job, pods in members.items()}
    per_quota: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    limits: dict[tuple[str, str], int] = {}
    held: dict[tuple[str, str], int] = defaultdict(int)
    for hold in recorder.holds.values():
        key = (hold.queue, hold.resource)
        seconds = hold.seconds + (recorder.end - hold.since if hold.since is not None else 0.0)
        per_quota[key].append((seconds, shown.get(hold.job, hold.job)))
        limits[key] = hold.limit
        held[key] += hold.since is not None
    found = []
    for key, jobs in per_quota.items():
        longest, job = min(jobs, key=lambda item: (-item[0], item[1]))
        total = sum(seconds for seconds, _ in jobs)
        found.append(QuotaHolds(*key, limits[key], len(jobs), held[key], total, longest, job))
    return sorted(found, key=lambda item: (-item.seconds, -item.jobs, item.queue, item.resource))


def _name_for_people(job: str, pods: Sequence[str]) -> str:
    """The group of a lone pod, or one made for the pods of a service, has a name that means nothing to people."""
    if len(pods) == 1:
        return pods[0]
    if not job.partition("/")[2].startswith(_MADE_GROUP):
        return job
    first, last = min(pods), max(pods)
    same = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return f"{first[:same]}*"


# --- tables -----------------------------------------------------------------------------------------------------------


def print_timeline(timeline: Timeline, *, to_stderr: bool = False) -> None:
    """The tables on the terminal, or as plain text where there is none."""
    console_for(stderr=to_stderr).print(render(timeline))


def render(timeline: Timeline) -> RenderableType:
    """Tables of use, waits and holds, a sentence in place of an empty one; of the tide and of evictions, if any."""
    tide = [_tide_table(timeline)] if timeline.services else []
    evictions = [_evictions_table(timeline)] if timeline.evictions else []
    return Group(_use_table(timeline), *tide, *evictions, _waits_table(timeline), _holds_table(timeline))


def _table(title: str, *, footer: bool = False) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        footer_style="bold",
        caption_justify="left",
        show_edge=False,
        show_footer=footer,
        box=None,
    )


def _use_table(timeline: Timeline) -> RenderableType:
    cards = sorted({card for bucket in timeline.buckets for card in bucket.mean})
    if not cards:
        return Text("No card was in use at any time.")
    table = _table("Cards in use: mean (peak)")
    table.add_column("from", justify="right")
    for card in cards:
        table.add_column(f"{card} of {timeline.cards.get(card, 0)}", justify="right")
    for bucket in timeline.buckets:
        table.add_row(span(round(bucket.begin)), *(f"{bucket.mean[card]:.1f} ({bucket.peak[card]})" for card in cards))
    return table


def _tide_table(timeline: Timeline) -> RenderableType:
    """Who had the cards when, and card-hours at the foot."""
    table = _table("Cards by kind of service: mean", footer=True)
    table.add_column("from", "card-hours", justify="right")
    for use in timeline.services:
        table.add_column(f"{use.service or _UNSAID}: {use.card}", f"{use.card_hours:.1f}", justify="right")
    for index, bucket in enumerate(timeline.buckets):
        table.add_row(span(round(bucket.begin)), *(f"{use.means[index]:.1f}" for use in timeline.services))
    return table


def _evictions_table(timeline: Timeline) -> RenderableType:
    table = _table("Who had to leave, and for whom")
    for header in ("at", "pod", "queue", "held", "because of"):
        table.add_column(header, justify="right" if header == "at" else "left", overflow="fold")
    for one in timeline.evictions[:_EVICTIONS_SHOWN]:
        held = f"{one.cards} {one.card} on {one.node}" if one.cards else f"no card on {one.node}"
        table.add_row(span(round(one.at)), Text(one.pod), Text(one.queue), Text(held), Text(one.message))
    if len(timeline.evictions) > _EVICTIONS_SHOWN:
        table.caption = f"and {len(timeline.evictions) - _EVICTIONS_SHOWN} more"
    return table


def _waits_table(timeline: Timeline) -> RenderableType:
    if not timeline.waits:
        return Text("No pod waited for a node.")
    table = _table("Waiting times from creation to binding")
    for header in ("queue", "pods", "still waiting", "mean", "median", "95 %", "longest", "pod"):
        table.add_column(header, justify="left" if header in ("queue", "pod") else "right")
    for wait in timeline.waits:
        spans = (wait.mean, wait.median, wait.percentile_95, wait.longest)
        table.add_row(wait.queue, str(wait.pods), str(wait.waiting), *map(span, map(round, spans)), wait.longest_pod)
    return table


def _holds_table(timeline: Timeline) -> RenderableType:
    if not timeline.holds:
        return Text("No quota held anyone back.")
    table = _table("Which quota held whom")
    for header in ("queue", "quota", "limit", "jobs held", "at the end", "time held", "longest", "who"):
        table.add_column(header, justify="left" if header in ("queue", "quota", "who") else "right")
    for hold in timeline.holds[:_HOLDS_SHOWN]:
        table.add_row(
            hold.queue,
            hold.resource,
            amount_for_people(hold.resource, hold.limit),
            str(hold.jobs),
            str(hold.held_at_end),
            span(round(hold.seconds)),
            span(round(hold.longest)),
            hold.longest_job,
        )
    if len(timeline.holds) > _HOLDS_SHOWN:
        table.caption = f"and {len(timeline.holds) - _HOLDS_SHOWN} more"
    return table
