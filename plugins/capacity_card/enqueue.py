"""Admission of jobs: the minimum of the whole job against limit x overCommitFactor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.plugins.capacity_card.charge import ChargeSum
from capcard_sched.plugins.capacity_card.multi_card_admission import QueueUsage

if TYPE_CHECKING:
    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.quota import ChargeBook, JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.refusals import QuotaRefusals


class EnqueueCheck:
    """Checks jobs against the quota of their queue. Alternatives add up: pods of one job may get different cards."""

    def __init__(self, arguments: CapacityCardArguments, ledger: Ledger, refusals: QuotaRefusals) -> None:
        self._arguments = arguments
        self._same_card = arguments.multi_card_job_mode == "single"
        self._ledger = ledger
        self._refusals = refusals
        #: Usage of each queue (own: True) and subtree, with its book and the version of the book.
        self._kept: dict[tuple[str, bool], tuple[ChargeBook, int, QueueUsage]] = {}

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
        above = [part for one in own.limiting for part in (one.quota, self._usage_in(one, own=False).content)]
        content = self._usage_in(own, own=True).content
        return quantities, content, own.quota, queue.state, bool(job.pending), *above

    def _usage(self, account: JobAccount, queue: QueueAccount) -> QueueUsage:
        """Allocated and reserved amounts of the job's queue or of an ancestor, without those of the job.

        Pods of the job inside its minimum are part of its need: a gang that lost a pod and must be admitted again is
        counted once. Most jobs hold nothing and share one `QueueUsage`.
        """
        shared = self._usage_in(queue, own=queue is account.queue)
        if not (account.allocated or account.inqueue or account.elastic):
            return shared
        used = ChargeSum(shared.used)
        used -= account.allocated
        used += account.elastic
        used -= account.inqueue
        return QueueUsage(queue.name, used, shared.limit)

    def _usage_in(self, queue: QueueAccount, *, own: bool) -> QueueUsage:
        """Allocated and reserved amounts of a queue, or of its subtree; kept until they change."""
        book = queue.own if own else queue.subtree
        kept = self._kept.get((queue.name, own))
        if kept is None or kept[:2] != (book, book.version):
            limit = queue.quota.limit if own else queue.quota.subtree_limit
            usage = QueueUsage(queue.name, _used(book), lambda key: self._arguments.overcommitted(limit(key)))
            kept = self._kept[queue.name, own] = book, book.version, usage
        return kept[2]

    def _shortage(self, account: JobAccount, need: ChargeSum) -> QuotaShortage | None:
        """The first dimension that does not fit: cpu, memory, then cards in sorted order, then cards of ancestors."""
        for queue in (account.queue, *account.queue.limiting):
            found = self._usage(account, queue).shortage(need, same_card=self._same_card)
            if found is not None:
                return found
        return None


def _used(book: ChargeBook) -> ChargeSum:
    """max(0, allocated - elastic) + inqueue."""
    used = ChargeSum(book.allocated)
    for key, amount in book.elastic.items():
        used.put(key, max(0, used[key] - amount))
    used += book.inqueue
    return used
