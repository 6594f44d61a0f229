"""Evictions: write the conditions of the pod, then delete it with its own grace period.

The deletion timestamp decides whether a pod must still be deleted, never its conditions. The eviction subresource
checks the disruption budgets first, and a protected pod stays unchanged. All victims of one preemptor are checked by
dry runs before any is evicted, so that no gang is evicted in part.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import pod_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.live_pod import LivePod, decode_pod, read_pod
from capcard_sched.kube.writes.retry_class import (
    RetryClass,
    code_of,
    is_uid_mismatch,
    retry_after_of,
    retry_class,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.model.intents import Evict

#: Cause of a rejection by a disruption budget; any other 429 means that the server is overloaded.
_BUDGET = "DisruptionBudget"
#: Number of server errors after which an eviction counts as rejected: unlike a binding, it needs no certain outcome.
_MAX_ERRORS = 5


class EvictionCall:
    """An eviction and the state of its attempts."""

    __slots__ = ("attempts", "errors", "evict", "group", "live_pod", "needs_dry_run", "term")

    def __init__(self, evict: Evict, term: int, group: EvictionGroup | None = None) -> None:
        self.evict = evict
        self.term = term
        #: The other victims of its preemptor, and whether a dry run comes first.
        self.group = group
        self.needs_dry_run = group is not None
        if group is not None:
            group.unchecked.add(self)
        self.attempts = 0
        self.errors = 0
        #: The pod in the response to the write of its conditions.
        self.live_pod: LivePod | None = None


class EvictionGroup:
    """Evictions that happen all or none."""

    __slots__ = ("refusal", "unchecked", "waiting")

    def __init__(self) -> None:
        self.unchecked: set[EvictionCall] = set()
        #: Allowed evictions that wait for the dry runs of the others.
        self.waiting: list[EvictionCall] = []
        #: Outcome of the first rejected dry run.
        self.refusal: EvictionOutcome | None = None

    def record(self, call: EvictionCall, outcome: EvictionOutcome) -> list[EvictionCall]:
        """Record the outcome of one dry run. Returns the calls to continue."""
        call.needs_dry_run = False
        call.attempts = call.errors = 0
        self.unchecked.discard(call)
        if outcome.result is EvictionResult.ALLOWED:
            self.waiting.append(call)
        elif outcome.result is EvictionResult.REFUSED and self.refusal is None:
            pod = f"{call.evict.namespace}/{call.evict.name}"
            message = f"cannot evict {pod}, a victim of the same preemptor: {outcome.message}"
            self.refusal = outcome._replace(message=message)
        if self.unchecked and self.refusal is None:
            return []
        ready, self.waiting = self.waiting, []
        return ready


class EvictionResult(enum.Enum):
    """Result of an attempt at an eviction."""

    #: The dry run succeeded.
    ALLOWED = "willing"
    EVICTED = "evicted"
    #: The pod no longer exists.
    GONE = "gone"
    #: A definite rejection.
    REFUSED = "refused"
    #: Inconclusive or temporarily impossible: the same call is repeated.
    AGAIN = "again"


class EvictionOutcome(NamedTuple):
    """Outcome of one attempt at an eviction."""

    result: EvictionResult
    code: int = 0
    message: str = ""
    wait: float = 0.0
    throttled: bool = False


class PodEvictor:
    """Sends evictions.

    `stamp()` returns the time for conditions. `on_condition_error(code, message)` receives failed writes of conditions,
    which do not stop an eviction.
    """

    def __init__(
        self,
        client: Client,
        gate: LeadershipGate,
        *,
        scheduler_name: str,
        use_eviction_api: bool,
        stamp: Callable[[], str],
        on_condition_error: Callable[[int, str], None],
    ) -> None:
        self._client = client
        self._gate = gate
        self._preempting = f"{scheduler_name}: preempting to accommodate a higher priority pod"
        self._use_eviction_api = use_eviction_api
        self._stamp = stamp
        self._on_condition_error = on_condition_error

    async def attempt(self, call: EvictionCall) -> EvictionOutcome:
        """Continue after the last attempt. Raises LeadershipLost."""
        call.attempts += 1
        if call.group is not None and call.group.refusal is not None:
            return call.group.refusal
        try:
            if call.needs_dry_run:
                return await self._dry_run(call)
            if self._use_eviction_api:
                return await self._post_eviction(call)
            if call.live_pod is None:
                gone = await self._write_conditions(call)
                if gone is not None:
                    return gone
            if call.live_pod is None or not call.live_pod.deleting:
                await self._delete(call)
        except (ApiError, Unreachable) as error:
            return await self._classify(call, error)
        return EvictionOutcome(EvictionResult.EVICTED)

    async def _dry_run(self, call: EvictionCall) -> EvictionOutcome:
        """Check by a dry run whether the pod may be evicted."""
        evict = call.evict
        body = requests.eviction(evict.namespace, evict.name, evict.uid)
        path = pod_path(evict.namespace, evict.name, "eviction")
        await self._gate.send(self._client, call.term, "POST", path, params={"dryRun": "All"}, body=body)
        return EvictionOutcome(EvictionResult.ALLOWED)

    async def _post_eviction(self, call: EvictionCall) -> EvictionOutcome:
        """Evict by the subresource; the conditions are patched during the grace period."""
        evict = call.evict
        body = requests.eviction(evict.namespace, evict.name, evict.uid)
        path = pod_path(evict.namespace, evict.name, "eviction")
        await self._gate.send(self._client, call.term, "POST", path, body=body)
        await self._write_conditions(call)
        return EvictionOutcome(EvictionResult.EVICTED)

    async def _delete(self, call: EvictionCall) -> None:
        evict = call.evict
        path = pod_path(evict.namespace, evict.name)
        await self._gate.send(self._client, call.term, "DELETE", path, body=requests.deletion(evict.uid))

    async def _write_conditions(self, call: EvictionCall) -> EvictionOutcome | None:
        """Write the conditions. Returns an outcome when the pod is gone."""
        evict = call.evict
        now = self._stamp()
        conditions = (
            requests.PodCondition("Ready", "False", "Evict", eviction_message(evict), now),
            requests.PodCondition("DisruptionTarget", "True", "PreemptionByScheduler", self._preempting, now),
        )
        try:
            response = await self._gate.send(
                self._client,
                call.term,
                "PATCH",
                pod_path(evict.namespace, evict.name, "status"),
                body=requests.pod_conditions(evict.uid, conditions),
                content_type=requests.STRATEGIC,
            )
        except (ApiError, Unreachable) as error:
            found = retry_class(error)
            if found is RetryClass.ABSENT or is_uid_mismatch(error):
                return EvictionOutcome(EvictionResult.GONE, code_of(error), text_of(error))
            self._on_condition_error(code_of(error), text_of(error))
            if found in (RetryClass.LATER, RetryClass.UNKNOWN) and not self._use_eviction_api:
                raise
            return None
        call.live_pod = decode_pod(response)
        return None

    async def _classify(self, call: EvictionCall, error: ApiError | Unreachable) -> EvictionOutcome:
        evict, found = call.evict, retry_class(error)
        code, message, wait = code_of(error), text_of(error), retry_after_of(error)
        if found is RetryClass.ABSENT:
            return EvictionOutcome(EvictionResult.GONE, code, message)
        if found is RetryClass.REFUSED or is_protected(error):
            return EvictionOutcome(EvictionResult.REFUSED, code, message, wait)
        if found is RetryClass.CONFLICT and await self._is_gone(evict):
            return EvictionOutcome(EvictionResult.GONE, code, message)
        if code:
            call.errors += found is not RetryClass.LATER
            if call.errors >= _MAX_ERRORS:
                return EvictionOutcome(EvictionResult.REFUSED, code, message)
        return EvictionOutcome(
            EvictionResult.AGAIN, code, message, wait, throttled=found is RetryClass.LATER or not code
        )

    async def _is_gone(self, evict: Evict) -> bool:
        """Whether the pod is gone or replaced; the message of a conflict does not show that reliably."""
        try:
            return await read_pod(self._client, evict.namespace, evict.name, evict.uid) is None
        except (ApiError, Unreachable):
            return False


def eviction_message(evict: Evict) -> str:
    """Message of the pod's condition and event."""
    return f"Pod is evicted, because of {evict.message}"


def is_protected(error: ApiError | Unreachable) -> bool:
    """Whether a disruption budget forbids the eviction for now."""
    if not isinstance(error, ApiError) or error.status != 429:
        return False
    return any(cause.reason == _BUDGET for cause in error.details.causes or ())
