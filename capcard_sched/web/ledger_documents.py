"""Reports of the ledger as documents with its exact integers, for `usage` and `history` with `--server`.

Card-time is in millionths of a card-second, moments are Unix milliseconds, waits milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from capcard_sched.ledger.database import LedgerError
from capcard_sched.ledger.usage_report import UsageQuery
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.trials import API_VERSION, InsightPart
from capcard_sched.reports.evictions import preemptor_namespace, preemptor_text
from capcard_sched.web.moments import moment_of
from capcard_sched.web.usage import card_hours, dimensions_of, meter_of, opened_ledger, period_of, visible_rows
from capcard_sched.web.views import ApiVersion, FormerLife, Moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.ledger.job_history import JobLife
    from capcard_sched.web.cluster import Cluster

#: Former lives of a job on its page.
_MOST_LIVES: Final = 20
#: In place of a preemptor.
HIDDEN_PREEMPTOR: Final = "(another namespace)"


class LedgerUsageRow(InsightPart, frozen=True, kw_only=True):
    """One group: `ledger.usage_report.UsageRow`."""

    group: tuple[str, ...]
    used: int
    #: Used by pods that the scheduler evicted.
    evicted: int
    #: Jobs whose minimum was scheduled in the period, and their waits.
    jobs: int
    wait_p50: int | None
    wait_p90: int | None
    #: Parts of quotas; None for groups without one.
    quota: int | None
    idle: int | None
    lent: int | None
    #: Used time of whole cards that a source of utilization measured, and its part without any use; None without one.
    measured: int | None = None
    unused: int | None = None


class LedgerCardRow(InsightPart, frozen=True, kw_only=True):
    """One card over the period: `ledger.usage_report.CardRow`."""

    card: str
    capacity: int
    #: On nodes that were cordoned or not ready.
    unavailable: int
    used: int


class LedgerUsage(InsightPart, frozen=True, kw_only=True):
    """Card-time of a period by group."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["LedgerUsage"] = "LedgerUsage"
    moment: Moment
    #: The period, up to the last record; RFC 3339.
    since: str
    until: str
    by: tuple[str, ...]
    rows: tuple[LedgerUsageRow, ...]
    cards: tuple[LedgerCardRow, ...]
    #: Sentences about what the figures do not have.
    notes: tuple[str, ...]


class LedgerJob(InsightPart, frozen=True, kw_only=True):
    """One life of a job: the columns of table `job`."""

    uid: str
    #: Lives are counted from 1.
    life: int
    namespace: str
    name: str
    kind: str
    owner: str
    queue: str
    user_label: str
    service_type: str
    priority: int
    min_member: int
    card: str
    submitted: int
    admitted: int | None
    first_scheduled: int | None
    whole: int | None
    ended: int | None
    outcome: str
    gap: bool


class LedgerStage(InsightPart, frozen=True, kw_only=True):
    """A stage of `explain`; `ended` is None while it lasts."""

    stage: str
    began: int
    ended: int | None


class LedgerLife(InsightPart, frozen=True, kw_only=True):
    """One life of a job, its stages and what its pods held."""

    job: LedgerJob
    stages: tuple[LedgerStage, ...]
    card_time: int
    pods: int
    #: Why pods were evicted, each once.
    preemptors: tuple[str, ...]


class LedgerHistory(InsightPart, frozen=True, kw_only=True):
    """The lives of jobs of a period, in order of submission."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["LedgerHistory"] = "LedgerHistory"
    moment: Moment
    #: The end of the period: the last record.
    until: int
    lives: tuple[LedgerLife, ...]


def ledger_usage(cluster: Cluster, query: Mapping[str, str]) -> LedgerUsage:
    """The report of a period that ends with the last record. Raises LookupError and ValueError."""
    by, seconds = dimensions_of(cluster.namespaces, query), period_of(query)
    try:
        with opened_ledger(cluster) as ledger:
            until = ledger.recorded_until
            report = ledger.usage(UsageQuery(until - seconds, until, by), meter_of(cluster))
    except LedgerError as error:
        raise LookupError(str(error)) from None
    rows, notes = visible_rows(report, cluster.namespaces)
    return LedgerUsage(
        moment=moment_of(cluster),
        since=report.since,
        until=report.until,
        by=report.by,
        rows=msgspec.convert(rows, tuple[LedgerUsageRow, ...], from_attributes=True),
        cards=msgspec.convert(report.cards, tuple[LedgerCardRow, ...], from_attributes=True),
        notes=notes,
    )


def ledger_history(cluster: Cluster, query: Mapping[str, str]) -> LedgerHistory:
    """The lives of jobs that lasted in a period, of visible namespaces. Raises LookupError and ValueError."""
    seconds = period_of(query)
    try:
        with opened_ledger(cluster) as ledger:
            until = ledger.recorded_until
            lives = ledger.history_before(until, seconds, query.get("name", ""), query.get("namespace", ""))
    except LedgerError as error:
        raise LookupError(str(error)) from None
    shown = (_life(cluster, life) for life in lives if cluster.may_see(life.job.namespace))
    return LedgerHistory(moment=moment_of(cluster), until=round(until * 1000), lives=tuple(shown))


def _life(cluster: Cluster, life: JobLife) -> LedgerLife:
    found = msgspec.convert(life, LedgerLife, from_attributes=True)
    return msgspec.structs.replace(found, preemptors=_visible(cluster, found.preemptors))


def _visible(cluster: Cluster, preemptors: Iterable[str]) -> tuple[str, ...]:
    texts = (one if cluster.may_see(preemptor_namespace(one)) else HIDDEN_PREEMPTOR for one in preemptors)
    return tuple(dict.fromkeys(texts))


def former_lives(cluster: Cluster, namespace: str, kind: str, name: str) -> tuple[FormerLife, ...]:
    """The last lives of jobs of this name that ended before now, the latest first; none without a ledger.

    Raises LedgerError.
    """
    if not cluster.ledger:
        return ()
    with opened_ledger(cluster) as ledger:
        lives = ledger.last_lives(cluster.now, namespace, kind, name, _MOST_LIVES)
    return tuple([_former(cluster, life) for life in lives])


def _former(cluster: Cluster, life: JobLife) -> FormerLife:
    job = life.job
    assert job.ended is not None
    return FormerLife(
        submitted=format_timestamp(job.submitted / 1000),
        queue=job.queue,
        card=job.card,
        waited=((job.ended if job.whole is None else job.whole) - job.submitted) / 1000,
        ran=None if job.whole is None else (job.ended - job.whole) / 1000,
        card_hours=card_hours(life.card_time),
        outcome=job.outcome,
        preemptors=tuple([preemptor_text(text) for text in _visible(cluster, life.preemptors)]),
    )
