"""The proportion plugin: hooks over `attributes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capcard_sched.framework.api.plugin import Grant, Placement, Plugin, Sample, VictimDecision
from capcard_sched.framework.quota.queue_sums import (
    QueueSums,
    admitted_reservation,
    excess,
    listed,
    reservation,
    unplaced_minimum,
)
from capcard_sched.framework.toolkit.gang_slack import split_slack
from capcard_sched.model.reasons import QUEUE_NOT_OPEN, QUEUE_NOT_OPEN_ALLOCATE, QUEUE_QUOTA_INSUFFICIENT
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN
from capcard_sched.model.status import TaskStatus, Vote
from capcard_sched.plugins.proportion.attributes import QueueAttributes, elastic, requested, share_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Amounts, Vector
    from capcard_sched.model.task_class import TaskClass


class ProportionArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Share out by Volcano's rounds instead of exactly.
    iterative: bool = msgspec.field(name="proportion.iterative", default=False)


class Proportion(Plugin):
    """Shares the cluster between queues by weight. Deserved amounts are fixed at session open."""

    name = "proportion"
    Arguments = ProportionArguments
    arguments: ProportionArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._requested = QueueSums(requested)
        self._inqueue = QueueSums(admitted_reservation)
        self._elastic = QueueSums(elastic)
        self._session: Session
        self._attributes: dict[str, QueueAttributes] = {}
        #: Number of resource names the attributes were created with.
        self._names = 0
        #: (name, column, amount) of the request of a class, without `pods`.
        self._needs: dict[TaskClass, list[tuple[str, int, int]]] = {}

    def open(self, session: Session) -> None:
        self._session = session
        self._needs.clear()
        for sums in (self._requested, self._inqueue, self._elastic):
            sums.refresh(session)
        resources, changed = session.resources, session.changed
        if changed.everything or len(resources) != self._names:
            self._names = len(resources)
            self._attributes.clear()
        for name in changed.queues:
            self._attributes.pop(name, None)
        kept = self._attributes
        self._attributes = {
            name: kept.get(name) or QueueAttributes(queue, resources) for name, queue in sorted(session.queues.items())
        }
        if not self._attributes:
            return
        queues = list(self._attributes.values())
        requests = np.array([self._requested.of(queue.name) for queue in queues])
        total = resources.fit(session.total)
        owners = {job.queue for job in session.jobs.values()} if self.arguments.iterative else None
        deserved = share_out(queues, total, requests, rounds_among=owners)
        for queue, request, amounts in zip(queues, requests, deserved, strict=True):
            queue.open(request, amounts)

    # --- orders and quotas ------------------------------------------------------------------------------------------

    def queue_order(self, queue: Queue) -> tuple[int, float]:
        attributes = self._attributes[queue.name]
        if attributes.share is None:
            attributes.share = attributes.share_of(self._held(queue))
        return (-queue.priority, attributes.share)

    def overused(self, queue: Queue) -> bool:
        """Whether the queue holds its deserved amount of every requested resource, without `pods`."""
        return self._attributes[queue.name].reaches_deserved(self._held(queue))

    def allocatable(self, queue: Queue, task: Task) -> Refusal | None:
        if not queue.is_open:
            return self._closed(queue, "allocatable")
        count, names = self._fitting(queue, task.cls, 1)
        return None if count else self._insufficient(queue, task.cls, names, 0, "allocatable")

    def allocatable_many(self, queue: Queue, profile: PodSignature, tasks: Sequence[Task]) -> Grant:
        if not queue.is_open:
            return Grant(0, self._closed(queue, "allocatable"))
        count, names = self._fitting(queue, profile.cls, len(tasks))
        if count == len(tasks):
            return Grant(count)
        return Grant(count, self._insufficient(queue, profile.cls, names, count, "allocatable"))

    def preemptive(self, queue: Queue, task: Task) -> Refusal | None:
        """A queue may reclaim up to what it deserves."""
        if not queue.is_open:
            return self._closed(queue, "preemptive")
        count, names = self._fitting(queue, task.cls, 1)
        return None if count else self._insufficient(queue, task.cls, names, 0, "preemptive")

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        """Candidates while their queue exceeds its deserved amount of a resource they request; guarantees are kept.

        A queue never deserves its victims again, which prevents eviction loops. The others are protected in every tier.
        Members beyond the minimum of their gang are examined first.
        """
        resources, queues = self._session.resources, self._session.queues
        left: dict[str, Vector] = {}
        evicted: dict[str, set[TaskClass]] = {}
        victims: set[str] = set()
        protected: dict[str, str] = {}
        surplus, others = split_slack(candidates)
        for candidate in (*surplus, *others):
            name = candidate.job.queue if candidate.job is not None else ""
            attributes = self._attributes.get(name)
            if attributes is None:
                continue
            if name not in left:
                left[name], evicted[name] = resources.fit(queues[name].allocated), set()
            held, rest = left[name], left[name] - resources.fit(candidate.cls.request)
            needs = self._needs_of(candidate.cls)
            above = any(held.item(column) > attributes.deserved.item(column) for _, column, _ in needs)
            if not above or any(self._entitled(attributes, rest, cls) for cls in evicted[name]):
                protected[candidate.uid] = "deserved"
            elif any(rest.item(column) < attributes.guarantee.item(column) for _, column, _ in needs):
                protected[candidate.uid] = "guarantee"
            else:
                left[name] = rest
                evicted[name].add(candidate.cls)
                victims.add(candidate.uid)
        return VictimDecision(protected, [candidate for candidate in candidates if candidate.uid in victims])

    def _entitled(self, attributes: QueueAttributes, held: Vector, cls: TaskClass) -> bool:
        """Whether a queue that holds this much deserves one more pod of the class."""
        return all(held.item(c) + amount <= attributes.deserved.item(c) for _, c, amount in self._needs_of(cls))

    # --- admission --------------------------------------------------------------------------------------------------

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """The unplaced minimum fits the real capability of the queue, with reservations of admitted jobs counted.

        Elastic amounts of other jobs do not count.
        """
        queue = self._session.queues[job.queue]
        if not queue.is_open:
            return self._closed(queue, "job_enqueueable")
        if job.min_resources is None:
            return Vote.PERMIT
        resources = self._session.resources
        need = unplaced_minimum(job, resources)
        used = self._held(queue) + self._inqueue.of(queue.name) - self._elastic.of(queue.name)
        limit = self._attributes[queue.name].real_capability
        names = excess(need, used, limit, resources)
        if not names:
            return Vote.PERMIT
        return self._quota_refusal(queue, names, need, used, limit, "job_enqueueable")

    def job_enqueued(self, job: Job) -> None:
        if job.min_resources is not None:
            self._inqueue.put(job, reservation(job, self._session.resources))

    # --- events -----------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        self._moved(placement, +1)

    def on_deallocate(self, placement: Placement) -> None:
        self._moved(placement, -1)

    def metrics(self) -> Iterator[Sample]:
        for attributes in self._attributes.values():
            queue = self._session.queues.get(attributes.name)
            if queue is None:
                continue
            labels = {"queue_name": queue.name}
            yield from self._amounts("allocated", queue.name, queue.allocated)
            yield from self._amounts("request", queue.name, attributes.request)
            yield from self._amounts("deserved", queue.name, attributes.deserved)
            yield from self._amounts("inqueue", queue.name, self._inqueue.of(queue.name))
            yield Sample("queue_share", labels, self.queue_order(queue)[1])
            yield Sample("queue_weight", labels, queue.weight)
            yield Sample("queue_overused", labels, float(self.overused(queue)))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _held(self, queue: Queue) -> Vector:
        """Allocated and nominated amounts, with the placements of the session so far. Read only."""
        attributes = self._attributes[queue.name]
        allocated = self._session.resources.fit(queue.allocated)
        held: Vector = allocated + attributes.pipelined
        return held

    def _limiting(self, queue: Queue) -> Vector:
        """The usage that limits further pods: releasing pods count until they are gone, but not for nominations."""
        held = self._held(queue)
        return held if self._session.nominating else held + self._session.resources.fit(queue.releasing)

    def _moved(self, placement: Placement, sign: int) -> None:
        job = placement.job
        attributes = self._attributes.get(job.queue)
        if attributes is None:
            return
        attributes.share = None
        self._elastic.touch(job)
        self._inqueue.touch(job)
        if job.counts[TaskStatus.PIPELINED]:
            pipelined = sum(task.status is TaskStatus.PIPELINED for task in placement.tasks)
            if pipelined:
                request = self._session.resources.fit(placement.cls.request)
                attributes.pipelined += request * (sign * pipelined)

    def _fitting(self, queue: Queue, cls: TaskClass, wanted: int) -> tuple[int, list[str]]:
        """How many of `wanted` pods of the class fit the deserved amounts, and the insufficient resources."""
        held, deserved = self._limiting(queue), self._attributes[queue.name].deserved
        count, names = wanted, []
        for name, column, amount in self._needs_of(cls):
            fitting = max(0, (deserved.item(column) - held.item(column)) // amount)
            if fitting < count:
                count, names = fitting, [name]
            elif fitting == count < wanted:
                names.append(name)
        return count, names

    def _needs_of(self, cls: TaskClass) -> list[tuple[str, int, int]]:
        needs = self._needs.get(cls)
        if needs is None:
            names = self._session.resources.names
            needs = self._needs[cls] = [
                (names[column], column, int(cls.request[column]))
                for column in np.flatnonzero(cls.request > 0).tolist()
                if column != PODS_COLUMN
            ]
        return needs

    def _insufficient(self, queue: Queue, cls: TaskClass, names: list[str], before: int, hook: str) -> Refusal:
        """Refusal of the pod that comes after `before` others of its class."""
        used = self._limiting(queue) + self._session.resources.fit(cls.request) * before
        names = self._session.resources.sorted_names(names)
        return self._quota_refusal(queue, names, cls.requests, used, self._attributes[queue.name].deserved, hook)

    def _quota_refusal(
        self, queue: Queue, names: list[str], need: Amounts, used: Vector, limit: Vector, hook: str
    ) -> Refusal:
        first = names[0]
        column = self._session.resources.find(first)
        before, most = (0, 0) if column is None else (used.item(column), limit.item(column))
        return Refusal(
            hook,
            self.name,
            QUEUE_QUOTA_INSUFFICIENT.code,
            QUEUE_QUOTA_INSUFFICIENT.render(dimensions=listed("insufficient", names)),
            queue=queue.name,
            figures=Figures(first, need[first], need[first] + before, most),
            event=hook == "job_enqueueable",
            type=QUEUE_QUOTA_INSUFFICIENT.type,
        )

    def _closed(self, queue: Queue, hook: str) -> Refusal:
        reason = QUEUE_NOT_OPEN if hook == "job_enqueueable" else QUEUE_NOT_OPEN_ALLOCATE
        message = reason.render(queue=queue.name, state=queue.state)
        return Refusal(hook, self.name, reason.code, message, queue=queue.name, event=hook == "job_enqueueable")

    def _amounts(self, kind: str, queue: str, vector: Vector) -> Iterator[Sample]:
        """The three series of one quantity. Every known scalar is exported: a removed one reads 0."""
        labels = {"queue_name": queue}
        yield Sample(f"queue_{kind}_milli_cpu", labels, vector.item(CPU_COLUMN))
        yield Sample(f"queue_{kind}_memory_bytes", labels, vector.item(MEMORY_COLUMN))
        for column, name in enumerate(self._session.resources.names):
            if column not in (CPU_COLUMN, MEMORY_COLUMN):
                amount = vector.item(column) if column < len(vector) else 0
                yield Sample(f"queue_{kind}_scalar_resources", {**labels, "resource": name}, amount)
