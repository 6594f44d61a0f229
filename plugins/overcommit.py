"""overcommit: admits jobs up to a multiple of the cluster's resources."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.quota.limits import UNLIMITED, admit, refusal
from capcard_sched.framework.quota.queue_sums import QueueSums, admitted_reservation, reservation, unplaced_minimum
from capcard_sched.model.reasons import CLUSTER_OVERUSED
from capcard_sched.model.status import Vote

if TYPE_CHECKING:
    from typing import Any

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.model.resources import ResourceColumns, Vector

DEFAULT_FACTOR = 1.2


class OvercommitArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Admitted jobs may request up to this multiple of the cluster's resources.
    factor: Annotated[float, msgspec.Meta(ge=1)] = msgspec.field(name="overcommit-factor", default=DEFAULT_FACTOR)


class Overcommit(Plugin):
    """Admits a job when its minimum fits total x factor - used - reserved."""

    name = "overcommit"
    Arguments = OvercommitArguments
    arguments: OvercommitArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._inqueue = QueueSums(admitted_reservation)
        self._resources: ResourceColumns
        #: total x factor - used at session open; may be negative. int64 [resource columns]
        self._free: Vector

    def open(self, session: Session) -> None:
        resources = self._resources = session.resources
        self._inqueue.refresh(session)
        factor = Fraction(str(self.arguments.factor))
        total = resources.fit(session.total).tolist()
        scaled = [min(amount * factor.numerator // factor.denominator, UNLIMITED) for amount in total]
        self._free = np.array(scaled, dtype=np.int64) - resources.fit(session.nodes.total_used)

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        """Only resources in `minResources` count; amounts the job already holds are subtracted."""
        if job.min_resources is None:
            return Vote.PERMIT
        need = unplaced_minimum(job, self._resources)
        found = admit(need, self._inqueue.total, self._free, self._resources)
        if found is None:
            return Vote.PERMIT
        return refusal(self.name, "job_enqueueable", job.queue, CLUSTER_OVERUSED, "overused", found)

    def admission_version(self, job: Job) -> tuple[object, ...]:
        need = unplaced_minimum(job, self._resources)
        amounts = self._inqueue.total.tobytes(), self._free.tobytes()
        return job.min_resources is None, len(self._resources), *need.items(), *amounts

    def job_enqueued(self, job: Job) -> None:
        if job.min_resources is not None:
            self._inqueue.put(job, reservation(job, self._resources))
