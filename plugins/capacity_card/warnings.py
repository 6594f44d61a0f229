"""What is malformed, and who is told of it (capacity-card reference §2.3)."""

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
from capcard_sched.model.status import COMPLETED_STATUSES, TaskStatus
from capcard_sched.plugins.capacity_card.ledger import CHARGED_STATUSES
from capcard_sched.plugins.capacity_card.refusals import POD_COMPONENT
from capcard_sched.plugins.capacity_card.service_type import invalid_service_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.cards import CardInventory
    from capcard_sched.plugins.capacity_card.charge import CardDemands
    from capcard_sched.plugins.capacity_card.ledger import Ledger
    from capcard_sched.plugins.capacity_card.minimum import Minimum


class ValidationWarnings:
    """Tells objects what is wrong with them, once, and knows how many are malformed now."""

    def __init__(self, inventory: CardInventory, demands: CardDemands, minimum: Minimum, ledger: Ledger) -> None:
        self._inventory = inventory
        self._demands = demands
        self._minimum = minimum
        self._ledger = ledger
        #: Per reason, the malformed jobs by key and whether they were told.
        self._invalid_jobs: dict[Reason, dict[str, bool]] = {INVALID_CARD_REQUEST: {}, INVALID_SERVICE_TYPE: {}}
        #: Job key to the pods that were told something, by uid.
        self._told_pods: dict[str, set[str]] = {}

    def tell(self, session: Session, queues: Iterable[Queue], jobs: Iterable[Job]) -> None:
        """Look at the queues and jobs that were worked out again. O(their pods)."""
        for queue in queues:
            problem = self._ledger.queues[queue.name].quota.problem
            if problem:
                message = INVALID_CARD_QUOTA.render(detail=problem, queue=queue.name)
                session.notice(queue, INVALID_CARD_QUOTA, message)
        for job in jobs:
            self._tell_job(session, job)
            self._tell_pods(session, job)
        alive = self._ledger.jobs
        self._told_pods = {key: told for key, told in self._told_pods.items() if key in alive}
        for reason, invalid in self._invalid_jobs.items():
            self._invalid_jobs[reason] = {key: told for key, told in invalid.items() if key in alive}

    def _tell_job(self, session: Session, job: Job) -> None:
        problem = self._minimum.request_of(job).problem
        text = INVALID_CARD_REQUEST.render(detail=problem) if problem else ""
        # Without pods the refusal at enqueue says it; with pods the annotation is ignored, which must be said too.
        has_pods = bool(problem) and any(task.status not in COMPLETED_STATUSES for task in job.tasks.values())
        self._tell_once(session, job, INVALID_CARD_REQUEST, text, now=has_pods)
        value = invalid_service_type(job)
        text = INVALID_SERVICE_TYPE.render(value=value) if value else ""
        self._tell_once(session, job, INVALID_SERVICE_TYPE, text, now=True)

    def _tell_once(self, session: Session, job: Job, reason: Reason, message: str, *, now: bool) -> None:
        invalid = self._invalid_jobs[reason]
        if not message:
            invalid.pop(job.key, None)
            return
        told = invalid.setdefault(job.key, False)
        if now and not told:
            session.notice(job, reason, message)
            invalid[job.key] = True

    def _tell_pods(self, session: Session, job: Job) -> None:
        """Pods that wait without a card name, and pods that hold cards nobody can work out."""
        if not any(self._is_odd(cls) for cls in {task.cls for task in job.tasks.values()}):
            self._told_pods.pop(job.key, None)
            return
        told = self._told_pods.get(job.key, set())
        now = set()
        for uid, task in job.tasks.items():
            demand = self._demands.of(task.cls)
            if demand.unnamed and not demand.error and task.status is TaskStatus.PENDING:
                row = CARD_NAME_MISSING
                message = row.render(resource=demand.unnamed, queue=job.queue)
            elif demand.error and task.status in CHARGED_STATUSES and not self._has_whole_charge(job, uid):
                row = GET_TASK_REQUEST_RESOURCE_FAILED
                message = row.render(queue=job.queue, error=demand.error)
            else:
                continue
            now.add(uid)
            if uid not in told:
                session.notice(task, row, message, POD_COMPONENT)
        if now:
            self._told_pods[job.key] = now
        else:
            self._told_pods.pop(job.key, None)

    def _is_odd(self, cls: TaskClass) -> bool:
        demand = self._demands.of(cls)
        return bool(demand.unnamed or demand.error)

    def _has_whole_charge(self, job: Job, uid: str) -> bool:
        charge = self._ledger.jobs[job.key].charges.get(uid)
        return charge is not None and charge.complete

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """(kind, reason, objects malformed now)."""
        queues = sum(1 for account in self._ledger.queues.values() if account.quota.problem)
        yield "Node", INVALID_CARD_LABEL.code, self._inventory.invalid_labels
        for reason, keys in self._invalid_jobs.items():
            yield "PodGroup", reason.code, len(keys)
        yield "Queue", INVALID_CARD_QUOTA.code, queues
