"""capacity-card: a quota per queue and card model; pods that accept several models.

One question per file, each the specification of its rules: `arguments`, `cards` (what the cluster has), `charge` (what
a pod takes), `minimum` (what a job needs), `quota` (what a queue may use), `ledger` and `accounts` (what it holds);
the hooks are in `enqueue` with `claims`, `allocatable`, `selection`, `scoring` and `order`; taking cards back from
training in `tide` with `service`; what is told in `events`, `notices`, `evictions`, `metrics` and `usage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Grant, Placement, Plugin
from capcard_sched.framework.session.session import reference
from capcard_sched.model.annotations import CARD_ASSIGNED
from capcard_sched.model.status import Vote
from capcard_sched.plugins.capacity_card import metrics
from capcard_sched.plugins.capacity_card.allocatable import AllocatableCheck
from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
from capcard_sched.plugins.capacity_card.cards import CardInventory
from capcard_sched.plugins.capacity_card.charge import CardDemands
from capcard_sched.plugins.capacity_card.enqueue import EnqueueCheck
from capcard_sched.plugins.capacity_card.eviction_metrics import EvictionMetrics
from capcard_sched.plugins.capacity_card.ledger import Ledger
from capcard_sched.plugins.capacity_card.minimum import Minimum
from capcard_sched.plugins.capacity_card.order import queue_key
from capcard_sched.plugins.capacity_card.published_usage import publish_card_usage
from capcard_sched.plugins.capacity_card.reclaim import CardReclaim
from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals, quietly
from capcard_sched.plugins.capacity_card.scoring import Scoring
from capcard_sched.plugins.capacity_card.selection import CardChoice, Selection
from capcard_sched.plugins.capacity_card.warnings import ValidationWarnings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Literal

    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.api.plugin import Sample, VictimDecision
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.model.task_class import TaskClass


class CapacityCard(Plugin):
    """Quotas per card model: who of a queue is admitted and placed, and who has to give cards back.

    Holds the parts together and passes hooks on to them; no rule stands here.
    """

    name = "capacity-card"
    Arguments = CapacityCardArguments

    arguments: CapacityCardArguments

    def __init__(self, arguments: CapacityCardArguments | None = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        chosen = self.arguments
        self._queues: Mapping[str, Queue] = {}
        #: The refusals of the session, as it records them.
        self._refused: Mapping[tuple[ObjectRef, str], Refusal] = {}
        self.inventory = CardInventory()
        self.demands = CardDemands(chosen, self.inventory)
        self.minimum = Minimum(chosen, self.inventory, self.demands)
        self.ledger = Ledger(chosen, self.inventory, self.demands, self.minimum)
        self.refusals = QuotaRefusals(self.name)
        self.evictions = EvictionMetrics()
        self.notices = ValidationWarnings(self.inventory, self.demands, self.minimum, self.ledger)
        self.selection = Selection(self.name, chosen, self.inventory, self.demands, self.ledger)
        self._enqueue = EnqueueCheck(chosen, self.ledger, self.refusals)
        self._allocatable = AllocatableCheck(self.ledger, self.demands, self.selection, self.refusals)
        self._tide = CardReclaim(chosen, self.demands, self.ledger, self.selection)
        self._scoring = Scoring(chosen.node_order_weight, self.selection, self.demands)
        if self.selection.per_job:
            # Only then: a plugin with `task_context` is asked about every pod, not once per class.
            self.task_context = self.selection.of_task

    # --- session ----------------------------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        self._queues, self._refused = session.queues, session.refusals
        renamed = self.inventory.refresh(session, self.ledger.held_cards())
        if renamed or self.demands.crowded:
            self.demands.forget()
        queues, jobs = self.ledger.refresh(session, renamed)
        self.notices.tell(session, queues, jobs)

    def close(self, session: Session) -> None:
        self.evictions.count(session, self.ledger)
        if self.arguments.publish_card_usage:
            publish_card_usage(session, self.ledger)

    def metrics(self) -> Iterator[Sample]:
        return metrics.samples(self.ledger, self.inventory, self.refusals, self.notices, self.evictions)

    # --- quotas -----------------------------------------------------------------------------------------------------

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        return self._enqueue.refusal(self._queues.get(job.queue), job) or Vote.PERMIT

    def admission_version(self, job: Job) -> tuple[object, ...] | None:
        return self._enqueue.token(self._queues.get(job.queue), job)

    def job_enqueued(self, job: Job) -> None:
        self.ledger.admit(job)

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        return self._allocatable.refusal("allocatable", queue, task)

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        return self._allocatable.allowance("allocatable", queue, tasks)

    def preemptive(self, queue: Queue, task: Task) -> Refusal | None:
        found = self._allocatable.refusal("preemptive", queue, task)
        if found is None or found.also:  # its second event says what only this hook denies
            return found
        told = self._refused.get((reference(task), "allocatable"))
        return quietly(found) if told is not None and told.message == found.message else found

    def queue_order(self, queue: Queue) -> tuple[int, float]:
        return queue_key(self.ledger, queue)

    # --- taking cards back ------------------------------------------------------------------------------------------

    def may_reclaim(self, job: Job) -> bool | None:
        return self._tide.may_reclaim(job)

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        return self._tide.judge(task, candidates)

    def evict_scope(self, job: Job) -> Literal["member"] | None:
        return self._tide.evict_scope(job)

    def alternatives(self, profile: PodSignature) -> Rows | None:
        return self.selection.positions(profile)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def class_context(self, queue: Queue, cls: TaskClass) -> CardChoice | None:
        return None if self.selection.per_job else self.selection.of_queue(queue.name, cls)

    def predicate_static(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        self.selection.filter_offer(profile, rows, verdict)
        # Static too: which alternatives are open is part of the profile, so a change of quota is another profile.
        self.selection.filter_quota(profile, rows, verdict)

    def node_order_static(self, profile: PodSignature, rows: NodeView) -> Scores | None:
        return self._scoring.scores(profile, rows)

    # --- events -----------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        self.ledger.charge(placement)

    def on_deallocate(self, placement: Placement) -> None:
        self.ledger.discharge(placement)

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]] | None:
        """Which of its alternatives a pod got, for whoever reads the pod later (R3)."""
        if len(self.demands.of(placement.cls).names) < 2:
            return None
        charges = ((task.uid, self.ledger.charge_of(task)) for task in placement.tasks)
        return {uid: {CARD_ASSIGNED: charge.card} for uid, charge in charges if charge is not None and charge.card}
