"""Tables of the ledger. `migrations` creates them; a test compares both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, and_, func, or_, select

from capcard_sched.ledger.rows import CapacityRow, ChargeRow, JobRecord, QuotaRecord, StageRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.engine import Row as DatabaseRow

    from capcard_sched.ledger.rows import Row

_AnyRow = TypeVar("_AnyRow")

metadata: Final = MetaData()


def _text(name: str, *, key: bool = False) -> Column[str]:
    return Column(name, String, primary_key=key, nullable=False)


def _integer(name: str, *, key: bool = False) -> Column[int]:
    return Column(name, BigInteger, primary_key=key, nullable=False, autoincrement=False)


def _optional(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=True)


#: The inputs that were recorded: one row per recording, simulation, or run of a process that follows a cluster.
SOURCE: Final = Table(
    "source", metadata, _text("id", key=True), _text("kind"), _integer("began"), _integer("recorded_until")
)
#: One row: the process that records. Writes of a former one have an older generation and are refused. `lease`: its
#: `NAMESPACE/NAME`, "" without one.
RECORDER: Final = Table(
    "recorder", metadata, _integer("id", key=True), _integer("generation"), _text("lease"), _text("source")
)
JOB: Final = Table(
    "job",
    metadata,
    _text("uid", key=True),
    Column("life", Integer, primary_key=True, nullable=False, autoincrement=False),
    *map(_text, ("namespace", "name", "kind", "owner", "queue", "user_label", "service_type")),
    Column("priority", Integer, nullable=False),
    Column("min_member", Integer, nullable=False),
    _text("card"),
    _integer("submitted"),
    *map(_optional, ("admitted", "first_scheduled", "whole", "ended")),
    _text("outcome"),
    Column("gap", Boolean, nullable=False),
    Index("job_name", "name"),
    Index("job_submitted", "submitted"),
    Index("job_ended", "ended"),
)
STAGE: Final = Table(
    "stage",
    metadata,
    _text("uid", key=True),
    Column("life", Integer, primary_key=True, nullable=False, autoincrement=False),
    _integer("began", key=True),
    _text("stage"),
    _optional("ended"),
)
CHARGE: Final = Table(
    "charge",
    metadata,
    _text("pod_uid", key=True),
    *map(_text, ("pod", "namespace", "job_uid")),
    Column("life", Integer, nullable=False),
    *map(_text, ("queue", "user_label", "service_type", "card")),
    _integer("thousandths"),
    _text("node"),
    _integer("began"),
    _optional("ended"),
    *map(_text, ("end_reason", "preemptor", "uncounted", "resource_version")),
    Column("gap", Boolean, nullable=False),
    Column("part", Integer, primary_key=True, nullable=False, autoincrement=False),
    Index("charge_ended", "ended"),
    Index("charge_job", "job_uid"),
)
CAPACITY: Final = Table(
    "capacity", metadata, _text("card", key=True), _integer("at", key=True), _integer("total"), _integer("unavailable")
)
QUOTA: Final = Table(
    "quota",
    metadata,
    _text("queue", key=True),
    _text("card", key=True),
    _integer("at", key=True),
    _optional("thousandths"),
    _text("parent"),
)
#: Card-time by UTC day of charges that were removed; in millionths of a card-second. `day`: its first moment.
DAILY_USE: Final = Table(
    "daily_use",
    metadata,
    _integer("day", key=True),
    *[_text(name, key=True) for name in ("queue", "card", "namespace", "user_label", "service_type")],
    _integer("used"),
    _integer("evicted"),
)
#: Quotas by UTC day before the removed charges, in the same unit.
DAILY_QUOTA: Final = Table(
    "daily_quota",
    metadata,
    _integer("day", key=True),
    _text("queue", key=True),
    _text("card", key=True),
    *map(_integer, ("quota", "idle", "lent")),
)
#: Tables whose rows have an end.
LASTING: Final = (JOB, STAGE, CHARGE)
TABLES: Final[dict[type[Row], Table]] = {
    JobRecord: JOB,
    StageRow: STAGE,
    ChargeRow: CHARGE,
    CapacityRow: CAPACITY,
    QuotaRecord: QUOTA,
}


def read_row(kind: Callable[..., _AnyRow], row: DatabaseRow[Any]) -> _AnyRow:
    """A row of the table of `kind`: its columns are in the order of the fields."""
    return kind(*row)


def lasting(table: Table, since: int, until: int | None = None) -> ColumnElement[bool]:
    """Jobs, stages or charges that lasted in some part of a period, which ends before `until` (milliseconds).

    Without `until`: at the moment `since`.
    """
    began = table.c.submitted if table is JOB else table.c.began
    end = since + 1 if until is None else until
    return and_(began < end, or_(table.c.ended.is_(None), table.c.ended > since))


def rows_at(table: Table, at: int) -> Select[Any]:
    """The row of each card, or queue and card, that held at a moment: the last one up to it."""
    keys = [column for column in table.primary_key if column.name != "at"]
    last = select(*keys, func.max(table.c.at).label("at")).where(table.c.at <= at).group_by(*keys).subquery()
    return select(table).join(last, and_(*(table.c[column.name] == column for column in last.c)))
