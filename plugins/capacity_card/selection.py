"""The card of a pod: the alternatives with free quota, and the nodes that offer them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_SPEC, filter, score
from capcard_sched.framework.api.plugin import UsableCards
from capcard_sched.model.refusal import Code
from capcard_sched.plugins.capacity_card.arguments import NAME
from capcard_sched.plugins.capacity_card.quota import used_card

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.plugins.capacity_card.accounts import CardAccounts
    from capcard_sched.plugins.capacity_card.cards import CardDemand
    from capcard_sched.plugins.capacity_card.quota import JobAccount, QueueAccount


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
    #: Version of the devices by which claims choose; 0 for others. Results of equal signatures are kept.
    devices: int = 0


class CardSelection:
    """Chooses among the alternatives of a pod, and filters and scores nodes by them."""

    def __init__(self, accounts: CardAccounts) -> None:
        self._arguments, self._inventory = accounts.arguments, accounts.inventory
        self._demands, self._ledger, self._shared = accounts.demands, accounts.ledger, accounts.shared

    def signature(self, queue: Queue, task: Task) -> CardChoice | None:
        """The open alternatives; None when there is nothing to choose."""
        demand = self._shared.demand(task)
        account = self._ledger.queues.get(queue.name) if demand.several else None
        return self.choice(account, demand, task) if account is not None else None

    def alternatives(self, profile: PodSignature) -> Rows | None:
        """Index of the first alternative each node offers, whatever its free quota: intp [nodes]."""
        demand = self._demands.of(profile.cls)
        return self.indexes(demand, demand.alternatives) if demand.several else None

    def claim_cards(self, queue: Queue, task: Task) -> UsableCards | None:
        """The cards with free quota, of which the devices of the pod's claims are one; None without such devices."""
        demand = self._shared.demand(task)
        is_backed = bool(demand.alternatives) and self._demands.is_backed(task.cls)
        if not (demand.by_claims or is_backed) or demand.error:
            return None
        account = self._ledger.queues.get(queue.name) if demand.several or demand.ranges else None
        if account is None:
            return UsableCards(demand.alternatives)
        others = tuple([card for card, _ in demand.claim.others])
        usable = self.choice(account, demand, task).usable if demand.several else demand.alternatives
        # Equal limits are equal results of searches: the quota beyond what a pod can get is none.
        held = self._shared.held(task) if demand.ranges else {}
        most = {
            card: max(0, min(self._ledger.free(account, card), demand.ranges[card][1]) - held.get(card, 0))
            for card in (*usable, *others)
            if demand.ranges
        }
        return UsableCards(usable, tuple(most.items()), others)

    def indexes(self, demand: CardDemand, usable: tuple[str, ...]) -> Rows:
        """Index of the first usable alternative that each node offers, -1 for none: intp [nodes]."""
        return self._demands.index_on_nodes(demand, demand.alternatives, usable)

    @filter(reads=NODE_SPEC)
    def filter_by_card(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        """Reject nodes that offer none of the pod's cards, and those that offer closed alternatives only.

        Static: the open alternatives are part of the pod signature, so a change of quota is another signature.
        """
        self._filter_offer(profile, rows, verdict)
        self._filter_quota(profile, rows, verdict)

    @score(reads=NODE_SPEC)
    def score_cards(self, profile: PodSignature, rows: NodeView) -> Scores | None:
        """100, 50, 25, ... times `nodeOrderWeight` for the 1st, 2nd, 3rd alternative of the pod; 0 without any.

        float64 [k], or None for pods that have no alternatives. A preference: other plugins' scores are added.
        """
        demand, choice = self._demands.of(profile.cls), profile.context(NAME)
        if choice is None and demand.several:  # context hooks are disabled: the node alone decides
            choice = CardChoice(demand.alternatives, demand.alternatives)
        if choice is None:
            return None
        weight = self._arguments.node_order_weight
        # index -1 (no usable alternative) picks the last entry
        positions = [demand.names.index(card) for card in choice.alternatives]
        by_alternative = np.array([100 * 0.5**position * weight for position in positions] + [0.0])
        found: Scores = by_alternative[rows.take(self.indexes(demand, choice.usable))]
        return found

    def _filter_offer(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        """Unresolvable: preemption does not help."""
        demand = self._demands.of(profile.cls)
        if not demand.alternatives or demand.by_claims:  # devices of claims are searched
            return
        if demand.several:
            missing = rows.take(self.indexes(demand, demand.alternatives)) < 0
        elif self._arguments.card_node_filter:
            missing = ~rows.take(self._inventory.offers(demand.alternatives[0]))
        else:
            return
        verdict.reject(missing, Code.UNRESOLVABLE, f"node(s) didn't have card <{demand.claim.card}>")

    def _filter_quota(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        """The alternatives are closed to the queue or, in single mode, to the job."""
        choice: CardChoice | None = profile.context(NAME)
        if choice is None or choice.usable == choice.alternatives:
            return
        demand = self._demands.of(profile.cls)
        closed = rows.take(self.indexes(demand, choice.usable)) < 0
        first = rows.take(self.indexes(demand, choice.alternatives))
        for index, card in enumerate(choice.alternatives):
            if choice.fixed and card != choice.fixed:
                reason = f"node(s) had card <{card}>, but pods of this job use card <{choice.fixed}>"
            else:
                reason = f"node(s) had card <{card}> without quota left in queue {choice.closing[index]}"
            verdict.reject(closed & (first == index), Code.UNSCHEDULABLE, reason)

    def choice(self, queue: QueueAccount, demand: CardDemand, task: Task, *, own: bool = False) -> CardChoice:
        """The choice of a pod of a queue; `own`: without the quotas of ancestors.

        Under `multiCardJobMode: single` it is the card of the job's other pods, or a card with quota for its minimum.
        """
        ledger, amount, fixed = self._ledger, demand.amount, ""
        alternatives, free = demand.alternatives, ledger.free
        usable = tuple(
            [
                card
                for card in alternatives
                if not amount
                or (
                    free(queue, card, own=own) >= demand.least(card)
                    and not ledger.beyond_group(queue, demand, card, own=own)
                )
            ]
        )
        if ledger.same_card and task.job is not None:
            account = ledger.jobs.get(task.job.key)
            fixed = used_card(account, demand.alternatives)
            least = amount if fixed else self._missing(account, demand)
            enough = tuple([card for card in ((fixed,) if fixed else usable) if free(queue, card, own=own) >= least])
            usable = enough if fixed or enough else usable
        closing = () if usable == alternatives else self._closing(queue, demand)
        return CardChoice(alternatives, usable, closing, fixed, self._demands.claims.version if demand.by_claims else 0)

    def _closing(self, queue: QueueAccount, demand: CardDemand) -> tuple[str, ...]:
        """For each alternative the queue that has no free quota for it: the pod's own, else the nearest ancestor."""
        fulls = [
            next(iter(self._ledger.full(queue, card, demand.least(card))), queue.name) for card in demand.alternatives
        ]
        return tuple([f"<{one}>" if one == queue.name else f"<{one}> (ancestor of <{queue.name}>)" for one in fulls])

    def _missing(self, account: JobAccount | None, demand: CardDemand) -> int:
        """The part of the claim the job still needs for its minimum: the card it fixes should cover all of it."""
        if account is None or account.job.min_available <= 1:
            return demand.amount
        quantities = self._ledger.current(account).quantities
        return quantities.need[demand.claim.card] if quantities is not None else demand.amount
