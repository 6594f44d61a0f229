"""Quantities of a job: the request of all its pods, and the part its minimum needs."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.annotations import CARD_REQUEST
from capcard_sched.model.cards import parse_card_request
from capcard_sched.model.status import COMPLETED_STATUSES, PENDING, PodGroupPhase, TaskStatus
from capcard_sched.plugins.capacity_card.card_inventory import CardAmounts, parsed
from capcard_sched.plugins.capacity_card.cards import mixed_resources
from capcard_sched.plugins.capacity_card.charge import PLAIN, ChargeSum, JobQuantities, alternatives_of, same_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.model.job import Job, Task
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.card_inventory import CardInventory
    from capcard_sched.plugins.capacity_card.charge import Charge
    from capcard_sched.plugins.capacity_card.claim_cards import SharedPart
    from capcard_sched.plugins.capacity_card.quota import JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.shared_claims import SharedClaims

_NO_INDEX = 1 << 62
_ALLOCATED, _PENDING, _LEAVING = range(3)
#: On their node, but not part of the job any more.
_GOING = frozenset({TaskStatus.RELEASING, TaskStatus.UNKNOWN})
_NAMES = tuple(PLAIN.items())


class _Member(NamedTuple):
    """A pod of a job, or all pods of a job of equal pods."""

    rank: int
    #: The first of them.
    task: Task
    charge: Charge
    #: Number of pods.
    size: int = 1
    #: The part of the charge of each claim that pods may share, if none is charged it yet.
    shared: tuple[SharedPart, ...] = ()

    def order(self) -> tuple[int, int, int, float, str]:
        """Allocated first, then pending, then terminating; inside each by priority, index in the name, age, uid."""
        task = self.task
        return self.rank, -task.priority, task.index if task.index >= 0 else _NO_INDEX, task.created, task.uid


class _Ceilings(dict[str, int]):
    """`QueueAccount.ceiling` by key, computed on the first read: alike jobs of a queue read the same keys."""

    __slots__ = ("_queue", "_same_card")

    def __init__(self, queue: QueueAccount, *, same_card: bool) -> None:
        self._queue = queue
        self._same_card = same_card

    def __missing__(self, key: str) -> int:
        ceiling = self[key] = self._queue.ceiling(key, same_card=self._same_card)
        return ceiling


class Minimum:
    """Computes the quantities of jobs."""

    def __init__(self, arguments: CapacityCardArguments, inventory: CardInventory, shared: SharedClaims) -> None:
        self._arguments = arguments
        self._inventory = inventory
        self._demands, self._shared = shared.demands, shared
        self._same_card = arguments.multi_card_job_mode == "single"
        #: The limit that quantities, which alike jobs share, exceed in a queue: by its name and their id.
        self._exceeded: dict[tuple[str, int], tuple[JobQuantities, QuotaShortage | None]] = {}
        #: By queue name, the limits of its jobs in a cluster of any size, as far as they were read.
        self._ceilings: dict[str, _Ceilings] = {}

    def forget_limits(self) -> None:
        """Drop what follows from the limits of queues, which may have changed. Once per session."""
        self._exceeded.clear()
        self._ceilings.clear()

    def exceeded(self, queue: QueueAccount, quantities: JobQuantities) -> QuotaShortage | None:
        """The limit of a queue or of an ancestor that a need exceeds, whatever the usage."""
        key = queue.name, id(quantities)
        known = self._exceeded.get(key)
        if known is None:
            known = self._exceeded[key] = quantities, queue.exceeded(quantities.need, same_card=self._same_card)
        return known[1]

    def exceeded_by(self, account: JobAccount) -> QuotaShortage | None:
        """`exceeded` of a job: without its quantities where all its pods fit, of which its need is a part."""
        if self._all_fit(account):
            return None
        return self.exceeded(account.queue, self.quantities(account.job, account.charges))

    def _all_fit(self, account: JobAccount) -> bool:
        """Whether the pods of a job fit an empty queue; false for several cards, and beside pods that hold no quota."""
        job, queue, charges = account.job, account.queue, account.charges.values()
        count, minimum = len(job.tasks), job.min_resources
        if not count or count < job.min_available or len(job.pending) + len(charges) < count:
            return False
        total = ChargeSum(account.allocated if charges else ())
        cards = {charge.card for charge in charges}
        for cls, pods in Counter([task.cls for task in job.pending.values()]).items():
            demand = self._demands.of(cls)
            if demand.claim.others:
                return False
            cards.add(demand.claim.card)
            total.add(demand.counted.amounts, pods)
        # Quotas of groups may limit several cards together, and alternatives of one claim are cards of another.
        if len(cards - {""}) > 1 or any(charge.others for charge in charges):
            return False
        ceilings = self._ceilings.get(queue.name)
        if ceilings is None:
            ceilings = self._ceilings[queue.name] = _Ceilings(queue, same_card=self._same_card)
        if any(amount > ceilings[key] for key, amount in total.items()):
            return False
        if minimum is not None:
            for key, name in _NAMES:
                if name in minimum and minimum[name] > ceilings[key]:
                    return False
        return True

    def quantities(self, job: Job, held: Mapping[str, Charge]) -> JobQuantities:
        """O(pods). Jobs with alike pods share one result."""
        alike = self._alike(job, held)
        if alike is None:
            return self._quantities(job, self._members(job, held))
        derived, annotation = self._demands.derived(alike.task.cls), job.annotations.get(CARD_REQUEST)
        inputs = alike.rank, alike.charge, alike.size, job.min_available, annotation
        known: tuple[Mapping[str, int] | None, JobQuantities] | None = derived.get(inputs)
        if known is None or known[0] != job.min_resources:
            known = derived[inputs] = job.min_resources, self._quantities(job, [alike])
        return known[1]

    def _quantities(self, job: Job, members: Sequence[_Member]) -> JobQuantities:
        chosen = members if self._arguments.card_minimum == "allPods" else minimum_set(job, members)
        request = self.request_of(job)
        want, need = _total(members), _total(chosen)
        if not members or len(job.tasks) < job.min_available:
            # A running job has created its pods, finished or not; before that only live pods count.
            created = job.tasks.values() if members or job.phase is PodGroupPhase.RUNNING else ()
            short = self._not_created_yet(request.cards, created)
            for name, amount in (job.min_resources or {}).items():
                if name in self._inventory.shares:
                    counted = sum(task.cls.requests.get(name, 0) for task in created)
                    short.put(name, short[name] + max(0, amount - counted))
            want += short
            need += short
        self._apply_min_resources(job, request.cards, members, want, need)
        inside = _total(chosen, _ALLOCATED)
        elastic = ChargeSum()
        for key, amount in _total(members, _ALLOCATED).items():
            elastic.put(key, max(0, amount - (need if key in PLAIN else inside)[key]))
        return JobQuantities(
            want,
            need,
            _total([member for member in members if member.task.gated], _PENDING),
            _total(members, _PENDING),
            elastic,
            bool(members),
            next((self._error(member) for member in chosen if member.rank == _PENDING and self._error(member)), ""),
            request.problem,
        )

    def _alike(self, job: Job, held: Mapping[str, Charge]) -> _Member | None:
        """All pods of a job, if they have one class, one status and one charge, and its minimum is a number of them."""
        tasks = job.tasks
        count = len(tasks)
        if not count or count < job.min_available or job.checks_roles or len(held) not in (0, count):
            return None
        first = next(iter(tasks.values()))
        cls, status = first.cls, first.status
        gated = status is PENDING and len(job.pending) < count
        if gated or job.counts[status] < count or len(job.classes) > 1:
            return None
        if self._demands.of(cls).shared:
            return None
        if held and status not in _GOING:
            charge = next(iter(held.values()))
            return _Member(_ALLOCATED, first, charge, count) if len(set(map(id, held.values()))) == 1 else None
        return _Member(_PENDING, first, self._demands.of(cls).counted, count) if status is PENDING else None

    def request_of(self, job: Job) -> CardAmounts:
        """The job's `card.request`; invalid when malformed, or when a key mixes cards of different resources."""
        request = parsed(parse_card_request, job.annotations.get(CARD_REQUEST))
        for key in request.cards:
            sets = [self._inventory.resources_of(card) for card in alternatives_of(key)]
            if len(sets) > 1 and all(sets) and not frozenset.intersection(*sets):
                return CardAmounts({}, mixed_resources(key, frozenset.union(*sets)))
        return request

    def names_in(self, job: Job) -> set[str]:
        names = set(job.min_resources or ())
        for key in self.request_of(job).cards:
            names.update(alternatives_of(key))
        for cls in job.classes:
            names.update(self._demands.of(cls).names, cls.requests, cls.limits)
        return names

    def _members(self, job: Job, held: Mapping[str, Charge]) -> list[_Member]:
        demands = self._demands
        members = []
        for uid, task in job.tasks.items():
            charge = held.get(uid)
            if charge is not None:
                members.append(_Member(_LEAVING if task.status in _GOING else _ALLOCATED, task, charge))
            elif task.status is PENDING:
                members.append(_Member(_PENDING, task, self._shared.demand(task).counted, 1, self._shared.unpaid(task)))
            elif task.status not in COMPLETED_STATUSES:
                members.append(_Member(_LEAVING, task, demands.placed(task, task.node)))
        return members

    def _error(self, member: _Member) -> str:
        return self._shared.demand(member.task).error

    def _not_created_yet(self, request: Mapping[str, int], tasks: Iterable[Task]) -> ChargeSum:
        """The part of the annotation beyond the existing pods, so that reservations do not dip while pods are created.

        Keys are compared with the claims of the pods, with and without the alternatives that no node offers. Finished
        pods exist as well: their cards are not reserved again.
        """
        requested: dict[tuple[str, str], int] = {}
        counted: set[str] = set()
        for task in tasks if request else ():
            demand = self._demands.of(task.cls)
            own = "|".join(demand.names), demand.claim.card
            amounts = [(own, demand.amount), *(((card, card), amount) for card, amount in demand.claim.others)]
            for key, parts in demand.shared:
                if key in counted:
                    amounts += [((card, card) if card else own, -amount) for card, amount in parts]
                counted.add(key)
            for keys, amount in amounts:
                requested[keys] = requested.get(keys, 0) + amount
        short = ChargeSum()
        for key, amount in request.items():
            created = sum(value for keys, value in requested.items() if any(same_set(key, other) for other in keys))
            short.put(key, max(0, amount - created))
        return short

    def _apply_min_resources(
        self, job: Job, request: Mapping[str, int], members: Iterable[_Member], want: ChargeSum, need: ChargeSum
    ) -> None:
        """Set cpu and memory of a job: `minResources`, or else those of the pods of its minimum."""
        minimum = None if self._ignores_min_resources(job, request, members) else job.min_resources
        for key, name in PLAIN.items():
            if minimum is not None:
                need.put(key, minimum.get(name, 0))
            want.put(key, need[key])

    def _ignores_min_resources(self, job: Job, request: Mapping[str, int], members: Iterable[_Member]) -> bool:
        """Whether cpu and memory come from the pods alone: no `minResources`, or cards exempt the job from it."""
        minimum = job.min_resources
        if minimum is None:
            return True
        if not self._arguments.card_unlimited_cpu_memory:
            return False
        return (
            any(request.values())
            or any(amount > 0 and self._inventory.is_card_resource(name) for name, amount in minimum.items())
            or any(member.charge.amount for member in members)
        )


