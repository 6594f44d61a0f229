"""May a job enter its queue? The whole job at once, against limit x overCommitFactor (capacity-card reference §6.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.reasons import INSUFFICIENT_CPU_QUOTA, INSUFFICIENT_MEMORY_QUOTA, INSUFFICIENT_SCALAR_QUOTA
from capcard_sched.model.refusal import Figures
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.multi_card import MultiCardAdmission
from capcard_sched.plugins.capacity_card.refusals import Shortage
from capcard_sched.plugins.capacity_card.tally import ChargeSum, alternatives_of

if TYPE_CHECKING:
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.plugins.capacity_card.accounts import JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals


class EnqueueCheck:
    """Job mode: alternatives may be summed, since pods of one job may get different cards."""

    def __init__(self, arguments: CapacityCardArguments, ledger: Ledger, refusals: QuotaRefusals) -> None:
        self._arguments = arguments
        self._ledger = ledger
        self._refusals = refusals
        #: The books of each queue as of its last change, for jobs that hold nothing.
        self._kept: dict[str, QueueBooks] = {}

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
        found = self._shortage(account, quantities.need)
        if found is None:
            return None
        return refusals.shortage("job_enqueueable", account.queue, found, pods_too=pods_too)

    def token(self, queue: Queue | None, job: Job) -> tuple[object, ...] | None:
        """What the answer follows from: while it is equal, so is the answer. None for a job that must be asked."""
        account = self._ledger.jobs.get(job.key)
        if queue is None or account is None or not self._ledger.is_settled(job):
            return None
        quantities = account.quantities
        return quantities, account.queue.version, account.queue.quota, queue.state, bool(job.pending)

    def _books(self, account: JobAccount) -> QueueBooks:
        """What the queue has given and promised, the asking job left out.

        What the job itself holds inside its minimum is part of its need: a gang that lost a pod and must be admitted
        again would otherwise be counted twice, and never come back. Most jobs hold nothing, and share one book.
        """
        queue, own = account.queue, account.quantities
        holds = account.allocated.is_empty and account.reserved.is_empty
        if holds and (own is None or own.elastic.is_empty):
            kept = self._kept.get(queue.name)
            if kept is None or kept.account is not queue or kept.version != queue.version:
                kept = self._kept[queue.name] = QueueBooks(queue, _used(queue), self._arguments)
            return kept
        used = _used(queue)
        used.merge(account.allocated, -1)
        if own is not None:
            used.merge(own.elastic)
        used.merge(account.reserved, -1)
        return QueueBooks(queue, used, self._arguments)

    def _shortage(self, account: JobAccount, need: ChargeSum) -> Shortage | None:
        """The first dimension that does not fit: cpu, memory, then cards in sorted order."""
        books = self._books(account)
        promised, quota = self._arguments.promised, account.queue.quota
        total, limit = books.used.cpu + need.cpu, promised(quota.cpu.limit)
        if need.cpu > 0 and total > limit:
            return Shortage(INSUFFICIENT_CPU_QUOTA, Figures(CPU, need.cpu, total, limit))
        total, limit = books.used.memory + need.memory, promised(quota.memory.limit)
        if need.memory > 0 and total > limit:
            return Shortage(INSUFFICIENT_MEMORY_QUOTA, Figures(MEMORY, need.memory, total, limit))
        asked = {key: amount for key, amount in need.cards.items() if amount > 0}
        return self._card_shortage(books, asked) if asked else None

    def _card_shortage(self, books: QueueBooks, asked: dict[str, int]) -> Shortage | None:
        """Job-mode arithmetic (§6.4) for every card and claim that is asked for."""
        limit, used = books.limit, books.used.cards
        promises: MultiCardAdmission | None = None
        for key in sorted(asked):
            requested, alternatives = asked[key], alternatives_of(key)
            total = used.get(key, 0) + requested
            if len(alternatives) == 1:
                if total > limit(key):
                    return Shortage(INSUFFICIENT_SCALAR_QUOTA, Figures(key, requested, total, limit(key)))
                if not books.promises.has_claims and len(asked) == 1:
                    return None
            elif self._arguments.multi_card_job_mode == "single":
                options = tuple(
                    Figures(card, requested, used.get(card, 0) + asked.get(card, 0) + requested, limit(card))
                    for card in alternatives
                )
                if all(option.total > option.limit for option in options):
                    return _of_alternatives(key, options)
            if promises is None:
                promises = books.promises.with_more(asked)
            found = promises.overdraft(alternatives)
            if found is not None:
                figures = Figures(key, requested, found.total, found.limit)
                options = tuple(
                    Figures(card, requested, used.get(card, 0) + asked.get(card, 0), limit(card))
                    for card in sorted(found.cards)
                )
                return Shortage(INSUFFICIENT_SCALAR_QUOTA, figures, options)
        return None


class QueueBooks:
    """What a queue has given and promised at one moment, in the form that admission asks about."""

    def __init__(self, account: QueueAccount, used: ChargeSum, arguments: CapacityCardArguments) -> None:
        self.account = account
        self.version = account.version
        self.used = used
        self._arguments = arguments
        self._limits: dict[str, int] = {}
        self.promises = MultiCardAdmission.of(used.cards, self.limit)

    def limit(self, card: str) -> int:
        """Quota x overCommitFactor."""
        found = self._limits.get(card)
        if found is None:
            found = self._limits[card] = self._arguments.promised(self.account.limit(card))
        return found


def _used(queue: QueueAccount) -> ChargeSum:
    """max(0, allocated - elastic) + inqueue."""
    spare, held = queue.elastic, queue.allocated
    used = ChargeSum(max(0, held.cpu - spare.cpu), max(0, held.memory - spare.memory))
    for card, amount in held.cards.items():
        used.add_card(card, max(0, amount - spare.cards.get(card, 0)))
    used.merge(queue.inqueue)
    return used


def _of_alternatives(key: str, options: tuple[Figures, ...]) -> Shortage:
    """No alternative of a claim carries it alone: told with the numbers of the last one."""
    last = options[-1]
    return Shortage(INSUFFICIENT_SCALAR_QUOTA, Figures(key, last.requested, last.total, last.limit), options)
