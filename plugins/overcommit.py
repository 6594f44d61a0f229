"""overcommit: admits jobs up to a multiple of the cluster's resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from capcard_sched.framework.quota.limits import UNLIMITED, scaled
from capcard_sched.framework.quota.quota_plugin import AdmissionPlugin
from capcard_sched.model.reasons import CLUSTER_OVERUSED
from capcard_sched.model.refusal import Limiter

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector

DEFAULT_FACTOR = 1.2


class OvercommitArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Admitted jobs may request up to this multiple of the cluster's resources.
    factor: Annotated[float, msgspec.Meta(ge=1)] = msgspec.field(name="overcommit-factor", default=DEFAULT_FACTOR)


class Overcommit(AdmissionPlugin):
    """Admits a job when its minimum fits total x factor - used - reserved."""

    name = "overcommit"
    Arguments = OvercommitArguments
    arguments: OvercommitArguments
    _reason = CLUSTER_OVERUSED
    _word = "overused"
    #: total x factor, and what is used at session open: int64 [resource columns]
    _most: Vector
    _used: Vector

    def open(self, session: Session) -> None:
        super().open(session)
        factor, resources = self.arguments.factor, session.resources
        total = [min(scaled(amount, factor), UNLIMITED) for amount in resources.fit(session.snapshot.total).tolist()]
        self._most = np.array(total, dtype=np.int64)
        self._used = resources.fit(session.nodes.total_used)

    def _admission_limits(self, queue: Queue) -> list[tuple[str, Vector, Vector, Vector]]:
        if self._session.assumptions.growing:
            return []
        return [(queue.name, self._used + self._inqueue.total, self._inqueue.total, self._most)]

    def _limiter(self) -> Limiter:
        return Limiter("cluster", factor=self.arguments.factor)
