"""What the plugin reports: cards of jobs and pods, metrics, usage of queues, and events of malformed objects."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

from capcard_sched.framework.api.plugin import Sample
from capcard_sched.model.annotations import CARD_ALLOCATED, CARD_REQUEST, SERVICE_TYPE
from capcard_sched.model.cards import CARD
from capcard_sched.model.explanation import JobCards, PodCards
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
from capcard_sched.plugins.capacity_card.arguments import NAME
from capcard_sched.plugins.capacity_card.card_flow import sum_of
from capcard_sched.plugins.capacity_card.charge import PLAIN, alternatives_of
from capcard_sched.plugins.capacity_card.ledger import CHARGED_STATUSES
from capcard_sched.plugins.capacity_card.refusals import POD_COMPONENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity_card.accounts import CardAccounts
    from capcard_sched.plugins.capacity_card.quota import QueueAccount

#: The action that evicts across queues.
_RECLAIM: Final = "reclaim"


class CardReports:
    """Exports the accounts of jobs and queues, and emits one event per malformed object."""

    def __init__(self, accounts: CardAccounts) -> None:
        self._arguments, self._inventory, self._demands = accounts.arguments, accounts.inventory, accounts.demands
        self._minimum, self._ledger = accounts.minimum, accounts.ledger
        #: (queue, hook, reason) to the jobs and pods that sessions refused, each once in a session.
        self._refused: Counter[tuple[str, str, str]] = Counter()
        #: (victim's queue, reclaimer's queue, card of the victim or "") to pods evicted by reclaim.
        self.evictions: dict[tuple[str, str, str], int] = {}
        #: Per reason, the malformed jobs by key and whether their event was emitted.
        self._invalid_jobs: dict[Reason, dict[str, bool]] = {INVALID_CARD_REQUEST: {}, INVALID_SERVICE_TYPE: {}}
        #: Job key to the uids of the pods with an event.
        self._reported_pods: ReportOnce[str, str] = ReportOnce()

    def close(self, session: Session) -> None:
        for intent in session.results.evictions:
            victim = session.snapshot.tasks_by_uid.get(intent.uid)
            if intent.reason != _RECLAIM or victim is None or victim.job is None:
                continue
            charge = self._ledger.charge_of(victim)
            key = victim.job.queue, intent.queue, charge.card if charge is not None else ""
            self.evictions[key] = self.evictions.get(key, 0) + 1
        # Hooks refuse in trials, too: what the session records counts.
        for refusal in session.results.refusals.values():
            if refusal.plugin == NAME:
                self._refused[refusal.queue, refusal.hook, refusal.reason] += 1
        if session.changed.queues:
            queues = session.queues
            for gone in [key for key in self._refused if key[0] not in queues]:
                del self._refused[gone]
            self.evictions = {
                key: count for key, count in self.evictions.items() if key[0] in queues and key[1] in queues
            }
        if self._arguments.publish_card_usage:
            self._publish_card_usage(session)

    def job_cards(self, job: Job) -> JobCards | None:
        account = self._ledger.jobs.get(job.key)
        if account is None:
            return None
        self._ledger.current(account)
        return JobCards(account.allocated.cards, account.inqueue.cards)

    def reserved_amounts(self, job: Job) -> dict[str, int] | None:
        """Of cpu and memory."""
        account = self._ledger.jobs.get(job.key)
        if account is None:
            return None
        self._ledger.current(account)
        return {name: amount for key, name in PLAIN.items() if (amount := account.inqueue.get(key, 0))}

    def pod_cards(self, cls: TaskClass) -> PodCards | None:
        demand = self._demands.of(cls)
        return PodCards(demand.names, demand.alternatives, demand.amount, demand.error, demand.claim.others)

    def metrics(self) -> Iterator[Sample]:
        """All current series. Sums of a parent include the queues below it. O(queues x their cards)."""
        ledger, inventory = self._ledger, self._inventory
        queues = ledger.queues
        ledger.recompute()
        for name in sorted(queues):
            yield from _of_queue(queues[name])
        # Cards in quotas or in use, also those no node offers: their total is exported as 0.
        limited = {card for account in queues.values() for card in account.quota.cards if account.quota.limit(card)}
        totals = Counter(inventory.totals)
        totals.update(self._demands.claims.totals(inventory))
        for card in sorted(totals.keys() | limited | ledger.held_cards()):
            yield Sample("card_total", {"card": card}, totals[card] / CARD)
        for card, service in sorted(ledger.by_service):
            amount = ledger.by_service[card, service] / CARD
            yield Sample("card_allocated", {"card": card, "service_type": service}, amount)
        for (name, hook, code), count in sorted(self._refused.items()):
            if name in queues:
                labels = {"queue_name": name, "hook": hook, "reason": code}
                yield Sample("capacity_card_refusals_total", labels, count)
        for (victim, reclaimer, card), count in sorted(self.evictions.items()):
            if victim in queues and reclaimer in queues:
                labels = {"victim_queue": victim, "reclaimer_queue": reclaimer, "card": card}
                yield Sample("capacity_card_evictions_total", labels, count)
        invalid = [
            ("Node", INVALID_CARD_LABEL, inventory.invalid_labels),
            *(("PodGroup", reason, len(jobs)) for reason, jobs in self._invalid_jobs.items()),
            ("Queue", INVALID_CARD_QUOTA, sum(1 for account in queues.values() if account.quota.problem)),
        ]
        for kind, reason, count in invalid:
            yield Sample("capacity_card_invalid_objects", {"kind": kind, "reason": reason.code}, count)
        yield Sample("capacity_card_internal_errors_total", {}, ledger.internal_errors)

    def _publish_card_usage(self, session: Session) -> None:
        """Annotate the queues whose annotation differs from the usage of their subtree. O(queues)."""
        for name, account in self._ledger.queues.items():
            queue, usage = session.queues[name], _card_usage(account.subtree.allocated.cards)
            if queue.annotations.get(CARD_ALLOCATED) != usage:
                session.results.annotate_queue(queue, {CARD_ALLOCATED: usage})

    def report_invalid(self, session: Session, queues: Iterable[Queue], jobs: Iterable[Job]) -> None:
        """Emit one event per malformed object, of the queues and jobs that were rebuilt. O(their pods)."""
        for queue in queues:
            problem = self._ledger.queues[queue.name].quota.problem
            if problem:
                message = INVALID_CARD_QUOTA.render(detail=problem, queue=queue.name)
                session.results.notice(queue, INVALID_CARD_QUOTA, message)
        for job in jobs:
            self._report_job(session, job)
            self._report_pods(session, job)
        alive = self._ledger.jobs
        self._reported_pods.keep(alive)
        for reason, invalid in self._invalid_jobs.items():
            self._invalid_jobs[reason] = {key: reported for key, reported in invalid.items() if key in alive}

    def _report_job(self, session: Session, job: Job) -> None:
        if CARD_REQUEST not in job.annotations and SERVICE_TYPE not in job.annotations:
            for jobs in self._invalid_jobs.values():
                jobs.pop(job.key, None)
            return
        problem, service = self._minimum.request_of(job).problem, job.annotations.get(SERVICE_TYPE, "")
        known = service in ("", "inference", "training")
        texts = {
            INVALID_CARD_REQUEST: INVALID_CARD_REQUEST.render(detail=problem) if problem else "",
            INVALID_SERVICE_TYPE: "" if known else INVALID_SERVICE_TYPE.render(value=service),
        }
        for reason, text in texts.items():
            invalid = self._invalid_jobs[reason]
            if not text:
                invalid.pop(job.key, None)
            elif not invalid.get(job.key):
                # Without pods the refusal at enqueue reports a request; with pods it is ignored, which needs an event.
                has_pods = any(task.status not in COMPLETED_STATUSES for task in job.tasks.values())
                invalid[job.key] = has_pods or reason is INVALID_SERVICE_TYPE
                if invalid[job.key]:
                    session.results.notice(job, reason, text)

    def _report_pods(self, session: Session, job: Job) -> None:
        """Emit events for pending pods without a card name, and for placed pods whose charge cannot be computed."""
        for cls in job.classes:
            demand = self._demands.of(cls)
            if demand.unnamed or demand.error:
                break
        else:
            self._reported_pods.forget(job.key)
            return
        charges = self._ledger.jobs[job.key].charges
        found: dict[str, tuple[Task, Reason, str]] = {}
        for uid, task in job.tasks.items():
            demand, charge = self._demands.of(task.cls), charges.get(uid)
            if demand.unnamed and not demand.error and task.status is TaskStatus.PENDING:
                row = CARD_NAME_MISSING
                message = row.render(resource=demand.unnamed, queue=job.queue)
            elif demand.error and task.status in CHARGED_STATUSES and (charge is None or not charge.complete):
                row = GET_TASK_REQUEST_RESOURCE_FAILED
                message = row.render(queue=job.queue, error=demand.error)
            else:
                continue
            found[uid] = task, row, message
        for uid in self._reported_pods.update(job.key, found):
            session.results.notice(*found[uid], POD_COMPONENT)


def _card_usage(cards: dict[str, int]) -> str | None:
    """JSON of card to whole cards, sorted, without zeros; None when nothing is held."""
    held = {card: -(-amount // CARD) for card, amount in sorted(cards.items()) if amount > 0}
    return json.dumps(held, separators=(",", ":")) if held else None


def _of_queue(account: QueueAccount) -> Iterator[Sample]:
    queue, quota, sums = {"queue_name": account.name}, account.quota, account.subtree
    allocated, pending = sums.allocated, sums.pending
    yield Sample("queue_share", queue, account.share)
    for unit, (key, dimension) in zip(("milli_cpu", "memory_bytes"), quota.plain.items(), strict=True):
        yield Sample(f"queue_allocated_{unit}", queue, allocated[key])
        yield Sample(f"queue_request_{unit}", queue, allocated[key] + pending[key])
        yield Sample(f"queue_deserved_{unit}", queue, dimension.deserved)
        yield Sample(f"queue_real_capacity_{unit}", queue, dimension.real_capability)
        if dimension.capability is not None:  # unset is absent, not 0
            yield Sample(f"queue_capacity_{unit}", queue, dimension.capability)
    for group in quota.groups:
        by_card, limit = {**queue, "card": group.key}, group.limit / CARD
        held, more = sum_of(allocated, group) / CARD, sum_of(pending, group) / CARD
        yield Sample("queue_card_capacity", by_card, limit)
        yield Sample("queue_card_deserved", by_card, limit)
        yield Sample("queue_card_allocated", by_card, held)
        yield Sample("queue_card_request", by_card, held + more)
        yield Sample("queue_card_inqueue", by_card, sum_of(sums.inqueue, group) / CARD)
        yield Sample("queue_card_elastic", by_card, sum_of(sums.elastic, group) / CARD)
    groups = [group.cards for group in quota.groups]
    for card in sorted(sums.seen - PLAIN.keys()):
        if "|" in card and frozenset(alternatives_of(card)) in groups:
            continue  # part of the sums of its group
        limit, held = quota.limit(card), allocated[card]
        request = held + pending[card]
        by_card = {**queue, "card": card}
        if account.is_limited(card):  # a parent without a card quota has no limit, which is not 0
            yield Sample("queue_card_capacity", by_card, limit / CARD)
            yield Sample("queue_card_deserved", by_card, limit / CARD)
        yield Sample("queue_card_allocated", by_card, held / CARD)
        yield Sample("queue_card_request", by_card, request / CARD)
        yield Sample("queue_card_inqueue", by_card, sums.inqueue[card] / CARD)
        yield Sample("queue_card_elastic", by_card, sums.elastic[card] / CARD)
        by_resource = {**queue, "resource": card}
        yield Sample("queue_allocated_scalar_resources", by_resource, held)
        yield Sample("queue_request_scalar_resources", by_resource, request)
        if account.is_limited(card):
            yield Sample("queue_deserved_scalar_resources", by_resource, limit)
            yield Sample("queue_capacity_scalar_resources", by_resource, limit)
            yield Sample("queue_real_capacity_scalar_resources", by_resource, limit)
