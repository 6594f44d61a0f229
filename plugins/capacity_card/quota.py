"""Limits of a queue, and the accounts of queues and jobs.

For cards, guarantee and capability both equal the quota, hence deserved, real capability and limit do too, whatever
the cluster has: quotas may exceed the cards of the cluster on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

from capcard_sched.framework.quota.limits import UNLIMITED
from capcard_sched.framework.quota.queue_sums import awaits_pods
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.cards import CardQuota, is_card_quota, parse_card_quota
from capcard_sched.model.job import NO_ENTRIES
from capcard_sched.model.status import PHASE_INQUEUE, PHASE_RUNNING, PodGroupPhase
from capcard_sched.plugins.capacity_card.card_flow import reachable_sum, sum_of
from capcard_sched.plugins.capacity_card.card_inventory import parsed
from capcard_sched.plugins.capacity_card.charge import NO_CHARGE, PLAIN, ChargeSum, alternatives_of
from capcard_sched.plugins.capacity_card.dimension import Dimension, dimension
from capcard_sched.plugins.capacity_card.multi_card_admission import QueueUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Self

    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.framework.quota.queue_sums import SumTree
    from capcard_sched.model.cards import QuotaGroup
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.plugins.capacity_card.arguments import ServiceType
    from capcard_sched.plugins.capacity_card.charge import Charge, JobQuantities


NO_PODS: Final = frozenset[str]()
NO_CARDS: Final[Mapping[tuple[str, ServiceType], int]] = {}


class QueueQuota(NamedTuple):
    """All limits of a queue."""

    #: Card to thousandths. A card that is not listed has quota 0.
    cards: Mapping[str, int]
    #: The syntax error of the card quota, "" for a valid one.
    problem: str
    #: Whether the cards of queues below it are limited too: the queue has a card quota.
    limits_subtree: bool
    #: Limits of the shared devices that `spec.capability` names.
    shares: Mapping[str, int]
    #: Resources of all shared devices. Those that nothing names have no limit.
    known_shares: frozenset[str]
    #: cpu and memory, by key.
    plain: Mapping[str, Dimension]
    #: Limits of the queue's own jobs: cpu, memory, cards, and the shares named.
    limits: Mapping[str, int]
    #: Deserved amounts > 0 of cpu, memory and cards.
    deserved: Mapping[str, int]
    #: The limit of cards that are not listed: 0, or none for a queue without a card quota.
    unlisted: int = 0
    #: Limits on sums of several cards.
    groups: tuple[QuotaGroup, ...] = ()

    def limit(self, key: str) -> int:
        """The limit of the queue's own jobs: `unlisted` for a card that is not listed, none for a share not named."""
        return self.limits.get(key, UNLIMITED if key in self.known_shares else self.unlisted)

    @property
    def limits_below(self) -> bool:
        """Whether jobs of queues below it have limits here: of cards, given a card quota, or of the shares named."""
        return self.limits_subtree or bool(self.shares)

    def subtree_limit(self, key: str) -> int:
        """The limit of the queue and all queues below it: none for cpu and memory, which are limited per queue."""
        limit = self.cards.get(key, self.shares.get(key))
        if limit is not None:
            return limit
        return 0 if self.limits_subtree and key not in PLAIN and key not in self.known_shares else UNLIMITED

    def ceiling(self, key: str) -> int:
        """The limit of the queue's own jobs in a cluster of any size."""
        if key not in PLAIN:
            return self.limit(key)
        capability = self.plain[key].capability
        return UNLIMITED if capability is None else capability

    @property
    def is_empty(self) -> bool:
        """No cpu or memory capability and no valid card quota entry."""
        return not (self.cards or self.shares) and all(one.capability is None for one in self.plain.values())

    @property
    def own_limits(self) -> tuple[object, ...]:
        """The limits that do not depend on the cluster."""
        return (
            self.cards,
            self.groups,
            self.shares,
            self.limits_subtree,
            self.unlisted,
            *[one.capability for one in self.plain.values()],
        )

    def share(self, allocated: ChargeSum) -> float:
        """The largest allocated/deserved over dimensions that deserve anything; 0 without any."""
        deserved = self.deserved
        return max([held / deserved[key] for key, held in allocated.items() if key in deserved], default=0.0)


