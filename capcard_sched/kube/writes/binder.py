"""Bindings: one POST per pod, and what every possible answer to it means (core reference §5.3, W-06, W-38).

Nothing is decided anew about a pod while it is not known whether a binding was committed: the pod is read, and unless
that settles it, the same binding is sent again until there is a definite answer. Reads and watches race, therefore what
was read is never passed on as the state of the pod; only "not bound by us" and "gone for good" are.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import pod_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.live_pod import LivePod, read_pod
from capcard_sched.kube.writes.retry_class import RetryClass, asked_wait, code_of, text_of, verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.model.intents import Bind

#: So many conflicts with somebody else's writes to a pod that is still free are retried before it counts as refused.
_MAX_CONFLICTS = 5


class Binding:
    """A binding on its way."""

    __slots__ = ("attempts", "bind", "conflicts", "since", "term", "uncertain")

    def __init__(self, bind: Bind, term: int, since: float) -> None:
        self.bind = bind
        self.term = term
        #: When it was submitted, in seconds of a steady clock.
        self.since = since
        self.attempts = 0
        self.conflicts = 0
        #: An earlier attempt may have been committed.
        self.uncertain = False


class BindResult(enum.Enum):
    """How an attempt ended."""

    BOUND = "bound"
    #: The pod is gone, or another one has its name.
    GONE = "gone"
    #: Bound, not by this binding as far as we know: the watch will tell.
    ELSEWHERE = "elsewhere"
    #: A definite refusal: others go on, this pod waits.
    REFUSED = "refused"
    #: No definite answer yet: the same again.
    AGAIN = "again"


class BindOutcome(NamedTuple):
    """The end of one attempt."""

    fate: BindResult
    #: Status of the answer; 0 when there was none.
    code: int = 0
    message: str = ""
    #: Seconds the server asked to wait.
    wait: float = 0.0
    #: The server is busy or away: slow down, not only for this pod.
    throttled: bool = False


class Settle(Protocol):
    """Makes ready what must be ready before a pod is bound: its volumes."""

    def __call__(self, client: Client, bind: Bind, /) -> Awaitable[None]:
        """Return when the pod may be bound, after minutes perhaps. Raises ApiError or Unreachable.

        Only `client.request` is there to be used.
        """


class Binder:
    """Makes single attempts. `fence`: what to write on the Binding; `still`: waits for other writes to the same pod."""

    def __init__(
        self,
        client: Client,
        permit: LeadershipGate,
        fence: Callable[[], str | None],
        still: Callable[[str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._permit = permit
        self._fence = fence
        self._still = still

    async def attempt(self, job: Binding) -> BindOutcome:
        """Send the binding once, after finding out what became of the last time. Raises Revoked."""
        job.attempts += 1
        bind = job.bind
        if job.uncertain and (ending := await self._look(job, None)) is not None:
            return ending
        await self._still(bind.uid)
        await self._permit.wait(job.term)  # before the fence is asked for its token
        body = requests.binding(bind, self._fence())
        path = pod_path(bind.namespace, bind.name, "binding")
        try:
            await self._permit.send(self._client, job.term, "POST", path, body=body)
        except (ApiError, Unreachable) as error:
            return await self._judge(job, error)
        return BindOutcome(BindResult.BOUND)

    async def _judge(self, job: Binding, error: ApiError | Unreachable) -> BindOutcome:
        found = verdict(error)
        if found is RetryClass.REFUSED:
            return BindOutcome(BindResult.REFUSED, code_of(error), text_of(error), asked_wait(error))
        if found is RetryClass.LATER:
            return BindOutcome(BindResult.AGAIN, code_of(error), text_of(error), asked_wait(error), throttled=True)
        if found is RetryClass.UNKNOWN:
            # It may still be on its way through the server: a look comes with the next attempt, not at once.
            job.uncertain = True
            return BindOutcome(
                BindResult.AGAIN, code_of(error), text_of(error), asked_wait(error), throttled=not code_of(error)
            )
        ending = await self._look(job, error)
        if ending is not None:
            return ending
        # The pod is there, free, and ours.
        if found is RetryClass.ABSENT:
            return BindOutcome(BindResult.REFUSED, code_of(error), text_of(error), asked_wait(error))
        job.conflicts += 1
        fate = BindResult.AGAIN if job.conflicts <= _MAX_CONFLICTS else BindResult.REFUSED
        return BindOutcome(fate, code_of(error), text_of(error), asked_wait(error))

    async def _look(self, job: Binding, refusal: ApiError | Unreachable | None) -> BindOutcome | None:
        """Read the pod; None when it is free to be bound. `refusal`: the answer that made us look, if there was one."""
        bind = job.bind
        try:
            pod = await read_pod(self._client, bind.namespace, bind.name, bind.uid)
        except (ApiError, Unreachable) as error:
            return self._unread(job, error, refusal)
        if pod is None:
            return BindOutcome(BindResult.GONE, 404, f'pods "{bind.name}" not found')
        node = pod.spec.node_name
        if node == bind.node:
            return BindOutcome(BindResult.BOUND)
        if node:
            return BindOutcome(BindResult.ELSEWHERE, 409, f"pod {bind.name} is already assigned to node {node}")
        job.uncertain = False
        if refusal is not None and (reason := _not_to_be_bound(pod)):
            return BindOutcome(BindResult.REFUSED, code_of(refusal), text_of(refusal) or reason)
        return None

    @staticmethod
    def _unread(
        job: Binding, error: ApiError | Unreachable, refusal: ApiError | Unreachable | None
    ) -> BindOutcome | None:
        if verdict(error) is not RetryClass.REFUSED:
            job.uncertain = True
            return BindOutcome(
                BindResult.AGAIN, code_of(error), text_of(error), asked_wait(error), throttled=not code_of(error)
            )
        # We may not read pods. A binding sent twice does no harm: the second is refused, and the refusal is definite.
        if refusal is None:
            job.uncertain = False
            return None
        # A conflict may mean that the pod is bound, by us perhaps: nobody is told that it failed, the watch will show.
        fate = BindResult.ELSEWHERE if verdict(refusal) is RetryClass.CONFLICT else BindResult.REFUSED
        return BindOutcome(fate, code_of(refusal), f"{text_of(refusal)}; the pod cannot be read: {text_of(error)}")


def _not_to_be_bound(pod: LivePod) -> str:
    """Why the API server refuses every binding of a pod, "" when it does not."""
    if pod.deleting:
        return "the pod is being deleted"
    return "the pod has scheduling gates" if pod.spec.scheduling_gates else ""
