"""The page of card-hours, from a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.daemon.card_activity import CardMeter
from capcard_sched.ledger.database import LedgerError
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.ledger.usage_report import UsageQuery, parse_dimensions
from capcard_sched.model.timestamps import SPAN_FORM, DurationError, parse_span
from capcard_sched.web.access import is_visible_queue
from capcard_sched.web.history import CardSeries, QueueSeries
from capcard_sched.web.moments import moment_of
from capcard_sched.web.views import CardHours, UsageGroup, UsageView

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.ledger.usage_ledger import UsageLedger
    from capcard_sched.ledger.usage_report import CardRow, Dimension, UsageReport, UsageRow
    from capcard_sched.ledger.usage_series import UsageOverTime, UsageSeries
    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.views import Moment

#: The period without `since`.
SINCE: Final = "30d"
#: Millionths of a card-second per card-hour.
_HOUR: Final = 3_600_000_000
#: Dimensions whose groups name namespaces, or users of them.
_OF_NAMESPACES: Final = frozenset({"namespace", "user"})


def usage_view(cluster: Cluster, query: Mapping[str, str]) -> UsageView:
    """The page of a period that ends with the last record. Raises LookupError and ValueError."""
    by, since = dimensions_of(cluster.namespaces, query), query.get("since") or SINCE
    seconds = period_of(query)
    try:
        with opened_ledger(cluster) as ledger:
            until = ledger.recorded_until
            found = ledger.usage_over_time(UsageQuery(until - seconds, until, by), meter_of(cluster))
        return usage_page(found, moment_of(cluster), since, cluster.namespaces)
    except LedgerError as error:
        raise LookupError(str(error)) from None


def usage_page(found: UsageOverTime, moment: Moment, since: str, namespaces: frozenset[str] | None = None) -> UsageView:
    """The page of a report. `since`: the period, as given."""
    report = found.report
    series = [one for one in found.series if is_visible_queue(one.queue, namespaces)]
    rows, notes = visible_rows(report, namespaces)
    return UsageView(
        moment=moment,
        begin=report.since,
        end=report.until,
        since=since,
        by=report.by,
        groups=tuple(map(usage_group, rows)),
        cards=tuple(map(_card, report.cards)),
        series=_series(series, {row.card: row.capacity for row in report.cards}, found.seconds),
        notes=notes,
    )


def visible_rows(report: UsageReport, namespaces: frozenset[str] | None) -> tuple[list[UsageRow], tuple[str, ...]]:
    """The rows of a report that a viewer of namespaces may see, and the notes."""
    place = report.by.index("queue") if "queue" in report.by else -1
    rows = [row for row in report.rows if place < 0 or is_visible_queue(row.group[place], namespaces)]
    if len(rows) == len(report.rows):
        return rows, tuple(report.notes)
    return rows, (*report.notes, "NamespaceQueues of namespaces whose pods you may not get are left out")


def meter_of(cluster: Cluster) -> CardMeter | None:
    """The Prometheus of the scheduler-conf of a live cluster: pods of a file are in none."""
    return CardMeter.of_conf(cluster.core.snapshot().conf.metrics) if cluster.is_live else None


def opened_ledger(cluster: Cluster) -> UsageLedger:
    """The ledger of a cluster, for reading. Raises LookupError without one, and LedgerError."""
    if not cluster.ledger:
        raise LookupError("no ledger: start web with --ledger FILE|URL")
    return open_ledger(cluster.ledger, create=False)


def dimensions_of(namespaces: frozenset[str] | None, query: Mapping[str, str]) -> tuple[Dimension, ...]:
    """The groups `by` of a query. Raises ValueError, also for groups that a viewer of some namespaces may not see."""
    try:
        by = parse_dimensions(query.get("by") or "queue,card")
    except ValueError as error:
        raise ValueError(f"by: {error}") from None
    if namespaces is not None and not _OF_NAMESPACES.isdisjoint(by):
        raise ValueError("by: namespaces and users are visible with the right to get pods of all namespaces only")
    return by


def period_of(query: Mapping[str, str]) -> float:
    """The seconds of `since`. Raises ValueError."""
    since = query.get("since") or SINCE
    try:
        seconds = parse_span(since) / 10**6
    except DurationError:
        raise ValueError(f"since: {since!r}: expected {SPAN_FORM}") from None
    if seconds <= 0:
        raise ValueError(f"since: {since!r}: must be > 0")
    return seconds


def card_hours(amount: int) -> float:
    """Card-hours with two decimals, of millionths of a card-second."""
    return round(amount / _HOUR, 2)


def usage_group(row: UsageRow) -> UsageGroup:
    """The figures of a group in card-hours and seconds."""
    quota, idle, lent = (None if part is None else card_hours(part) for part in (row.quota, row.idle, row.lent))
    p50, p90 = (None if wait is None else wait / 1000 for wait in (row.wait_p50, row.wait_p90))
    return UsageGroup(
        group=row.group,
        used=card_hours(row.used),
        evicted=card_hours(row.evicted),
        jobs=row.jobs,
        wait_p50=p50,
        wait_p90=p90,
        quota=quota,
        idle=idle,
        lent=lent,
        measured=None if row.measured is None else card_hours(row.measured),
        unused=None if row.unused is None else card_hours(row.unused),
    )


def _card(row: CardRow) -> CardHours:
    return CardHours(
        card=row.card,
        capacity=card_hours(row.capacity),
        unavailable=card_hours(row.unavailable),
        used=card_hours(row.used),
    )


def _series(found: Sequence[UsageSeries], capacity: Mapping[str, int], seconds: float) -> tuple[CardSeries, ...]:
    """By card, with the mean number of cards of the cluster as total."""
    cards = dict.fromkeys(one.card for one in found)
    return tuple(
        CardSeries(
            card=card,
            total=round(capacity.get(card, 0) / 1_000_000 / seconds, 2) if seconds else 0.0,
            queues=tuple(
                QueueSeries(
                    queue=one.queue,
                    times=tuple(index * one.length for index in range(len(one.means))),
                    amounts=tuple(one.means),
                )
                for one in found
                if one.card == card
            ),
        )
        for card in cards
    )
