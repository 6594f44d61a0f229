"""The quota check of single pods: allocated + request <= quota, for one alternative.

Reservations and elastic amounts do not count here. Pods that are being released hold their quota until they are gone;
only nominations are checked without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Grant
from capcard_sched.framework.quota.limits import QuotaBound, shortage_at, tightest
from capcard_sched.model.refusal import Figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.quota.limits import QuotaShortage
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
        limits, held = frozenset(account.quota.limits.items()), frozenset(account.own.allocated.items())
        above = [
            (one.name, frozenset(one.quota.cards.items()), frozenset(one.subtree.allocated.cards.items()))
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
        wanted, own, nominating = len(tasks), hook == "preemptive", self._ledger.nominating
        bounds = [
            bound
            for key, amount in demand.claim.plain
            for bound in account.bounds(key, amount, nominating=nominating, own=own)
        ]
        options, indexes = demand.alternatives, None
        limits: tuple[int, ...] = ()
        if demand.several and demand.amount:
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
        elif demand.amount:
            bounds += account.bounds(demand.claim.card, demand.amount, nominating=nominating, own=own)
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
            bounds = account.bounds(card, demand.amount, nominating=self._ledger.nominating)
            fitting, reached = tightest(bounds, ahead + 1)
            options.append(shortage_at(reached or bounds, min(ahead, fitting)))
        last = next((option for option in reversed(options) if option.queue != account.name), options[-1])
        figures = Figures(demand.claim.card, demand.amount, last.figures.total, last.figures.limit)
        return last._replace(figures=figures, alternatives=tuple([option.figures for option in options]))
