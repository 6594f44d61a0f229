"""The runs of the jobs of a ledger, as durations of like jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.insight.estimates.durations import JobRun
from capcard_sched.insight.estimates.job_runs import shape_of_cards
from capcard_sched.ledger.card_lives import card_lives

if TYPE_CHECKING:
    from collections.abc import Collection

    from capcard_sched.ledger.database import LedgerDatabase


def runs_of_ledger(database: LedgerDatabase, present: Collection[str]) -> list[JobRun]:
    """The lives of jobs with cards. Raises LedgerError. O(charges).

    `present`: uids of the pods of the state that the runs are compared with: it has the runs of their jobs itself.
    """
    return [
        JobRun(
            f"ledger/{life.uid}/{life.life}",
            shape_of_cards(life.namespace, life.queue, life.name, life.card, life.per_pod, life.total),
            life.began / 1000,
            life.observed_from / 1000,
            life.last / 1000,
            life.ended,
        )
        for life in card_lives(database, present)
    ]
