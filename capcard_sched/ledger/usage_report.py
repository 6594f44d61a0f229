"""Card-time by queue, card, namespace, user or day: used, idle, lent and evicted, and the waits of jobs.

All sums are integers in millionths of a card-second: thousandths of a card times milliseconds.

At each moment a quota has three parts. *Used*: what the pods of the queue and of those below it hold of it. *Lent*: the
part of the rest that other queues use, because they hold more than the cluster has beyond this quota. *Idle*: the rest.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import select

from capcard_sched.ledger import schema
from capcard_sched.ledger.charge_sums import charges_between
from capcard_sched.ledger.unused_time import HeldPart, UnmeasuredError, add_unused, coverage_note
from capcard_sched.model.cards import CARD
from capcard_sched.model.quoting import plural
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy.engine import Row as DatabaseRow

    from capcard_sched.ledger.database import LedgerDatabase
    from capcard_sched.ledger.unused_time import Meter

Dimension: TypeAlias = Literal["queue", "card", "namespace", "user", "service", "day"]
#: Dimension to its column of jobs and charges.
COLUMNS: Final[Mapping[Dimension, str]] = {
    "queue": "queue",
    "card": "card",
    "namespace": "namespace",
    "user": "user_label",
    "service": "service_type",
}
DIMENSIONS: Final[tuple[Dimension, ...]] = (*COLUMNS, "day")
#: Milliseconds.
DAY: Final = 86_400_000
#: Columns that identify the pod of a charge.
_OF_PODS: Final = ("namespace", "pod", "pod_uid")
#: Dimensions by which the parts of quotas are known.
_OF_QUOTAS: Final = frozenset({"queue", "card", "day"})


def parse_dimensions(text: str) -> tuple[Dimension, ...]:
    """`queue,card`. Raises ValueError."""
    names = [name.strip() for name in text.split(",")]
    wrong = next((name for name in names if name not in DIMENSIONS), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r}: accepted: {', '.join(DIMENSIONS)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{text}: name each group once")
    return tuple(found for name in names for found in DIMENSIONS if found == name)


class UsageQuery(NamedTuple):
    """A period and the groups of a report. Unix seconds; the period ends before `until`."""

    since: float
    until: float
    by: tuple[Dimension, ...] = ("queue", "card")


class UsageRow(msgspec.Struct):
    """One group. Card-time in millionths of a card-second, waits in milliseconds."""

    group: tuple[str, ...]
    used: int = 0
    #: Used by pods that the scheduler evicted.
    evicted: int = 0
    #: Jobs whose minimum was scheduled in the period, and their waits from submission to that moment.
    jobs: int = 0
    wait_p50: int | None = None
    wait_p90: int | None = None
    #: Parts of quotas; None for groups by other dimensions than queue, card and day, or without queue.
    quota: int | None = None
    idle: int | None = None
    lent: int | None = None
    #: Used time of whole cards that a source of utilization measured, and its part without any use; None without one.
    measured: int | None = None
    unused: int | None = None


class CardRow(msgspec.Struct):
    """One card over the period, in millionths of a card-second."""

    card: str
    capacity: int
    #: On nodes that were cordoned or not ready.
    unavailable: int
    used: int


class UsageReport(msgspec.Struct):
    """The groups in order, and the cards of the cluster."""

    since: str
    until: str
    by: tuple[str, ...]
    rows: list[UsageRow]
    cards: list[CardRow]
    #: Sentences about what the figures do not have.
    notes: list[str]


class Interval(msgspec.Struct, frozen=True, gc=False):
    """Thousandths of a card in a queue, from `began` to `ended` (milliseconds)."""

    queue: str
    card: str
    thousandths: int
    began: int
    ended: int


def intervals_of(charges: Iterable[DatabaseRow[Any]], until: int) -> list[Interval]:
    """Charges as intervals; those that last end at `until`."""
    return [
        Interval(row.queue, row.card, row.thousandths, row.began, until if row.ended is None else row.ended)
        for row in charges
    ]


class QuotaParts(msgspec.Struct):
    """Parts of quotas: quota = used inside + idle + lent."""

    quota: int = 0
    idle: int = 0
    lent: int = 0


def days_between(began: int, ended: int) -> Iterator[tuple[int, int, int]]:
    """The UTC days of a period: first moment of the day, begin and end of the part, in milliseconds."""
    day = began // DAY * DAY
    while day < ended:
        yield day, max(began, day), min(ended, day + DAY)
        day += DAY


def usage_report(
    database: LedgerDatabase, query: UsageQuery, meter: Meter | None = None
) -> tuple[UsageReport, list[Interval]]:
    """The report of a query, and the charges that it sums. `meter`: a source of utilization.

    Cost: O(charges and jobs of the period).
    """
    since, until = round(query.since * 1000), round(query.until * 1000)
    job, capacity, quota = schema.JOB, schema.CAPACITY, schema.QUOTA
    daily, daily_quota = schema.DAILY_USE, schema.DAILY_QUOTA
    columns = [COLUMNS[name] for name in query.by if name in COLUMNS]
    charges, jobs, capacities, quotas, days, quota_days, sources = database.read_all(
        [
            charges_between(since, until, (*columns, *(_OF_PODS if meter is not None else ()))),
            select(*(job.c[name] for name in dict.fromkeys(("card", "submitted", "whole", *columns)))).where(
                job.c.whole >= since, job.c.whole < until
            ),
            select(capacity).where(capacity.c.at < until).order_by(capacity.c.at),
            select(quota).where(quota.c.at < until).order_by(quota.c.at),
            select(daily).where(daily.c.day >= since, daily.c.day < until),
            select(daily_quota).where(daily_quota.c.day >= since, daily_quota.c.day < until),
            select(schema.SOURCE),
        ]
    )
    # A charge that lasts is known up to the last record only.
    until = min(until, max((source.recorded_until for source in sources), default=since))
    first = [source.began for source in sources] + [row.day for row in days]
    since = min(max(since, min(first, default=since)), until)
    groups = _Groups(query.by, since, until, is_of_pods=meter is not None)
    for row in charges:
        groups.add_charge(row)
    for row in days:
        groups.add_day(row)
    groups.add_waits(jobs)
    rolled = {row.day for row in quota_days}
    intervals = intervals_of(charges, until)
    if "queue" in query.by and _OF_QUOTAS.issuperset(query.by):
        begin = max([since, *(day + DAY for day in rolled)])
        for (queue, card, day), parts in quota_parts(intervals, quotas, capacities, begin, until).items():
            groups.add_quota(queue, card, day, parts)
        for row in quota_days:
            groups.add_quota(row.queue, row.card, row.day, QuotaParts(row.quota, row.idle, row.lent))
    used: defaultdict[str, int] = defaultdict(int)
    for one in intervals:
        used[one.card] += one.thousandths * max(0, min(one.ended, until) - max(one.began, since))
    for row in days:
        used[row.card] += row.used
    report = UsageReport(
        format_timestamp(since / 1000),
        format_timestamp(until / 1000),
        query.by,
        groups.rows(),
        _card_rows(capacities, used, since, until),
        _notes(charges) + (groups.measure(meter) if meter is not None else []),
    )
    return report, intervals


class _QuotaKey(NamedTuple):
    """The columns of a quota."""

    queue: str
    card: str


class _Groups:
    """Sums by group."""

    def __init__(self, by: tuple[Dimension, ...], since: int, until: int, *, is_of_pods: bool) -> None:
        self._by, self._since, self._until = by, since, until
        columns = [COLUMNS[name] for name in by if name in COLUMNS]
        #: The values of the columns of a row.
        self._values = _values_of(columns)
        self._is_daily = "day" in by
        self._rows: dict[tuple[str, ...], UsageRow] = {}
        #: By the values of the columns, and the first moment of the day or 0: each charge looks one up.
        self._found: dict[tuple[Any, ...], UsageRow] = {}
        #: Parts of the period for which rows differ: the first moment of a day, or 0, begin and end; and the part of
        #: each charge of whole cards.
        self._periods = list(days_between(since, until)) if self._is_daily else [(0, since, until)]
        self._held: list[HeldPart] = []
        #: Whether each charge is of one pod.
        self._is_of_pods = is_of_pods

    def _row(self, row: DatabaseRow[Any] | _QuotaKey, day: int) -> UsageRow:
        """The group of a row that has its columns."""
        values: tuple[Any, ...] = (day if self._is_daily else 0, *self._values(row))
        found = self._found.get(values)
        if found is None:
            texts = iter(values[1:])
            key = tuple([format_timestamp(day / 1000)[:10] if name == "day" else next(texts) for name in self._by])
            found = self._found[values] = self._rows[key] = UsageRow(key)
        return found

    def add_charge(self, row: DatabaseRow[Any]) -> None:
        if not row.thousandths:
            return
        began, ended, thousandths = max(row.began, self._since), min(row.ended, self._until), row.thousandths
        parts = days_between(began, ended) if self._is_daily else [(0, began, ended)] if began < ended else []
        for day, first, last in parts:
            group, amount = self._row(row, day), thousandths * (last - first)
            if self._is_of_pods and thousandths % CARD == 0:
                period = (day - self._periods[0][0]) // DAY
                self._held.append(HeldPart(group, period, (row.namespace, row.pod), amount))
            group.used += amount
            group.evicted += amount if row.end_reason == "Evicted" else 0

    def add_day(self, row: DatabaseRow[Any]) -> None:
        group = self._row(row, row.day)
        group.used += row.used
        group.evicted += row.evicted

    def add_waits(self, jobs: Iterable[DatabaseRow[Any]]) -> None:
        waits: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for row in jobs:
            if row.card or "card" not in self._by:
                group = self._row(row, row.whole // DAY * DAY)
                waits[group.group].append(row.whole - row.submitted)
        for key, found in waits.items():
            group = self._rows[key]
            found.sort()
            group.jobs, group.wait_p50, group.wait_p90 = len(found), _quantile(found, 50), _quantile(found, 90)

    def add_quota(self, queue: str, card: str, day: int, parts: QuotaParts) -> None:
        group = self._row(_QuotaKey(queue, card), day)
        group.quota = (group.quota or 0) + parts.quota
        group.idle = (group.idle or 0) + parts.idle
        group.lent = (group.lent or 0) + parts.lent

    def measure(self, meter: Meter) -> list[str]:
        """Add the unused time. Returns notes about what is not measured."""
        if not self._held:
            return []
        try:
            found = meter([(begin, end) for _, begin, end in self._periods])
        except UnmeasuredError as error:
            return [f"unused card-hours are not known: {error}"]
        add_unused(self._rows.values(), self._held, found)
        return [note for note in (coverage_note(self._rows.values()),) if note]

    def rows(self) -> list[UsageRow]:
        return [self._rows[key] for key in sorted(self._rows)]


def _values_of(columns: Sequence[str]) -> Callable[[Any], tuple[str, ...]]:
    """A function that reads columns of a row: each charge and job is read once."""
    if not columns:
        return lambda _: ()
    read: Callable[[Any], Any] = attrgetter(*columns)
    return read if len(columns) > 1 else lambda row: (read(row),)


def _quantile(ordered: Sequence[int], percent: int) -> int:
    """The nearest rank."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _card_rows(
    capacities: Iterable[DatabaseRow[Any]], used: Mapping[str, int], since: int, until: int
) -> list[CardRow]:
    found = {card: CardRow(card, 0, 0, amount) for card, amount in used.items() if amount}
    last: dict[str, tuple[int, int, int]] = {}

    def add(card: str, end: int) -> None:
        at, total, unavailable = last[card]
        length = max(0, min(end, until) - max(at, since))
        row = found.setdefault(card, CardRow(card, 0, 0, 0))
        row.capacity += total * length
        row.unavailable += unavailable * length

    for row in capacities:
        if row.card in last:
            add(row.card, row.at)
        last[row.card] = row.at, row.total, row.unavailable
    for card in last:
        add(card, until)
    return [found[card] for card in sorted(found) if found[card].capacity or found[card].used]


