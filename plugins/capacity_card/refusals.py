"""Refusals of jobs and pods. Alerts of users match their texts."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from capcard_sched.model.reasons import (
    EMPTY_QUEUE_CAPABILITY,
    GET_TASK_REQUEST_RESOURCE_FAILED,
    INSUFFICIENT_CPU_QUOTA,
    INSUFFICIENT_MEMORY_QUOTA,
    INSUFFICIENT_SCALAR_QUOTA,
    INVALID_CARD_REQUEST,
    QUEUE_NOT_FOUND,
    QUEUE_NOT_OPEN,
    QUEUE_NOT_OPEN_ALLOCATE,
    QUEUE_NOT_OPEN_RECLAIM,
)
from capcard_sched.model.refusal import Refusal, of_ancestor
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY, PLAIN

if TYPE_CHECKING:
    from capcard_sched.framework.quota.limits import QuotaShortage
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.refusal import Figures
    from capcard_sched.plugins.capacity_card.accounts import QueueAccount

#: The hooks of this plugin that may refuse.
RefusingHook: TypeAlias = Literal["job_enqueueable", "allocatable", "preemptive"]

#: Source of Pod events; it does not follow the scheduler's name.
POD_COMPONENT: Final = "volcano.capacity-card"
#: The verb in the event of a queue without any capability.
_VERBS: Final[dict[RefusingHook, str]] = {
    "job_enqueueable": "enqueue",
    "allocatable": "allocate",
    "preemptive": "preempt",
}
#: Reasons by key, of keys that are no card.
_ROWS: Final = {CPU_KEY: INSUFFICIENT_CPU_QUOTA, MEMORY_KEY: INSUFFICIENT_MEMORY_QUOTA}
_EMPTY: Final = "cpu 0.00, memory 0.00"
_MEBIBYTE: Final = Decimal(1048576)


def mebibytes(amount: int) -> str:
    """Bytes as Mi: a plain decimal in its shortest form, never with an exponent."""
    whole, rest = divmod(amount, 1048576)
    if not rest:
        return str(whole)
    return f"{Decimal(repr(float(Decimal(amount) / _MEBIBYTE))):f}"


def figures_of(found: QuotaShortage) -> Figures:
    """The figures of a shortage, with the name of the resource instead of its key."""
    key = found.figures.resource
    return msgspec.structs.replace(found.figures, resource=PLAIN.get(key, key))


def without_event(refusal: Refusal) -> Refusal:
    """The same without an event: an event of this session has the same message."""
    return msgspec.structs.replace(refusal, event=False)


class QuotaRefusals:
    """Creates and counts refusals."""

    def __init__(self, plugin: str) -> None:
        self._plugin = plugin
        #: (queue, hook, reason) to number of refusals.
        self.counts: dict[tuple[str, str, str], int] = {}

    def shortage(
        self, hook: RefusingHook, account: QueueAccount, found: QuotaShortage, *, pods_too: bool = False
    ) -> Refusal:
        """Insufficient quota. A queue without any capability adds a second event."""
        figures, queue = figures_of(found), found.queue
        row = _ROWS.get(found.figures.resource, INSUFFICIENT_SCALAR_QUOTA)
        shown = mebibytes if row is INSUFFICIENT_MEMORY_QUOTA else str
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
        return self._refusal(hook, queue, row, message, figures, found.alternatives, also=also, pods_too=pods_too)

    def no_charge(self, hook: RefusingHook, queue: str, error: str, *, pods_too: bool = False) -> Refusal:
        """The request of a pod cannot be computed."""
        row = GET_TASK_REQUEST_RESOURCE_FAILED
        return self._refusal(hook, queue, row, row.render(queue=queue, error=error), pods_too=pods_too)

    def invalid_request(self, queue: str, detail: str) -> Refusal:
        """The `card.request` of a job without pods is invalid."""
        row = INVALID_CARD_REQUEST
        return self._refusal("job_enqueueable", queue, row, row.render(detail=detail))

    def not_open(self, hook: RefusingHook, queue: Queue, *, task: str = "", pods_too: bool = False) -> Refusal:
        """The queue is not open: it admits nothing, and reclaims nothing for its pod `task`."""
        if hook == "job_enqueueable":
            row = QUEUE_NOT_OPEN
            return self._refusal(
                hook, queue.name, row, row.render(queue=queue.name, state=queue.state), pods_too=pods_too
            )
        if hook == "preemptive":
            row = QUEUE_NOT_OPEN_RECLAIM
            return self._refusal(hook, queue.name, row, row.render(queue=queue.name, state=queue.state, task=task))
        row = QUEUE_NOT_OPEN_ALLOCATE
        return self._refusal(hook, queue.name, row, row.render(queue=queue.name, state=queue.state), event=False)

    def unknown_queue(self, hook: RefusingHook, queue: str) -> Refusal:
        """The ledger has no such queue, or no session has opened it yet."""
        return self._refusal(hook, queue, QUEUE_NOT_FOUND, QUEUE_NOT_FOUND.render(queue=queue))

    def _refusal(
        self,
        hook: RefusingHook,
        queue: str,
        row: Reason,
        message: str,
        figures: Figures | None = None,
        alternatives: tuple[Figures, ...] = (),
        *,
        also: tuple[tuple[str, str], ...] = (),
        event: bool = True,
        pods_too: bool = False,
    ) -> Refusal:
        key = queue, hook, row.code
        self.counts[key] = self.counts.get(key, 0) + 1
        return Refusal(
            hook,
            self._plugin,
            row.code,
            message,
            queue=queue,
            figures=figures,
            alternatives=alternatives,
            also=also,
            event=event,
            component="" if hook == "job_enqueueable" else POD_COMPONENT,
            pods_too=pods_too,
        )
