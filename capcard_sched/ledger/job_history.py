"""The lives of jobs with their stages and card-time, as `history` prints them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import or_, select

from capcard_sched.ledger import schema
from capcard_sched.ledger.rows import JobRecord

if TYPE_CHECKING:
    from sqlalchemy import Select

    from capcard_sched.ledger.database import LedgerDatabase


class StageSpan(msgspec.Struct, frozen=True):
    """A stage of a life, in Unix milliseconds; `ended` is None while it lasts."""

    stage: str
    began: int
    ended: int | None


class JobLife(msgspec.Struct):
    """One life of a job."""

    job: JobRecord
    stages: list[StageSpan]
    #: Millionths of a card-second that its pods held, and the pods with cards.
    card_time: int
    pods: int
    #: Why pods were evicted, each once.
    preemptors: list[str]


def job_history(database: LedgerDatabase, since: int, until: int, name: str, namespace: str) -> list[JobLife]:
    """The lives of jobs that lasted between two moments (milliseconds); "" for every name or namespace."""
    job, charge = schema.JOB, schema.CHARGE
    wanted = [schema.lasting(job, since - 1, until)]
    if name:
        groups = select(charge.c.job_uid).where(charge.c.pod == name)
        wanted.append(or_(job.c.name == name, job.c.uid == name, job.c.uid.in_(groups)))
    if namespace:
        wanted.append(job.c.namespace == namespace)
    found = select(job).where(*wanted).order_by(job.c.submitted, job.c.namespace, job.c.name, job.c.uid, job.c.life)
    return _lives(database, found, select(job.c.uid).where(*wanted), until)


def last_lives(database: LedgerDatabase, until: int, namespace: str, kind: str, name: str, most: int) -> list[JobLife]:
    """The last lives of one job that ended up to a moment (milliseconds), at most `most`; the latest first."""
    job = schema.JOB
    wanted = job.c.name == name, job.c.namespace == namespace, job.c.kind == kind, job.c.ended <= until
    order = job.c.submitted.desc(), job.c.uid, job.c.life.desc()
    last = select(job).where(*wanted).order_by(*order).limit(most)
    return _lives(database, last, select(last.subquery().c.uid), until)


def _lives(database: LedgerDatabase, wanted: Select[Any], uids: Select[Any], until: int) -> list[JobLife]:
    """The lives that `wanted` selects, in its order; `uids` selects the uids of their jobs."""
    stage, charge = schema.STAGE, schema.CHARGE
    jobs, stages, charges, sources = database.read_all(
        [
            wanted,
            select(stage).where(stage.c.uid.in_(uids)).order_by(stage.c.began),
            select(charge).where(charge.c.job_uid.in_(uids)).order_by(charge.c.began),
            select(schema.SOURCE),
        ]
    )
    end = max((source.recorded_until for source in sources), default=until)
    lives = {(row.uid, row.life): JobLife(schema.read_row(JobRecord, row), [], 0, 0, []) for row in jobs}
    spans: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    for row in stages:
        spans[row.uid, row.life].append(StageSpan(row.stage, row.began, row.ended))
    for key, life in lives.items():
        life.stages = spans[key]
    for row in charges:
        found = lives.get((row.job_uid, row.life))
        if found is not None:
            found.pods += row.part == 0
            found.card_time += row.thousandths * ((end if row.ended is None else row.ended) - row.began)
            if row.preemptor and row.preemptor not in found.preemptors:
                found.preemptors.append(row.preemptor)
    return list(lives.values())
