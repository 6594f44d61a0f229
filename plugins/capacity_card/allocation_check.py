"""Quota of pods: a pod is allocated when it fits the limit of its queue and of each ancestor beside allocated amounts.

Pods that are being released hold their quota until they are gone; only nominations are checked without them.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.api.plugin import Grant
from capcard_sched.framework.quota.limits import QuotaBound, shortage_at, tightest
from capcard_sched.model.refusal import Figures, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.plugins.capacity_card.accounts import CardAccounts
    from capcard_sched.plugins.capacity_card.cards import CardDemand
    from capcard_sched.plugins.capacity_card.quota import QueueAccount
    from capcard_sched.plugins.capacity_card.refusals import QuotaHook, QuotaRefusals
    from capcard_sched.plugins.capacity_card.selection import CardChoice, CardSelection


class AllocationCheck:
    """Refuses pods beyond a quota."""

    def __init__(self, accounts: CardAccounts, selection: CardSelection, refusals: QuotaRefusals) -> None:
        self._accounts, self._shared, self._ledger = accounts, accounts.shared, accounts.ledger
        self._selection, self._refusals, self._demands = selection, refusals, accounts.demands
        #: The refusals of the session and of earlier ones that still hold.
        self._refusal_of: Callable[[Task, str], Refusal | None] = lambda *_: None

    def follow(self, session: Session) -> None:
        self._refusal_of = session.results.refusal_of

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        return self._grant("allocatable", queue, [task]).refusal

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        demand = self._shared.demand(tasks[0])
        if not demand.shared and not demand.ranges:
            if tasks[-1].cls is not tasks[0].cls:  # generated claims: of other contents or with devices behind these
                tasks = list(takewhile(lambda task: self._demands.of(task.cls) is demand, tasks))
            return self._grant("allocatable", queue, tasks, demand)
        first = self._grant("allocatable", queue, tasks[:1])  # the others may be charged less
        return first if first.refusal is not None else msgspec.structs.replace(first, count=len(tasks), at_once=1)

    def preemptive(self, queue: Queue, task: Task) -> Refusal | None:
        """Checks the queue's own limits: evictions below a full ancestor free its quota, which `allocatable` checks."""
        found = self._grant("preemptive", queue, [task]).refusal
        if found is None or found.also:  # only this hook's second event names the verb
            return found
        reported = self._refusal_of(task, "allocatable")
        repeats = reported is not None and reported.message == found.message
        return msgspec.structs.replace(found, event=False) if repeats else found

    def allocation_version(self, queue: Queue) -> tuple[object, ...]:
        """The content of the queue and its ancestors that `allocatable` reads: equal versions give equal results."""
        account = self._ledger.queues.get(queue.name)
        if account is None:
            return self._accounts.renames, queue.is_open
        limits, held = frozenset(account.quota.limits.items()), frozenset(account.own.allocated.items())
        groups = account.quota.groups
        above = [
            (
                one.name,
                one.quota.limits_subtree,
                one.quota.groups,
                frozenset({**one.quota.cards, **one.quota.shares}.items()),
                frozenset(one.subtree.allocated.cards.items()),
            )
            for one in account.limiting
        ]
        return self._accounts.renames, self._accounts.shared.version, queue.is_open, limits, groups, held, *above

    def _grant(self, hook: QuotaHook, queue: Queue, tasks: Sequence[Task], demand: CardDemand | None = None) -> Grant:
        """How many tasks of one class fit one after the other. O(alternatives x ancestors with a quota).

        One alternative must cover the whole request of a pod. `demand`: that of the first task, if known.
        """
        ledger, task, wanted, own = self._ledger, tasks[0], len(tasks), hook == "preemptive"
        account = ledger.queues.get(queue.name)
        if account is None:
            return Grant(0, self._refusals.unknown_queue(hook, queue.name))
        if not queue.is_open:
            return Grant(0, self._refusals.not_open(hook, queue, task=task.name))
        demand = demand or self._shared.demand(task)
        if demand.postponed:
            return Grant(0, self._refusals.postponed(hook, queue.name, demand.error))
        if demand.error:
            return Grant(0, self._refusals.no_charge(hook, queue.name, demand.error))
        several = demand.several and demand.amount > 0
        bounds = [
            bound
            for key, amount in _least(demand)
            if ledger.free(account, key, own=own) < amount * wanted
            for bound in ledger.bounds(account, key, amount, own=own)
        ]
        if demand.claim.others:
            bounds += ledger.beyond_group(account, demand, "" if several else demand.claim.card, own=own)
        if not bounds and not several:
            return Grant(wanted)
        options, indexes, at_once = demand.alternatives, None, wanted
        limits: tuple[int, ...] = ()
        if several:
            choice = self._selection.choice(account, demand, task, own=own)
            indexes = self._selection.indexes(demand, choice.usable)
            limits = self._limits(account, demand, choice, wanted, own=own)
            if not ledger.same_card:
                least = min(map(demand.least, choice.alternatives))
                fitting = account.joint_pods(
                    choice.alternatives, limits, least, nominating=self._refusals.is_nominating, own=own
                )
                at_once = wanted if fitting == sum(limits) else 1  # the next pod may take any alternative
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
            return Grant(wanted, None, indexes, limits, at_once)
        found = shortage_at(reached, count)
        if demand.several and found.figures.resource == demand.claim.card:
            found = self._claim_shortage(account, demand, options, count)
        return Grant(count, self._refusals.shortage(hook, account, found), indexes, limits, at_once)

    def _limits(
        self, account: QueueAccount, demand: CardDemand, choice: CardChoice, wanted: int, *, own: bool
    ) -> tuple[int, ...]:
        """How many more pods fit the quota of each alternative: 0 for a closed one, `wanted` where it may cost none."""
        free, least, usable = self._ledger.free, demand.least, choice.usable
        return tuple(
            [
                0 if card not in usable else free(account, card, own=own) // least(card) if least(card) else wanted
                for card in choice.alternatives
            ]
        )

    def _claim_shortage(
        self, account: QueueAccount, demand: CardDemand, alternatives: tuple[str, ...], ahead: int
    ) -> QuotaShortage:
        """The shortage of a pod that accepts several cards, after `ahead` pods of its class.

        It has the figures of the last alternative, but an ancestor's limit precedes the queue's own: evictions can free
        it. An alternative counts the pods that still fit it.
        """
        options = []
        for card in alternatives:
            bounds = self._ledger.bounds(account, card, demand.least(card))
            fitting, reached = tightest(bounds, ahead + 1)
            options.append(shortage_at(reached or bounds, min(ahead, fitting)))
        last = next((option for option in reversed(options) if option.queue != account.name), options[-1])
        figures = Figures(demand.claim.card, demand.amount, last.figures.total, last.figures.limit)
        return last._replace(figures=figures, alternatives=tuple([option.figures for option in options]))


def _least(demand: CardDemand) -> Sequence[tuple[str, int]]:
    """The least amounts that a pod is charged whatever its devices; without the cards among which it chooses."""
    claim = demand.claim
    if not demand.ranges and not demand.several:
        return claim.amounts
    cards = claim.others if demand.several else claim.held
    return (*claim.plain, *[(card, least) for card, _ in cards if (least := demand.least(card))])
