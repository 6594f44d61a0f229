"""Refusals of jobs and pods beyond a quota, with their figures."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from capcard_sched.model.namespace_queues import missing_text
from capcard_sched.model.reasons import (
    CLAIM_CARDS_POSTPONED,
    EMPTY_QUEUE_CAPABILITY,
    GET_TASK_REQUEST_RESOURCE_FAILED,
    INSUFFICIENT_CPU_QUOTA,
    INSUFFICIENT_MEMORY_QUOTA,
    INSUFFICIENT_SCALAR_QUOTA,
    QUEUE_NOT_FOUND,
    QUEUE_NOT_OPEN,
    QUEUE_NOT_OPEN_ALLOCATE,
    QUEUE_NOT_OPEN_RECLAIM,
)
from capcard_sched.model.refusal import Figures, Refusal, of_ancestor
from capcard_sched.plugins.capacity_card.arguments import NAME
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY, PLAIN

if TYPE_CHECKING:
    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.plugins.capacity_card.quota import QueueAccount

#: The hooks that may refuse.
QuotaHook: TypeAlias = Literal["job_enqueueable", "allocatable", "preemptive"]

#: Source of Pod events; it does not follow the scheduler's name.
POD_COMPONENT: Final = "volcano.capacity-card"
#: The verb in the event of a queue without any capability.
_VERBS: Final[dict[QuotaHook, str]] = {"job_enqueueable": "enqueue", "allocatable": "allocate", "preemptive": "preempt"}
#: The reason of a closed queue, and whether it has an event.
_NOT_OPEN: Final[dict[QuotaHook, tuple[Reason, bool]]] = {
    "job_enqueueable": (QUEUE_NOT_OPEN, True),
    "allocatable": (QUEUE_NOT_OPEN_ALLOCATE, False),
    "preemptive": (QUEUE_NOT_OPEN_RECLAIM, True),
}
#: Reasons by key, of keys that are no card.
_ROWS: Final = {CPU_KEY: INSUFFICIENT_CPU_QUOTA, MEMORY_KEY: INSUFFICIENT_MEMORY_QUOTA}
_EMPTY: Final = "cpu 0.00, memory 0.00"


class QuotaRefusals:
    """Makes the refusals of the plugin."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def open(self, session: Session) -> None:
        self._session = session

    @property
    def is_nominating(self) -> bool:
        """Whether nominations are planned: pods that are being released hold no quota then."""
        return self._session is not None and self._session.assumptions.nominating

    @property
    def is_growing(self) -> bool:
        """Whether only limits of objects apply, none that follow from the size of the cluster."""
        return self._session is not None and self._session.assumptions.growing

    def shortage(
        self, hook: QuotaHook, account: QueueAccount, found: QuotaShortage, *, pods_too: bool = False
    ) -> Refusal:
        """Insufficient quota. A queue without any capability adds a second event."""
        figures, queue = figures_of(found), found.queue
        row = _ROWS.get(found.figures.resource, INSUFFICIENT_SCALAR_QUOTA)
        shown = _mebibytes if row is INSUFFICIENT_MEMORY_QUOTA else str
        message = row.render(
            queue=queue,
            card=figures.resource,
            requested=shown(figures.requested),
            total=shown(figures.total),
            limit=shown(figures.limit),
        )
        also: tuple[tuple[str, str], ...] = ()
        if queue != account.name:
            message = of_ancestor(message, queue, account.name)
        elif account.quota.is_empty:
            text = EMPTY_QUEUE_CAPABILITY.render(queue=queue, capability=_EMPTY, verb=_VERBS[hook])
            also = ((EMPTY_QUEUE_CAPABILITY.code, text),)
        refusal = self.refusal(hook, queue, row, message, pods_too=pods_too)
        return msgspec.structs.replace(refusal, figures=figures, alternatives=found.alternatives, also=also)

    def no_charge(self, hook: QuotaHook, queue: str, error: str, *, pods_too: bool = False) -> Refusal:
        row = GET_TASK_REQUEST_RESOURCE_FAILED
        return self.refusal(hook, queue, row, row.render(queue=queue, error=error), pods_too=pods_too)

    def postponed(self, hook: QuotaHook, queue: str, error: str) -> Refusal:
        """The charge is computed in a later session."""
        row = CLAIM_CARDS_POSTPONED
        refusal = self.refusal(hook, queue, row, row.render(error=error), event=False)
        return msgspec.structs.replace(refusal, in_order=True)

    def not_open(self, hook: QuotaHook, queue: Queue, *, task: str = "", pods_too: bool = False) -> Refusal:
        """The queue is not open: it admits nothing, and reclaims nothing for its pod `task`."""
        row, event = _NOT_OPEN[hook]
        message = row.render(queue=queue.name, state=queue.state, task=task)
        return self.refusal(hook, queue.name, row, message, event=event, pods_too=pods_too)

    def unknown_queue(self, hook: QuotaHook, queue: str) -> Refusal:
        """The ledger has no such queue, or no session has opened it yet."""
        return self.refusal(hook, queue, QUEUE_NOT_FOUND, QUEUE_NOT_FOUND.render(problem=missing_text(queue)))

    def refusal(
        self, hook: QuotaHook, queue: str, row: Reason, message: str, *, event: bool = True, pods_too: bool = False
    ) -> Refusal:
        component = "" if hook == "job_enqueueable" else POD_COMPONENT
        return Refusal(hook, NAME, row.code, message, queue=queue, event=event, component=component, pods_too=pods_too)


def _mebibytes(amount: int) -> str:
    """Bytes as Mi: a plain decimal in its shortest form, never with an exponent."""
    whole, rest = divmod(amount, 1048576)
    return f"{Decimal(repr(amount / 1048576)):f}" if rest else str(whole)


def figures_of(found: QuotaShortage) -> Figures:
    """The figures of a shortage, with the name of the resource instead of its key."""
    key = found.figures.resource
    return msgspec.structs.replace(found.figures, resource=PLAIN.get(key, key))