def queue_quota(
    queue: Queue,
    known_shares: frozenset[str],
    free: Mapping[str, int],
    without_quota: Literal["none", "unlimited"] = "none",
) -> QueueQuota:
    """The quota of a queue in a cluster.

    `known_shares`: resources of shared devices. `free`: cpu and memory that no queue is guaranteed, by key.
    `without_quota`: the card quota of queues without the annotation.
    """
    text = queue.annotations.get(CARD_QUOTA)
    cards, problem = parsed(parse_card_quota, text)
    plain = {key: dimension(queue, name, free[key]) for key, name in PLAIN.items()}
    shares = {name: amount for name, amount in (queue.capability or {}).items() if name in known_shares}
    limits = {**cards, **shares, **{key: one.limit for key, one in plain.items()}}
    deserved = {**cards, **{key: one.deserved for key, one in plain.items()}}
    deserved, has_quota = {key: amount for key, amount in deserved.items() if amount > 0}, is_card_quota(text)
    unlisted = UNLIMITED if without_quota == "unlimited" and not has_quota else 0
    groups = cards.groups if isinstance(cards, CardQuota) else ()
    return QueueQuota(cards, problem, has_quota, shares, known_shares, plain, limits, deserved, unlisted, groups)


@dataclass(slots=True, eq=False, repr=False)
class ChargeBook:
    """The amounts of one job, or their sums over the jobs of a queue, or of a queue and all queues below it."""

    #: Charges of pods on nodes until they are gone, and of pods nominated in this session.
    allocated: ChargeSum = field(init=False)
    #: Those of them that are being released.
    releasing: ChargeSum = field(init=False)
    #: Charges of Pending pods.
    pending: ChargeSum = field(init=False)
    #: Reservations of admitted jobs: their requests that are not allocated yet.
    inqueue: ChargeSum = field(init=False)
    #: Amounts that jobs hold beyond their minimum.
    elastic: ChargeSum = field(init=False)

    def _sums(self) -> tuple[ChargeSum, ...]:
        return self.allocated, self.releasing, self.pending, self.inqueue, self.elastic

    def _add(self, other: ChargeBook, times: int) -> Self:
        for mine, theirs in zip(self._sums(), other._sums(), strict=True):
            mine.add(theirs.items(), times)
        return self

    def __iadd__(self, other: ChargeBook) -> Self:
        return self._add(other, 1)

    def __isub__(self, other: ChargeBook) -> Self:
        return self._add(other, -1)

    def held(self, key: str, *, nominating: bool) -> int:
        """The usage that limits further pods: all held quota; while nominations are planned, without released pods."""
        held = self.allocated.get(key, 0)
        return held - self.releasing.get(key, 0) if nominating else held

    def held_by(self, group: QuotaGroup, *, nominating: bool) -> int:
        """`held` of all cards of a group."""
        return sum_of(self.allocated, group) - (sum_of(self.releasing, group) if nominating else 0)


@dataclass(slots=True, eq=False, repr=False)
class QueueBook(ChargeBook):
    """The sums of a queue, or of a queue and all queues below it."""

    #: Keys that ever had an amount here: their series stay, at 0.
    seen: set[str] = field(init=False, default_factory=set)
    #: Incremented with every change of the quota and of the sums that admission reads.
    version: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.allocated, self.releasing, self.pending = ChargeSum(), ChargeSum(), ChargeSum()
        self.inqueue, self.elastic = ChargeSum(), ChargeSum()

    def _add(self, other: ChargeBook, times: int) -> Self:
        self.seen.update(*([other.seen] if isinstance(other, QueueBook) else other._sums()))
        self.version += 1
        return ChargeBook._add(self, other, times)  # `super()` fails in classes with slots