def minimum_set(job: Job, members: Sequence[_Member]) -> Sequence[_Member]:
    """The pods of the minimum: per role up to `minTaskMember`, then up to `minMember`.

    Per-role minimums whose sum exceeds `minMember` do not apply: a vcjob of 8 pods that starts with one has
    `minMember: 1` beside `minTaskMember: 8`, and 7 elastic pods. Fewer pods than the minimum: all of them.
    O(pods); pods are sorted only when their order matters.
    """
    if len(members) == 1:
        size = min(members[0].size, job.min_available)
        return [members[0]._replace(size=size)] if size > 0 else []
    if len(members) <= job.min_available:
        return members
    matters = job.checks_roles or len({member.charge for member in members}) > 1
    ordered = sorted(members, key=_Member.order if matters else attrgetter("rank"))
    left = dict(job.min_task_member) if job.checks_roles else {}
    chosen, others = [], []
    for member in ordered:
        if left.get(member.task.role, 0) > 0:
            left[member.task.role] -= 1
            chosen.append(member)
        else:
            others.append(member)
    return chosen + others[: max(0, job.min_available - len(chosen))]


def _total(members: Iterable[_Member], rank: int | None = None) -> ChargeSum:
    """The charges of some pods; of one rank only if it is given. A claim that several of them share counts once."""
    total = ChargeSum()
    counted: set[str] = set()
    for member in members:
        if rank is None or member.rank == rank:
            total.add(member.charge.amounts, member.size)
            card, included = member.charge.card, dict(member.charge.cards)
            for key, parts in member.shared:
                if key in counted:
                    total.add([(one or card, amount) for one, amount in parts if (one or card) in included], -1)
                counted.add(key)
    return total
