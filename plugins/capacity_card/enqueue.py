"""May a job enter its queue? The whole job at once, against limit x overCommitFactor (capacity-card reference §6.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.reasons import INSUFFICIENT_CPU_QUOTA, INSUFFICIENT_MEMORY_QUOTA, INSUFFICIENT_SCALAR_QUOTA
from capcard_sched.model.refusal import Figures
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.claims import Promises
from capcard_sched.plugins.capacity_card.events import Shortage
from capcard_sched.plugins.capacity_card.tally import Tally, alternatives_of

if TYPE_CHECKING:
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.plugins.capacity_card.accounts import JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.events import Refusals
    from capcard_sched.plugins.capacity_card.ledger import Ledger


class Enqueue:
    """Job mode: alternatives may be summed, since pods of one job may get different cards."""

    def __init__(self, arguments: CapacityCardArguments, ledger: Ledger, refusals: Refusals) -> None:
        self._arguments = arguments
        self._ledger = ledger
        self._refusals = refusals

    def refusal(self, queue: Queue | None, job: Job) -> Refusal | None:
        """Why the job may not enqueue now, or None. Equality with the limit passes; asking nothing passes."""
        refusals = self._refusals
        quantities = self._ledger.quantities_of(job)
        if queue is None or quantities is None:
            return refusals.unknown_queue("job_enqueueable", job.queue)
        pods_too = bool(job.pending)
        if not queue.is_open:
            return refusals.not_open("job_enqueueable", queue, pods_too=pods_too)
        if quantities.request_problem and not quantities.has_pods:
            return refusals.invalid_request(queue.name, quantities.request_problem)
        if quantities.error:
            return refusals.no_charge("job_enqueueable", queue.name, quantities.error, pods_too=pods_too)
        account = self._ledger.jobs[job.key]
        found = self._shortage(account.queue, self._used(account), quantities.need)
        if found is None:
            return None
        return refusals.shortage("job_enqueueable", account.queue, found, pods_too=pods_too)

    def _used(self, account: JobAccount) -> Tally:
        """max(0, allocated - elastic) + inqueue of the queue, the asking job left out.

        What the job itself holds inside its minimum is part of its need: a gang that lost a pod and must be admitted
        again would otherwise be counted twice, and never come back.
        """
        queue, own = account.queue, account.quantities
        spare, held = queue.elastic, queue.allocated
        used = Tally(max(0, held.cpu - spare.cpu), max(0, held.memory - spare.memory))
        for card, amount in held.cards.items():
            used.add_card(card, max(0, amount - spare.cards.get(card, 0)))
        used.merge(queue.inqueue)
        used.merge(account.allocated, -1)
        if own is not None:
            used.merge(own.elastic)
        used.merge(account.reserved, -1)
        return used

    def _shortage(self, queue: QueueAccount, used: Tally, need: Tally) -> Shortage | None:
        """The first dimension that does not fit: cpu, memory, then cards in sorted order."""
        promised = self._arguments.promised
        total, limit = used.cpu + need.cpu, promised(queue.quota.cpu.limit)
        if need.cpu > 0 and total > limit:
            return Shortage(INSUFFICIENT_CPU_QUOTA, Figures(CPU, need.cpu, total, limit))
        total, limit = used.memory + need.memory, promised(queue.quota.memory.limit)
        if need.memory > 0 and total > limit:
            return Shortage(INSUFFICIENT_MEMORY_QUOTA, Figures(MEMORY, need.memory, total, limit))
        return self._card_shortage(queue, used, need)

    def _card_shortage(self, queue: QueueAccount, used: Tally, need: Tally) -> Shortage | None:
        """Job-mode arithmetic (§6.4) for every card and claim of the need."""
        if not any(amount > 0 for amount in need.cards.values()):
            return None

        def limit(card: str) -> int:
            return self._arguments.promised(queue.limit(card))

        together = Tally()
        together.merge(used)
        together.merge(need)
        keys = {key: alternatives_of(key) for key in together.cards}
        claims = [(alternatives, together.cards[key]) for key, alternatives in keys.items() if len(alternatives) > 1]
        promises = Promises(
            {key: amount for key, amount in together.cards.items() if len(keys[key]) == 1}, claims, limit
        )
        for key in sorted(need.cards):
            requested = need.cards[key]
            if requested <= 0:
                continue
            if len(keys[key]) == 1:
                if together.cards[key] > limit(key):
                    figures = Figures(key, requested, together.cards[key], limit(key))
                    return Shortage(INSUFFICIENT_SCALAR_QUOTA, figures)
            elif self._arguments.multi_card_job_mode == "single":
                options = tuple(
                    Figures(card, requested, together.cards.get(card, 0) + requested, limit(card)) for card in keys[key]
                )
                if all(option.total > option.limit for option in options):
                    return _of_alternatives(key, options)
            found = promises.overdraft(keys[key])
            if found is not None:
                figures = Figures(key, requested, found.total, found.limit)
                options = tuple(
                    Figures(card, requested, together.cards.get(card, 0), limit(card)) for card in sorted(found.cards)
                )
                return Shortage(INSUFFICIENT_SCALAR_QUOTA, figures, options)
        return None


def _of_alternatives(key: str, options: tuple[Figures, ...]) -> Shortage:
    """No alternative of a claim carries it alone: told with the numbers of the last one."""
    last = options[-1]
    return Shortage(INSUFFICIENT_SCALAR_QUOTA, Figures(key, last.requested, last.total, last.limit), options)
