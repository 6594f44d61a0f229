"""Capability, request and deserved amounts of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.quota.limits import capability_vector, limiting_total
from capcard_sched.framework.quota.queue_sums import known_vector
from capcard_sched.model.resources import PODS_COLUMN
from capcard_sched.plugins.proportion.filling import fill
from capcard_sched.plugins.proportion.iteration import EPSILON, iterate

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Matrix, ResourceColumns, Vector


class QueueAttributes:
    """Amounts of one queue, int64 [resource columns]. Kept across sessions until the queue changes."""

    __slots__ = (
        "capability",
        "deserved",
        "deserved_or_inf",
        "guarantee",
        "limit",
        "name",
        "pipelined",
        "real_capability",
        "request",
        "share",
        "wanted",
        "weight",
    )

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
