"""Evictions: write the conditions of the pod, then delete it with its own grace period.

The deletion timestamp decides whether a pod must still be deleted, never its conditions. The eviction subresource
checks the disruption budgets first, and a protected pod stays unchanged. All victims of one preemptor are checked by
dry runs before any is evicted, so that no gang is evicted in part.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.kube.errors import RequestError, RetryClass
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.lru import Lru
from capcard_sched.kube.writes.write_backoff import RefusedWrites, WriteBackoff
from capcard_sched.kube.writes.write_call import (
    DONE,
    CallWriter,
    WriteCall,
    WriteOutcome,
    WriteResult,
    decode_pod,
    read_pod,
)
from capcard_sched.model.deltas import EvictFailed, ObjectGone
from capcard_sched.model.intents import EmitEvent, ObjectRef
from capcard_sched.model.kube_groups import DISRUPTION_TARGET, KUBE_GROUP, disruption
from capcard_sched.model.objects import PodConditionObject
from capcard_sched.model.pod_facts import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.kube.writes.write_call import WriterContext
    from capcard_sched.model.intents import Evict, Intent
    from capcard_sched.model.objects import PodObject

#: Seconds after which the core learns of a repeatedly rejected eviction.
_REFUSALS: Final = WriteBackoff(first=1.0, longest=60.0)

#: Cause of a rejection by a disruption budget; any other 429 means that the server is overloaded.
_BUDGET = "DisruptionBudget"
#: PodGroups that are remembered as marked.
_MARKED: Final = 4096
#: Number of server errors after which an eviction counts as rejected: unlike a binding, it needs no certain outcome.
_MAX_ERRORS = 5


class EvictionCall(WriteCall):
    """An eviction and the state of its attempts."""

    __slots__ = ("errors", "evict", "group", "live_pod", "needs_dry_run")

    lane = "evict"

    def __init__(
        self, writer: CallWriter[EvictionCall], evict: Evict, term: int, group: EvictionGroup | None = None
    ) -> None:
        super().__init__(writer, term)
        self.evict = evict
        #: The other victims of its preemptor, and whether a dry run comes first.
        self.group = group
        self.needs_dry_run = group is not None
        if group is not None:
            group.unchecked.add(self)
        self.errors = 0
        #: The pod in the response to the write of its conditions.
        self.live_pod: PodObject | None = None


class EvictionGroup:
    """Evictions that happen all or none."""

    __slots__ = ("refusal", "unchecked", "waiting")

    def __init__(self) -> None:
        self.unchecked: set[EvictionCall] = set()
        #: Allowed evictions that wait for the dry runs of the others.
        self.waiting: list[EvictionCall] = []
        #: Outcome of the first rejected dry run.
        self.refusal: WriteOutcome | None = None

    def record(self, call: EvictionCall, outcome: WriteOutcome) -> list[EvictionCall]:
        """Record the outcome of one dry run. Returns the calls to continue."""
        call.needs_dry_run = False
        call.attempts = call.errors = 0
        self.unchecked.discard(call)
        if outcome.result is WriteResult.ALLOWED:
            self.waiting.append(call)
        elif outcome.result is WriteResult.REFUSED and self.refusal is None:
            pod = f"{call.evict.namespace}/{call.evict.name}"
            message = f"cannot evict {pod}, a victim of the same preemptor: {outcome.message}"
            self.refusal = outcome._replace(message=message)
        if self.unchecked and self.refusal is None:
            return []
        ready, self.waiting = self.waiting, []
        return ready


class PodEvictor(CallWriter[EvictionCall]):
    """Sends evictions and reports them.

    `stamp()` returns the time for conditions, whose failed writes do not stop an eviction. `resume(call)` queues the
    next step of an eviction.
    """

    def __init__(
        self,
        context: WriterContext,
        *,
        scheduler_name: str,
        use_eviction_api: bool,
        stamp: Callable[[], str],
        resume: Callable[[EvictionCall], None],
    ) -> None:
        super().__init__(context)
        self._disruption = disruption(scheduler_name)
        #: Uids of PodGroups of `scheduling.k8s.io` whose condition is written.
        self._marked: Lru[str, bool] = Lru(_MARKED)
        self._use_eviction_api = use_eviction_api
        self._stamp = stamp
        self._resume = resume
        self.refusals = RefusedWrites(_REFUSALS, self.clock)

    def end(self, call: EvictionCall, outcome: WriteOutcome) -> None:
        """Report the outcome, and let the other victims go on."""
        evict, result = call.evict, outcome.result
        if result is WriteResult.AGAIN:
            return
        if call.needs_dry_run and call.group is not None:
            for one in call.group.record(call, outcome):
                self._resume(one)
        if result is WriteResult.ALLOWED:
            return
        if result is WriteResult.REFUSED:
            self.observer.evict_failed(evict, outcome.code, outcome.message)
            # A repeated rejection reaches the core with a delay, or core and server would loop.
            repeats = evict.uid in self.refusals
            wait = self.refusals.refused(evict.uid)
            failed = EvictFailed(evict.namespace, evict.name, evict.uid, outcome.message)
            self.context.deliver(wait if repeats else 0.0, failed)
            return
        self.refusals.forget(evict.uid)
        if result is WriteResult.GONE:
            self.context.deliver(0.0, ObjectGone("Pod", evict.namespace, evict.name, evict.uid))
            return
        pod = ObjectRef("Pod", evict.namespace, evict.name, evict.uid)
        intents: list[Intent] = [EmitEvent(pod, "Warning", "Evict", eviction_message(evict))]
        # The framework emits one event per preempted job; other evictions get theirs here.
        if not evict.by and call.live_pod is not None and (name := group_of(call.live_pod.metadata.annotations or {})):
            group = ObjectRef("PodGroup", evict.namespace, name)
            intents.append(EmitEvent(group, "Normal", "Evict", evict.reason))
        self.context.submit(intents)

    def observe(self, call: EvictionCall, outcome: WriteOutcome) -> None:
        """Count an evicted pod; `end` reports the others."""
        if outcome.result is WriteResult.DONE:
            self.observer.evicted(call.evict)

    async def attempt(self, call: EvictionCall) -> WriteOutcome:
        """Continue after the last attempt. Raises LeadershipLost, ApiError and Unreachable."""
        if call.group is not None and call.group.refusal is not None:
            return call.group.refusal
        if call.needs_dry_run:
            await self._post_eviction(call, {"dryRun": "All"})
            return WriteOutcome(WriteResult.ALLOWED)
        if self._use_eviction_api:
            await self._post_eviction(call)
            await self._write_conditions(call)  # during the grace period
            return DONE
        if call.live_pod is None:
            gone = await self._write_conditions(call)
            if gone is not None:
                return gone
        if call.live_pod is None or call.live_pod.metadata.deletion_timestamp is None:
            evict = call.evict
            path, body = object_path("Pod", evict.namespace, evict.name), requests.deletion(evict.uid)
            await self.gate.send(self.client, call.term, "DELETE", path, body=body)
        return DONE

    async def _post_eviction(self, call: EvictionCall, params: Mapping[str, str] | None = None) -> None:
        evict = call.evict
        body = requests.eviction(evict.namespace, evict.name, evict.uid)
        path = object_path("Pod", evict.namespace, evict.name, "eviction")
        await self.gate.send(self.client, call.term, "POST", path, params=params, body=body)

    async def _write_conditions(self, call: EvictionCall) -> WriteOutcome | None:
        """Write the conditions. Returns an outcome when the pod is gone."""
        evict = call.evict
        now = self._stamp()
        conditions = (
            PodConditionObject("Ready", "False", "Evict", eviction_message(evict), now),
            PodConditionObject(DISRUPTION_TARGET, *self._disruption, now),
        )
        await self._mark_group(call, now)
        try:
            response = await self.gate.send(
                self.client,
                call.term,
                "PATCH",
                object_path("Pod", evict.namespace, evict.name, "status"),
                body=requests.pod_conditions(evict.uid, conditions),
                content_type=requests.STRATEGIC,
            )
        except RequestError as error:
            if error.retry_class is RetryClass.ABSENT or error.is_uid_mismatch:
                return WriteOutcome.of(WriteResult.GONE, error)
            self.observer.write_failed("PodCondition", error.status, error.text)
            if error.is_temporary and not self._use_eviction_api:
                raise
            return None
        call.live_pod = decode_pod(response)
        return None

    async def _mark_group(self, call: EvictionCall, now: str) -> None:
        """Write the condition of a PodGroup that is evicted as a whole, before its first pod is deleted."""
        group = call.evict.whole_group
        if isinstance(group, msgspec.UnsetType) or self._marked.get(group[1]):
            return
        name, uid = group
        try:
            await self.gate.send(
                self.client,
                call.term,
                "PATCH",
                object_path(KUBE_GROUP, call.evict.namespace, name, "status"),
                body=requests.kube_group_condition(uid, self._disruption, now, DISRUPTION_TARGET),
                content_type=requests.STRATEGIC,
            )
        except RequestError as error:
            if error.retry_class is not RetryClass.ABSENT and not error.is_uid_mismatch:
                self.observer.write_failed("PodGroup", error.status, error.text)
                if error.is_temporary and not self._use_eviction_api:
                    raise
        self._marked.put(uid, True)

    async def classify(self, call: EvictionCall, error: RequestError) -> WriteOutcome:
        """Unlike a binding, an eviction needs no certain outcome: a repeated one has no effect."""
        found = error.retry_class
        if found is RetryClass.ABSENT:
            return WriteOutcome.of(WriteResult.GONE, error)
        if found is RetryClass.REFUSED or is_protected(error):
            return WriteOutcome.of(WriteResult.REFUSED, error)
        if found is RetryClass.CONFLICT and await self._is_gone(call.evict):
            return WriteOutcome.of(WriteResult.GONE, error)
        if error.status:
            call.errors += found is not RetryClass.LATER
            if call.errors >= _MAX_ERRORS:
                return WriteOutcome.of(WriteResult.REFUSED, error)
        return WriteOutcome.of(WriteResult.AGAIN, error)

    async def _is_gone(self, evict: Evict) -> bool:
        """Whether the pod is gone or replaced; the message of a conflict does not show that reliably."""
        try:
            return await read_pod(self.client, evict.namespace, evict.name, evict.uid) is None
        except RequestError:
            return False


def eviction_message(evict: Evict) -> str:
    """Message of the pod's condition and event."""
    return f"Pod is evicted, because of {evict.message}"


def is_protected(error: RequestError) -> bool:
    """Whether a disruption budget forbids the eviction for now."""
    return error.status == HTTPStatus.TOO_MANY_REQUESTS and any(cause.reason == _BUDGET for cause in error.causes)
