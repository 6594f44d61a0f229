"""Admission of jobs: the minimum of the whole job against limit x overCommitFactor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.plugins.capacity_card.charge import ChargeSum
from capcard_sched.plugins.capacity_card.feasibility import QueueUsage

if TYPE_CHECKING:
    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.plugins.capacity_card.accounts import ChargeBook, JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals


class EnqueueCheck:
    """Checks jobs against the quota of their queue. Alternatives add up: pods of one job may get different cards."""

    def __init__(self, arguments: CapacityCardArguments, ledger: Ledger, refusals: QuotaRefusals) -> None:
        self._arguments = arguments
        self._same_card = arguments.multi_card_job_mode == "single"
        self._ledger = ledger
        self._refusals = refusals
        #: Usage in each book as of its last change, shared by jobs that hold nothing.
        self._kept: dict[str, tuple[ChargeBook, int, QueueUsage]] = {}
        #: The content of a book as of its last change.
        self._contents: dict[str, tuple[ChargeBook, int, tuple[object, ...]]] = {}

    def refusal(self, queue: Queue | None, job: Job) -> Refusal | None:
        """The refusal of a job, or None. Equality with the limit passes; a job that requests nothing passes."""
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

    def version(self, queue: Queue | None, job: Job) -> tuple[object, ...] | None:
        """The inputs of `refusal`: equal versions give equal results. None forces a call."""
        quantities = self._ledger.quantities_of(job)
        if queue is None or quantities is None:
            return None
        own = self._ledger.jobs[job.key].queue
        limits = [part for one in own.limiting for part in (one.name, one.quota, self._content(one.name, one.subtree))]
        return quantities, self._content(own.name, own.own), own.quota, queue.state, bool(job.pending), *limits

    def _content(self, name: str, book: ChargeBook) -> tuple[object, ...]:
        """The usage in a book of the named queue; kept until its sums change."""
        kept = self._contents.get(name)
        if kept is None or kept[0] is not book or kept[1] != book.version:
            kept = self._contents[name] = book, book.version, tuple(sorted(_used(book).items()))
        return kept[2]

    def _usage(self, account: JobAccount, queue: QueueAccount) -> QueueUsage:
        """Allocated and reserved amounts of the job's queue or of an ancestor, without those of the job.

        Pods of the job inside its minimum are part of its need: a gang that lost a pod and must be admitted again is
        counted once. Most jobs hold nothing and share one `QueueUsage`.
        """
        mine = queue is account.queue
        book = queue.own if mine else queue.subtree
        if not (account.allocated or account.inqueue or account.elastic):
            kept = self._kept.get(queue.name)
            if kept is None or kept[:2] != (book, book.version):
                kept = self._kept[queue.name] = book, book.version, self._usage_of(queue, _used(book), own=mine)
            return kept[2]
        used = _used(book)
        used -= account.allocated
        used += account.elastic
        used -= account.inqueue
        return self._usage_of(queue, used, own=mine)

    def _usage_of(self, queue: QueueAccount, used: ChargeSum, *, own: bool) -> QueueUsage:
        limit = queue.quota.limit if own else queue.quota.subtree_limit
        return QueueUsage(queue.name, used, lambda key: self._arguments.overcommitted(limit(key)))

    def _shortage(self, account: JobAccount, need: ChargeSum) -> QuotaShortage | None:
        """The first dimension that does not fit: cpu, memory, then cards in sorted order, then cards of ancestors."""
        for queue in (account.queue, *account.queue.limiting):
            found = self._usage(account, queue).shortage(need, same_card=self._same_card)
            if found is not None:
                return found
        return None


def _used(book: ChargeBook) -> ChargeSum:
    """max(0, allocated - elastic) + inqueue."""
    used = ChargeSum()
    for key, amount in book.allocated.items():
        used.post(key, max(0, amount - book.elastic[key]))
    used += book.inqueue
    return used
