"""The capacity-card plugin: hooks over the accounts of jobs and queues.

Sums by queue and bounds on further pods come from `framework/quota`. Inputs: `cards` (of nodes and pods), `minimum`
(request of a job), `quota` (limits and accounts of a queue). Usage: `charge`, `ledger`. Hooks: `enqueue` with
`multi_card_admission`, `selection`, `reclaim`. Output: `refusals`, `metrics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from capcard_sched.framework.api.node_hooks import NODE_SPEC, filter, score
from capcard_sched.framework.api.plugin import Grant, Placement, Plugin, Protection
from capcard_sched.model.annotations import CARD_ASSIGNED
from capcard_sched.model.explanation import JobCards, PodCards
from capcard_sched.model.refusal import ExceededLimit
from capcard_sched.model.status import Vote
from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
from capcard_sched.plugins.capacity_card.cards import CardDemands, CardInventory
from capcard_sched.plugins.capacity_card.enqueue import EnqueueCheck
from capcard_sched.plugins.capacity_card.ledger import Ledger
from capcard_sched.plugins.capacity_card.metrics import EvictionMetrics, publish_card_usage, samples
from capcard_sched.plugins.capacity_card.minimum import Minimum
from capcard_sched.plugins.capacity_card.reclaim import CardReclaim
from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals, ValidationWarnings, figures_of, without_event
from capcard_sched.plugins.capacity_card.selection import AllocatableCheck, CardChoice, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.api.plugin import Sample, VictimDecision
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.model.task_class import TaskClass


class CapacityCard(Plugin):
    """Limits queues and subtrees by card model at enqueue, allocate and preempt, and reclaims cards from training jobs.

    Delegates each hook to the part that implements the rule.
    """

    name = "capacity-card"
    Arguments = CapacityCardArguments

    arguments: CapacityCardArguments

    def setup(self) -> None:
        chosen = self.arguments
        self._queues: Mapping[str, Queue] = {}
        #: The refusals of the session and of earlier ones that still hold.
        self._refusal_of: Callable[[Task, str], Refusal | None] = lambda *_: None
        #: The number of sessions in which cards got other resource names.
        self._renames = 0
        self.inventory = CardInventory()
        self.demands = CardDemands(chosen, self.inventory)
        self.minimum = Minimum(chosen, self.inventory, self.demands)
        self.ledger = Ledger(chosen, self.inventory, self.demands, self.minimum)
        self.refusals = QuotaRefusals(self.name)
        self.evictions = EvictionMetrics()
        self.warnings = ValidationWarnings(self.inventory, self.demands, self.minimum, self.ledger)
        self.selection = Selection(self.name, chosen, self.inventory, self.demands, self.ledger)
        self._enqueue = EnqueueCheck(chosen, self.ledger, self.refusals)
        self._allocatable = AllocatableCheck(self.ledger, self.demands, self.selection, self.refusals)
        self._reclaim = CardReclaim(chosen, self.demands, self.ledger, self.selection)

    def open(self, session: Session) -> None:
        self._queues, self._refusal_of = session.queues, session.refusal_of
        renamed = self.inventory.refresh(session, self.ledger.held_cards())
        self._renames += bool(renamed)
        # A change of everything includes a new accounting of shared devices.
        if renamed or session.changed.everything or self.demands.over_capacity:
            self.demands.forget()
            self.minimum.forget()
        queues, jobs = self.ledger.refresh(session, renamed)
        self.warnings.report(session, queues, jobs)

    def close(self, session: Session) -> None:
        self.evictions.count(session, self.ledger)
        if self.arguments.publish_card_usage:
            publish_card_usage(session, self.ledger)

    def metrics(self) -> Iterator[Sample]:
        return samples(self.ledger, self.inventory, self.refusals, self.warnings, self.evictions)

    def job_cards(self, job: Job) -> JobCards | None:
        account = self.ledger.jobs.get(job.key)
        if account is None:
            return None
        self.ledger.recompute()
        return JobCards(account.allocated.cards, account.inqueue.cards)

    def pod_cards(self, cls: TaskClass) -> PodCards | None:
        demand = self.demands.of(cls)
        return PodCards(demand.names, demand.alternatives, demand.amount, demand.error)

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        return self._enqueue.refusal(self._queues.get(job.queue), job) or Vote.PERMIT

    def admission_version(self, job: Job) -> tuple[object, ...] | None:
        version = self._enqueue.version(self._queues.get(job.queue), job)
        return None if version is None else (self._renames, *version)

    def job_enqueued(self, job: Job) -> None:
        self.ledger.admit(job)

    def exceeded_limit(self, job: Job) -> ExceededLimit | None:
        account = self.ledger.jobs.get(job.key)
        found = None if account is None else self.ledger.impossible(account)
        return None if found is None else ExceededLimit(figures_of(found), found.queue)

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        return self._allocatable.refusal("allocatable", queue, task)

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        return self._allocatable.grant("allocatable", queue, tasks)

    def allocation_version(self, queue: Queue) -> tuple[object, ...]:
        return self._renames, *self._allocatable.version(queue)

    def preemptive(self, queue: Queue, task: Task) -> Refusal | None:
        found = self._allocatable.refusal("preemptive", queue, task)
        if found is None or found.also:  # only this hook's second event names the verb
            return found
        reported = self._refusal_of(task, "allocatable")
        return without_event(found) if reported is not None and reported.message == found.message else found

    def queue_order(self, queue: Queue) -> tuple[int, float]:
        """Higher `spec.priority` first, then the lower share; equal keys leave the order to the next plugin."""
        account = self.ledger.queues.get(queue.name)
        return -queue.priority, account.share if account is not None else 0.0

    def may_reclaim(self, job: Job) -> bool | None:
        return self._reclaim.may_reclaim(job)

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        return self._reclaim.victims(task, candidates)

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[str, ...]:
        """The ancestors, below which evictions free quota; a preemptor's books are its `allocation_version`."""
        return self._reclaim.version(queue.name)

    def protects(self, hook: str, job: Job, priority: int) -> Protection:
        return self._reclaim.protects(job) if hook == "reclaimable" else Protection.NONE

    def evict_scope(self, job: Job) -> Literal["member"] | None:
        return self._reclaim.evict_scope(job)

    def alternatives(self, profile: PodSignature) -> Rows | None:
        return self.selection.positions(profile)

    def signature(self, queue: Queue, task: Task) -> CardChoice | None:
        selection = self.selection
        return selection.of_task(task) if selection.per_job else selection.of_queue(queue.name, task.cls)

    @filter(reads=NODE_SPEC)
    def filter_by_card(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        self.selection.filter_offer(profile, rows, verdict)
        # Static too: the open alternatives are part of the pod signature, so a change of quota is another signature.
        self.selection.filter_quota(profile, rows, verdict)

    @score(reads=NODE_SPEC)
    def score_cards(self, profile: PodSignature, rows: NodeView) -> Scores | None:
        return self.selection.scores(profile, rows)

    def on_allocate(self, placement: Placement) -> None:
        self.ledger.charge(placement)

    def on_deallocate(self, placement: Placement) -> None:
        self.ledger.discharge(placement)

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]] | None:
        """The alternative a pod is bound with: the charge survives restarts."""
        if len(self.demands.of(placement.cls).names) < 2:
            return None
        charges = ((task.uid, self.ledger.charge_of(task)) for task in placement.tasks)
        return {uid: {CARD_ASSIGNED: charge.card} for uid, charge in charges if charge is not None and charge.card}
