"""What is known of a job after a session: the data of its diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.framework.close.podgroups import refusal_of
from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.framework.explain.device_causes import awaited_conditions
from capcard_sched.framework.explain.limits import LimitReader, shown_refusal
from capcard_sched.framework.explain.rejections import INSUFFICIENT, ObservedAttempt
from capcard_sched.model.annotations import CARD_REQUEST
from capcard_sched.model.cards import CardSyntaxError, parse_card_request
from capcard_sched.model.diagnosis import (
    CardCapacity,
    LimitUse,
    PendingPods,
    PlacedPods,
    QueuePosition,
)
from capcard_sched.model.explanation import PodCards
from capcard_sched.model.losses import stranded_of
from capcard_sched.model.node_conditions import lost_word
from capcard_sched.model.provisioning import newest, provisioning_text
from capcard_sched.model.quantity import in_units, shown_amount
from capcard_sched.model.queue import ROOT, ancestors, subtree
from capcard_sched.model.quoting import brief
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.status import COMPLETED_STATUSES, PodGroupPhase, TaskStatus
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.autoscaled_groups import AutoscaledGroup
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.refusal import ExceededLimit, Figures, Refusal
    from capcard_sched.model.task_class import TaskClass

#: Templates of pending pods whose node capacity is read.
_MOST_CLASSES: Final = 4
_PLACED: Final = frozenset(
    {TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.RELEASING, TaskStatus.UNKNOWN}
)


class JobFacts:
    """The data of one job that its stage follows from."""

    def __init__(
        self,
        snapshot: CoreSnapshot,
        session: Session,
        job: Job,
        pod: str,
        limits: LimitReader | None = None,
        attempt: ObservedAttempt | None = None,
    ) -> None:
        """`pod`: the name of the pod, "" for all; `limits`: that of other jobs, reused; `attempt`: of the session."""
        state = snapshot.state
        self._snapshot, self._session, self.job = snapshot, session, job
        #: Whether an autoscaler adds nodes: the size of the cluster is no limit.
        self.expects_nodes = session.carry_over.expects_nodes
        #: The node groups that it extends; () for unknown ones.
        self.node_groups = session.carry_over.node_groups
        request = newest(state.provisioning.of(job))
        #: What its last ProvisioningRequest waits for; "" without one.
        self.provisioning = "" if request is None else provisioning_text(request, session.now)
        self._attempt = attempt if attempt and attempt.session is session else ObservedAttempt(job.key)
        limits = self._limits = limits or LimitReader(snapshot, CapacityReader(snapshot))
        self._capacity = limits.capacity
        self.tasks = [task for task in job.tasks.values() if not pod or task.name == pod]
        #: The pod that the diagnosis is about; None for all.
        self.pod = next((task for task in self.tasks if pod), None)
        binds = set(session.results.bound)
        #: Bound by the last session, not yet on the cluster.
        self.coming = [task for task in self.tasks if task.uid in binds]
        self.admitted_now = job.key in session.results.report.enqueued
        self.waiting = [task for task in session.pending_tasks(job) if not pod or task.name == pod]
        #: Of each template of pending pods.
        self.cards_by_class = {task.cls: self._cards_of(task.cls) for task in self.waiting}
        self.pod_cards = list(self.cards_by_class.values())
        #: Pending pod to the cards that it accepts and some node provides.
        self.cards_of_pods = {task.name: self.cards_by_class[task.cls].alternatives for task in self.waiting}
        #: Cards that `card.request` declares, and those that the pods request; in thousandths.
        self.declared, self.counted = self._declared(), self._counted()
        # A session refuses a missing PodGroup after a grace period, which a reader of the cluster begins anew.
        missing = refusal_of(job) if job.pending and not job.uid else None
        self._missing = missing and TaskOutcome("refused", missing.message, refusal=missing)
        self.refusals = (
            [missing] if missing is not None else list(map(self._measured, session.results.refusals_of(job)))
        )
        #: The job that blocks this one in its FIFO queue; None for none.
        self.head = session.jobs.get(session.results.blocked_by_head.get(job.key, ""))
        #: Queue to `spec.capability`.
        self.capabilities = {name: one.capability or {} for name, one in state.queues.items()}
        self._refusal_of: dict[str, Refusal] = {}
        #: First names of pending pods whose required affinity keeps them off every node that would do.
        self.apart: set[str] = set()
        self.limits = limits.limits(job.queue, self._requested()) if job.queue in state.queues else ()
        self.pending = self._pending()
        self.limits += self._limits_of_refusals()
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
        self.claimed_resource = next(filter(None, map(session.snapshot.claimed_resource, self.cards_by_class)), "")
        self.queues = sorted(state.queues)
        self.session_snapshot = session.snapshot
        self.volumes = session.snapshot.volumes
        self.card_labels = state.card_labels
        #: Why the job can never start; None when it can.
        self.exceeded = session.exceeded_limit(job)
        self.capacity = self._capacities(self.pending)
        self.stranded = limits.stranded.of_pods(self.waiting, self.pending)
        self.known_cards = sorted(self._capacity.cards)
        self.has_card_quotas = "capacity-card" in snapshot.conf.quota_plugins.names
        #: The card quota of the queue in thousandths, and why the annotation is invalid.
        self.quota, self.quota_problem = limits.quota(queue), limits.quota_problem(queue)

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
            cards = self.cards_by_class[task.cls]
            for key, amount in (("|".join(cards.alternatives), cards.amount), *cards.others):
                add(key, amount)
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
            for key, amount in (("|".join(cards.names), cards.amount), *cards.others):
                if amount:
                    found[key] = found.get(key, 0) + amount
        return found

    # --- pods -------------------------------------------------------------------------------------------------------

    def _pending(self) -> tuple[PendingPods, ...]:
        """Pending tasks, grouped by template and outcome, in task order."""
        groups: dict[tuple[TaskClass, TaskOutcome | None], list[Task]] = {}
        for task in self.waiting:
            outcome = self._missing or self._session.results.outcome_of(task.uid)
            if outcome is not None and (outcome.node or outcome.fits_partly):
                outcome = type(outcome)(outcome.kind, outcome.message, "", outcome.refusal, outcome.nominated)
            groups.setdefault((task.cls, outcome), []).append(task)
        return tuple(self._pods(tasks, outcome) for (_, outcome), tasks in groups.items())

    def _pods(self, tasks: list[Task], outcome: TaskOutcome | None) -> PendingPods:
        names = tuple(task.name for task in tasks)
        if outcome is None:
            return PendingPods(names=names, outcome="untried", message="not tried in the last session")
        session = self._session
        fitting = {found.node for task in tasks if (found := session.results.outcome_of(task.uid)) is not None}
        known = self._attempt.rejections
        rejection = next((known[task.uid] for task in tasks if task.uid in known), None)  # of members that had no node
        message = outcome.message
        if rejection is None and outcome.kind == "unfit" and self.job.queue in session.queues:
            rejection = self._limits.rejection_of(session, tasks[0])
            if message and rejection.message != message and rejection.nodes and self.job.is_ready():
                message = rejection.message  # that of the attempt is older: no later change let the pod fit
            elif message and rejection.message != message:
                rejection = None  # the attempt had other pods of the gang on nodes
        nodes, nearest = (rejection.nodes, rejection.nearest) if rejection is not None else ((), ())
        if rejection is not None and rejection.is_apart:
            self.apart.add(names[0])
        if outcome.refusal is not None:
            self._refusal_of[names[0]] = outcome.refusal
        return PendingPods(
            names=names,
            outcome=outcome.kind,
            message=message,
            node=fitting.pop() if len(fitting) == 1 else "",
            refusal=shown_refusal(outcome.refusal) if outcome.refusal is not None else None,
            nodes=nodes,
            nearest=nearest,
        )

    # --- limits -----------------------------------------------------------------------------------------------------

    def _measured(self, refusal: Refusal) -> Refusal:
        """The refusal of all jobs of an overused queue, with the limit that refuses a pending pod of this one.

        Not that of pods which backfill tried: they need nothing of the queue.
        """
        session = self._session
        task = next((one for one in self.waiting if not one.cls.best_effort), None)
        if refusal.hook != "overused" or task is None or self.job.queue not in session.queues:
            return refusal
        found = session.dispatch.refusal("allocatable", session.queues[self.job.queue], task)
        if found is None or found.figures is None:
            return refusal
        return msgspec.structs.replace(found, reason=refusal.reason, message=refusal.message)

    def refusal_of(self, pods: PendingPods) -> Refusal | None:
        return self._refusal_of.get(pods.names[0])

    def limit_row(self, queue: str, resource: str) -> LimitUse | None:
        """The usage of a limit; None for one that the queue does not set."""
        return next((row for row in self.limits if (row.queue, row.resource) == (queue, resource)), None)

    def _limits_of_refusals(self) -> tuple[LimitUse, ...]:
        """Limits of queues that refuse and are not among those of the queue: of capacity, and of ancestors."""
        found: dict[tuple[str, str], LimitUse] = {}
        for refusal in (*self.refusals, *self._refusal_of.values()):
            figures = refusal.figures
            known = (refusal.queue or self.job.queue) in self._snapshot.state.queues
            if figures is None or refusal.limiter is not None or "|" in figures.resource or not known:
                continue
            row = self.row_of(refusal, figures)
            if self.limit_row(row.queue, row.resource) is None:
                found.setdefault((row.queue, row.resource), row)
        return tuple(found.values())

    def row_of(self, refusal: Refusal, figures: Figures) -> LimitUse:
        """The limit of a refusal, with the usage of the state."""
        queue = self._snapshot.state.queues[refusal.queue or self.job.queue]
        per_pod = figures.requested if refusal.hook != "job_enqueueable" else 0
        row = self._limits.resource_row(queue, figures.resource, figures.limit, per_pod, figures.requested)
        reserved, is_set = in_units(figures.resource, figures.reserved), self.is_own_limit(refusal, figures)
        return msgspec.structs.replace(row, usable=row.free, reserved=reserved, is_set=is_set)

    def models(self, resource: str) -> str:
        """The cards of a key over several that pending pods accept, as `A or B`; others as they are."""
        accepted = {name for cards in self.pod_cards for name in cards.names}
        cards = resource.split("|")
        return " or ".join([card for card in cards if card in accepted] or cards)

    def is_own_limit(self, refusal: Refusal, figures: Figures) -> bool:
        """Whether the refusing queue sets the limit itself; otherwise it follows from the cluster."""
        resource = figures.resource
        if refusal.plugin == "capacity-card" and resource not in (CPU, MEMORY):
            return True
        stated = self.capabilities.get(refusal.queue, {}).get(resource)
        if refusal.plugin == "proportion":  # a share is at most the capability
            return stated == figures.limit
        return stated is not None and stated <= figures.limit

    def given_by(self, name: str, figures: Figures, refusal: Refusal | None = None) -> str:
        """`the cluster has 8 for queue q`: what a limit follows from that the queue `name` does not set."""
        queues, resource = self._snapshot.state.queues, figures.resource
        queue, limit = queues.get(name), shown_amount(resource, in_units(resource, figures.limit))
        stated = self.capabilities.get(name, {}).get(resource)
        own = f", whose quota is {shown_amount(resource, in_units(resource, stated))}" if stated is not None else ""
        above = [one for one in ancestors(queue, queues) if resource in (one.capability or {})] if queue else []
        source = "the cluster"
        if above and self._snapshot.conf.quota_plugins.is_tree:
            most = in_units(resource, (above[0].capability or {})[resource])
            source = f"parent queue {above[0].name}, of {shown_amount(resource, most)},"
        elif refusal is not None and refusal.plugin == "proportion" and refusal.hook != "job_enqueueable":
            return f"the share of the cluster that proportion gives queue {name} is {limit}"
        whose = "all queues" if name == ROOT != self.job.queue else f"queue {name}"
        return f"{source} has {limit} for {whose}{own}{self.beside_guarantees(resource)}"

    def beside_guarantees(self, resource: str) -> str:
        """` beside the guarantee of queue a (4)`: after an amount of a resource of the cluster; "" for none."""
        queues = self._snapshot.state.queues
        own = {self.job.queue, *(one.name for one in ancestors(queues[self.job.queue], queues))}
        found = {name: amount for name, one in queues.items() if (amount := (one.guarantee or {}).get(resource, 0))}
        shown = [
            f"{name} ({shown_amount(resource, in_units(resource, amount))})"
            for name, amount in sorted(found.items(), key=lambda item: (-item[1], item[0]))
            if name not in own
        ]
        if not shown:
            return ""
        return f" beside the {'guarantee of queue' if len(shown) == 1 else 'guarantees of queues'} {brief(shown)}"

    def inherits(self, exceeded: ExceededLimit) -> bool:
        """Whether a limit that a job exceeds is what the ancestors of a queue leave of theirs."""
        resource = exceeded.figures.resource
        stated = self.capabilities.get(exceeded.queue, {}).get(resource)
        is_tree = self._snapshot.conf.quota_plugins.is_tree and not {*self.known_cards} & {*resource.split("|")}
        return is_tree and (stated is None or stated > exceeded.figures.limit)

    def named_queue(self, name: str) -> str:
        """`queue q`, `its parent queue p`, `its ancestor queue root`."""
        return f"queue {self.queue.name}" if name in ("", self.queue.name) else f"its {self.related_queue(name)}"

    def related_queue(self, name: str) -> str:
        """`parent queue p`, `ancestor queue root`: of a queue above that of the job."""
        own = self._snapshot.state.queues[self.job.queue]
        return f"{'parent' if own.parent == name else 'ancestor'} queue {name}"

    # --- nodes ------------------------------------------------------------------------------------------------------

    @property
    def offered(self) -> frozenset[str]:
        """The resources of the nodes."""
        return self._capacity.offered

    def capacity_of(self, cls: TaskClass) -> list[CardCapacity]:
        """The rows of the capacity that pods of a template request."""
        cards = self.cards_by_class[cls]
        found = []
        for row in self.capacity:
            is_card = row.card in cards.alternatives and row.per_pod == in_units(row.resource, cards.amount)
            requested = cls.requests.get(row.resource, 0)
            if is_card or (row.card == row.resource and requested and row.per_pod == in_units(row.resource, requested)):
                found.append(row)
        return found

    def group_of(self, cls: TaskClass) -> AutoscaledGroup | None:
        """The first node group whose nodes fit pods of a template."""
        names = self.cards_by_class[cls].names
        found = (group for group in self.node_groups if group.pods_per_node(cls, names or None))
        return next(found, None)

    def needed_of(self, cls: TaskClass) -> int:
        """How many pods of a template the minimum of the job needs, placed ones included, whatever the others."""
        job = self.job
        tasks = [task for task in job.tasks.values() if task.status not in COMPLETED_STATUSES]
        if job.is_ready():
            return 1
        needed = job.starting_pods - sum(task.cls is not cls for task in tasks)
        for role, minimum in job.min_task_member.items() if job.checks_roles else ():
            if all(task.cls is cls for task in tasks if task.role == role):
                needed = max(needed, minimum)
        return max(needed, 1)

    def fitting_of(self, cls: TaskClass) -> int:
        """How many pending pods of a template fit now, alone or where most pods of their gang do."""
        outcomes = [self._session.results.outcome_of(task.uid) for task in self.waiting if task.cls is cls]
        return sum(one is not None and (one.kind == "schedulable" or one.fits_partly) for one in outcomes)

    def preparing(self) -> list[str]:
        """Sentences about the pods that are bound once drivers have prepared their devices."""
        return awaited_conditions(self._session.snapshot, self.tasks)

    def leaving(self) -> list[str]:
        """Sentences about terminating pods that hold what the job lacks: of the refusing queues, and on its nodes."""
        queues = {refusal.queue for refusal in (*self.refusals, *self._refusal_of.values())}
        below = {
            one.name
            for name in queues
            if (queue := self._snapshot.state.queues.get(name)) is not None
            for one in subtree(queue, self._snapshot.state.queues)
        }
        nodes = {name for pods in self.pending for row in pods.nodes if row.decides for name in row.names}
        nodes |= {pods.node for pods in self.pending if pods.outcome == "pipelined"}
        held = [
            task
            for task in self._snapshot.state.tasks.values()
            if task.deleting
            and task.node is not None
            and task.job is not self.job
            and (task.node.name in nodes or (task.job is not None and task.job.queue in below))
        ]
        lost = stranded_of(held)
        others = [task for task in held if task.ends and task.node is not None and not lost_word(task.node)]
        others.sort(key=lambda task: (-task.ends, task.key))
        return lost + [
            f"pod {task.name} on {task.node.name} {self._termination(task)}"
            for task in others[:_MOST_CLASSES]
            if task.node is not None
        ]

    def _termination(self, task: Task) -> str:
        """`terminates until 2026-01-01T00:00:00Z`, or that it has not ended in its grace period."""
        end = format_timestamp(task.ends)
        return (
            f"terminates until {end}" if task.ends > self._session.now else f"was to end by {end} and still terminates"
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
            row.reason.removeprefix(INSUFFICIENT)
            for pods in pending
            for row in pods.nodes
            if row.reason.startswith(INSUFFICIENT)
        }
        few = self.exceeded.figures.resource if self.exceeded is not None and not self.exceeded.queue else ""
        for cls, cards in list(self.cards_by_class.items())[:_MOST_CLASSES]:
            offers = [offer for card in cards.alternatives for offer in self._capacity.nodes_with(card)]
            for card in cards.alternatives:
                if cards.amount and (card, cards.amount) not in found:
                    found[card, cards.amount] = self._capacity.capacity(card, cls, cards.amount)
            among = {offer.node.name for offer in offers}
            # Pods of a job that is not admitted are not tried on nodes.
            beyond = self._capacity.larger_than_nodes(cls, among=among) if offers or not cards.names else ()
            for resource in sorted(lacking.union(beyond, filter(None, [few])) - {offer.resource for offer in offers}):
                amount = cls.requests.get(resource, 0)
                if amount and (resource, amount) not in found:
                    row = self._capacity.capacity(resource, cls, amount, among=among)
                    if resource == few or any(bar.free < row.per_pod for bar in row.histogram) or not row.histogram:
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
