"""Checks of jobs and pods against the quota of their queue and its ancestors, and the refusals with their figures.

A job is admitted when its minimum fits limit x overCommitFactor beside allocated and reserved amounts. A pod is
allocated when it fits the plain limit beside allocated amounts. Pods that are being released hold their quota until
they are gone; only nominations are checked without them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from capcard_sched.framework.api.plugin import Grant
from capcard_sched.framework.quota.limits import QuotaBound, scaled, shortage_at, tightest
from capcard_sched.model.namespace_queues import missing_text
from capcard_sched.model.reasons import (
    EMPTY_QUEUE_CAPABILITY,
    GET_TASK_REQUEST_RESOURCE_FAILED,
    INSUFFICIENT_CPU_QUOTA,
    INSUFFICIENT_MEMORY_QUOTA,
    INSUFFICIENT_SCALAR_QUOTA,
    INVALID_CARD_REQUEST,
    QUEUE_NOT_FOUND,
    QUEUE_NOT_OPEN,
    QUEUE_NOT_OPEN_ALLOCATE,
    QUEUE_NOT_OPEN_RECLAIM,
)
from capcard_sched.model.refusal import ExceededLimit, Figures, Refusal, of_ancestor
from capcard_sched.model.status import Vote
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY, PLAIN, ChargeSum
from capcard_sched.plugins.capacity_card.multi_card_admission import QueueUsage
from capcard_sched.plugins.capacity_card.selection import CardSelection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.plugins.capacity_card.cards import CardDemand
    from capcard_sched.plugins.capacity_card.quota import ChargeBook, JobAccount, QueueAccount
    from capcard_sched.plugins.capacity_card.selection import CardChoice

#: The hooks that may refuse.
_Hook: TypeAlias = Literal["job_enqueueable", "allocatable", "preemptive"]

#: Source of Pod events; it does not follow the scheduler's name.
POD_COMPONENT: Final = "volcano.capacity-card"
#: The verb in the event of a queue without any capability.
_VERBS: Final[dict[_Hook, str]] = {"job_enqueueable": "enqueue", "allocatable": "allocate", "preemptive": "preempt"}
#: The reason of a closed queue, and whether it has an event.
_NOT_OPEN: Final[dict[_Hook, tuple[Reason, bool]]] = {
    "job_enqueueable": (QUEUE_NOT_OPEN, True),
    "allocatable": (QUEUE_NOT_OPEN_ALLOCATE, False),
    "preemptive": (QUEUE_NOT_OPEN_RECLAIM, True),
}
#: Reasons by key, of keys that are no card.
_ROWS: Final = {CPU_KEY: INSUFFICIENT_CPU_QUOTA, MEMORY_KEY: INSUFFICIENT_MEMORY_QUOTA}
_PERMIT: Final = Vote.PERMIT
_EMPTY: Final = "cpu 0.00, memory 0.00"


class QuotaChecks(CardSelection):
    """Refuses jobs and pods beyond a quota, and counts the refusals."""

    def setup(self) -> None:
        super().setup()
        self._session: Session | None = None
        self._queues: Mapping[str, Queue] = {}
        #: The refusals of the session and of earlier ones that still hold.
        self._refusal_of: Callable[[Task, str], Refusal | None] = lambda *_: None
        #: The number of sessions in which cards got other resource names.
        self._renames = 0
        #: (queue, hook, reason) to number of refusals.
        self.refusals: dict[tuple[str, str, str], int] = {}
        #: Usage of each queue (own: True) and subtree, with its book and the version of the book.
        self._usages: dict[tuple[str, bool], tuple[ChargeBook, int, QueueUsage]] = {}

    def open(self, session: Session) -> None:
        self._session, self._queues, self._refusal_of = session, session.queues, session.results.refusal_of

    @property
    def _is_nominating(self) -> bool:
        """Whether nominations are planned: pods that are being released hold no quota then."""
        return self._session is not None and self._session.assumptions.nominating

    @property
    def _is_growing(self) -> bool:
        """Whether only limits of objects apply, none that follow from the size of the cluster."""
        return self._session is not None and self._session.assumptions.growing

    # --- admission of jobs ------------------------------------------------------------------------------------------

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """Equality with the limit passes; a job that requests nothing passes.

        Alternatives add up: pods of one job may get different cards.
        """
        hook: _Hook = "job_enqueueable"
        queue, quantities = self._queues.get(job.queue), self.ledger.quantities_of(job)
        if queue is None or quantities is None:
            return self._unknown_queue(hook, job.queue)
        pods_too = bool(job.pending)
        if not queue.is_open:
            return self._not_open(hook, queue, pods_too=pods_too)
        if quantities.request_problem and not quantities.has_pods:
            row = INVALID_CARD_REQUEST
            return self._refusal(hook, queue.name, row, row.render(detail=quantities.request_problem))
        account = self.ledger.jobs[job.key]
        if quantities.error and self._is_growing:
            quantities = self.ledger.grown_quantities(account)
        if quantities.error:
            return self._no_charge(hook, queue.name, quantities.error, pods_too=pods_too)
        # cpu, memory, then cards in sorted order, then cards of ancestors
        for one in (account.queue, *account.queue.limiting):
            found = self._usage(account, one).shortage(quantities.need, same_card=self.ledger.same_card)
            if found is not None:
                book = one.own if one is account.queue else one.subtree
                found = _with_reserved(found, book.inqueue, account.inqueue)
                return self._shortage(hook, account.queue, found, pods_too=pods_too)
        return _PERMIT

    def admission_version(self, job: Job) -> tuple[object, ...] | None:
        """The inputs of `job_enqueueable`: equal versions give equal results. None forces a call."""
        queue, quantities = self._queues.get(job.queue), self.ledger.quantities_of(job)
        if queue is None or quantities is None:
            return None
        own = self.ledger.jobs[job.key].queue
        above = [part for one in own.limiting for part in (one.quota, self._usage_in(one, own=False).content)]
        content = self._usage_in(own, own=True).content
        return self._renames, quantities, content, own.quota, queue.state, bool(job.pending), *above

    def reservation_changed(self, job: Job) -> None:
        self.ledger.reassess(job)

    def job_enqueued(self, job: Job) -> None:
        self.ledger.admit(job)

    def exceeded_limit(self, job: Job) -> ExceededLimit | None:
        account = self.ledger.jobs.get(job.key)
        found = None if account is None else self.ledger.impossible(account)
        return None if found is None else ExceededLimit(_figures_of(found), found.queue)

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
        if self._is_growing:
            own_limit, kept = queue.quota.ceiling, None
        else:
            own_limit, kept = queue.quota.limit, self._usages.get((queue.name, own))
        if kept is None or kept[:2] != (book, book.version):
            limit, factor = own_limit if own else queue.quota.subtree_limit, self.arguments.over_commit_factor
            used = ChargeSum(book.allocated)
            for key, amount in book.elastic.items():
                used.put(key, max(0, used[key] - amount))
            used += book.inqueue
            groups = [one._replace(limit=scaled(one.limit, factor)) for one in queue.quota.groups]
            usage = QueueUsage(queue.name, used, lambda key: scaled(limit(key), factor), groups)
            if self._is_growing:
                return usage
            kept = self._usages[queue.name, own] = book, book.version, usage
        return kept[2]

    # --- allocation of pods -----------------------------------------------------------------------------------------

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        return self._grant("allocatable", queue, [task]).refusal

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        return self._grant("allocatable", queue, tasks)

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
        account = self.ledger.queues.get(queue.name)
        if account is None:
            return self._renames, queue.is_open
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
        return self._renames, queue.is_open, limits, groups, held, *above

    def _grant(self, hook: _Hook, queue: Queue, tasks: Sequence[Task]) -> Grant:
        """How many tasks of one class fit one after the other. O(alternatives x ancestors with a quota).

        One alternative must cover the whole request of a pod.
        """
        ledger, task, wanted, own = self.ledger, tasks[0], len(tasks), hook == "preemptive"
        account = ledger.queues.get(queue.name)
        if account is None:
            return Grant(0, self._unknown_queue(hook, queue.name))
        if not queue.is_open:
            return Grant(0, self._not_open(hook, queue, task=task.name))
        demand = self.demands.of(task.cls)
        if demand.error:
            return Grant(0, self._no_charge(hook, queue.name, demand.error))
        several = demand.several and demand.amount > 0
        bounds = [
            bound
            for key, amount in (demand.claim.amounts[:-1] if several else demand.claim.amounts)
            if ledger.free(account, key, own=own) < amount * wanted
            for bound in ledger.bounds(account, key, amount, own=own)
        ]
        if not bounds and not several:
            return Grant(wanted)
        options, indexes, at_once = demand.alternatives, None, wanted
        limits: tuple[int, ...] = ()
        if several:
            choice = self._choice(account, demand, task, own=own)
            indexes = self._indexes(demand, choice.usable)
            limits = self._limits(account, demand, choice, own=own)
            if not ledger.same_card:
                fitting = account.joint_pods(
                    choice.alternatives, limits, demand.amount, nominating=self._is_nominating, own=own
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
        return Grant(count, self._shortage(hook, account, found), indexes, limits, at_once)

    def _limits(self, account: QueueAccount, demand: CardDemand, choice: CardChoice, *, own: bool) -> tuple[int, ...]:
        """How many more pods fit the quota of each alternative; 0 for a closed one."""
        free, amount, usable = self.ledger.free, demand.amount, choice.usable
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
            bounds = self.ledger.bounds(account, card, demand.amount)
            fitting, reached = tightest(bounds, ahead + 1)
            options.append(shortage_at(reached or bounds, min(ahead, fitting)))
        last = next((option for option in reversed(options) if option.queue != account.name), options[-1])
        figures = Figures(demand.claim.card, demand.amount, last.figures.total, last.figures.limit)
        return last._replace(figures=figures, alternatives=tuple([option.figures for option in options]))

    # --- refusals ---------------------------------------------------------------------------------------------------

    def _shortage(self, hook: _Hook, account: QueueAccount, found: QuotaShortage, *, pods_too: bool = False) -> Refusal:
        """Insufficient quota. A queue without any capability adds a second event."""
        figures, queue = _figures_of(found), found.queue
        row = _ROWS.get(found.figures.resource, INSUFFICIENT_SCALAR_QUOTA)
        shown = _mebibytes if row is INSUFFICIENT_MEMORY_QUOTA else str
        message = row.render(
            queue=queue,
            card=figures.resource,
            requested=shown(figures.requested),
            total=shown(figures.total),
            limit=shown(figures.limit),
        )
        also: tuple[tuple[str, str], ...] = ()
        if queue != account.name:
            message = of_ancestor(message, queue, account.name)
        elif account.quota.is_empty:
            text = EMPTY_QUEUE_CAPABILITY.render(queue=queue, capability=_EMPTY, verb=_VERBS[hook])
            also = ((EMPTY_QUEUE_CAPABILITY.code, text),)
        refusal = self._refusal(hook, queue, row, message, pods_too=pods_too)
        return msgspec.structs.replace(refusal, figures=figures, alternatives=found.alternatives, also=also)

    def _no_charge(self, hook: _Hook, queue: str, error: str, *, pods_too: bool = False) -> Refusal:
        row = GET_TASK_REQUEST_RESOURCE_FAILED
        return self._refusal(hook, queue, row, row.render(queue=queue, error=error), pods_too=pods_too)

    def _not_open(self, hook: _Hook, queue: Queue, *, task: str = "", pods_too: bool = False) -> Refusal:
        """The queue is not open: it admits nothing, and reclaims nothing for its pod `task`."""
        row, event = _NOT_OPEN[hook]
        message = row.render(queue=queue.name, state=queue.state, task=task)
        return self._refusal(hook, queue.name, row, message, event=event, pods_too=pods_too)

    def _unknown_queue(self, hook: _Hook, queue: str) -> Refusal:
        """The ledger has no such queue, or no session has opened it yet."""
        return self._refusal(hook, queue, QUEUE_NOT_FOUND, QUEUE_NOT_FOUND.render(problem=missing_text(queue)))

    def _refusal(
        self, hook: _Hook, queue: str, row: Reason, message: str, *, event: bool = True, pods_too: bool = False
    ) -> Refusal:
        key = queue, hook, row.code
        self.refusals[key] = self.refusals.get(key, 0) + (not self._is_growing)
        component = "" if hook == "job_enqueueable" else POD_COMPONENT
        return Refusal(
            hook, self.name, row.code, message, queue=queue, event=event, component=component, pods_too=pods_too
        )


def _mebibytes(amount: int) -> str:
    """Bytes as Mi: a plain decimal in its shortest form, never with an exponent."""
    whole, rest = divmod(amount, 1048576)
    return f"{Decimal(repr(amount / 1048576)):f}" if rest else str(whole)


def _with_reserved(found: QuotaShortage, inqueue: ChargeSum, own: ChargeSum) -> QuotaShortage:
    """With the part of the total that other jobs reserve: `inqueue` without their own."""
    figures = found.figures
    keys = dict.fromkeys((figures.resource, *figures.resource.split("|")))
    reserved = sum(inqueue.get(key, 0) - own.get(key, 0) for key in keys)
    reserved = max(0, min(reserved, figures.total - figures.requested))
    return found._replace(figures=msgspec.structs.replace(figures, reserved=reserved))


def _figures_of(found: QuotaShortage) -> Figures:
    """The figures of a shortage, with the name of the resource instead of its key."""
    key = found.figures.resource
    return msgspec.structs.replace(found.figures, resource=PLAIN.get(key, key))
