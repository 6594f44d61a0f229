"""Admission of jobs by the quota of their queue and its ancestors.

A job is admitted when its minimum fits limit x overCommitFactor beside allocated and reserved amounts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.quota.limits import QuotaShortage, scaled
from capcard_sched.model.reasons import INVALID_CARD_REQUEST
from capcard_sched.model.refusal import ExceededLimit, Refusal
from capcard_sched.model.status import VOTE_PERMIT, Vote
from capcard_sched.plugins.capacity_card.charge import ChargeSum
from capcard_sched.plugins.capacity_card.multi_card_admission import QueueUsage
from capcard_sched.plugins.capacity_card.refusals import figures_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.plugins.capacity_card.accounts import CardAccounts
    from capcard_sched.plugins.capacity_card.quota import ChargeBook, JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.refusals import QuotaHook, QuotaRefusals


class AdmissionCheck:
    """Refuses jobs whose minimum exceeds a quota."""

    def __init__(self, accounts: CardAccounts, refusals: QuotaRefusals) -> None:
        self._accounts, self._arguments, self._ledger = accounts, accounts.arguments, accounts.ledger
        self._refusals = refusals
        self._queues: Mapping[str, Queue] = {}
        #: Usage of each queue (own: True) and subtree, with its book and the version of the book.
        self._usages: dict[tuple[str, bool], tuple[ChargeBook, int, QueueUsage]] = {}

    def follow(self, session: Session) -> None:
        self._queues = session.queues

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """Equality with the limit passes; a job that requests nothing passes.

        Alternatives add up: pods of one job may get different cards.
        """
        hook: QuotaHook = "job_enqueueable"
        queue, quantities = self._queues.get(job.queue), self._ledger.quantities_of(job)
        if queue is None or quantities is None:
            return self._refusals.unknown_queue(hook, job.queue)
        pods_too = bool(job.pending)
        if not queue.is_open:
            return self._refusals.not_open(hook, queue, pods_too=pods_too)
        if quantities.request_problem and not quantities.has_pods:
            row = INVALID_CARD_REQUEST
            return self._refusals.refusal(hook, queue.name, row, row.render(detail=quantities.request_problem))
        account = self._ledger.jobs[job.key]
        if quantities.error and self._refusals.is_growing:
            quantities = self._ledger.grown_quantities(account)
        if quantities.error:
            return self._refusals.no_charge(hook, queue.name, quantities.error, pods_too=pods_too)
        # cpu, memory, then cards in sorted order, then cards of ancestors
        for one in (account.queue, *account.queue.limiting):
            found = self._usage(account, one).shortage(quantities.need, same_card=self._ledger.same_card)
            if found is not None:
                book = one.own if one is account.queue else one.subtree
                found = _with_reserved(found, book.inqueue, account.inqueue)
                return self._refusals.shortage(hook, account.queue, found, pods_too=pods_too)
        return VOTE_PERMIT

    def admission_version(self, job: Job) -> tuple[object, ...] | None:
        """The inputs of `job_enqueueable`: equal versions give equal results. None forces a call."""
        queue, quantities = self._queues.get(job.queue), self._ledger.quantities_of(job)
        if queue is None or quantities is None:
            return None
        own = self._ledger.jobs[job.key].queue
        above = [part for one in own.limiting for part in (one.quota, self._usage_in(one, own=False).content)]
        content = self._usage_in(own, own=True).content
        return self._accounts.renames, quantities, content, own.quota, queue.state, bool(job.pending), *above

    def reservation_changed(self, job: Job) -> None:
        self._ledger.reassess(job)

    def job_enqueued(self, job: Job) -> None:
        self._ledger.admit(job)

    def exceeded_limit(self, job: Job) -> ExceededLimit | None:
        account = self._ledger.jobs.get(job.key)
        found = None if account is None else self._ledger.impossible(account)
        return None if found is None else ExceededLimit(figures_of(found), found.queue)

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
        return QueueUsage(queue.name, used, shared.limit, shared.groups)

    def _usage_in(self, queue: QueueAccount, *, own: bool) -> QueueUsage:
        """max(0, allocated - elastic) + inqueue of a queue, or of its subtree; kept until they change."""
        book = queue.own if own else queue.subtree
        if self._refusals.is_growing:
            own_limit, kept = queue.quota.ceiling, None
        else:
            own_limit, kept = queue.quota.limit, self._usages.get((queue.name, own))
        if kept is None or kept[:2] != (book, book.version):
            limit, factor = own_limit if own else queue.quota.subtree_limit, self._arguments.over_commit_factor
            used = ChargeSum(book.allocated)
            for key, amount in book.elastic.items():
                used.put(key, max(0, used[key] - amount))
            used += book.inqueue
            groups = [one._replace(limit=scaled(one.limit, factor)) for one in queue.quota.groups]
            usage = QueueUsage(queue.name, used, lambda key: scaled(limit(key), factor), groups)
            if self._refusals.is_growing:
                return usage
            kept = self._usages[queue.name, own] = book, book.version, usage
        return kept[2]


def _with_reserved(found: QuotaShortage, inqueue: ChargeSum, own: ChargeSum) -> QuotaShortage:
    """With the part of the total that other jobs reserve: `inqueue` without their own."""
    figures = found.figures
    keys = dict.fromkeys((figures.resource, *figures.resource.split("|")))
    reserved = sum(inqueue.get(key, 0) - own.get(key, 0) for key in keys)
    reserved = max(0, min(reserved, figures.total - figures.requested))
    return found._replace(figures=msgspec.structs.replace(figures, reserved=reserved))