def _notes(charges: Iterable[DatabaseRow[Any]]) -> list[str]:
    notes = []
    uncounted = sum(row.uncounted for row in charges)
    if uncounted:
        notes.append(
            f"ResourceClaims of {plural(uncounted, 'pod')} have devices that the ledger cannot count (docs/ledger.md)"
        )
    gaps = sum(row.gap for row in charges)
    if gaps:
        notes.append(f"{plural(gaps, 'pod')} began or ended in a gap of the records: the card-time is a lower bound")
    return notes


def quota_parts(
    intervals: Iterable[Interval],
    quotas: Iterable[DatabaseRow[Any]],
    capacities: Iterable[DatabaseRow[Any]],
    since: int,
    until: int,
) -> dict[tuple[str, str, int], QuotaParts]:
    """The parts of the quotas of a period by queue, card and UTC day. Both tables in order of time.

    One sweep over all changes: O(n log n).
    """
    changes: list[tuple[int, str, str, str, int]] = []  # moment, card, what, queue, amount
    parents: dict[str, str] = {}
    for row in quotas:
        changes.append((row.at, row.card, "quota", row.queue, 0 if row.thousandths is None else row.thousandths))
        parents[row.queue] = row.parent
    changes += [(row.at, row.card, "total", "", row.total) for row in capacities]
    for one in intervals:
        if one.began < until and one.ended > since:
            changes.append((one.began, one.card, "used", one.queue, one.thousandths))
            changes.append((one.ended, one.card, "used", one.queue, -one.thousandths))
    changes += [(day, "", "day", "", day) for day, _, _ in days_between(since, until)]
    sweep = _Sweep(parents)
    for at, card, what, queue, amount in sorted(changes, key=itemgetter(0)):
        if at >= until:
            break
        if what == "day":
            sweep.begin_day(at, since)
        else:
            sweep.advance(card, max(at, since))
            sweep.change(card, what, queue, amount)
    return sweep.finish(until)


