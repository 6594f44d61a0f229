"""Refusals with their figures, and warnings about invalid objects."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from capcard_sched.model.reasons import (
    CARD_NAME_MISSING,
    EMPTY_QUEUE_CAPABILITY,
    GET_TASK_REQUEST_RESOURCE_FAILED,
    INSUFFICIENT_CPU_QUOTA,
    INSUFFICIENT_MEMORY_QUOTA,
    INSUFFICIENT_SCALAR_QUOTA,
    INVALID_CARD_LABEL,
    INVALID_CARD_QUOTA,
    INVALID_CARD_REQUEST,
    INVALID_SERVICE_TYPE,
    QUEUE_NOT_FOUND,
    QUEUE_NOT_OPEN,
    QUEUE_NOT_OPEN_ALLOCATE,
    QUEUE_NOT_OPEN_RECLAIM,
)
from capcard_sched.model.refusal import Refusal, of_ancestor
from capcard_sched.model.report_once import ReportOnce
from capcard_sched.model.status import COMPLETED_STATUSES, TaskStatus
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY, PLAIN
from capcard_sched.plugins.capacity_card.ledger import CHARGED_STATUSES
from capcard_sched.plugins.capacity_card.quota import invalid_service_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.refusal import Figures
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.cards import CardDemands, CardInventory
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.minimum import Minimum
    from capcard_sched.plugins.capacity_card.quota import QueueAccount

#: The hooks of this plugin that may refuse.
RefusingHook: TypeAlias = Literal["job_enqueueable", "allocatable", "preemptive"]

#: Source of Pod events; it does not follow the scheduler's name.
POD_COMPONENT: Final = "volcano.capacity-card"
#: The verb in the event of a queue without any capability.
_VERBS: Final[dict[RefusingHook, str]] = {
    "job_enqueueable": "enqueue",
    "allocatable": "allocate",
    "preemptive": "preempt",
}
#: The reason of a closed queue, and whether it has an event.
_NOT_OPEN: Final[dict[RefusingHook, tuple[Reason, bool]]] = {
    "job_enqueueable": (QUEUE_NOT_OPEN, True),
    "allocatable": (QUEUE_NOT_OPEN_ALLOCATE, False),
    "preemptive": (QUEUE_NOT_OPEN_RECLAIM, True),
}
#: Reasons by key, of keys that are no card.
_ROWS: Final = {CPU_KEY: INSUFFICIENT_CPU_QUOTA, MEMORY_KEY: INSUFFICIENT_MEMORY_QUOTA}
_EMPTY: Final = "cpu 0.00, memory 0.00"
_MEBIBYTE: Final = Decimal(1048576)


def mebibytes(amount: int) -> str:
    """Bytes as Mi: a plain decimal in its shortest form, never with an exponent."""
    whole, rest = divmod(amount, 1048576)
    if not rest:
        return str(whole)
    return f"{Decimal(repr(float(Decimal(amount) / _MEBIBYTE))):f}"


def figures_of(found: QuotaShortage) -> Figures:
    """The figures of a shortage, with the name of the resource instead of its key."""
    key = found.figures.resource
    return msgspec.structs.replace(found.figures, resource=PLAIN.get(key, key))


def without_event(refusal: Refusal) -> Refusal:
    """The same without an event: an event of this session has the same message."""
    return msgspec.structs.replace(refusal, event=False)


class QuotaRefusals:
    """Creates and counts refusals."""

    def __init__(self, plugin: str) -> None:
        self._plugin = plugin
        #: (queue, hook, reason) to number of refusals.
        self.counts: dict[tuple[str, str, str], int] = {}

    def shortage(
        self, hook: RefusingHook, account: QueueAccount, found: QuotaShortage, *, pods_too: bool = False
    ) -> Refusal:
        """Insufficient quota. A queue without any capability adds a second event."""
        figures, queue = figures_of(found), found.queue
        row = _ROWS.get(found.figures.resource, INSUFFICIENT_SCALAR_QUOTA)
        shown = mebibytes if row is INSUFFICIENT_MEMORY_QUOTA else str
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
        return self._refusal(hook, queue, row, message, figures, found.alternatives, also=also, pods_too=pods_too)

    def no_charge(self, hook: RefusingHook, queue: str, error: str, *, pods_too: bool = False) -> Refusal:
        row = GET_TASK_REQUEST_RESOURCE_FAILED
        return self._refusal(hook, queue, row, row.render(queue=queue, error=error), pods_too=pods_too)

    def invalid_request(self, queue: str, detail: str) -> Refusal:
        row = INVALID_CARD_REQUEST
        return self._refusal("job_enqueueable", queue, row, row.render(detail=detail))

    def not_open(self, hook: RefusingHook, queue: Queue, *, task: str = "", pods_too: bool = False) -> Refusal:
        """The queue is not open: it admits nothing, and reclaims nothing for its pod `task`."""
        row, event = _NOT_OPEN[hook]
        message = row.render(queue=queue.name, state=queue.state, task=task)
        return self._refusal(hook, queue.name, row, message, event=event, pods_too=pods_too)

    def unknown_queue(self, hook: RefusingHook, queue: str) -> Refusal:
        """The ledger has no such queue, or no session has opened it yet."""
        return self._refusal(hook, queue, QUEUE_NOT_FOUND, QUEUE_NOT_FOUND.render(queue=queue))

    def _refusal(
        self,
        hook: RefusingHook,
        queue: str,
        row: Reason,
        message: str,
        figures: Figures | None = None,
        alternatives: tuple[Figures, ...] = (),
        *,
        also: tuple[tuple[str, str], ...] = (),
        event: bool = True,
        pods_too: bool = False,
    ) -> Refusal:
        key = queue, hook, row.code
        self.counts[key] = self.counts.get(key, 0) + 1
        return Refusal(
            hook,
            self._plugin,
            row.code,
            message,
            queue=queue,
            figures=figures,
            alternatives=alternatives,
            also=also,
            event=event,
            component="" if hook == "job_enqueueable" else POD_COMPONENT,
            pods_too=pods_too,
        )


class ValidationWarnings:
    """Emits one event per malformed object and counts the malformed objects."""

    def __init__(self, inventory: CardInventory, demands: CardDemands, minimum: Minimum, ledger: Ledger) -> None:
        self._inventory = inventory
        self._demands = demands
        self._minimum = minimum
        self._ledger = ledger
        #: Per reason, the malformed jobs by key and whether their event was emitted.
        self._invalid_jobs: dict[Reason, dict[str, bool]] = {INVALID_CARD_REQUEST: {}, INVALID_SERVICE_TYPE: {}}
        #: Job key to the uids of the pods with an event.
        self._reported_pods: ReportOnce[str, str] = ReportOnce()

    def report(self, session: Session, queues: Iterable[Queue], jobs: Iterable[Job]) -> None:
        """Check the queues and jobs that were rebuilt. O(their pods)."""
        for queue in queues:
            problem = self._ledger.queues[queue.name].quota.problem
            if problem:
                message = INVALID_CARD_QUOTA.render(detail=problem, queue=queue.name)
                session.notice(queue, INVALID_CARD_QUOTA, message)
        for job in jobs:
            self._report_job(session, job)
            self._report_pods(session, job)
        alive = self._ledger.jobs
        self._reported_pods.keep(alive)
        for reason, invalid in self._invalid_jobs.items():
            self._invalid_jobs[reason] = {key: reported for key, reported in invalid.items() if key in alive}

    def _report_job(self, session: Session, job: Job) -> None:
        problem = self._minimum.request_of(job).problem
        text = INVALID_CARD_REQUEST.render(detail=problem) if problem else ""
        # Without pods the refusal at enqueue reports it; with pods the annotation is ignored, which needs an event.
        has_pods = bool(problem) and any(task.status not in COMPLETED_STATUSES for task in job.tasks.values())
        self._report_once(session, job, INVALID_CARD_REQUEST, text, now=has_pods)
        value = invalid_service_type(job)
        text = INVALID_SERVICE_TYPE.render(value=value) if value else ""
        self._report_once(session, job, INVALID_SERVICE_TYPE, text, now=True)

    def _report_once(self, session: Session, job: Job, reason: Reason, message: str, *, now: bool) -> None:
        invalid = self._invalid_jobs[reason]
        if not message:
            invalid.pop(job.key, None)
            return
        reported = invalid.setdefault(job.key, False)
        if now and not reported:
            session.notice(job, reason, message)
            invalid[job.key] = True

    def _report_pods(self, session: Session, job: Job) -> None:
        """Emit events for pending pods without a card name, and for placed pods whose charge cannot be computed."""
        if not any(self._needs_report(cls) for cls in {task.cls for task in job.tasks.values()}):
            self._reported_pods.forget(job.key)
            return
        found: dict[str, tuple[Task, Reason, str]] = {}
        for uid, task in job.tasks.items():
            demand = self._demands.of(task.cls)
            if demand.unnamed and not demand.error and task.status is TaskStatus.PENDING:
                row = CARD_NAME_MISSING
                message = row.render(resource=demand.unnamed, queue=job.queue)
            elif demand.error and task.status in CHARGED_STATUSES and not self._is_charged(job, uid):
                row = GET_TASK_REQUEST_RESOURCE_FAILED
                message = row.render(queue=job.queue, error=demand.error)
            else:
                continue
            found[uid] = task, row, message
        for uid in self._reported_pods.update(job.key, found):
            session.notice(*found[uid], POD_COMPONENT)

    def _needs_report(self, cls: TaskClass) -> bool:
        demand = self._demands.of(cls)
        return bool(demand.unnamed or demand.error)

    def _is_charged(self, job: Job, uid: str) -> bool:
        charge = self._ledger.jobs[job.key].charges.get(uid)
        return charge is not None and charge.complete

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """(kind, reason, number of malformed objects)."""
        queues = sum(1 for account in self._ledger.queues.values() if account.quota.problem)
        yield "Node", INVALID_CARD_LABEL.code, self._inventory.invalid_labels
        for reason, keys in self._invalid_jobs.items():
            yield "PodGroup", reason.code, len(keys)
        yield "Queue", INVALID_CARD_QUOTA.code, queues
