"""The runs of the jobs of a ledger, as durations of like jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from capcard_sched.insight.durations import JobRun
from capcard_sched.insight.job_runs import shape_of_cards
from capcard_sched.ledger import schema

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from capcard_sched.ledger.database import LedgerDatabase

#: Outcomes of jobs whose pods ended by themselves, or were deleted; others would have run longer.
_ENDED: Final = frozenset({"Completed", "Failed", "Deleted"})
#: Workloads that run for ever.
_SERVICES: Final = frozenset({"deployment", "statefulset", "replicaset", "daemonset"})


def runs_of_ledger(database: LedgerDatabase, present: Collection[str]) -> list[JobRun]:
    """The lives of jobs with cards. Raises LedgerError. O(charges).

    `present`: uids of the pods of the state that the runs are compared with: it has the runs of their jobs itself.
    A life lasts from the binding of its first pod to the end of its last; one whose begin or end fell into a gap of the
    records is left out, one that ended with the records, or by an eviction, lasted at least that long.
    """
    job, charge = schema.JOB, schema.CHARGE
    jobs, charges, sources = database.read_all([
        select(job.c.uid, job.c.life, job.c.namespace, job.c.name, job.c.queue, job.c.ended, job.c.outcome).where(
            job.c.kind.not_in(_SERVICES)
        ),
        select(
            charge.c.job_uid, charge.c.life, charge.c.pod_uid, charge.c.card, charge.c.thousandths, charge.c.began,
            charge.c.ended, charge.c.end_reason, charge.c.gap,
        ).order_by(charge.c.began, charge.c.pod_uid),
        select(schema.SOURCE).order_by(schema.SOURCE.c.began),
    ])  # fmt: skip
    lives: dict[tuple[str, int], list[Any]] = {}
    for row in charges:
        lives.setdefault((row.job_uid, row.life), []).append(row)
    until = max((source.recorded_until for source in sources), default=0)
    runs = []
    for life in jobs:
        pods = lives.get((life.uid, life.life), [])
        if pods and not any(_is_unknown(pod) or pod.pod_uid in present for pod in pods):
            runs.append(_run(life, pods, sources, until))
    return runs


def _is_unknown(charge: Any) -> bool:
    return bool(charge.gap) and charge.end_reason != "Lost"


def _run(life: Any, pods: Sequence[Any], sources: Sequence[Any], until: int) -> JobRun:
    began = pods[0].began
    last = max(until if pod.ended is None else pod.ended for pod in pods)
    #: From a moment without records the life is known since the next source.
    observed = next((source.began for source in sources if source.recorded_until >= began), began)
    largest = max(pods, key=lambda pod: pod.thousandths)
    shape = shape_of_cards(
        life.namespace, life.queue, life.name, largest.card, largest.thousandths, sum(pod.thousandths for pod in pods)
    )
    key, ended = f"ledger/{life.uid}/{life.life}", life.ended is not None and life.outcome in _ENDED
    return JobRun(key, shape, began / 1000, observed / 1000, last / 1000, ended)
