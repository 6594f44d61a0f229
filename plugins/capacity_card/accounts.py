"""Accounts of jobs and queues: allocated, pending, reserved and elastic amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.quota.limits import UNLIMITED, QuotaBound
from capcard_sched.framework.quota.queue_sums import awaits_pods
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.plugins.capacity_card.charge import PLAIN, ChargeSum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.framework.quota.queue_sums import SumTree
    from capcard_sched.model.job import Job
    from capcard_sched.plugins.capacity_card.charge import Charge
    from capcard_sched.plugins.capacity_card.minimum import JobQuantities
    from capcard_sched.plugins.capacity_card.quota import QueueQuota
    from capcard_sched.plugins.capacity_card.service_type import ServiceType


class ChargeBook:
    """The amounts of one job, or their sums over the jobs of a queue, or of a queue and all queues below it."""

    __slots__ = ("allocated", "elastic", "inqueue", "pending", "releasing", "seen", "version")

    def __init__(self) -> None:
        #: Charges of pods on nodes until they are gone, and of pods nominated in this session.
        self.allocated = ChargeSum()
        #: Those of them that are being released.
        self.releasing = ChargeSum()
        #: Charges of Pending pods.
        self.pending = ChargeSum()
        #: Reservations of admitted jobs: their requests that are not allocated yet.
        self.inqueue = ChargeSum()
        #: Amounts that jobs hold beyond their minimum.
        self.elastic = ChargeSum()
        #: Keys that ever had an amount here: their series stay, at 0.
        self.seen: set[str] = set()
        #: Incremented with every change of the quota and of the sums that admission reads.
        self.version = 0

    def __iadd__(self, other: ChargeBook) -> Self:
        self.allocated += other.allocated
        self.releasing += other.releasing
        self.pending += other.pending
        self.inqueue += other.inqueue
        self.elastic += other.elastic
        self.seen |= other.seen
        self.version += 1
        return self

    def __isub__(self, other: ChargeBook) -> Self:
        self.allocated -= other.allocated
        self.releasing -= other.releasing
        self.pending -= other.pending
        self.inqueue -= other.inqueue
        self.elastic -= other.elastic
        self.version += 1
        return self

    def held(self, key: str, *, nominating: bool) -> int:
        """The usage that limits further pods: all held quota; while nominations are planned, without released pods."""
        return self.allocated.get(key, 0) - (self.releasing.get(key, 0) if nominating else 0)


class QueueAccount:
    """One queue: the sums of its own jobs, with or without any, and its place in the tree of queues.

    A parent with a card quota limits the cards of its subtree. Limits of cpu and memory apply to its own jobs.
    """

    __slots__ = ("_share", "ancestors", "books", "jobs", "limiting", "name", "own", "quota", "subtree")

    def __init__(self, name: str, quota: QueueQuota, tree: SumTree[ChargeBook]) -> None:
        self.name = name
        self.quota = quota
        #: Keys of the jobs with an account here.
        self.jobs: set[str] = set()
        #: The accounts above it, nearest first, and those of them that have a card quota.
        self.ancestors: tuple[QueueAccount, ...] = ()
        self.limiting: tuple[QueueAccount, ...] = ()
        self._share: float | None = None
        self.connect(tree)

    def connect(self, tree: SumTree[ChargeBook], ancestors: Iterable[QueueAccount] = ()) -> None:
        """Find its place in another tree."""
        self.ancestors = tuple(ancestors)
        #: Every book that its jobs are posted to, and of these: its own, and that of its subtree.
        self.books = tree.including(self.name)
        self.own, self.subtree = tree.own(self.name), tree.subtree(self.name)

    def is_limited(self, key: str) -> bool:
        """Whether a card or share has a limit here: a parent without a card quota has none."""
        if key in self.quota.known_shares:
            return self.quota.limit(key) < UNLIMITED
        return self.quota.limits_subtree or self.subtree is self.own

    def bounds(self, key: str, amount: int, *, nominating: bool, own: bool = False) -> list[QuotaBound]:
        """The limits on further pods that request an amount > 0 of a key: of the queue, then of its ancestors.

        `own`: of the queue alone.
        """
        held, limit = self.own.held(key, nominating=nominating), self.quota.limit(key)
        found = [QuotaBound((limit - held) // amount, key, amount, self.name, held, limit)]
        for one in () if own or key in PLAIN else self.limiting:
            held, limit = one.subtree.held(key, nominating=nominating), one.quota.subtree_limit(key)
            found.append(QuotaBound((limit - held) // amount, key, amount, one.name, held, limit))
        return found

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


class JobAccount(ChargeBook):
    """The amounts one job adds to its queue."""

    __slots__ = ("admitted", "by_service", "charges", "impossible", "job", "leaving", "phase", "quantities", "queue")

    def __init__(self, job: Job, queue: QueueAccount) -> None:
        super().__init__()
        self.job = job
        self.queue = queue
        #: Charges of the pods that hold quota, by uid.
        self.charges: dict[str, Charge] = {}
        #: Uids of those of them that are being released.
        self.leaving: set[str] = set()
        #: Thousandths of cards held, by (card, service type).
        self.by_service: dict[tuple[str, ServiceType], int] = {}
        #: Admitted in this session; the phase may still be Pending.
        self.admitted = False
        #: The phase that `inqueue` was computed for.
        self.phase = job.phase
        #: None until computed.
        self.quantities: JobQuantities | None = None
        #: The limit of its queue or of an ancestor that the minimum of the job exceeds, whatever the usage; or None.
        self.impossible: QuotaShortage | None = None

    def assess(self, quantities: JobQuantities, impossible: QuotaShortage | None) -> None:
        """Replace the job's quantities and update the sums of its queue. `impossible`: its need exceeds a quota."""
        pending, inqueue, elastic = self.pending, self.inqueue, self.elastic
        self.impossible = impossible
        self.quantities = quantities
        job = self.job
        phase = self.phase = job.phase
        self.inqueue = ChargeSum()
        if self.impossible is not None:
            pass  # it can never start: it would hold its reservation forever
        elif self.admitted or (phase is PodGroupPhase.INQUEUE and awaits_pods(job)):
            self.inqueue = quantities.want.without(quantities.gated).without(self.allocated)
        elif phase is PodGroupPhase.RUNNING and awaits_pods(job):
            self.inqueue = quantities.need.without(quantities.gated).without(self.allocated)
        self.pending, self.elastic = quantities.pending, quantities.elastic
        self.seen.update(self.pending, self.inqueue)
        for book in self.queue.books:
            book.version += 1
            book.pending -= pending
            book.pending += self.pending
            book.inqueue -= inqueue
            book.inqueue += self.inqueue
            book.elastic -= elastic
            book.elastic += self.elastic
            book.seen |= self.seen
