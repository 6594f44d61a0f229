"""Bindings: one POST per pod, the classification of every response, and the reports about failed ones.

While the outcome of a binding is unknown, the core does not schedule the pod again. The binder reads the pod, and
unless that decides the outcome, sends the same binding again until a response is definite. Reads and watches race, so a
read never updates the state of the pod; only "bound by another client" and "gone" are passed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from capcard_sched.kube.errors import ApiError, RequestError, RetryClass
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.leadership_gate import GatedClient
from capcard_sched.kube.writes.statuses import gate_event
from capcard_sched.kube.writes.write_backoff import RefusedWrites, WriteBackoff
from capcard_sched.kube.writes.write_call import (
    DONE,
    CallWriter,
    PreBindPendingError,
    WriteCall,
    WriteOutcome,
    WriteResult,
    read_pod,
)
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.deltas import BindFailed, BindRetry, ObjectGone
from capcard_sched.model.intents import EmitEvent, ObjectRef, UpdatePodCondition
from capcard_sched.model.reasons import BINDING_CONDITIONS_PENDING, FAILED_ALLOCATION, FAILED_SCHEDULING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.writes.bind_gang import BindGang
    from capcard_sched.kube.writes.claim_releaser import UndoPreBind
    from capcard_sched.kube.writes.write_call import WriterContext
    from capcard_sched.model.intents import Bind
    from capcard_sched.model.reasons import Reason

#: Seconds of backoff of a rejected pod.
_REFUSALS: Final = WriteBackoff(first=1.0, longest=300.0)
#: Seconds of backoff of a pod that another client bound, until the watch delivers that.
_ELSEWHERE_SECONDS: Final = 1.0
#: Seconds for which a gang waits for the claims of a pod whose writes get no response.
GANG_SECONDS: Final = 30.0
#: Number of inconclusive attempts after which the pod gets an event.
_REPORT_AFTER: Final = 5
#: Reason of the condition of a pod whose binding failed.
_SCHEDULER_ERROR: Final = "SchedulerError"
_UNBOUND: Final = (WriteResult.REFUSED, WriteResult.GONE, WriteResult.ELSEWHERE)
#: Number of retried conflicts with other writes to an unbound pod; then the binding counts as rejected.
_MAX_CONFLICTS = 5


class PreBind(Protocol):
    """Runs before a pod is bound: binds its volumes, allocates its claims."""

    def __call__(self, client: Client, bind: Bind, /) -> Awaitable[None]:
        """Return when the pod may be bound, possibly after minutes. Raises ApiError or Unreachable.

        `client` supports `request` only.
        """


class BindLock(Protocol):
    """Excludes other schedulers while a pod is bound."""

    def __call__(self, client: Client, bind: Bind, /) -> AbstractAsyncContextManager[None]:
        """Hold the lock of the node inside the context. Raises ApiError or Unreachable.

        `client` supports `request` only.
        """


class BindCall(WriteCall):
    """A binding and the state of its attempts."""

    __slots__ = ("bind", "conflicts", "event", "gang", "has_gate", "needs_pre_bind", "silent_since", "uncertain")

    lane = "bind"

    def __init__(
        self,
        writer: CallWriter[BindCall],
        bind: Bind,
        term: int,
        *,
        needs_pre_bind: bool = False,
        gang: BindGang[BindCall] | None = None,
    ) -> None:
        super().__init__(writer, term)
        self.bind = bind
        #: The pods that are bound together with it, or not at all.
        self.gang = gang
        #: Its queue allocation gate is removed first.
        self.has_gate = bool(bind.gate)
        #: The volumes of the pod are bound and its node is locked first, or its gate is removed.
        self.needs_pre_bind = needs_pre_bind
        self.conflicts = 0
        #: Time of the first of the latest attempts without a response, in seconds of a monotonic clock; None for none.
        self.silent_since: float | None = None
        #: The reason of the event of a refusal.
        self.event = FAILED_SCHEDULING
        #: An earlier attempt may have been committed.
        self.uncertain = False


class Binder(CallWriter[BindCall]):
    """Sends bindings and reports those that fail.

    `fence` returns the token of a Binding; `quiesce` ends other writes to the same pod, and returns the wait for one in
    flight; `server_seconds` limits the processing on the API server, so that a new leader knows when bindings of the
    former one have ended. `resume(call)` queues the binding of a pod after its PreBind. `bind_lock` excludes other
    schedulers meanwhile. `undo_pre_bind` runs for a pod with ResourceClaims that is not bound after all; it raises
    nothing but LeadershipLost.
    """

    def __init__(
        self,
        context: WriterContext,
        *,
        fence: Callable[[], str | None],
        quiesce: Callable[[str], Awaitable[None] | None],
        server_seconds: float | None,
        pre_bind: PreBind | None,
        bind_lock: BindLock | None,
        undo_pre_bind: UndoPreBind | None = None,
        resume: Callable[[BindCall], None],
    ) -> None:
        super().__init__(context)
        self._fence = fence
        self._quiesce = quiesce
        self._pre_bind = pre_bind
        self._bind_lock = bind_lock
        self._undo_pre_bind = undo_pre_bind
        self._resume = resume
        self._params = None if server_seconds is None else {"timeout": f"{server_seconds:g}s"}
        self.refusals = RefusedWrites(_REFUSALS, self.clock)

    def needs_pre_bind(self, bind: Bind) -> bool:
        """Whether the volumes of the pod must be bound, its node locked or its gate removed, before it is bound."""
        return bool(bind.gate) or (
            self._pre_bind is not None and bool(bind.volumes or bind.node_lock or bind.claims or bind.gang)
        )

    async def attempt(self, call: BindCall) -> WriteOutcome:
        """Send the binding once, after resolving the last attempt. Raises LeadershipLost, ApiError and Unreachable."""
        bind = call.bind
        if call.gang is not None and call.gang.failure:
            await self._undo(call)
            return WriteOutcome(WriteResult.REFUSED, message=f"another pod of the gang failed: {call.gang.failure}")
        if call.needs_pre_bind:
            await self._remove_gate(call)
            try:
                if self._pre_bind is not None:
                    await self._pre_bind(self._gated(call), bind)
            except msgspec.DecodeError as error:
                return WriteOutcome(WriteResult.REFUSED, message=f"an object cannot be decoded: {field_problem(error)}")
            return WriteOutcome(WriteResult.ALLOWED)
        if call.uncertain and (outcome := await self._read_back(call, None)) is not None:
            return outcome
        if (written := self._quiesce(bind.uid)) is not None:
            await written
        if not bind.binding_lock or self._bind_lock is None:
            await self._send(call)
        else:
            async with self._bind_lock(self._gated(call), bind):
                await self._send(call)
        return DONE

    async def _remove_gate(self, call: BindCall) -> None:
        """Remove the queue allocation gate of the pod: the API server refuses to bind a pod with gates."""
        if call.has_gate:
            bind = call.bind
            path, body = object_path("Pod", bind.namespace, bind.name), requests.gate_removal(bind.uid)
            await self.gate.send(self.client, call.term, "PATCH", path, body=body, content_type=requests.STRATEGIC)
            call.has_gate = False

    async def _send(self, call: BindCall) -> None:
        bind = call.bind
        if not self.gate.is_open(call.term):
            await self.gate.wait(call.term)  # before the token is read
        body = requests.binding(bind, self._fence())
        path = object_path("Pod", bind.namespace, bind.name, "binding")
        await self.gate.send(self.client, call.term, "POST", path, params=self._params, body=body)

    def observe(self, call: BindCall, outcome: WriteOutcome) -> None:
        """Count a bound pod; `end` reports the others."""
        if outcome.result is WriteResult.DONE:
            self.observer.bound(call.bind, self.clock() - call.since)

    def end(self, call: BindCall, outcome: WriteOutcome) -> None:
        """Return a pod that is not bound to the core, and report it."""
        bind, result, message = call.bind, outcome.result, outcome.message
        if call.needs_pre_bind:
            if result is WriteResult.ALLOWED:
                call.needs_pre_bind, call.attempts = False, 0
                for each in call.gang.allowed(call) if call.gang is not None else [call]:
                    self._resume(each)
            elif result is WriteResult.REFUSED:
                for each in call.gang.failed(message) if call.gang is not None else ():
                    self._resume(each)
                if call.has_gate:
                    self._keep_gate(bind, outcome)
                    return
                text = f"execute preBind for pod {bind.name} failed: {message}, resync the task"
                self._refuse(bind, outcome, text, call.event)
        elif result is WriteResult.AGAIN:
            if call.attempts >= _REPORT_AFTER and self._report(bind, _bind_text(bind, message)):
                self.observer.bind_failed(bind, outcome.code, message)
        elif result is WriteResult.REFUSED:
            self._refuse(bind, outcome, _bind_text(bind, message))
        else:
            self.refusals.forget(bind.uid)
            if result is WriteResult.GONE:
                self.context.deliver(0.0, ObjectGone("Pod", bind.namespace, bind.name, bind.uid))
            elif result is WriteResult.ELSEWHERE:
                self.observer.bind_failed(bind, outcome.code, message)
                self._return_to_core(bind, message, _ELSEWHERE_SECONDS)

    def _refuse(self, bind: Bind, outcome: WriteOutcome, text: str, row: Reason = FAILED_SCHEDULING) -> None:
        """Return a rejected pod to the core with a backoff, and report `text`."""
        self.observer.bind_failed(bind, outcome.code, outcome.message)
        self._return_to_core(bind, outcome.message, self.refusals.refused(bind.uid, outcome.wait))
        self._report(bind, text, row)

    def _keep_gate(self, bind: Bind, outcome: WriteOutcome) -> None:
        """Return a pod to the core whose gate is not removed: without a condition, which a gated pod has already."""
        self.observer.bind_failed(bind, outcome.code, outcome.message)
        self._return_to_core(bind, outcome.message, self.refusals.refused(bind.uid, outcome.wait))
        if self.refusals.is_new(bind.uid, outcome.message):
            self.context.submit([gate_event(bind, outcome.message)])

    def _return_to_core(self, bind: Bind, message: str, wait: float) -> None:
        self.context.deliver(0.0, BindFailed(bind.namespace, bind.name, bind.uid, message, wait))
        self.context.deliver(wait, BindRetry(bind.namespace, bind.name, bind.uid))

    def _report(self, bind: Bind, message: str, row: Reason = FAILED_SCHEDULING) -> bool:
        """Write condition and event of the pod, once per text; whether the text was new."""
        if not self.refusals.is_new(bind.uid, message):
            return False
        pod = ObjectRef("Pod", bind.namespace, bind.name, bind.uid)
        self.context.submit(
            [
                UpdatePodCondition(bind.namespace, bind.name, bind.uid, _SCHEDULER_ERROR, message),
                EmitEvent(pod, row.type, row.code, row.render(detail=message)),
            ]
        )
        return True

    async def classify(self, call: BindCall, error: RequestError) -> WriteOutcome:
        """The outcome of a failed attempt. A pod that is not bound gives its ResourceClaims back first."""
        outcome = await self._classify(call, error)
        if outcome.result in _UNBOUND:
            await self._undo(call)
        return outcome

    def _gated(self, call: BindCall) -> Client:
        """A client whose requests end with the term of the call."""
        return cast("Client", GatedClient(self.client, self.gate, call.term))

    async def _undo(self, call: BindCall) -> None:
        """Give the ResourceClaims of a pod back, as far as the API server accepts it. Raises only LeadershipLost."""
        if self._undo_pre_bind is not None and call.bind.claims:
            await self._undo_pre_bind(self._gated(call), call.bind)

    async def _classify(self, call: BindCall, error: RequestError) -> WriteOutcome:
        """Read the pod where the response does not decide whether it is bound."""
        found = error.retry_class
        if isinstance(error, PreBindPendingError) and self.refusals.is_new(call.bind.uid, error.text):
            row, bind = BINDING_CONDITIONS_PENDING, call.bind
            about = ObjectRef("Pod", bind.namespace, bind.name, bind.uid)
            self.context.submit([EmitEvent(about, row.type, row.code, row.render(detail=error.text))])
        if call.needs_pre_bind:
            if isinstance(error, ApiError) and error.reason == FAILED_ALLOCATION.code:
                call.event = FAILED_ALLOCATION
            again = error.is_temporary and not self._delays_gang(call, error)
            return WriteOutcome.of(WriteResult.AGAIN if again else WriteResult.REFUSED, error)
        if found is RetryClass.REFUSED:
            return WriteOutcome.of(WriteResult.REFUSED, error)
        if error.is_temporary:
            # The server may still process it: the pod is read at the next attempt, not at once.
            call.uncertain = call.uncertain or found is RetryClass.UNKNOWN
            return WriteOutcome.of(WriteResult.AGAIN, error)
        outcome = await self._read_back(call, error)
        if outcome is not None:
            return outcome
        # The pod exists and is unbound.
        if found is RetryClass.ABSENT:
            return WriteOutcome.of(WriteResult.REFUSED, error)
        call.conflicts += 1
        return WriteOutcome.of(WriteResult.AGAIN if call.conflicts <= _MAX_CONFLICTS else WriteResult.REFUSED, error)

    def _delays_gang(self, call: BindCall, error: RequestError) -> bool:
        """Whether the claims of the other pods of a gang wait too long for those of this pod.

        Devices that are prepared have a timeout of their own.
        """
        if call.gang is None or isinstance(error, PreBindPendingError):
            call.silent_since = None
            return False
        now = self.clock()
        call.silent_since = now if call.silent_since is None else call.silent_since
        return now - call.silent_since >= GANG_SECONDS

    async def _read_back(self, call: BindCall, refusal: RequestError | None) -> WriteOutcome | None:
        """Read the pod; None when it is unbound. `refusal`: the response that caused the read, if any."""
        bind = call.bind
        try:
            pod = await read_pod(self.client, bind.namespace, bind.name, bind.uid)
        except RequestError as error:
            return self._on_read_error(call, error, refusal)
        if pod is None:
            return WriteOutcome(WriteResult.GONE, 404, f'pods "{bind.name}" not found')
        node = pod.spec.node_name
        if node == bind.node:
            return DONE
        if node:
            return WriteOutcome(WriteResult.ELSEWHERE, 409, f"pod {bind.name} is already assigned to node {node}")
        call.uncertain = False
        if refusal is not None and (pod.metadata.deletion_timestamp or pod.spec.scheduling_gates):
            return WriteOutcome(WriteResult.REFUSED, refusal.status, refusal.text)  # as every binding of the pod
        return None

    @staticmethod
    def _on_read_error(call: BindCall, error: RequestError, refusal: RequestError | None) -> WriteOutcome | None:
        if error.retry_class is not RetryClass.REFUSED:
            call.uncertain = True
            return WriteOutcome.of(WriteResult.AGAIN, error)
        # Reading pods is forbidden. A repeated binding is safe: the API server rejects the second one definitely.
        if refusal is None:
            call.uncertain = False
            return None
        # A conflict may mean that this binding succeeded: no failure is reported, the watch delivers the node.
        result = WriteResult.ELSEWHERE if refusal.retry_class is RetryClass.CONFLICT else WriteResult.REFUSED
        return WriteOutcome(result, refusal.status, f"{refusal.text}; failed to read the pod: {error.text}")


def _bind_text(bind: Bind, message: str) -> str:
    return f"failed to bind to node {bind.node}: {message}"
