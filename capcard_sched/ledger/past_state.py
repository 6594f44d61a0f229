"""The rows that held at one moment of the records: jobs with their stages, held cards, capacity and quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import or_, select

from capcard_sched.ledger import schema
from capcard_sched.ledger.rows import CapacityRow, ChargeRow, JobRecord, QuotaRecord
from capcard_sched.ledger.usage_report import DAY

if TYPE_CHECKING:
    from capcard_sched.ledger.database import LedgerDatabase


class PastJob(NamedTuple):
    """A job that lasted at the moment, and its stage then; "" where none is recorded."""

    job: JobRecord
    stage: str


class PastState(NamedTuple):
    """Moments are Unix milliseconds. Rows have what happened after `at`, too: ends and outcomes."""

    at: int
    jobs: list[PastJob]
    #: Those that lasted at the moment, and those that ended in the 24 hours before.
    charges: list[ChargeRow]
    ended: list[ChargeRow]
    #: By card.
    capacity: dict[str, CapacityRow]
    #: By queue and card; without those that were removed.
    quotas: dict[tuple[str, str], QuotaRecord]
    #: The first record.
    began: int


def past_state(database: LedgerDatabase, at: int) -> PastState:
    """What held at a moment, of one state of the database. Cost: O(rows that lasted then, and charges of a day)."""
    job, stage, charge, capacity, quota = schema.JOB, schema.STAGE, schema.CHARGE, schema.CAPACITY, schema.QUOTA
    lasting = job.c.submitted <= at, or_(job.c.ended.is_(None), job.c.ended > at)
    jobs, stages, charges, capacities, quotas, sources = database.read_all(
        [
            select(job).where(*lasting).order_by(job.c.namespace, job.c.name, job.c.uid, job.c.life),
            select(stage).where(
                stage.c.uid.in_(select(job.c.uid).where(*lasting)),
                stage.c.began <= at,
                or_(stage.c.ended.is_(None), stage.c.ended > at),
            ),
            select(charge).where(charge.c.began <= at, or_(charge.c.ended.is_(None), charge.c.ended > at - DAY)),
            select(capacity).where(capacity.c.at <= at).order_by(capacity.c.at),
            select(quota).where(quota.c.at <= at).order_by(quota.c.at),
            select(schema.SOURCE),
        ]
    )
    of_life = {(row.uid, row.life): row.stage for row in sorted(stages, key=lambda row: int(row.began))}
    rows = [schema.read_row(ChargeRow, row) for row in charges]
    last = {(row.queue, row.card): schema.read_row(QuotaRecord, row) for row in quotas}
    return PastState(
        at,
        [PastJob(schema.read_row(JobRecord, row), of_life.get((row.uid, row.life), "")) for row in jobs],
        [row for row in rows if row.ended is None or row.ended > at],
        [row for row in rows if row.ended is not None and row.ended <= at],
        {row.card: schema.read_row(CapacityRow, row) for row in capacities},
        {key: row for key, row in last.items() if row.thousandths is not None},
        min((source.began for source in sources), default=at),
    )
