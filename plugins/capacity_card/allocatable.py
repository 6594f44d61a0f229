"""The quota check of single pods: allocated + request <= quota, for one alternative.

Reservations and elastic amounts do not count here. Pods that are being released hold their quota until they are gone;
only nominations are checked without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Grant
from capcard_sched.model.reasons import INSUFFICIENT_CPU_QUOTA, INSUFFICIENT_MEMORY_QUOTA, INSUFFICIENT_SCALAR_QUOTA
from capcard_sched.model.refusal import Figures
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.feasibility import Shortage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.plugins.capacity_card.accounts import QueueAccount
    from capcard_sched.plugins.capacity_card.demand import CardDemand, CardDemands
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals, RefusingHook
    from capcard_sched.plugins.capacity_card.selection import CardChoice, Selection


class AllocatableCheck:
    """Checks pods against the quota of their queue. One alternative must cover the whole request of a pod."""

    def __init__(self, ledger: Ledger, demands: CardDemands, selection: Selection, refusals: QuotaRefusals) -> None:
        self._ledger = ledger
        self._demands = demands
        self._selection = selection
        self._refusals = refusals

    def refusal(self, hook: RefusingHook, queue: Queue, task: Task) -> Refusal | None:
        """The refusal of one pod, or None. `allocatable` and `preemptive` share this check."""
        return self.grant(hook, queue, [task]).refusal

    def version(self, queue: Queue) -> tuple[object, ...]:
        """The content of the queue and its ancestors that `grant` reads: equal versions give equal results."""
        account = self._ledger.queues.get(queue.name)
        if account is None:
            return (queue.is_open,)
        quota, held = account.quota, account.allocated
        cards = frozenset(quota.cards.items()), frozenset(quota.shares.items()), frozenset(held.cards.items())
        above = [
            (one.name, frozenset(one.quota.cards.items()), frozenset(one.subtree.allocated.cards.items()))
            for one in account.limiting
        ]
        return queue.is_open, *cards, quota.cpu.limit, quota.memory.limit, held.cpu, held.memory, *above

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
        wanted, own = len(tasks), hook == "preemptive"
        options = demand.alternatives
        if demand.several and demand.amount:
            choice = self._selection.open_to(account, demand, task, own=own)
            indexes, limits = self._selection.alternative_index(choice), self._limits(account, demand, choice, own=own)
            if not self._selection.per_job:
                count = min(wanted, sum(limits))
            else:
                # One card for all pods of the job. Until the first pod fixes it, every alternative takes one pod only.
                count = min(wanted, max(limits))
                if choice.fixed:
                    options = (choice.fixed,)
                else:
                    limits = tuple([min(limit, 1) for limit in limits])
        else:
            indexes, limits, count = None, (), wanted
            if demand.amount:
                count = min(wanted, self._ledger.free(account, demand.claim.card, own=own) // demand.amount)
        charge, quota, held = demand.claim, account.quota, self._ledger.held(account)
        for resource, amount in charge.shares:
            count = min(count, self._ledger.free(account, resource, own=own) // amount)
        if charge.cpu > 0:
            count = min(count, (quota.cpu.limit - held.cpu) // charge.cpu)
        if charge.memory > 0:
            count = min(count, (quota.memory.limit - held.memory) // charge.memory)
        if count >= wanted:
            return Grant(wanted, None, indexes, limits)
        count = max(count, 0)
        found = self._shortage(account, demand, options, count)
        return Grant(count, self._refusals.shortage(hook, account, found), indexes, limits)

    def _limits(self, account: QueueAccount, demand: CardDemand, choice: CardChoice, *, own: bool) -> tuple[int, ...]:
        """How many more pods fit the quota of each alternative; 0 for a closed one."""
        free, amount, usable = self._ledger.free, demand.amount, choice.usable
        return tuple([free(account, card, own=own) // amount if card in usable else 0 for card in choice.alternatives])

    def _shortage(
        self, account: QueueAccount, demand: CardDemand, alternatives: tuple[str, ...], ahead: int
    ) -> Shortage:
        """The dimension that refuses the pod after `ahead` pods of its class: cpu, memory, then the card.

        A claim names the last alternative, but an ancestor's limit before the queue's own: evictions can free it.
        """
        charge, quota, held = demand.claim, account.quota, self._ledger.held(account)
        total = held.cpu + charge.cpu * (ahead + 1)
        if charge.cpu > 0 and total > quota.cpu.limit:
            return Shortage(INSUFFICIENT_CPU_QUOTA, Figures(CPU, charge.cpu, total, quota.cpu.limit))
        total = held.memory + charge.memory * (ahead + 1)
        if charge.memory > 0 and total > quota.memory.limit:
            return Shortage(INSUFFICIENT_MEMORY_QUOTA, Figures(MEMORY, charge.memory, total, quota.memory.limit))
        for resource, amount in charge.shares:
            if self._ledger.free(account, resource) < amount * (ahead + 1):
                return self._card_shortage(account, resource, amount, ahead)
        if not demand.several:
            return self._card_shortage(account, charge.card, demand.amount, ahead)
        options = []
        for card in alternatives:  # each with the pods counted that still fit it
            fitting = min(ahead, max(0, self._ledger.free(account, card) // demand.amount))
            options.append(self._card_shortage(account, card, demand.amount, fitting))
        last = next((option for option in reversed(options) if option.ancestor), options[-1])
        figures = Figures(charge.card, demand.amount, last.figures.total, last.figures.limit)
        return last._replace(figures=figures, alternatives=tuple([option.figures for option in options]))

    def _card_shortage(self, account: QueueAccount, card: str, amount: int, ahead: int) -> Shortage:
        """The figures of the pod after `ahead` others on one card: of the queue, or of the nearest full ancestor."""
        full = None
        if self._ledger.free(account, card, own=True) >= amount * (ahead + 1):
            full = self._ledger.full_ancestor(account, card, amount * (ahead + 1))
        limiting = full or account
        held = self._ledger.held(limiting.subtree if full else account).cards.get(card, 0)
        figures = Figures(
            card, amount, held + amount * (ahead + 1), limiting.subtree_limit(card) if full else account.limit(card)
        )
        return Shortage(INSUFFICIENT_SCALAR_QUOTA, figures, ancestor=full.name if full else "")
