"""Events and counts of malformed queues, PodGroups and pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.reasons import (
    CARD_NAME_MISSING,
    GET_TASK_REQUEST_RESOURCE_FAILED,
    INVALID_CARD_LABEL,
    INVALID_CARD_QUOTA,
    INVALID_CARD_REQUEST,
    INVALID_SERVICE_TYPE,
)
from capcard_sched.model.report_once import ReportOnce
from capcard_sched.model.status import COMPLETED_STATUSES, TaskStatus
from capcard_sched.plugins.capacity_card.ledger import CHARGED_STATUSES
from capcard_sched.plugins.capacity_card.refusals import POD_COMPONENT
from capcard_sched.plugins.capacity_card.service_type import invalid_service_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.demand import CardDemands
    from capcard_sched.plugins.capacity_card.inventory import CardInventory
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.minimum import Minimum


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
