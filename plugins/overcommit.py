"""overcommit: admits jobs up to a multiple of the cluster's resources, and of what their queue deserves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from capcard_sched.framework.quota.limits import UNLIMITED, admit, capability_vector, refusal, scaled
from capcard_sched.framework.quota.queue_sums import unplaced_minimum
from capcard_sched.framework.quota.quota_plugin import AdmissionPlugin
from capcard_sched.model.annotations import OVERCOMMIT_FACTOR
from capcard_sched.model.queue import ancestors
from capcard_sched.model.reasons import CLUSTER_OVERUSED, OVERCOMMIT_FACTOR_INVALID, QUEUE_OVERCOMMIT_EXCEEDED
from capcard_sched.model.refusal import Limiter, Refusal
from capcard_sched.validation.names import shown
from capcard_sched.validation.overcommit import FACTOR_FORM, overcommit_factor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.status import Vote

DEFAULT_FACTOR = 1.2


class OvercommitArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Admitted jobs may request up to this multiple of the cluster's resources.
    factor: Annotated[float, msgspec.Meta(ge=1)] = msgspec.field(name="overcommit-factor", default=DEFAULT_FACTOR)
    #: The highest effective factor of a queue; unset: `overcommit-factor`.
    max_queue_factor: Annotated[float, msgspec.Meta(ge=1)] | None = msgspec.field(
        name="max-queue-overcommit-factor", default=None
    )


class _QueueLimit(NamedTuple):
    """The limit of a queue with a factor; amounts are int64 [resource columns]."""

    queue: str
    factor: float
    #: The queues whose jobs count: itself, and with a hierarchy those below it.
    counted: Sequence[str]
    #: Allocated at session open.
    used: Vector
    #: UNLIMITED for resources that the queue does not deserve.
    most: Vector


class Overcommit(AdmissionPlugin):
    """Admits a job when its minimum fits total x factor - used - reserved.

    The annotation `volcano.sh/overcommit-factor` of a queue adds the limit deserved x factor - used - reserved of the
    queue; with `enableHierarchy` those of its ancestors apply, too.
    """

    name = "overcommit"
    Arguments = OvercommitArguments
    arguments: OvercommitArguments
    _reason = CLUSTER_OVERUSED
    _word = "overused"
    #: total x factor, and what is used at session open: int64 [resource columns]
    _most: Vector
    _used: Vector
    #: By queue with a valid factor.
    _limits: dict[str, _QueueLimit]
    #: By queue with an annotation; 0 for an invalid one.
    _factors: dict[str, float]

    def open(self, session: Session) -> None:
        super().open(session)
        factor, resources = self.arguments.factor, session.resources
        total = [min(scaled(amount, factor), UNLIMITED) for amount in resources.fit(session.snapshot.total).tolist()]
        self._most = np.array(total, dtype=np.int64)
        self._used = resources.fit(session.nodes.total_used)
        found = {name: overcommit_factor(queue.annotations) for name, queue in session.queues.items()}
        self._factors = {name: one for name, one in found.items() if one is not None}
        self._limits = {}
        counted: dict[str, list[str]] = {name: [name] for name in self._factors}
        if self.hierarchy and counted:
            for name, queue in session.queues.items():
                for above in ancestors(queue, session.queues):
                    if above.name in counted:
                        counted[above.name].append(name)
        for name, names in counted.items():
            if self._factors[name] and session.queues[name].deserved:
                self._limits[name] = self._queue_limit(session.queues[name], names)

    def _queue_limit(self, queue: Queue, counted: Sequence[str]) -> _QueueLimit:
        """min(capability, max(deserved, guarantee) x factor) of the resources that the queue deserves."""
        resources, queues = self._session.resources, self._session.queues
        highest = self.arguments.max_queue_factor
        factor = min(self._factors[queue.name], self.arguments.factor if highest is None else highest)
        most, capability = capability_vector(None, resources), capability_vector(queue.capability, resources)
        for name, amount in (queue.deserved or {}).items():
            column = resources.find(name)
            if column is not None and amount > 0:
                base = max(amount, (queue.guarantee or {}).get(name, 0))
                most[column] = min(scaled(base, factor), capability.item(column))
        used = sum((resources.fit(queues[name].allocated) for name in counted), resources.zeros())
        return _QueueLimit(queue.name, factor, counted, used, most)

    def _admission_limits(self, queue: Queue) -> list[tuple[str, Vector, Vector, Vector]]:
        if self._session.assumptions.growing:
            return []
        return [(queue.name, self._used + self._inqueue.total, self._inqueue.total, self._most)]

    def _limiter(self) -> Limiter:
        return Limiter("cluster", factor=self.arguments.factor)

    def _path(self, queue: Queue) -> list[Queue]:
        """The queues whose factors apply to the jobs of a queue, nearest first."""
        return [queue, *(ancestors(queue, self._session.queues) if self.hierarchy else ())] if self._factors else []

    def _queue_limits(self, queue: Queue) -> Iterator[tuple[_QueueLimit, Vector]]:
        """The limits of a queue and of its ancestors, each with the reservations that count."""
        for one in self._path(queue):
            limit = self._limits.get(one.name)
            if limit is not None:
                zeros = self._session.resources.zeros()
                yield limit, sum((self._inqueue.of(name) for name in limit.counted), zeros)

    def _barred(self, queue: Queue, hook: str) -> Refusal | None:
        for one in self._path(queue):
            if self._factors.get(one.name) == 0:
                row, value = OVERCOMMIT_FACTOR_INVALID, shown(one.annotations[OVERCOMMIT_FACTOR])
                message = row.render(queue=one.name, value=value, form=FACTOR_FORM)
                return Refusal(hook, self.name, row.code, message, queue=one.name, event=True)
        return None

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """The unplaced minimum fits the cluster, and each queue with a factor."""
        vote = super().job_enqueueable(job)
        if isinstance(vote, Refusal) or job.min_resources is None or not self._limits:
            return vote
        resources = self._session.resources
        need = unplaced_minimum(job, resources)
        for limit, reserved in self._queue_limits(self._session.queues[job.queue]):
            known = {name: amount for name, amount in need.items() if resources.find(name) is not None}
            found = admit(known, limit.used + reserved, reserved, limit.most, resources)
            if found is not None:
                row = QUEUE_OVERCOMMIT_EXCEEDED
                limiter = Limiter("Queue", limit.queue, limit.factor)
                return refusal(self.name, "job_enqueueable", limit.queue, row, "insufficient", found, limiter)
        return vote

    def admission_version(self, job: Job) -> tuple[object, ...]:
        found = super().admission_version(job)
        if job.min_resources is None or not self._limits:
            return found
        limits = self._queue_limits(self._session.queues[job.queue])
        return *found, *((one.queue, (one.used + kept).tobytes(), one.most.tobytes()) for one, kept in limits)
