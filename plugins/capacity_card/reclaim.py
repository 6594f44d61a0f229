"""Tidal reclaim of cards across queues, by service type.

Inference reclaims from training. Training reclaims nothing; inference and unknown pods are never victims. The
protection holds in every tier, whatever the tier of the plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from capcard_sched.framework.api.plugin import Protection, VictimDecision
from capcard_sched.model.annotations import SERVICE_TYPE
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.charge import alternatives_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.accounts import CardAccounts
    from capcard_sched.plugins.capacity_card.arguments import ServiceType
    from capcard_sched.plugins.capacity_card.charge import Charge
    from capcard_sched.plugins.capacity_card.selection import CardSelection

#: Why a pod is no victim, as shown to users.
WRONG_TYPE: Final = "service-type"
QUOTA: Final = "quota"
TOO_HIGH: Final = "priority"
NO_USE: Final = "no-use"


class _Wanted(NamedTuple):
    """The resources of a victim that a reclaimer can use."""

    #: Accepted cards whose quota covers the reclaimer, each with the nearest ancestor of its queue without free quota,
    #: "" for none: only pods below that free it. Empty for a reclaimer without cards.
    cards: Mapping[str, str]
    #: The requested ones of cpu and memory, for a reclaimer without cards.
    plain: tuple[str, ...]


class CardReclaim:
    """Selects victims of cross-queue reclaim. Stateless: every result follows from the ledger."""

    def __init__(self, accounts: CardAccounts, selection: CardSelection) -> None:
        self._arguments, self._demands, self._ledger = accounts.arguments, accounts.demands, accounts.ledger
        self._selection, self._shared = selection, accounts.shared

    def may_reclaim(self, job: Job) -> bool | None:
        """Whether a job may reclaim for every pending pod; None: only while it is below its minimum.

        A scaled-up service is never below its minimum after its first replica: the rule of plugin gang alone would
        leave the others pending.
        """
        unknown = False
        for task in job.pending.values():
            service = self._type(job, task)
            if service == "inference":
                return True if self._arguments.reclaim_elastic else None
            unknown = unknown or service == "unknown"
            if job.annotations.get(SERVICE_TYPE):
                break  # valid or not, it covers all pods of the job
        return None if unknown and not self._arguments.strict_service_type else False

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        """The victims among `candidates`, in the order given, and why the others are protected. O(candidates).

        Unanimous: every other plugin with an enabled `reclaimable` protects too. With gang among them no gang is
        broken, whatever its tier.
        """
        mine = self._type(task.job, task)
        takes = mine == "inference" or (mine == "unknown" and not self._arguments.strict_service_type)
        want = self._wanted(task)
        below = task.priority if self._arguments.reclaim_requires_higher_priority else None
        victims: list[Task] = []
        protected: dict[str, str] = {}
        job: Job | None = None
        cls: TaskClass | None = None
        charges: Mapping[str, Charge] = {}
        held: Charge | None = None
        cause = ""
        for candidate in candidates:
            uid = candidate.uid
            if candidate.job is not job:
                job, cls = candidate.job, None
                charges = self._ledger.charges_of(job)
            charge = charges.get(uid)
            if candidate.cls is not cls or charge is not held:  # else the cause of the candidate before
                cls, held = candidate.cls, charge
                trains = takes and self._type(job, candidate) == "training"
                cause = self._useless(want, candidate, charge) if trains else WRONG_TYPE
            if below is not None and candidate.priority >= below and cause != WRONG_TYPE:
                protected[uid] = TOO_HIGH
            elif cause:
                protected[uid] = cause
            else:
                victims.append(candidate)
        return VictimDecision(protected, victims, unanimous=True)

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[str, ...]:
        """The ancestors, below which evictions free quota; a preemptor's books are its `allocation_version`."""
        return self._above(queue.name)

    def protects(self, hook: str, job: Job, priority: int) -> Protection:
        """Protects jobs without training pods from reclaim."""
        return Protection.NONE if hook != "reclaimable" or self._trains(job) else Protection.ALWAYS

    def evict_scope(self, job: Job) -> Literal["member"] | None:
        """`member` for training under `gangEviction: policy`: the job's own policy applies to the rest; else None."""
        return "member" if self._arguments.gang_eviction == "policy" and self._trains(job) else None

    def _above(self, queue: str) -> tuple[str, ...]:
        """The names of the ancestors of a queue, nearest first."""
        account = self._ledger.queues.get(queue)
        return () if account is None else tuple([one.name for one in account.ancestors])

    def _trains(self, job: Job) -> bool:
        return any(self._type(job, task) == "training" for task in job.tasks.values())

    def _type(self, job: Job | None, task: Task) -> ServiceType:
        return "unknown" if job is None else self._arguments.service_type(job, task.cls)

    def _wanted(self, reclaimer: Task) -> _Wanted:
        demand = self._shared.demand(reclaimer)
        job = reclaimer.job
        queue = self._ledger.queues.get(job.queue) if job is not None else None
        if demand.error or queue is None:
            return _Wanted({}, ())
        if not demand.claim.cards:
            requests = reclaimer.cls.requests
            return _Wanted({}, tuple(name for name in (CPU, MEMORY) if requests.get(name, 0) > 0))
        cards = demand.alternatives
        if demand.several:
            cards = self._selection.choice(queue, demand, reclaimer, own=True).usable
        cards = *cards, *[card for card, _ in demand.claim.others]
        if not queue.limiting:
            return _Wanted(dict.fromkeys(cards, ""), ())
        above = {
            card: [
                bound
                for bound in self._ledger.bounds(queue, card, demand.least(card))
                if bound.fitting < 1 and bound.queue != queue.name
            ]
            for card in cards
        }
        found = {card: full[0].queue if full else "" for card, full in above.items()}
        for bound in [bound for full in above.values() for bound in full]:
            for card in alternatives_of(bound.resource):  # of a full group: each of its cards frees quota
                found.setdefault(card, bound.queue)
        return _Wanted(found, ())

    def _useless(self, want: _Wanted, candidate: Task, charge: Charge | None) -> str:
        """Why the eviction of the candidate does not help: it must free a card that the reclaimer can use, with quota.

        "" when it helps. For a reclaimer without cards the candidate must request the same resources. `charge`: that of
        the candidate, None when it holds nothing.

        A pod with a card resource but without a card name is charged for no card, so its eviction frees none. A pod
        that shares a claim helps, whichever of its pods is charged: together they free its devices.
        """
        if charge is None or not charge.complete:
            return NO_USE
        shared = self._demands.of(candidate.cls).shared_ranges if candidate.cls.claims else {}
        if charge.amount or charge.others or shared:
            if charge.others or shared:
                held = {card for card, _ in charge.cards}.union(*shared.values())
                fulls = [full for card, full in want.cards.items() if card in held]
            else:
                fulls = [want.cards[charge.card]] if charge.card in want.cards else []
            if not fulls:
                return NO_USE
            if not all(fulls):
                return ""
            assert candidate.job is not None
            above = self._above(candidate.job.queue)
            return "" if any(full in above for full in fulls) else QUOTA
        if not want.plain or self._demands.of(candidate.cls).unnamed:
            return NO_USE
        requests = candidate.cls.requests
        return "" if any(requests.get(name, 0) > 0 for name in want.plain) else NO_USE
