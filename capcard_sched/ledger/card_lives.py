"""How long jobs held cards: their lives, for durations of like jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import select

from capcard_sched.ledger import schema

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from capcard_sched.ledger.database import LedgerDatabase

#: Outcomes of jobs whose pods ended by themselves, or were deleted; others would have run longer.
_ENDED: Final = frozenset({"Completed", "Failed", "Deleted"})
#: Workloads that run for ever.
_SERVICES: Final = frozenset({"deployment", "statefulset", "replicaset", "daemonset"})


class CardLife(NamedTuple):
    """One life of a job with cards. Moments are Unix milliseconds, amounts thousandths of a card."""

    uid: str
    life: int
    namespace: str
    name: str
    queue: str
    #: Of the pod that held most.
    card: str
    per_pod: int
    #: Of all pods, each the card of which it has most.
    total: int
    #: The binding of the first pod.
    began: int
    #: Records reach back to this moment: a life that ended before would not be known.
    observed_from: int
    #: The end of the last pod, or the last moment at which the job is known to run.
    last: int
    ended: bool


def card_lives(database: LedgerDatabase, without: Collection[str] = ()) -> list[CardLife]:
    """The lives of jobs with cards, but services. Raises LedgerError. O(charges).

    `without`: uids of pods; lives with one of them are left out. So are lives whose begin or end fell into a gap of the
    records. A life that ended with the records, or by an eviction, has not ended.
    """
    job, charge = schema.JOB, schema.CHARGE
    jobs, charges, sources = database.read_all([
        select(job.c.uid, job.c.life, job.c.namespace, job.c.name, job.c.queue, job.c.ended, job.c.outcome).where(
            job.c.kind.not_in(_SERVICES)
        ),
        select(
            charge.c.job_uid, charge.c.life, charge.c.pod_uid, charge.c.card, charge.c.thousandths, charge.c.began,
            charge.c.ended, charge.c.end_reason, charge.c.gap,
        ).where(charge.c.part == 0).order_by(charge.c.began, charge.c.pod_uid),
        select(schema.SOURCE).order_by(schema.SOURCE.c.began),
    ])  # fmt: skip
    lives: dict[tuple[str, int], list[Any]] = {}
    for row in charges:
        lives.setdefault((row.job_uid, row.life), []).append(row)
    until = max((source.recorded_until for source in sources), default=0)
    found = []
    for row in jobs:
        pods = lives.get((row.uid, row.life), [])
        if pods and not any(_is_unknown(pod) or pod.pod_uid in without for pod in pods):
            found.append(_life(row, pods, sources, until))
    return found


def _is_unknown(charge: Any) -> bool:
    return bool(charge.gap) and charge.end_reason != "Lost"


def _life(row: Any, pods: Sequence[Any], sources: Sequence[Any], until: int) -> CardLife:
    began = pods[0].began
    largest = max(pods, key=lambda pod: pod.thousandths)
    return CardLife(
        row.uid,
        row.life,
        row.namespace,
        row.name,
        row.queue,
        largest.card,
        largest.thousandths,
        sum(pod.thousandths for pod in pods),
        began,
        # From a moment without records the life is known since the next source.
        next((source.began for source in sources if source.recorded_until >= began), began),
        max(until if pod.ended is None else pod.ended for pod in pods),
        row.ended is not None and row.outcome in _ENDED,
    )
