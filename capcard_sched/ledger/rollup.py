"""Replaces old charges and jobs by daily sums."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, select
from sqlalchemy.exc import SQLAlchemyError

from capcard_sched.ledger import schema
from capcard_sched.ledger.database import LedgerError, put_rows
from capcard_sched.ledger.usage_report import COLUMNS, DAY, days_between, intervals_of, quota_parts

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from capcard_sched.ledger.database import LedgerDatabase


def roll_up(database: LedgerDatabase, before: float) -> int:
    """Replace what ended before the UTC day of `before` (milliseconds), in one transaction. Returns the charges.

    The parts of quotas of these days are summed first, from all charges; a charge that lasts longer stays whole, and
    its days keep what they have.
    """
    horizon = int(before) // DAY * DAY
    try:
        with database.engine.begin() as connection:
            _sum_quotas(connection, horizon)
            return _sum_charges(connection, horizon)
    except SQLAlchemyError as error:
        raise LedgerError(f"{database.name}: {error}") from None


def _sum_quotas(connection: Connection, horizon: int) -> None:
    charge, daily = schema.CHARGE, schema.DAILY_QUOTA
    done = connection.execute(select(func.max(daily.c.day))).scalar()
    first = connection.execute(select(func.min(schema.QUOTA.c.at))).scalar()
    since = done + DAY if done is not None else horizon if first is None else first // DAY * DAY
    if since >= horizon:
        return
    quotas, capacities = [
        connection.execute(select(table).where(table.c.at < horizon).order_by(table.c.at)).all()
        for table in (schema.QUOTA, schema.CAPACITY)
    ]
    charges = connection.execute(select(charge).where(schema.lasting(charge, since, horizon))).all()
    rows = [
        {"day": day, "queue": queue, "card": card, "quota": parts.quota, "idle": parts.idle, "lent": parts.lent}
        for (queue, card, day), parts in quota_parts(
            intervals_of(charges, horizon), quotas, capacities, since, horizon
        ).items()
    ]
    if rows:
        put_rows(connection, daily, rows)


def _sum_charges(connection: Connection, horizon: int) -> int:
    charge, job, stage, daily = schema.CHARGE, schema.JOB, schema.STAGE, schema.DAILY_USE
    old = connection.execute(select(charge).where(charge.c.ended < horizon)).all()
    names = list(COLUMNS.values())
    sums: defaultdict[tuple[int | str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in old:
        for day, begin, end in days_between(row.began, row.ended):
            found = sums[day, *(getattr(row, name) for name in names)]
            found[0] += row.thousandths * (end - begin)
            found[1] += row.thousandths * (end - begin) if row.end_reason == "Evicted" else 0
    if sums:
        first = min(int(key[0]) for key in sums)
        for known in connection.execute(select(daily).where(daily.c.day >= first)):
            key = (known.day, *(getattr(known, name) for name in names))
            if key in sums:
                sums[key][0] += known.used
                sums[key][1] += known.evicted
        columns = ("day", *names, "used", "evicted")
        rows = [dict(zip(columns, (*key, *found), strict=True)) for key, found in sums.items()]
        put_rows(connection, daily, rows)
    connection.execute(delete(charge).where(charge.c.ended < horizon))
    ended = select(job.c.uid).where(job.c.ended < horizon, job.c.life == stage.c.life, job.c.uid == stage.c.uid)
    connection.execute(delete(stage).where(ended.exists()))
    connection.execute(delete(job).where(job.c.ended < horizon))
    return len(old)
