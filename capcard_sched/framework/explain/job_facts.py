"""What is known of a job after a session: the data of its diagnosis."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.framework.explain.limits import LimitReader
from capcard_sched.model.annotations import CARD_REQUEST
from capcard_sched.model.cards import CardSyntaxError, parse_card_request
from capcard_sched.model.diagnosis import (
    CardCapacity,
    NearestNode,
    PendingPods,
    PlacedPods,
    PodRefusal,
    QueuePosition,
    QuotaCheck,
    RejectedNodes,
)
from capcard_sched.model.explanation import PodCards
from capcard_sched.model.quantity import in_units
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.status import PodGroupPhase, TaskStatus
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.framework.session.report import TaskOutcome
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.refusal import Figures, Refusal
    from capcard_sched.model.task_class import TaskClass

#: Templates of pending pods whose node capacity is read.
_MOST_CLASSES: Final = 4
#: Nodes per plugin whose figures are listed.
_NEAREST_NODES: Final = 3
_INSUFFICIENT: Final = "Insufficient "
_PLACED: Final = frozenset(
    {TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.RELEASING, TaskStatus.UNKNOWN}
)


class JobFacts:
    """The data of one job that its stage follows from."""

    def __init__(
        self, snapshot: CoreSnapshot, session: Session, job: Job, pod: str, limits: LimitReader | None = None
    ) -> None:
        """`pod`: the name of the pod that the diagnosis is about; "" for all. `limits`: that of other jobs, reused."""
        state = snapshot.state
        self._snapshot, self._session, self.job = snapshot, session, job
        limits = limits or LimitReader(snapshot, CapacityReader(snapshot))
        self._capacity = limits.capacity
        self.tasks = [task for task in job.tasks.values() if not pod or task.name == pod]
        #: The pod that the diagnosis is about; None for all.
        self.pod = next((task for task in self.tasks if pod), None)
        binds = {bind.uid for bind in session.binds}
        #: Bound by the last session, not yet on the cluster.
        self.coming = [task for task in self.tasks if task.uid in binds]
        #: Admitted by the last session, not yet on the cluster.
        self.admitted_now = job.key in session.report.enqueued
        self.waiting = [task for task in session.pending_tasks(job) if not pod or task.name == pod]
        self._cards = {task.cls: self._cards_of(task.cls) for task in self.waiting}
        #: Of each template of pending pods.
        self.pod_cards = list(self._cards.values())
        #: Cards that `card.request` declares, and those that the pods request; in thousandths.
        self.declared, self.counted = self._declared(), self._counted()
        self.refusals = session.refusals_of(job)
        #: The first refusal with figures.
        self.quota_refusal = _quota_refusal(session, self.waiting, self.refusals)
        self.limits = limits.limits(job.queue, self._requested()) if job.queue in state.queues else ()
        self.pending = self._pending()
        queue, ahead = state.queues.get(job.queue), self._ahead()
        is_waiting = bool(self.waiting) or (job.phase is PodGroupPhase.PENDING and not job.tasks)
        self.queue = QueuePosition(
            name=job.queue,
            state=(queue.state or "Open") if queue is not None else "missing",
            limits=self.limits,
            position=len(ahead) + 1 if is_waiting else 0,
            ahead=ahead if is_waiting else (),
        )
        #: Why no node offers a resource of a pending pod: only a DeviceClass does; "" for none.
        self.claimed_resource = next(filter(None, map(session.claimed_resource, self._cards)), "")
        self.queues = sorted(state.queues)
        self.card_labels = state.card_labels
        #: Queue to `spec.capability`.
        self.capabilities = {name: one.capability or {} for name, one in state.queues.items()}
        self.capacity = self._capacities(self.pending)
        self.known_cards = sorted(self._capacity.cards)
        #: Why the job can never start; None when it can.
        self.exceeded = session.exceeded_limit(job)
        #: The card quota of the queue in thousandths, and why the annotation is invalid.
        self.quota, self.quota_problem = limits.quota(queue), limits.quota_problem(queue)
        #: Whether other queues have guarantees.
        self.guaranteed = any(one.guarantee for name, one in state.queues.items() if name != job.queue)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _cards_of(self, cls: TaskClass) -> PodCards:
        found = self._snapshot.dispatch.first("pod_cards", cls)
        return found if isinstance(found, PodCards) else PodCards((), (), 0)

    def _requested(self) -> dict[str, tuple[int, int]]:
        """Card, `A|B` or resource to (amount of one pod, amount of all pending pods), in base units."""
        found: dict[str, tuple[int, int]] = {}

        def add(key: str, amount: int) -> None:
            if amount:
                largest, total = found.get(key, (0, 0))
                found[key] = max(largest, amount), total + amount

        for task in self.waiting:
            cards = self._cards[task.cls]
            add("|".join(cards.alternatives), cards.amount)
            for resource in (CPU, MEMORY, *sorted(self._snapshot.state.shares)):
                add(resource, task.cls.requests.get(resource, 0))
        if not self.job.tasks:
            for key, amount in self.declared.items():
                add(key, amount)
            for resource in (CPU, MEMORY, *sorted(self._snapshot.state.shares)):
                add(resource, (self.job.min_resources or {}).get(resource, 0))
        return found

    def _declared(self) -> dict[str, int]:
        """Cards of the annotation card.request, in thousandths; none of a malformed one."""
        try:
            return parse_card_request(self.job.annotations.get(CARD_REQUEST))
        except CardSyntaxError:
            return {}

    def _counted(self) -> dict[str, int]:
        """Cards that the pods of the job request, in thousandths."""
        found: dict[str, int] = {}
        for task in self.job.tasks.values():
            cards = self._cards_of(task.cls)
            if cards.amount:
                key = "|".join(cards.names)
                found[key] = found.get(key, 0) + cards.amount
        return found

    # --- pods -------------------------------------------------------------------------------------------------------

    def _pending(self) -> tuple[PendingPods, ...]:
        """Pending tasks, grouped by template and outcome, in task order."""
        groups: dict[tuple[TaskClass, TaskOutcome | None], list[Task]] = {}
        for task in self.waiting:
            outcome = self._session.outcome_of(task.uid)
            if outcome is not None and outcome.node:
                outcome = type(outcome)(outcome.kind, outcome.message, "", outcome.refusal, outcome.nominated)
            groups.setdefault((task.cls, outcome), []).append(task)
        return tuple(self._pods(tasks, outcome) for (_, outcome), tasks in groups.items())

    def _pods(self, tasks: list[Task], outcome: TaskOutcome | None) -> PendingPods:
        names = tuple(task.name for task in tasks)
        if outcome is None:
            return PendingPods(names=names, outcome="untried", message="not tried in the last session")
        session = self._session
        fitting = {found.node for task in tasks if (found := session.outcome_of(task.uid)) is not None}
        nodes: tuple[RejectedNodes, ...] = ()
        nearest: tuple[NearestNode, ...] = ()
        queue = session.queues.get(self.job.queue)
        if outcome.kind == "unfit" and queue is not None:
            _, diagnosis = session.engine.diagnose(session.engine.signature(queue, tasks[0]))
            nodes = tuple(
                RejectedNodes(reason=reason, nodes=count, plugin=source[0], hook=source[1])
                for reason, count in sorted(diagnosis.reasons.items(), key=lambda item: (-item[1], item[0]))
                for source in [diagnosis.sources.get(reason, ("", "fit"))]
            )
            nearest = tuple(
                NearestNode(node=name, plugin=plugin, texts=tuple(texts))
                for plugin, call in session.dispatch.entries("rejection_details")
                for name, texts in itertools.islice(call(tasks[0], session.engine.all_rows()), _NEAREST_NODES)
            )
        return PendingPods(
            names=names,
            outcome=outcome.kind,
            message=outcome.message,
            node=fitting.pop() if len(fitting) == 1 else "",
            refusal=shown_refusal(outcome.refusal) if outcome.refusal is not None else None,
            nodes=nodes,
            nearest=nearest,
        )

    def placed(self) -> tuple[PlacedPods, ...]:
        """The placed pods that are on the cluster, by node, card and status."""
        tasks = [task for task in self.tasks if task.status in _PLACED and task not in self.coming]
        groups: dict[tuple[str, str, str], list[str]] = {}
        for task in sorted(tasks, key=lambda task: task.name):
            if task.node is not None:
                card = self._capacity.card_on(task.node, task.cls)
                status = "Terminating" if task.status is TaskStatus.RELEASING else task.status.title
                groups.setdefault((task.node.name, card, status), []).append(task.name)
        return tuple(
            PlacedPods(node=node, card=card, status=status, names=tuple(names))
            for (node, card, status), names in sorted(groups.items())
        )

    def _capacities(self, pending: tuple[PendingPods, ...]) -> tuple[CardCapacity, ...]:
        """One row per card that pending pods accept, and per resource that nodes with these cards lack."""
        found: dict[tuple[str, int], CardCapacity] = {}
        lacking = {
            row.reason.removeprefix(_INSUFFICIENT)
            for pods in pending
            for row in pods.nodes
            if row.reason.startswith(_INSUFFICIENT)
        }
        for cls, cards in list(self._cards.items())[:_MOST_CLASSES]:
            offers = [offer for card in cards.alternatives for offer in self._capacity.nodes_with(card)]
            for card in cards.alternatives:
                if cards.amount and (card, cards.amount) not in found:
                    found[card, cards.amount] = self._capacity.capacity(card, cls, cards.amount)
            among = {offer.node.name for offer in offers}
            # Pods of a job that is not admitted are not tried on nodes.
            beyond = self._capacity.larger_than_nodes(cls, among=among) if offers or not cards.names else ()
            for resource in sorted(lacking.union(beyond) - {offer.resource for offer in offers}):
                amount = cls.requests.get(resource, 0)
                if amount and (resource, amount) not in found:
                    row = self._capacity.capacity(resource, cls, amount, among=among)
                    if any(bar.free < row.per_pod for bar in row.histogram) or not row.histogram:
                        found[resource, amount] = row
        return tuple(found.values())

    def _ahead(self) -> tuple[str, ...]:
        session, job = self._session, self.job
        if job.queue not in session.queues:
            return ()
        own = session.job_key(job)
        others = [
            other
            for other in session.queues[job.queue].jobs.values()
            if other is not job and other.key in session.jobs and (other.pending or not other.tasks)
        ]
        keyed = sorted((key, other.key) for other in others if (key := session.job_key(other)) < own)
        return tuple(display_name(session.jobs[key]) for _, key in keyed)


def _quota_refusal(session: Session, waiting: list[Task], refusals: list[Refusal]) -> Refusal | None:
    """The first refusal with figures: of the job, else of a pending pod."""
    of_pods = (found.refusal for task in waiting if (found := session.outcome_of(task.uid)) is not None)
    return next((found for found in (*refusals, *of_pods) if found is not None and found.figures is not None), None)


def shown_refusal(refusal: Refusal) -> PodRefusal:
    """A refusal with its figures."""
    rows: list[Figures] = list(refusal.alternatives)
    if refusal.figures is not None and refusal.figures not in rows:
        rows.insert(0, refusal.figures)
    return PodRefusal(
        plugin=refusal.plugin,
        hook=refusal.hook,
        reason=refusal.reason,
        message=refusal.message,
        checks=tuple(
            QuotaCheck(
                resource=row.resource,
                requested=in_units(row.resource, row.requested),
                total=in_units(row.resource, row.total),
                limit=in_units(row.resource, row.limit),
            )
            for row in rows
        ),
    )
