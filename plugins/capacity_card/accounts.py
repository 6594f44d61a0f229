"""Accounts of jobs and queues: allocated, pending, reserved and elastic amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.quota.queue_sums import awaits_pods
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.plugins.capacity_card.charge import ChargeSum
from capcard_sched.plugins.capacity_card.quota import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from capcard_sched.model.job import Job
    from capcard_sched.plugins.capacity_card.charge import Charge
    from capcard_sched.plugins.capacity_card.feasibility import Shortage
    from capcard_sched.plugins.capacity_card.minimum import JobQuantities
    from capcard_sched.plugins.capacity_card.quota import QueueQuota
    from capcard_sched.plugins.capacity_card.service_type import ServiceType


class QueueBook:
    """Sums over the jobs of one queue, or of a queue and all queues below it."""

    __slots__ = ("allocated", "elastic", "inqueue", "pending", "remaining", "seen", "version")

    def __init__(self) -> None:
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
        #: Cards and claims that ever had an amount here: their series stay, at 0.
        self.seen: set[str] = set()
        #: Incremented with every change of the quota and of the sums that admission reads.
        self.version = 0

    def merge(self, other: QueueBook) -> None:
        """Add all sums of another book."""
        self.allocated.merge(other.allocated)
        self.remaining.merge(other.remaining)
        self.pending.merge(other.pending)
        self.inqueue.merge(other.inqueue)
        self.elastic.merge(other.elastic)
        self.seen |= other.seen
        self.version += 1


class QueueAccount(QueueBook):
    """One queue: the sums of its own jobs, with or without any, and its place in the tree of queues.

    A parent with a card quota limits the cards of its subtree. Limits of cpu and memory apply to its own jobs.
    """

    __slots__ = ("_share", "ancestors", "books", "jobs", "limiting", "name", "quota", "subtree")

    def __init__(self, name: str, quota: QueueQuota) -> None:
        super().__init__()
        self.name = name
        self.quota = quota
        #: Keys of the jobs with an account here.
        self.jobs: set[str] = set()
        #: The sums of the queue and of all queues below it; the account itself without queues below.
        self.subtree: QueueBook = self
        #: The accounts above it, nearest first, and those of them that have a card quota.
        self.ancestors: tuple[QueueAccount, ...] = ()
        self.limiting: tuple[QueueAccount, ...] = ()
        #: Every book that its jobs are posted to.
        self.books: tuple[QueueBook, ...] = (self,)
        self._share: float | None = None

    def limit(self, key: str) -> int:
        """The limit of a card, 0 for one that is not listed, or of a share, UNLIMITED for one that is not named."""
        if key in self.quota.known_shares:
            return self.quota.shares.get(key, self.subtree_limit(key))
        return self.quota.cards.get(key, 0)

    def subtree_limit(self, key: str) -> int:
        """The limit of the queue and all queues below it, given a card quota: `spec.capability` does not count."""
        return self.quota.cards.get(key, UNLIMITED if key in self.quota.known_shares else 0)

    def is_limited(self, key: str) -> bool:
        """Whether a card or share has a limit here: a parent without a card quota has none."""
        if key in self.quota.known_shares:
            return self.limit(key) < UNLIMITED
        return self.quota.limits_subtree or self.subtree is self

    @property
    def share(self) -> float:
        """Allocated/deserved in the most used dimension, queues below it included."""
        if self._share is None:
            self._share = self.quota.share(self.subtree.allocated)
        return self._share

    def invalidate(self) -> None:
        """Drop cached shares: `allocated` or the quota changed."""
        for account in (self, *self.ancestors):
            account._share = None
        for book in self.books:
            book.version += 1


def connect(accounts: Mapping[str, QueueAccount], parents: Mapping[str, Sequence[str]]) -> None:
    """Arrange all accounts as a tree and sum up the subtrees. O(queues x depth).

    `parents`: names of each queue's ancestors, nearest first.
    """
    above = {name for names in parents.values() for name in names}
    for name, account in accounts.items():
        account.ancestors = tuple([accounts[parent] for parent in parents[name]])
        account.subtree = QueueBook() if name in above else account
    for account in accounts.values():
        chain = (account, *account.ancestors)
        sums = tuple([one.subtree for one in chain if one.subtree is not account])
        for book in sums:
            book.merge(account)
        account.books = (account, *sums)


def limit_by_ancestors(accounts: Iterable[QueueAccount], limited: set[str]) -> Iterator[QueueAccount]:
    """Set the limiting ancestors of all accounts; `limited`: queues whose own limits changed.

    Yields the accounts whose limits differ, their own or those above.
    """
    for account in accounts:
        limiting = tuple([one for one in account.ancestors if one.quota.limits_subtree])
        if limiting != account.limiting or not limited.isdisjoint((account.name, *(one.name for one in limiting))):
            account.limiting = limiting
            account.invalidate()
            yield account


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
        #: The limit of its queue or of an ancestor that the minimum of the job exceeds, whatever the usage; or None.
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

    def retract(self) -> None:
        """Subtract the job's amounts from its queue."""
        if self.quantities is not None:
            self._post(self.quantities, -1)
            self.quantities = None
            self.reserved = ChargeSum()

    def _post(self, quantities: JobQuantities, sign: int) -> None:
        for book in self.queue.books:
            book.version += 1
            book.pending.merge(quantities.pending, sign)
            book.elastic.merge(quantities.elastic, sign)
            book.inqueue.merge(self.reserved, sign)
            book.seen.update(quantities.pending.cards, self.reserved.cards)