class QueueAccount:
    """One queue: the sums of its own jobs, with or without any, and its place in the tree of queues.

    A parent limits the cards of its subtree by a card quota, and the shares that its capability names. Limits of cpu
    and memory apply to its own jobs.
    """

    __slots__ = ("_share", "ancestors", "books", "facts", "jobs", "limiting", "name", "own", "quota", "subtree")

    def __init__(self, name: str, quota: QueueQuota, tree: SumTree[QueueBook]) -> None:
        self.name = name
        self.quota = quota
        #: What the quota follows from, once the ledger has it.
        self.facts: tuple[object, ...] = ()
        #: Keys of the jobs with an account here.
        self.jobs: dict[str, None] = {}  # 10,000 keys take 0.2 MiB, and in a set 0.5
        #: The accounts above it, nearest first, and those of them that limit cards or shares.
        self.ancestors: tuple[QueueAccount, ...] = ()
        self.limiting: tuple[QueueAccount, ...] = ()
        self._share: float | None = None
        self.connect(tree)

    def connect(self, tree: SumTree[QueueBook], ancestors: Iterable[QueueAccount] = ()) -> None:
        """Find its place in another tree."""
        self.ancestors = tuple(ancestors)
        #: Every book that its jobs are posted to, and of these: its own, and that of its subtree.
        self.books = tree.including(self.name)
        self.own, self.subtree = tree.own(self.name), tree.subtree(self.name)

    def limits(
        self, key: str, *, nominating: bool, growing: bool = False, own: bool = False
    ) -> list[tuple[str, str, int, int]]:
        """Queue, key, usage and limit of the queue, then of the ancestors that limit its jobs; `own`: of it alone.

        After the limit of the key itself come those of groups of cards with it. `nominating`: nominations are planned,
        pods that are being released hold no quota then. `growing`: limits of a cluster of any size.
        """
        most = self.quota.ceiling(key) if growing else self.quota.limit(key)
        found = [(self.name, key, self.own.held(key, nominating=nominating), most)]
        own = own or key in PLAIN
        for one in () if own else self.limiting:
            held = one.subtree.held(key, nominating=nominating)
            found.append((one.name, key, held, one.quota.subtree_limit(key)))
        for name, group, held in self.groups(nominating=nominating, own=own):
            if key in group.cards:
                found.append((name, group.key, held, group.limit))
        return found

    def groups(self, *, nominating: bool, own: bool) -> Iterator[tuple[str, QuotaGroup, int]]:
        """Queue, group and usage of the limits on sums of cards, in the order of `limits`."""
        for one, book in self._levels(own=own):
            for group in one.quota.groups:
                yield one.name, group, book.held_by(group, nominating=nominating)

    def _levels(self, *, own: bool) -> list[tuple[QueueAccount, QueueBook]]:
        """The queue with its own amounts, and the ancestors that limit its jobs with those of their subtrees."""
        return [(self, self.own), *([] if own else [(one, one.subtree) for one in self.limiting])]

    def free(self, key: str, *, nominating: bool, growing: bool, own: bool) -> int:
        """The unused part of the limits; negative when a queue holds more than its limit."""
        if growing:
            limits = self.limits(key, nominating=nominating, growing=True, own=own)
            return min([limit - held for _, _, held, limit in limits])
        if (
            own or not self.limiting or key in PLAIN
        ) and not self.quota.groups:  # as in `limits`, for every run of pods
            quota, book = self.quota, self.own
            limit = quota.limits[key] if key in quota.limits else quota.limit(key)
            return limit - (book.held(key, nominating=True) if nominating else book.allocated.get(key, 0))
        return min([limit - held for *_, held, limit in self.limits(key, nominating=nominating, own=own)])

    def joint_pods(self, cards: Sequence[str], pods: Sequence[int], amount: int, *, nominating: bool, own: bool) -> int:
        """How many pods with `amount` of any of some cards fit the groups of the queue and its ancestors.

        `pods`: those that fit each card alone. With several levels of queues an upper bound.
        """
        if not amount:
            return sum(pods)
        alone, least = dict(zip(cards, pods, strict=True)), sum(pods)
        for account, book in self._levels(own=own):
            free = [(one, one.limit - book.held_by(one, nominating=nominating)) for one in account.quota.groups]
            least = min(least, reachable_sum(alone, [(one, max(0, left // amount)) for one, left in free]))
        return least

    def is_limited(self, key: str) -> bool:
        """Whether a card or share has a limit here: a parent without a card quota has none."""
        if key in self.quota.known_shares:
            return self.quota.limit(key) < UNLIMITED
        return self.quota.limits_subtree or (self.subtree is self.own and not self.quota.unlisted)

    def exceeded(self, need: ChargeSum, *, same_card: bool) -> QuotaShortage | None:
        """The limit of the queue or an ancestor that a need exceeds, whatever the usage; or None."""
        for name, limit, groups in self._ceilings():
            found = QueueUsage(name, ChargeSum(), limit, groups).shortage(need, same_card=same_card)
            if found is not None:
                return found
        return None

    def ceiling(self, key: str, *, same_card: bool) -> int:
        """The least of these limits for one key alone. Its alternatives add up, except with `same_card`."""
        if not self.limiting and "|" not in key:
            return self.quota.ceiling(key)
        cards = alternatives_of(key)
        if same_card:
            return min([max([limit(card) for card in cards]) for _, limit, _ in self._ceilings()])
        return min(
            [
                reachable_sum({card: limit(card) for card in cards}, [(group, group.limit) for group in groups])
                for _, limit, groups in self._ceilings()
            ]
        )

    def _ceilings(self) -> list[tuple[str, Callable[[str], int], tuple[QuotaGroup, ...]]]:
        """Name and limits in a cluster of any size, of the queue and of the ancestors that limit its jobs."""
        above = [(one.name, one.quota.subtree_limit, one.quota.groups) for one in self.limiting]
        return [(self.name, self.quota.ceiling, self.quota.groups), *above]

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
        limiting = tuple([one for one in account.ancestors if one.quota.limits_below])
        if limiting != account.limiting or not limited.isdisjoint((account.name, *(one.name for one in limiting))):
            account.limiting = limiting
            account.invalidate()
            yield account


@dataclass(slots=True, eq=False, repr=False)
class JobAccount(ChargeBook):
    """The amounts one job adds to its queue."""

    job: Job
    queue: QueueAccount
    #: The annotation from which the service type of its pods follows.
    service: str | None
    #: The phase that `inqueue` was computed for.
    phase: PodGroupPhase
    #: Charges of the pods that hold quota, by uid. Changed in place by `open_charges` alone.
    charges: Mapping[str, Charge] = field(init=False)
    #: Uids of those of them that are being released.
    leaving: AbstractSet[str] = field(init=False, default=NO_PODS)
    #: Thousandths of cards held, by (card, service type).
    by_service: Mapping[tuple[str, ServiceType], int] = field(init=False)
    #: Admitted in this session; the phase may still be Pending.
    admitted: bool = field(init=False, default=False)
    #: None until computed.
    quantities: JobQuantities | None = field(init=False, default=None)
    #: The limit of its queue or of an ancestor that the minimum of the job exceeds, whatever the usage; or None.
    impossible: QuotaShortage | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.allocated = self.releasing = self.pending = self.inqueue = self.elastic = NO_CHARGE
        self.charges, self.by_service = NO_ENTRIES, NO_CARDS

    def open_charges(self) -> dict[str, Charge]:
        """The charges, to be changed in place."""
        if self.charges is NO_ENTRIES:
            self.charges = {}
        return cast("dict[str, Charge]", self.charges)

    def assess(
        self, quantities: JobQuantities, impossible: QuotaShortage | None, phase: PodGroupPhase | None = None
    ) -> None:
        """Replace the job's quantities and update the sums of its queue.

        `impossible`: its need exceeds a quota; `phase`: the one that its reservation follows from, None: its own.
        """
        pending, elastic = self.pending, self.elastic
        self.quantities, self.impossible = quantities, impossible
        if pending is not quantities.pending:
            self.pending = quantities.pending
            for book in self.queue.books:
                book.seen.update(self.pending)
                book.pending.replace(pending, self.pending)
        if elastic or quantities.elastic:
            self.elastic = quantities.elastic
            for book in self.queue.books:
                book.elastic.replace(elastic, self.elastic)
        self.reserve(phase)

    def reserve(self, phase: PodGroupPhase | None = None) -> None:
        """Recompute the reservation from the quantities, as `assess`."""
        inqueue, job, quantities = self.inqueue, self.job, self.quantities
        assert quantities is not None, job
        phase = self.phase = phase or job.phase
        self.inqueue = NO_CHARGE
        if self.impossible is not None or job.node_limit is not None:
            pass  # it can never start: it would hold its reservation forever
        elif self.admitted or (phase is PHASE_INQUEUE and awaits_pods(job)):
            self.inqueue = quantities.want.without(quantities.gated).without(self.allocated)
        elif phase is PHASE_RUNNING and awaits_pods(job):
            self.inqueue = quantities.need.without(quantities.gated).without(self.allocated)
        for book in self.queue.books:
            book.version += 1
            book.seen.update(self.inqueue)
            book.inqueue.replace(inqueue, self.inqueue)


def used_card(account: JobAccount | None, alternatives: Iterable[str], more: Container[str] = ()) -> str:
    """The first alternative that pods of a job are charged, "" for none; `more`: cards that are not booked yet."""
    used = account.allocated if account is not None else ()
    return next((card for card in alternatives if card in used or card in more), "")
