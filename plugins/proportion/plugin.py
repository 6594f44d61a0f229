"""The proportion plugin: hooks over `attributes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capcard_sched.framework.api.plugin import Sample, VictimDecision
from capcard_sched.framework.quota.limits import QuotaBound
from capcard_sched.framework.quota.quota_plugin import QuotaPlugin
from capcard_sched.framework.toolkit.gang_slack import split_slack
from capcard_sched.model.status import TaskStatus
from capcard_sched.plugins.proportion.attributes import QueueAttributes, share_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.quota.limits import Needs
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass


class ProportionArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Share out by Volcano's rounds instead of exactly.
    iterative: bool = msgspec.field(name="proportion.iterative", default=False)


class Proportion(QuotaPlugin):
    """Shares the cluster between queues by weight. Deserved amounts are fixed at session open."""

    name = "proportion"
    victims_by_usage = False
    Arguments = ProportionArguments
    arguments: ProportionArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._attributes: dict[str, QueueAttributes] = {}
        #: Number of resource names the attributes were created with.
        self._names = 0

    def open(self, session: Session) -> None:
        super().open(session)
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
        shares = session.share_columns
        deserved = share_out(queues, total, requests, shares, rounds_among=owners)
        for queue, request, amounts in zip(queues, requests, deserved, strict=True):
            queue.open(request, amounts, shares)

    # --- orders and quotas ------------------------------------------------------------------------------------------

    def queue_order(self, queue: Queue) -> tuple[int, float]:
        attributes = self._attributes[queue.name]
        if attributes.share is None:
            attributes.share = attributes.share_of(self._held(queue))
        return (-queue.priority, attributes.share)

    def overused(self, queue: Queue) -> bool:
        """Whether the queue holds its limit of every requested resource, without `pods`."""
        return self._attributes[queue.name].reaches_limit(self._held(queue))

    def allocation_version(self, queue: Queue) -> tuple[object, ...]:
        attributes, releasing = self._attributes[queue.name], self._session.resources.fit(queue.releasing)
        vectors = self._held(queue), releasing, attributes.limit, attributes.deserved, attributes.wanted
        return queue.state, *(vector.tobytes() for vector in vectors)

    def _admission_limits(self, queue: Queue) -> list[tuple[str, Vector, Vector]]:
        """The real capability of the queue."""
        used = self._held(queue) + self._inqueue.of(queue.name) - self._elastic.of(queue.name)
        return [(queue.name, used, self._attributes[queue.name].real_capability)]

    def _capabilities(self, queue: Queue) -> list[tuple[str, Vector]]:
        return [(queue.name, self._attributes[queue.name].capability)]

    def _pod_bounds(self, queue: Queue, needs: Needs, hook: str) -> Iterator[QuotaBound]:
        """The limits, or for reclaim the deserved amounts.

        Releasing pods count until they are gone, but not for nominations.
        """
        held, attributes = self._held(queue), self._attributes[queue.name]
        limits = attributes.deserved if hook == "preemptive" else attributes.limit
        if not self._session.nominating:
            held = held + self._session.resources.fit(queue.releasing)
        for name, column, amount in needs:
            used, limit = held.item(column), limits.item(column)
            yield QuotaBound((limit - used) // amount, name, amount, queue.name, used, limit)

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

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[object, ...]:
        """Of victims what their queue holds, deserves and guarantees."""
        if role == "preemptor":
            return ()
        attributes, allocated = self._attributes[queue.name], self._session.resources.fit(queue.allocated)
        return allocated.tobytes(), attributes.deserved.tobytes(), attributes.guarantee.tobytes()

    def _entitled(self, attributes: QueueAttributes, held: Vector, cls: TaskClass) -> bool:
        """Whether a queue that holds this much deserves one more pod of the class."""
        return all(held.item(c) + amount <= attributes.deserved.item(c) for _, c, amount in self._needs_of(cls))

    # --- metrics ----------------------------------------------------------------------------------------------------

    def metrics(self) -> Iterator[Sample]:
        for attributes in self._attributes.values():
            queue = self._session.queues.get(attributes.name)
            if queue is None:
                continue
            labels = {"queue_name": queue.name}
            kinds = {
                "allocated": queue.allocated,
                "request": attributes.request,
                "deserved": attributes.deserved,
                "inqueue": self._inqueue.of(queue.name),
            }
            yield from self._series(queue.name, kinds)
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

    def _count(self, placement: Placement, sign: int) -> None:
        job = placement.job
        attributes = self._attributes.get(job.queue)
        if attributes is None:
            return
        attributes.share = None
        if job.counts[TaskStatus.PIPELINED]:
            pipelined = sum(task.status is TaskStatus.PIPELINED for task in placement.tasks)
            if pipelined:
                request = self._session.resources.fit(placement.cls.request)
                attributes.pipelined += request * (sign * pipelined)
