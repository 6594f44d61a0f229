"""The data that the stage of a job follows from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.diagnosis import CardCapacity, LimitUse, PendingPods, QueuePosition
    from capcard_sched.model.explanation import PodCards
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.refusal import ExceededLimit, Refusal


class DiagnosisInput(NamedTuple):
    """The data of one job that its stage follows from."""

    job: Job
    #: The pod that the diagnosis is about; None for all.
    pod: Task | None
    tasks: Sequence[Task]
    #: Bound by the last session, not yet on the cluster.
    coming: Sequence[Task]
    #: Admitted by the last session, not yet on the cluster.
    admitted_now: bool
    waiting: Sequence[Task]
    pending: Sequence[PendingPods]
    refusals: Sequence[Refusal]
    #: The first refusal with figures.
    quota_refusal: Refusal | None
    queue: QueuePosition
    limits: Sequence[LimitUse]
    queues: Sequence[str]
    capacity: Sequence[CardCapacity]
    known_cards: Sequence[str]
    #: Of each template of pending pods.
    pod_cards: Sequence[PodCards]
    #: Why the job can never start; None when it can.
    exceeded: ExceededLimit | None
    #: The card quota of the queue in thousandths, and why the annotation is invalid.
    quota: Mapping[str, int]
    quota_problem: str
    #: Whether other queues have guarantees.
    guaranteed: bool
    #: Cards that `card.request` declares, and those that the pods request; in thousandths.
    declared: Mapping[str, int]
    counted: Mapping[str, int]
