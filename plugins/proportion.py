"""proportion: each queue deserves a share of the cluster by weight, up to its request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from capcard_sched.framework.api.plugin import Sample, VictimDecision
from capcard_sched.framework.quota.limits import QuotaBound, capability_vector, limiting_total
from capcard_sched.framework.quota.queue_sums import known_vector
from capcard_sched.framework.quota.quota_plugin import QuotaPlugin
from capcard_sched.framework.toolkit.gang_slack import split_slack
from capcard_sched.model.resources import PODS_COLUMN
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Matrix, ResourceColumns, Vector
    from capcard_sched.model.task_class import TaskClass


class QueueAttributes:
    """Amounts of one queue, int64 [resource columns]. Kept across sessions until the queue changes."""

    def __init__(self, queue: Queue, resources: ResourceColumns) -> None:
        self.name = queue.name
        self.weight = queue.weight
        self.guarantee = known_vector(queue.guarantee or {}, resources)
        self.capability = capability_vector(queue.capability, resources)
        #: The largest amount the queue can hold: its capability, without the guarantees of the others.
        self.real_capability = self.capability
        #: Allocated + pending.
        self.request = resources.zeros()
        self.deserved = resources.zeros()
        self.deserved_or_inf = np.full(resources.width, np.inf)
        #: Deserved amounts; of shared devices, which have no limit where the queue names none, the real capability.
        self.limit = self.deserved
        #: Columns of the requested resources without `pods`: they decide whether the queue is overused.
        self.wanted = np.zeros(0, dtype=np.intp)
        #: Requests of tasks nominated in this session; 0 again at session close.
        self.pipelined = resources.zeros()
        #: Dominant share of deserved; None until computed.
        self.share: float | None = None

    def open(self, request: Vector, deserved: Vector, shares: Rows) -> None:
        """Start a session with the request and the deserved amounts of the queue. `shares`: of shared devices."""
        self.request = request
        self.deserved = deserved
        self.limit = deserved.copy()
        self.limit[shares] = self.real_capability[shares]
        self.deserved_or_inf = np.where(deserved > 0, deserved.astype(np.float64), np.inf)
        wanted = np.flatnonzero(request > 0)
        self.wanted = wanted[wanted != PODS_COLUMN]
        self.share = None

    def reaches_limit(self, held: Vector) -> bool:
        """Whether `held` is at or above the limit of every requested resource."""
        return bool((held[self.wanted] >= self.limit[self.wanted]).all())

    def share_of(self, held: Vector) -> float:
        """The largest held/deserved of any deserved resource; 0 when none is deserved."""
        return float((held / self.deserved_or_inf).max())


def share_out(
    queues: Sequence[QueueAttributes],
    total: Vector,
    requests: Matrix,
    shares: Rows,
    *,
    rounds_among: Container[str] | None = None,
) -> Matrix:
    """Set `real_capability` of every queue and return the deserved amounts: int64 [queues, resources].

    `shares`: columns of shared devices. They are shared out, too, for the order of queues and for reclaim.
    Exactly, one resource at a time; with `rounds_among`, by Volcano's rounds among the queues of these names, rounded
    down. In the first round a queue gets its part even without a request, so queues without jobs get their guarantee.
    """
    guarantees = np.array([queue.guarantee for queue in queues])
    guaranteed = guarantees.sum(axis=0)
    free = np.maximum(limiting_total(total, guaranteed, shares) - guaranteed, 0)
    capabilities = np.minimum(free + guarantees, [queue.capability for queue in queues])
    for queue, capability in zip(queues, capabilities, strict=True):
        queue.real_capability = capability
    weights = [queue.weight for queue in queues]
    if rounds_among is not None:
        parts = [max(queue.weight, 0) if queue.name in rounds_among else 0 for queue in queues]
        rounds = iterate(
            total, np.array(parts, dtype=np.int64), guarantees, capabilities, requests, pods_column=PODS_COLUMN
        )
        return np.floor(rounds + EPSILON).astype(np.int64)
    deserved: Matrix = np.maximum(guarantees, np.minimum(capabilities, requests))
    for column in np.flatnonzero(deserved.sum(axis=0) > total).tolist():
        filled = fill(int(total[column]), weights, guarantees[:, column].tolist(), deserved[:, column].tolist())
        deserved[:, column] = filled
    return deserved


#: Fractions x/w of weights below 2**31 differ by more than 2**-62, so their floors at this precision keep their order.
_PRECISION = 64


def fill(total: int, weights: Sequence[int], floors: Sequence[int], ceilings: Sequence[int]) -> list[int]:
    """Share out `total`: each entry gets `level * weight`, at least its floor and at most its ceiling.

    The level is the highest whose shares do not exceed `total`; it is found exactly, as a fraction, by one pass over
    the sorted levels at which an entry leaves its floor or reaches its ceiling. Shares are rounded down to whole base
    units, which changes no comparison with whole requests.

    When the floors exceed `total`, each entry gets its floor. A floor above its ceiling wins. Weights below 1 get their
    floor. O(n log n).
    """
    tops = [max(floor, ceiling) for floor, ceiling in zip(floors, ceilings, strict=True)]
    given = sum(floors)  # of the entries at their floor or at their ceiling
    rate = 0  # sum of the weights of the entries between
    if given >= total:
        return list(floors)
    events: list[tuple[int, int, int]] = []  # (level as a sortable integer, entry, 1 at its ceiling)
    for entry, (weight, floor, top) in enumerate(zip(weights, floors, tops, strict=True)):
        if weight > 0 and top > floor:
            events.append(((floor << _PRECISION) // weight, entry, 0))
            events.append(((top << _PRECISION) // weight, entry, 1))
    events.sort()
    for _, entry, full in events:
        weight = weights[entry]
        amount = tops[entry] if full else floors[entry]
        if given * weight + amount * rate >= total * weight:  # the shares of this level reach `total`
            return [
                max(floor, min(top, (total - given) * weight // rate)) if weight > 0 else floor
                for weight, floor, top in zip(weights, floors, tops, strict=True)
            ]
        if full:
            given += amount
            rate -= weight
        else:
            given -= amount
            rate += weight
    return [top if weight > 0 else floor for weight, floor, top in zip(weights, floors, tops, strict=True)]


Floats = npt.NDArray[np.float64]

#: Base units. Amounts closer than this count as equal.
EPSILON = 0.1
#: Rounds. The loop ends when nothing changes; this bound is never reached.
_MAX_ROUNDS = 10_000


def iterate(
    total: Vector, weights: Vector, floors: Matrix, real_capability: Matrix, requests: Matrix, *, pods_column: int
) -> Floats:
    """Deserved amounts, float64 [queues, resources], from int64 arrays of that shape (`total`: [resources]).

    Every round gives each unmet queue its part, by weight, of the remainder of every resource, and returns the part it
    cannot use. With guarantees the parts may exceed `total`. A remainder of `pods` alone starts no further round.
    """
    deserved: Floats = np.zeros(floors.shape)
    met = np.zeros(len(weights), dtype=bool)
    remaining: Floats = total.astype(np.float64)
    ceilings = np.minimum(real_capability, requests)
    others = np.arange(len(total)) != pods_column
    for _ in range(_MAX_ROUNDS):
        weight = int(weights[~met].sum())
        if weight <= 0:
            break
        parts = remaining * (np.where(met, 0, weights)[:, None] / weight)
        after: Floats = np.where(met[:, None], deserved, np.maximum(np.minimum(deserved + parts, ceilings), floors))
        change = after - deserved
        met |= (requests < after + EPSILON).all(axis=1) | (change == 0).all(axis=1)
        deserved = after
        before = remaining
        given, returned = np.maximum(change, 0).sum(axis=0), np.maximum(-change, 0).sum(axis=0)
        remaining = np.maximum(remaining + returned - given, 0)
        if (remaining[others] < EPSILON).all() or np.array_equal(remaining, before):
            break
    return deserved


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

    def setup(self) -> None:
        super().setup()
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
        total = resources.fit(session.snapshot.total)
        owners = {job.queue for job in session.jobs.values()} if self.arguments.iterative else None
        shares = session.snapshot.share_columns
        deserved = share_out(queues, total, requests, shares, rounds_among=owners)
        for queue, request, amounts in zip(queues, requests, deserved, strict=True):
            queue.open(request, amounts, shares)

    def queue_order(self, queue: Queue) -> tuple[int, float]:
        attributes = self._attributes[queue.name]
        if attributes.share is None:
            attributes.share = attributes.share_of(self._held(queue))
        return (-queue.priority, attributes.share)

    def overused(self, queue: Queue) -> bool:
        """Whether the queue holds its limit of every requested resource, without `pods`."""
        if self._session.assumptions.growing:  # more nodes raise what the queue deserves
            return False
        return self._attributes[queue.name].reaches_limit(self._held(queue))

    def allocation_version(self, queue: Queue) -> tuple[object, ...]:
        attributes, releasing = self._attributes[queue.name], self._session.resources.fit(queue.releasing)
        vectors = self._held(queue), releasing, attributes.limit, attributes.deserved, attributes.wanted
        return queue.state, *(vector.tobytes() for vector in vectors)

    def _admission_limits(self, queue: Queue) -> list[tuple[str, Vector, Vector, Vector]]:
        reserved = self._inqueue.of(queue.name)
        used = self._held(queue) + reserved - self._elastic.of(queue.name)
        attributes = self._attributes[queue.name]
        limit = attributes.capability if self._session.assumptions.growing else attributes.real_capability
        return [(queue.name, used, reserved, limit)]

    def _capabilities(self, queue: Queue) -> list[tuple[str, Vector]]:
        return [(queue.name, self._attributes[queue.name].capability)]

    def _pod_bounds(self, queue: Queue, cls: TaskClass, hook: str) -> Iterator[QuotaBound]:
        """The limits, or for reclaim the deserved amounts. A half gang is completed up to the capability.

        Releasing pods count until they are gone, but not for nominations.
        """
        held, attributes = self._held(queue), self._attributes[queue.name]
        limits = attributes.deserved if hook == "preemptive" else attributes.limit
        if self._session.assumptions.completing:
            limits = attributes.real_capability
        if self._session.assumptions.growing:
            limits = attributes.capability
        if not self._session.assumptions.nominating:
            held = held + self._session.resources.fit(queue.releasing)
        for name, column, amount in self._needs_of(cls):
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
