"""The accounts of jobs and queues: what each holds and what follows from it (capacity-card reference §4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.status import PodGroupPhase
from capcard_sched.plugins.capacity_card.tally import ChargeSum

if TYPE_CHECKING:
    from capcard_sched.model.job import Job
    from capcard_sched.plugins.capacity_card.minimum import JobQuantities
    from capcard_sched.plugins.capacity_card.quota import QueueQuota
    from capcard_sched.plugins.capacity_card.service_type import ServiceType
    from capcard_sched.plugins.capacity_card.tally import Charge


class QueueAccount:
    """The sums of one queue. They exist for every queue, with or without jobs."""

    __slots__ = ("_share", "allocated", "elastic", "inqueue", "jobs", "name", "pending", "quota", "seen", "version")

    def __init__(self, name: str, quota: QueueQuota) -> None:
        self.name = name
        self.quota = quota
        #: Remembered charges of pods in allocated status, and of those promised room in this session.
        self.allocated = ChargeSum()
        #: Charges of Pending pods.
        self.pending = ChargeSum()
        #: What admitted jobs still have coming to them.
        self.inqueue = ChargeSum()
        #: What jobs hold beyond their minimum.
        self.elastic = ChargeSum()
        #: Keys of the jobs with an account here.
        self.jobs: set[str] = set()
        #: Cards and claims that ever had a figure here: their series stay, at 0.
        self.seen: set[str] = set()
        #: Raised with every change of the sums that admission looks at, and of the quota.
        self.version = 0
        self._share: float | None = None

    def limit(self, card: str) -> int:
        """The quota of a card, 0 for one that is not listed."""
        return self.quota.cards.get(card, 0)

    def room(self, card: str) -> int:
        """What is left of the quota; negative when overdrawn, which is a legal state."""
        return self.quota.cards.get(card, 0) - self.allocated.cards.get(card, 0)

    @property
    def share(self) -> float:
        """Allocated/deserved in the most used dimension."""
        if self._share is None:
            self._share = self.quota.share(self.allocated)
        return self._share

    def reprice(self) -> None:
        """`allocated` or the quota changed: work out the share anew when it is next asked for."""
        self._share = None
        self.version += 1


class JobAccount:
    """What one job adds to its queue."""

    __slots__ = (
        "admitted",
        "allocated",
        "by_service",
        "charges",
        "former",
        "job",
        "phase",
        "quantities",
        "queue",
        "reserved",
    )

    def __init__(self, job: Job, queue: QueueAccount) -> None:
        self.job = job
        self.queue = queue
        #: Remembered charges of the pods that count as allocated, by uid.
        self.charges: dict[str, Charge] = {}
        #: Charges of pods that are being evicted in this session, should that be undone.
        self.former: dict[str, Charge] = {}
        self.allocated = ChargeSum()
        #: Thousandths of cards held, by (card, service type).
        self.by_service: dict[tuple[str, ServiceType], int] = {}
        #: Admitted in this session, whatever the phase says yet.
        self.admitted = False
        #: The phase that `reserved` was worked out for.
        self.phase = job.phase
        #: None while not worked out.
        self.quantities: JobQuantities | None = None
        #: Its part of the queue's `inqueue`.
        self.reserved = ChargeSum()

    def assess(self, quantities: JobQuantities) -> None:
        """Take over quantities, new or the same as before, and add what follows from them to the queue."""
        self.retract()
        self.quantities = quantities
        phase = self.phase = self.job.phase
        if self.admitted or phase is PodGroupPhase.INQUEUE:
            self.reserved = quantities.want.without(quantities.gated).without(self.allocated)
        elif phase is PodGroupPhase.RUNNING:
            self.reserved = quantities.need.without(quantities.gated).without(self.allocated)
        self._post(quantities, 1)
        self.queue.seen.update(quantities.pending.cards, self.reserved.cards)

    def retract(self) -> None:
        """Take the figures out of the queue again."""
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
