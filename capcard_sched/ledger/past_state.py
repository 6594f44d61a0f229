"""What held at one moment of the records: sums of cards and of jobs, evictions of a day, capacity, quotas, and jobs.

The database sums charges and jobs: of 40,000 charges and 6,250 jobs that last, a page needs a few rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import and_, false, func, select, true

from capcard_sched.ledger import schema
from capcard_sched.ledger.charge_sums import held_cards
from capcard_sched.ledger.rows import CapacityRow, ChargeRow, QuotaRecord
from capcard_sched.ledger.usage_report import DAY

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Subquery

    from capcard_sched.ledger.database import LedgerDatabase


class HeldSum(NamedTuple):
    """Cards of one model that pods of a queue and namespace held at the moment, or in the 24 hours before."""

    queue: str
    card: str
    namespace: str
    #: In the 24 hours before, in millionths of a card-second.
    used: int
    #: Those that lasted at the moment.
    thousandths: int
    pods: int
    #: Without those of which the pod has more of another card.
    whole_pods: int


class JobCount(NamedTuple):
    """The jobs of a queue and namespace that lasted at the moment, in one stage; "" where none is recorded."""

    queue: str
    namespace: str
    stage: str
    jobs: int


class PastJob(NamedTuple):
    """A job that lasted at the moment, its stage and its pods with cards then."""

    namespace: str
    name: str
    kind: str
    queue: str
    min_member: int
    #: Unix milliseconds; `whole` may be after the moment.
    submitted: int
    whole: int | None
    stage: str
    pods: int


class PastState(NamedTuple):
    """Moments are Unix milliseconds."""

    at: int
    held: list[HeldSum]
    jobs: list[JobCount]
    #: Charges that ended by an eviction in the 24 hours before, in order of time.
    evicted: list[ChargeRow]
    #: By card.
    capacity: dict[str, CapacityRow]
    #: By queue and card; without those that were removed.
    quotas: dict[tuple[str, str], QuotaRecord]
    #: The first record.
    began: int


def past_state(database: LedgerDatabase, at: int, began: int, *, queues_only: bool = False) -> PastState:
    """What held at a moment, of one state of the database. `began`: the first record.

    `queues_only`: without held cards and stages, which a page of the names of queues does not need.

    O(charges of 24 hours).
    """
    job, charge, stages = schema.JOB, schema.CHARGE, _stages(at)
    groups = (job.c.queue, job.c.namespace, *(() if queues_only else (stages.c.stage,)))
    jobs_of = job if queues_only else job.outerjoin(stages, _of_life(stages))
    held = held_cards(max(at - DAY, began), at, ("queue", "card", "namespace"))
    sums, jobs, evicted, capacity, quotas = database.read_all(
        [
            held.where(false() if queues_only else true()),
            select(*groups, func.count()).select_from(jobs_of).where(schema.lasting(job, at)).group_by(*groups),
            select(charge)
            .where(charge.c.ended > at - DAY, charge.c.ended <= at, charge.c.end_reason == "Evicted")
            .order_by(charge.c.ended, charge.c.pod_uid, charge.c.part),
            schema.rows_at(schema.CAPACITY, at),
            schema.rows_at(schema.QUOTA, at),
        ]
    )
    return PastState(
        at,
        [schema.read_row(HeldSum, row) for row in sums],
        [
            JobCount(queue, namespace, (stage and stage[0]) or "", count)
            for queue, namespace, *stage, count in map(tuple, jobs)
        ],
        [schema.read_row(ChargeRow, row) for row in evicted],
        {row.card: schema.read_row(CapacityRow, row) for row in capacity},
        {(row.queue, row.card): schema.read_row(QuotaRecord, row) for row in quotas if row.thousandths is not None},
        began,
    )


def past_jobs(database: LedgerDatabase, at: int, *, without: tuple[str, ...] = ()) -> list[PastJob]:
    """The jobs that lasted at a moment, but those in some stages. O(jobs that lasted, and their pods)."""
    job, charge, stages = schema.JOB, schema.CHARGE, _stages(at)
    pods = (
        select(charge.c.job_uid.label("uid"), charge.c.life, func.count().label("pods"))
        .where(schema.lasting(charge, at), charge.c.part == 0)
        .group_by(charge.c.job_uid, charge.c.life)
        .subquery()
    )
    stage = func.coalesce(stages.c.stage, "")
    names = ("namespace", "name", "kind", "queue", "min_member", "submitted", "whole")
    [rows] = database.read_all(
        [
            select(*(job.c[name] for name in names), stage, func.coalesce(pods.c.pods, 0))
            .select_from(job.outerjoin(stages, _of_life(stages)).outerjoin(pods, _of_life(pods)))
            .where(schema.lasting(job, at), *([stage.not_in(without)] if without else []))
            .order_by(job.c.namespace, job.c.name, job.c.uid, job.c.life)
        ]
    )
    return [schema.read_row(PastJob, row) for row in rows]


def _stages(at: int) -> Subquery:
    """The stage of each life at a moment.

    Joined, not looked up per job: without statistics PostgreSQL took 4.5 CPU s for 6,250 lookups.
    """
    stage = schema.STAGE
    life = stage.c.uid, stage.c.life
    name = func.max(stage.c.stage).label("stage")  # a life has one stage at a time
    return select(*life, name).where(schema.lasting(stage, at)).group_by(*life).subquery()


def _of_life(part: Subquery) -> ColumnElement[bool]:
    """Whether a row of a subquery is of the life of a job."""
    return and_(part.c.uid == schema.JOB.c.uid, part.c.life == schema.JOB.c.life)