class _Sweep:
    """Sums over time, card by card."""

    def __init__(self, parents: Mapping[str, str]) -> None:
        self._parents = parents
        self._at: dict[str, int] = {}
        self._total: dict[str, int] = {}
        self._used: defaultdict[str, int] = defaultdict(int)
        #: Card to queue to quota, and to what its subtree holds.
        self._quotas: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._held: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._found: defaultdict[tuple[str, str, int], QuotaParts] = defaultdict(QuotaParts)
        self._day = 0

    def begin_day(self, day: int, since: int) -> None:
        for card in list(self._at):
            self.advance(card, max(day, since))
        self._day = day

    def advance(self, card: str, now: int) -> None:
        length = now - self._at.get(card, now)
        self._at[card] = now
        if not length:
            return
        total, used, held = self._total.get(card, 0), self._used[card], self._held[card]
        for queue, quota in self._quotas[card].items():
            if quota:
                rest = max(0, quota - held[queue])
                lent = min(rest, max(0, used - held[queue] - max(0, total - quota)))
                parts = self._found[queue, card, self._day]
                parts.quota += quota * length
                parts.idle += (rest - lent) * length
                parts.lent += lent * length

    def change(self, card: str, what: str, queue: str, amount: int) -> None:
        if what == "total":
            self._total[card] = amount
        elif what == "quota":
            self._quotas[card][queue] = amount
        else:
            self._used[card] += amount
            seen: set[str] = set()
            while queue and queue not in seen:
                seen.add(queue)
                self._held[card][queue] += amount
                queue = self._parents.get(queue, "")

    def finish(self, until: int) -> dict[tuple[str, str, int], QuotaParts]:
        for card in list(self._at):
            self.advance(card, until)
        return dict(self._found)
