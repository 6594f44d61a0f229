"""Admit no more groups than a multiple of the cluster can hold (plugins reference §10)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.quota.queue_sums import (
    QueueSums,
    admitted_reservation,
    excess,
    listed,
    reservation,
    unplaced_minimum,
)
from capcard_sched.model.reasons import CLUSTER_OVERUSED
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.model.status import Vote

if TYPE_CHECKING:
    from typing import Any

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.resources import ResourceColumns, Vector

DEFAULT_FACTOR = 1.2
#: A factor may make any number of it; this one is more than all jobs together can ask for, and fits 64 bits.
_UNLIMITED = 2**62


class OvercommitArguments(msgspec.Struct, frozen=True):
    """Arguments as users write them."""

    #: How many times the cluster's room may be promised to admitted jobs.
    factor: Annotated[float, msgspec.Meta(ge=1)] = msgspec.field(name="overcommit-factor", default=DEFAULT_FACTOR)


class Overcommit(Plugin):
    """Admission by what the cluster has, times a factor, less what is used and what is promised."""

    name = "overcommit"
    Arguments = OvercommitArguments
    arguments: OvercommitArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._inqueue = QueueSums(admitted_reservation)
        self._resources: ResourceColumns
        #: total x factor - used when the session opened; may be negative. int64 [resource columns]
        self._room: Vector

    def open(self, session: Session) -> None:
        resources = self._resources = session.resources
        self._inqueue.refresh(session)
        factor = Fraction(str(self.arguments.factor))
        total = resources.fit(session.total).tolist()
        promised = [min(amount * factor.numerator // factor.denominator, _UNLIMITED) for amount in total]
        self._room = np.array(promised, dtype=np.int64) - resources.fit(session.nodes.total_used)

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """Only resources the group names in `minResources` count; what it already holds is not asked for twice."""
        if job.min_resources is None:
            return Vote.PERMIT
        resources, inqueue, room = self._resources, self._inqueue.total, self._room
        need = unplaced_minimum(job, resources)
        names = excess(need, inqueue, room, resources)
        if not names:
            return Vote.PERMIT
        first = names[0]
        column = resources.find(first)
        taken, limit = (0, 0) if column is None else (inqueue.item(column), room.item(column))
        return Refusal(
            "job_enqueueable",
            self.name,
            CLUSTER_OVERUSED.code,
            CLUSTER_OVERUSED.render(dimensions=listed("overused", names)),
            queue=job.queue,
            figures=Figures(first, need[first], need[first] + taken, limit),
            event=True,
            type=CLUSTER_OVERUSED.type,
        )

    def job_enqueued(self, job: Job) -> None:
        if job.min_resources is not None:
            self._inqueue.put(job, reservation(job, self._resources))
