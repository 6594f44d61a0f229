"""Allocation of pods: the cards with free quota, and the nodes that offer them.

Reservations and elastic amounts do not count here. Pods that are being released hold their quota until they are gone;
only nominations are checked without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.api.plugin import Grant
from capcard_sched.framework.quota.limits import QuotaBound, shortage_at, tightest
from capcard_sched.model.refusal import Code, Figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.cards import CardDemand, CardDemands, CardInventory
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.quota import JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals, RefusingHook


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
        """For each alternative the queue that has no free quota for it: the pod's own, else the nearest ancestor."""
        fulls = [next(iter(self._ledger.full(queue, card, demand.amount)), queue.name) for card in demand.alternatives]
        return tuple([f"<{one}>" if one == queue.name else f"<{one}> (ancestor of <{queue.name}>)" for one in fulls])

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


class AllocatableCheck:
    """Checks pods against the quota of their queue. One alternative must cover the whole request of a pod."""

    def __init__(self, ledger: Ledger, demands: CardDemands, selection: Selection, refusals: QuotaRefusals) -> None:
        self._ledger = ledger
        self._demands = demands
        self._selection = selection
        self._refusals = refusals

    def refusal(self, hook: RefusingHook, queue: Queue, task: Task) -> Refusal | None:
        return self.grant(hook, queue, [task]).refusal

    def version(self, queue: Queue) -> tuple[object, ...]:
        """The content of the queue and its ancestors that `grant` reads: equal versions give equal results."""
        account = self._ledger.queues.get(queue.name)
        if account is None:
            return (queue.is_open,)
        limits, held = frozenset(account.quota.limits.items()), frozenset(account.own.allocated.items())
        above = [
            (
                one.name,
                one.quota.limits_subtree,
                frozenset({**one.quota.cards, **one.quota.shares}.items()),
                frozenset(one.subtree.allocated.cards.items()),
            )
            for one in account.limiting
        ]
        return queue.is_open, limits, held, *above

    def grant(self, hook: RefusingHook, queue: Queue, tasks: Sequence[Task]) -> Grant:
        """How many tasks of one class fit one after the other. O(alternatives x ancestors with a quota).

        `preemptive` checks the queue's own limits: evictions below a full ancestor free its quota, which `allocatable`
        checks then.
        """
        account = self._ledger.queues.get(queue.name)
        if account is None:
            return Grant(0, self._refusals.unknown_queue(hook, queue.name))
        if not queue.is_open:
            return Grant(0, self._refusals.not_open(hook, queue, task=tasks[0].name))
        task = tasks[0]
        demand = self._demands.of(task.cls)
        if demand.error:
            return Grant(0, self._refusals.no_charge(hook, queue.name, demand.error))
        wanted, own, ledger = len(tasks), hook == "preemptive", self._ledger
        several = demand.several and demand.amount > 0
        bounds = [
            bound
            for key, amount in (demand.claim.amounts[:-1] if several else demand.claim.amounts)
            if ledger.free(account, key, own=own) < amount * wanted
            for bound in ledger.bounds(account, key, amount, own=own)
        ]
        options, indexes = demand.alternatives, None
        limits: tuple[int, ...] = ()
        if several:
            choice = self._selection.open_to(account, demand, task, own=own)
            indexes, limits = self._selection.alternative_index(choice), self._limits(account, demand, choice, own=own)
            if not self._selection.per_job:
                fitting = sum(limits)
            else:
                # One card for all pods of the job. Until the first pod fixes it, every alternative takes one pod only.
                fitting = max(limits)
                if choice.fixed:
                    options = (choice.fixed,)
                else:
                    limits = tuple([min(limit, 1) for limit in limits])
            bounds.append(QuotaBound(fitting, demand.claim.card, demand.amount, queue.name, 0, 0))
        count, reached = tightest(bounds, wanted)
        if not reached:
            return Grant(wanted, None, indexes, limits)
        found = shortage_at(reached, count)
        if demand.several and found.figures.resource == demand.claim.card:
            found = self._claim_shortage(account, demand, options, count)
        return Grant(count, self._refusals.shortage(hook, account, found), indexes, limits)

    def _limits(self, account: QueueAccount, demand: CardDemand, choice: CardChoice, *, own: bool) -> tuple[int, ...]:
        """How many more pods fit the quota of each alternative; 0 for a closed one."""
        free, amount, usable = self._ledger.free, demand.amount, choice.usable
        return tuple([free(account, card, own=own) // amount if card in usable else 0 for card in choice.alternatives])

    def _claim_shortage(
        self, account: QueueAccount, demand: CardDemand, alternatives: tuple[str, ...], ahead: int
    ) -> QuotaShortage:
        """The shortage of a pod that accepts several cards, after `ahead` pods of its class.

        It has the figures of the last alternative, but an ancestor's limit precedes the queue's own: evictions can free
        it. An alternative counts the pods that still fit it.
        """
        options = []
        for card in alternatives:
            bounds = self._ledger.bounds(account, card, demand.amount)
            fitting, reached = tightest(bounds, ahead + 1)
            options.append(shortage_at(reached or bounds, min(ahead, fitting)))
        last = next((option for option in reversed(options) if option.queue != account.name), options[-1])
        figures = Figures(demand.claim.card, demand.amount, last.figures.total, last.figures.limit)
        return last._replace(figures=figures, alternatives=tuple([option.figures for option in options]))
