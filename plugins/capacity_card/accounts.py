"""Accounts of jobs and queues: allocated, pending, reserved and elastic amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.quota.queue_sums import awaits_pods
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.plugins.capacity_card.charge import ChargeSum

if TYPE_CHECKING:
    from capcard_sched.model.job import Job
    from capcard_sched.plugins.capacity_card.charge import Charge
    from capcard_sched.plugins.capacity_card.feasibility import Shortage
    from capcard_sched.plugins.capacity_card.minimum import JobQuantities
    from capcard_sched.plugins.capacity_card.quota import QueueQuota
    from capcard_sched.plugins.capacity_card.service_type import ServiceType


class QueueAccount:
    """The sums of one queue. Every queue has an account, with or without jobs."""

    __slots__ = (
        "_share",
        "allocated",
        "elastic",
        "inqueue",
        "jobs",
        "name",
        "pending",
        "quota",
        "remaining",
        "seen",
        "version",
    )

    def __init__(self, name: str, quota: QueueQuota) -> None:
        self.name = name
        self.quota = quota
        #: Charges of pods on nodes until they are gone, and of pods nominated in this session.
        self.allocated = ChargeSum()
        #: The same without pods that are being released.
        self.remaining = ChargeSum()
        #: Charges of Pending pods.
        self.pending = ChargeSum()
        #: Reservations of admitted jobs: their requests that are not allocated yet.
        self.inqueue = ChargeSum()
        #: Amounts that jobs hold beyond their minimum.
        self.elastic = ChargeSum()
        #: Keys of the jobs with an account here.
        self.jobs: set[str] = set()
        #: Cards and claims that ever had an amount here: their series stay, at 0.
        self.seen: set[str] = set()
        #: Incremented with every change of the quota and of the sums that admission reads.
        self.version = 0
        self._share: float | None = None

    def limit(self, card: str) -> int:
        """The quota of a card, 0 for one that is not listed."""
        return self.quota.cards.get(card, 0)

    @property
    def share(self) -> float:
        """Allocated/deserved in the most used dimension."""
        if self._share is None:
            self._share = self.quota.share(self.allocated)
        return self._share

    def invalidate(self) -> None:
        """Drop the cached share: `allocated` or the quota changed."""
        self._share = None
        self.version += 1


class JobAccount:
    """The amounts one job adds to its queue."""

    __slots__ = (
        "admitted",
        "allocated",
        "by_service",
        "charges",
        "impossible",
        "job",
        "phase",
        "quantities",
        "queue",
        "released",
        "releasing",
        "reserved",
    )

    def __init__(self, job: Job, queue: QueueAccount) -> None:
        self.job = job
        self.queue = queue
        #: Charges of the pods that hold quota, by uid.
        self.charges: dict[str, Charge] = {}
        #: Uids of those of them that are being released, and the sum of their charges.
        self.releasing: set[str] = set()
        self.released = ChargeSum()
        self.allocated = ChargeSum()
        #: Thousandths of cards held, by (card, service type).
        self.by_service: dict[tuple[str, ServiceType], int] = {}
        #: Admitted in this session; the phase may still be Pending.
        self.admitted = False
        #: The phase that `reserved` was computed for.
        self.phase = job.phase
        #: None until computed.
        self.quantities: JobQuantities | None = None
        #: The limit of the queue that the minimum of the job exceeds, whatever the usage; None for no such limit.
        self.impossible: Shortage | None = None
        #: The job's part of the queue's `inqueue`.
        self.reserved = ChargeSum()

    def assess(self, quantities: JobQuantities, impossible: Shortage | None) -> None:
        """Replace the job's quantities and update the sums of its queue. `impossible`: its need exceeds a quota."""
        self.retract()
        self.impossible = impossible
        self.quantities = quantities
        job = self.job
        phase = self.phase = job.phase
        if self.impossible is not None:
            pass  # it can never start: it would hold its reservation forever
        elif self.admitted or (phase is PodGroupPhase.INQUEUE and awaits_pods(job)):
            self.reserved = quantities.want.without(quantities.gated).without(self.allocated)
        elif phase is PodGroupPhase.RUNNING and awaits_pods(job):
            self.reserved = quantities.need.without(quantities.gated).without(self.allocated)
        self._post(quantities, 1)
        self.queue.seen.update(quantities.pending.cards, self.reserved.cards)

    def retract(self) -> None:
        """Subtract the job's amounts from its queue."""
        if self.quantities is not None:
            self._post(self.quantities, -1)
            self.quantities = None
            self.reserved = ChargeSum()

    def _post(self, quantities: JobQuantities, sign: int) -> None:
        queue = self.queue
        queue.version += 1
        queue.pending.merge(quantities.pending, sign)
        queue.elastic.merge(quantities.elastic, sign)
        queue.inqueue.merge(self.reserved, sign)
