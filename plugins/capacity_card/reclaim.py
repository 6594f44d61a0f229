"""Who may take cards from other queues, and from whom: the tide (tidal reference §6, §7.1, §8; seed 003).

Inference takes, training is taken. Training takes from nobody, inference from no inference, and what is neither is
never taken. The rules hold in whatever tier the plugin stands: whoever they protect is protected for all (W-10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from capcard_sched.framework.api.plugin import VictimDecision
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.service_type import says_service_type, service_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.job import Job, Task
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.charge import CardDemands
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.selection import Selection
    from capcard_sched.plugins.capacity_card.service_type import ServiceType

#: Why a pod is not taken, as people are told (tidal reference §6: V7, V9, V10).
WRONG_TYPE: Final = "service-type"
TOO_HIGH: Final = "priority"
NO_USE: Final = "no-use"


class _Want(NamedTuple):
    """What a reclaimer could use of a victim."""

    #: Cards it accepts whose quota has room for it; for one without cards, none.
    cards: frozenset[str]
    #: Of cpu and memory, what it asks for, when it asks for no card.
    plain: tuple[str, ...]


class CardReclaim:
    """The rules of taking. Holds nothing: every answer follows from the books as they stand."""

    def __init__(
        self, arguments: CapacityCardArguments, demands: CardDemands, ledger: Ledger, selection: Selection
    ) -> None:
        self._arguments = arguments
        self._demands = demands
        self._ledger = ledger
        self._selection = selection
        self._by_owner_kind: Mapping[str, ServiceType] = dict(arguments.pod_owner_reference_to_service_type)

    def may_reclaim(self, job: Job) -> bool | None:
        """Whether a job may take for every pod that waits; None while it is below its minimum only (R20, R31).

        A scaled-up service is never below its minimum after its first replica: the gang's rule alone would leave the
        others waiting (tidal reference §7.1).
        """
        unknown = False
        for task in job.pending.values():
            service = self._type(job, task)
            if service == "inference":
                return True if self._arguments.reclaim_elastic else None
            unknown = unknown or service == "unknown"
            if says_service_type(job):
                break  # it speaks for all of its pods
        return None if unknown and not self._arguments.strict_service_type else False

    def judge(self, reclaimer: Task, candidates: Sequence[Task]) -> VictimDecision:
        """Whom a pod may take, in the order given, and why not the others. O(candidates).

        Unanimous: who is asked for a vote besides, by a switch that was left on, protects too. With gang among them no
        gang is broken, whatever its tier (tidal reference §4, vectors 41 and 42).
        """
        mine = self._type(reclaimer.job, reclaimer)
        takes = mine == "inference" or (mine == "unknown" and not self._arguments.strict_service_type)
        want = self._want(reclaimer)
        below = reclaimer.priority if self._arguments.reclaim_requires_higher_priority else None
        victims: list[Task] = []
        protected: dict[str, str] = {}
        job: Job | None = None
        kind, trains = "", False
        for candidate in candidates:
            if candidate.job is not job or candidate.cls.owner_kind != kind:  # else it is as the one before
                job, kind = candidate.job, candidate.cls.owner_kind
                trains = takes and self._type(job, candidate) == "training"
            if not trains:
                protected[candidate.uid] = WRONG_TYPE
            elif below is not None and candidate.priority >= below:
                protected[candidate.uid] = TOO_HIGH
            elif not self._helps(want, candidate):
                protected[candidate.uid] = NO_USE
            else:
                victims.append(candidate)
        return VictimDecision(protected, victims, unanimous=True)

    def evict_scope(self, job: Job) -> Literal["member"] | None:
        """`member` for training under `gangEviction: policy`: the job's own policy ends the rest; else no opinion."""
        if self._arguments.gang_eviction == "whole":
            return None
        return "member" if any(self._type(job, task) == "training" for task in job.tasks.values()) else None

    def _type(self, job: Job | None, task: Task) -> ServiceType:
        return "unknown" if job is None else service_type(job, task.cls, self._by_owner_kind)

    def _want(self, reclaimer: Task) -> _Want:
        demand = self._demands.of(reclaimer.cls)
        job = reclaimer.job
        queue = self._ledger.queues.get(job.queue) if job is not None else None
        if demand.error or queue is None:
            return _Want(frozenset(), ())
        if not demand.amount:
            requests = reclaimer.cls.requests
            return _Want(frozenset(), tuple(name for name in (CPU, MEMORY) if requests.get(name, 0) > 0))
        if demand.several:
            return _Want(frozenset(self._selection.open_to(queue, demand, reclaimer).usable), ())
        return _Want(frozenset(demand.alternatives), ())

    def _helps(self, want: _Want, candidate: Task) -> bool:
        """Whether the candidate holds a card the reclaimer can use, or, for one without cards, shares with it (R30).

        A pod that holds a card resource without naming a card is charged for none: nobody can say what it would free.
        """
        charge = self._ledger.charge_of(candidate)
        if charge is None or not charge.complete:
            return False
        if charge.amount:
            return charge.card in want.cards
        if not want.plain or self._demands.of(candidate.cls).unnamed:
            return False
        requests = candidate.cls.requests
        return any(requests.get(name, 0) > 0 for name in want.plain)
