"""Bindings: one POST per pod, and the classification of every response.

While the outcome of a binding is unknown, the core does not schedule the pod again. The binder reads the pod, and
unless that decides the outcome, sends the same binding again until a response is definite. Reads and watches race, so a
read never updates the state of the pod; only "bound by another client" and "gone" are passed on.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import pod_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.live_pod import LivePod, read_pod
from capcard_sched.kube.writes.retry_class import RetryClass, code_of, retry_after_of, retry_class, text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.model.intents import Bind

#: Number of retried conflicts with other writes to an unbound pod; then the binding counts as rejected.
_MAX_CONFLICTS = 5


class BindCall:
    """A binding and the state of its attempts."""

    __slots__ = ("attempts", "bind", "conflicts", "since", "term", "uncertain")

    def __init__(self, bind: Bind, term: int, since: float) -> None:
        self.bind = bind
        self.term = term
        #: Time of submission, in seconds of a monotonic clock.
        self.since = since
        self.attempts = 0
        self.conflicts = 0
        #: An earlier attempt may have been committed.
        self.uncertain = False


class BindResult(enum.Enum):
    """Result of an attempt at a binding."""

    BOUND = "bound"
    #: The pod is gone, or another pod has its name.
    GONE = "gone"
    #: Bound, as far as known not by this binding: the watch delivers the node.
    ELSEWHERE = "elsewhere"
    #: A definite rejection: the pod gets a backoff.
    REFUSED = "refused"
    #: Inconclusive: the same binding is sent again.
    AGAIN = "again"


class BindOutcome(NamedTuple):
    """Outcome of one attempt at a binding."""

    result: BindResult
    #: Status of the response; 0 without one.
    code: int = 0
    message: str = ""
    #: `Retry-After` in seconds.
    wait: float = 0.0
    #: The server is overloaded or unreachable: the worker pauses.
    throttled: bool = False


class PreBind(Protocol):
    """Runs before a pod is bound: binds its volumes."""

    def __call__(self, client: Client, bind: Bind, /) -> Awaitable[None]:
        """Return when the pod may be bound, possibly after minutes. Raises ApiError or Unreachable.

        `client` supports `request` only.
        """


class Binder:
    """Sends bindings.

    `fence` returns the token of a Binding; `quiesce` waits for other writes to the same pod; `server_seconds` limits
    the processing on the API server, so that a new leader knows when bindings of the former one have ended.
    """

    def __init__(
        self,
        client: Client,
        gate: LeadershipGate,
        fence: Callable[[], str | None],
        quiesce: Callable[[str], Awaitable[None]],
        server_seconds: float | None,
    ) -> None:
        self._client = client
        self._gate = gate
        self._fence = fence
        self._quiesce = quiesce
        self._params = None if server_seconds is None else {"timeout": f"{server_seconds:g}s"}

    async def attempt(self, call: BindCall) -> BindOutcome:
        """Send the binding once, after resolving the last attempt. Raises LeadershipLost."""
        call.attempts += 1
        bind = call.bind
        if call.uncertain and (outcome := await self._read_back(call, None)) is not None:
            return outcome
        await self._quiesce(bind.uid)
        await self._gate.wait(call.term)  # before the token is read
        body = requests.binding(bind, self._fence())
        path = pod_path(bind.namespace, bind.name, "binding")
        try:
            await self._gate.send(self._client, call.term, "POST", path, params=self._params, body=body)
        except (ApiError, Unreachable) as error:
            return await self._classify(call, error)
        return BindOutcome(BindResult.BOUND)

    async def _classify(self, call: BindCall, error: ApiError | Unreachable) -> BindOutcome:
        found = retry_class(error)
        if found is RetryClass.REFUSED:
            return BindOutcome(BindResult.REFUSED, code_of(error), text_of(error), retry_after_of(error))
        if found is RetryClass.LATER:
            return BindOutcome(BindResult.AGAIN, code_of(error), text_of(error), retry_after_of(error), throttled=True)
        if found is RetryClass.UNKNOWN:
            # The server may still process it: the pod is read at the next attempt, not at once.
            call.uncertain = True
            return BindOutcome(
                BindResult.AGAIN, code_of(error), text_of(error), retry_after_of(error), throttled=not code_of(error)
            )
        outcome = await self._read_back(call, error)
        if outcome is not None:
            return outcome
        # The pod exists and is unbound.
        if found is RetryClass.ABSENT:
            return BindOutcome(BindResult.REFUSED, code_of(error), text_of(error), retry_after_of(error))
        call.conflicts += 1
        result = BindResult.AGAIN if call.conflicts <= _MAX_CONFLICTS else BindResult.REFUSED
        return BindOutcome(result, code_of(error), text_of(error), retry_after_of(error))

    async def _read_back(self, call: BindCall, refusal: ApiError | Unreachable | None) -> BindOutcome | None:
        """Read the pod; None when it is unbound. `refusal`: the response that caused the read, if any."""
        bind = call.bind
        try:
            pod = await read_pod(self._client, bind.namespace, bind.name, bind.uid)
        except (ApiError, Unreachable) as error:
            return self._on_read_error(call, error, refusal)
        if pod is None:
            return BindOutcome(BindResult.GONE, 404, f'pods "{bind.name}" not found')
        node = pod.spec.node_name
        if node == bind.node:
            return BindOutcome(BindResult.BOUND)
        if node:
            return BindOutcome(BindResult.ELSEWHERE, 409, f"pod {bind.name} is already assigned to node {node}")
        call.uncertain = False
        if refusal is not None and (reason := _unbindable_reason(pod)):
            return BindOutcome(BindResult.REFUSED, code_of(refusal), text_of(refusal) or reason)
        return None

    @staticmethod
    def _on_read_error(
        call: BindCall, error: ApiError | Unreachable, refusal: ApiError | Unreachable | None
    ) -> BindOutcome | None:
        if retry_class(error) is not RetryClass.REFUSED:
            call.uncertain = True
            return BindOutcome(
                BindResult.AGAIN, code_of(error), text_of(error), retry_after_of(error), throttled=not code_of(error)
            )
        # Reading pods is forbidden. A repeated binding is safe: the API server rejects the second one definitely.
        if refusal is None:
            call.uncertain = False
            return None
        # A conflict may mean that this binding succeeded: no failure is reported, the watch delivers the node.
        result = BindResult.ELSEWHERE if retry_class(refusal) is RetryClass.CONFLICT else BindResult.REFUSED
        return BindOutcome(result, code_of(refusal), f"{text_of(refusal)}; failed to read the pod: {text_of(error)}")


def _unbindable_reason(pod: LivePod) -> str:
    """Reason why the API server rejects every binding of a pod, "" when it does not."""
    if pod.deleting:
        return "the pod is being deleted"
    return "the pod has scheduling gates" if pod.spec.scheduling_gates else ""
