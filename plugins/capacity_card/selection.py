"""The alternative a multi-card pod gets on each node, and the node filter and scores that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.model.job import Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.accounts import JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.demand import CardDemand, CardDemands
    from capcard_sched.plugins.capacity_card.inventory import CardInventory
    from capcard_sched.plugins.capacity_card.ledger import Ledger


class CardChoice(NamedTuple):
    """The open alternatives of a multi-card pod: part of its signature.

    Pods of different queues with all alternatives open share one signature.
    """

    alternatives: tuple[str, ...]
    #: Those with free quota for one more pod.
    usable: tuple[str, ...]
    #: For each alternative the queue whose quota closes it, `<q>` or `<llm> (ancestor of <q>)`; () when none is closed.
    closing: tuple[str, ...] = ()
    #: The card of the job's other pods, under `multiCardJobMode: single`.
    fixed: str = ""


class Selection:
    """Choices of alternatives, and the node filter and scores that follow from them."""

    def __init__(
        self,
        plugin: str,
        arguments: CapacityCardArguments,
        inventory: CardInventory,
        demands: CardDemands,
        ledger: Ledger,
    ) -> None:
        self._plugin = plugin
        self._inventory = inventory
        self._demands = demands
        self._ledger = ledger
        self._filter_single = arguments.card_node_filter
        self._weight = arguments.node_order_weight
        #: Whether a choice depends on the job and not on the queue alone.
        self.per_job = arguments.multi_card_job_mode == "single"

    # --- choices ----------------------------------------------------------------------------------------------------

    def of_queue(self, queue: str, cls: TaskClass) -> CardChoice | None:
        """The choice of a class in a queue; None when there is nothing to choose."""
        demand = self._demands.of(cls)
        account = self._ledger.queues.get(queue)
        return self._choice(account, demand) if demand.several and account is not None else None

    def of_task(self, task: Task, *, own: bool = False) -> CardChoice | None:
        """The choice of one pod, given the cards of its job (`multiCardJobMode: single`)."""
        demand = self._demands.of(task.cls)
        if not demand.several or task.job is None:
            return None
        queue = self._ledger.queues.get(task.job.queue)
        if queue is None:
            return None
        account = self._ledger.jobs.get(task.job.key)
        fixed = self._ledger.fixed_card(account, demand)
        if fixed:
            usable = (fixed,) if self._ledger.free(queue, fixed, own=own) >= demand.amount else ()
            return CardChoice(demand.alternatives, usable, self._closing(queue, demand), fixed)
        choice = self._choice(queue, demand, own=own)
        whole = self._missing(account, demand)
        enough = tuple(card for card in choice.usable if self._ledger.free(queue, card, own=own) >= whole)
        if enough and enough != choice.usable:
            return CardChoice(demand.alternatives, enough, self._closing(queue, demand))
        return choice

    def open_to(self, queue: QueueAccount, demand: CardDemand, task: Task, *, own: bool = False) -> CardChoice:
        """The choice of a pod for the quota check; `own`: without the quotas of ancestors."""
        return (self.of_task(task, own=own) if self.per_job else None) or self._choice(queue, demand, own=own)

    def alternative_index(self, choice: CardChoice) -> Rows:
        """Index of the alternative a pod would get on each node, -1 where none is usable: intp [nodes]."""
        return self._inventory.alternative_index(choice.alternatives, choice.usable)

    def positions(self, profile: PodSignature) -> Rows | None:
        """Index of the first alternative each node offers, whatever its free quota: intp [nodes]."""
        demand = self._demands.of(profile.cls)
        return self._inventory.alternative_index(demand.alternatives, demand.alternatives) if demand.several else None

    def of_signature(self, profile: PodSignature) -> CardChoice | None:
        """The choice in a signature; None when there is nothing to choose."""
        choice: CardChoice | None = profile.context(self._plugin)
        if choice is None:
            demand = self._demands.of(profile.cls)
            if demand.several:  # context hooks are disabled: the node alone decides
                return CardChoice(demand.alternatives, demand.alternatives)
        return choice

    def _choice(self, queue: QueueAccount, demand: CardDemand, *, own: bool = False) -> CardChoice:
        alternatives, amount, free = demand.alternatives, demand.amount, self._ledger.free
        usable = tuple([card for card in alternatives if not amount or free(queue, card, own=own) >= amount])
        return CardChoice(alternatives, usable, () if usable == alternatives else self._closing(queue, demand))

    def _closing(self, queue: QueueAccount, demand: CardDemand) -> tuple[str, ...]:
        """For each alternative the queue that has no free quota for it: an ancestor, else the pod's own queue."""
        closing = []
        for card in demand.alternatives:
            own = self._ledger.free(queue, card, own=True) < demand.amount
            full = None if own else self._ledger.full_ancestor(queue, card, demand.amount)
            closing.append(f"<{full.name}> (ancestor of <{queue.name}>)" if full is not None else f"<{queue.name}>")
        return tuple(closing)

    def _missing(self, account: JobAccount | None, demand: CardDemand) -> int:
        """The part of the claim the job still needs for its minimum: the card it fixes should cover all of it."""
        if account is None or account.job.min_available <= 1:
            return demand.amount
        self._ledger.recompute()
        quantities = account.quantities
        return quantities.need[demand.claim.card] if quantities is not None else demand.amount

    def scores(self, profile: PodSignature, rows: NodeView) -> Scores | None:
        """100, 50, 25, ... times `nodeOrderWeight` for the 1st, 2nd, 3rd alternative of the pod; 0 without any.

        float64 [k], or None for pods that have no alternatives. A preference: other plugins' scores are added.
        """
        choice = self.of_signature(profile)
        if choice is None:
            return None
        positions = self._demands.of(profile.cls).positions
        # index -1 (no usable alternative) picks the last entry
        by_alternative = np.array([100 * 0.5**position * self._weight for position in positions] + [0.0])
        found: Scores = by_alternative[rows.take(self.alternative_index(choice))]
        return found

    # --- the node filter --------------------------------------------------------------------------------------------

    def filter_offer(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        """Reject nodes that offer none of the pod's cards. Unresolvable: preemption does not help."""
        demand = self._demands.of(profile.cls)
        if not demand.alternatives:
            return
        if demand.several:
            missing = rows.take(self._inventory.alternative_index(demand.alternatives, demand.alternatives)) < 0
        elif self._filter_single:
            missing = ~rows.take(self._inventory.offers(demand.alternatives[0]))
        else:
            return
        verdict.reject(missing, Code.UNRESOLVABLE, f"node(s) didn't have card <{demand.claim.card}>")

    def filter_quota(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        """Reject nodes all of whose alternatives are closed to the queue (or, in single mode, to the job)."""
        choice: CardChoice | None = profile.context(self._plugin)
        if choice is None or choice.usable == choice.alternatives:
            return
        closed = rows.take(self.alternative_index(choice)) < 0
        first = rows.take(self._inventory.alternative_index(choice.alternatives, choice.alternatives))
        for index, card in enumerate(choice.alternatives):
            if choice.fixed and card != choice.fixed:
                reason = f"node(s) had card <{card}>, but pods of this job use card <{choice.fixed}>"
            else:
                reason = f"node(s) had card <{card}> without quota left in queue {choice.closing[index]}"
            verdict.reject(closed & (first == index), Code.UNSCHEDULABLE, reason)
