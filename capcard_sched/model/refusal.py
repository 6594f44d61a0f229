"""Refusals as data: messages, events and tables render the same record."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal

import msgspec

from capcard_sched.model import reasons
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.quoting import plural
from capcard_sched.model.reasons import CAN_NEVER_START, NO_PLACES, TOO_FEW_PLACES, Reason, without_numbers

#: Reason of `PodScheduled=False` of the pods of a refused job, by reason of the refusal, and else by its hook.
_BY_REASON: Final[dict[str, Reason]] = {
    reasons.PODGROUP_NOT_FOUND.code: reasons.POD_GANG_PENDING,
    reasons.SCHEDULING_GATED.code: reasons.POD_GANG_PENDING,
    reasons.UNSUPPORTED_FEATURE.code: reasons.POD_GANG_PENDING,
    reasons.QUEUE_NAMESPACE_DENIED.code: reasons.POD_QUOTA_PENDING,
    reasons.QUEUE_ACCEPTS_NO_JOBS.code: reasons.POD_QUOTA_PENDING,
    reasons.QUEUE_NOT_READY.code: reasons.POD_QUOTA_PENDING,
    reasons.QUEUE_NOT_FOUND.code: reasons.POD_QUOTA_PENDING,
    reasons.HYPER_NODES_NOT_READY.code: reasons.POD_PREREQUISITE_PENDING,
    reasons.NO_SUCH_TIER.code: reasons.POD_PREREQUISITE_PENDING,
    reasons.PLUGIN_FAILED.code: reasons.POD_SCHEDULER_ERROR,
}
_BY_HOOK: Final[dict[str, Reason]] = {
    "job_valid": reasons.POD_GANG_PENDING,
    "job_enqueueable": reasons.POD_QUOTA_PENDING,
    "overused": reasons.POD_QUOTA_PENDING,
    "allocatable": reasons.POD_QUOTA_PENDING,
    "preemptive": reasons.POD_QUOTA_PENDING,
    "pre_predicate": reasons.POD_PREREQUISITE_PENDING,
}


class Code(IntEnum):
    """Result code of a filter."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2  # preemption may help
    UNRESOLVABLE = 3  # preemption cannot help
    WAIT = 4
    SKIP = 5


class Figures(msgspec.Struct, frozen=True):
    """The arithmetic of a quota refusal, in base units (cards x 1000, milli-cores, bytes)."""

    #: Resource name or card name (`A|B` for a claim).
    resource: str
    requested: int
    #: The total including the request.
    total: int
    limit: int
    #: The part of the total that admitted jobs reserve.
    reserved: int = 0


class Limiter(msgspec.Struct, frozen=True):
    """The object whose limit refuses, where it is no quota of a queue."""

    #: `ResourceQuota`, `cluster` for limits that follow from its total, `Queue` for its overcommit factor.
    kind: Literal["ResourceQuota", "cluster", "Queue"]
    name: str = ""
    #: Of `cluster` and `Queue`: the multiple of the amounts that is admitted.
    factor: float = 1.0


class ExceededLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit that the minimum of a job exceeds, whatever the usage: the job can never start."""

    #: Those of the minimum alone; numbers of pods where the nodes are the limit.
    figures: Figures
    #: The queue that has the limit: that of the job, or an ancestor; "" for the nodes.
    queue: str
    #: What limits the places on nodes; "" for amounts and cards.
    places: str = ""

    def text(self, queue: str) -> str:
        """The message of `CanNeverStart` for a job of a queue."""
        name, needed, limit = self.figures.resource, self.figures.requested, self.figures.limit
        if self.places:
            return NO_PLACES.render(needed=plural(needed, "pod"), places=self.places)
        if not self.queue:
            return TOO_FEW_PLACES.render(needed=plural(needed, "pod"), limit=limit, resource=name)
        message = CAN_NEVER_START.render(
            needed=format_amount(name, needed), limit=format_amount(name, limit), resource=name, queue=self.queue
        )
        return message if self.queue == queue else of_ancestor(message, self.queue, queue)


def of_ancestor(message: str, ancestor: str, queue: str) -> str:
    """A message about an ancestor's limit, with the queue of the job."""
    return message.replace(f"Queue <{ancestor}>", f"Queue <{ancestor}> (ancestor of <{queue}>)", 1)


class Refusal(msgspec.Struct, frozen=True):
    """One refusal and its explanation.

    `reason` is a row of `model.reasons`; `message` is rendered from that row when the record is created, so that event,
    condition, `explain` and tables have the same text.
    """

    #: Hook that refused: a method name of the hooks table.
    hook: str
    #: Plugin that refused; "" for the framework itself.
    plugin: str
    reason: str
    message: str
    code: Code = Code.UNSCHEDULABLE
    queue: str = ""
    figures: Figures | None = None
    #: None if a queue, or nothing, limits.
    limiter: Limiter | None = None
    #: For a claim on several cards: the figures of every alternative. Of a ResourceQuota: its other amounts that lack.
    alternatives: tuple[Figures, ...] = ()
    #: Further events to emit with this one, as (reason, message).
    also: tuple[tuple[str, str], ...] = ()
    #: Whether the refusal is an event of its own on its object (quota plugins), or only part of the job's text.
    event: bool = False
    #: Event type.
    type: Literal["Normal", "Warning"] = "Warning"
    #: Event source component; "" is the scheduler's own recorder.
    component: str = ""
    #: On enqueue refusals: emit the same event on the job's pending pods, too.
    pods_too: bool = False
    #: The job waits behind others, not for quota.
    in_order: bool = False

    @property
    def pending_reason(self) -> Reason:
        """The reason of `PodScheduled=False` of the pods that it concerns."""
        if self.limiter is not None and self.limiter.kind == "cluster":
            return reasons.POD_UNSCHEDULABLE
        if self.in_order:
            return reasons.POD_ORDER_PENDING
        return _BY_REASON.get(self.reason) or _BY_HOOK.get(self.hook) or reasons.POD_UNSCHEDULABLE

    @property
    def kind(self) -> tuple[str, str, str]:
        """Hook, plugin, and the words of the refusal without its figures."""
        return self.hook, self.plugin, f"{self.reason} {without_numbers(self.message)}"

    def is_like(self, other: Refusal) -> bool:
        """Whether the refusals differ in totals only: what is requested and the limits are the same."""
        return self.kind == other.kind and self._bounds() == other._bounds()

    def _bounds(self) -> list[tuple[str, int, int]]:
        figures = (self.figures, *self.alternatives) if self.figures is not None else self.alternatives
        return [(each.resource, each.requested, each.limit) for each in figures]
