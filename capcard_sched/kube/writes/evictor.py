"""Evictions: say why on the pod, then delete it with its own grace period (core reference §5.4, W-12, W-42).

Whether a pod still has to be deleted is read off its deletion timestamp, never off its conditions. With the eviction
subresource the disruption budgets are asked first, and nothing is written on a pod that they protect; of pods that
leave for the same one, all are asked about before any is evicted: no half of a gang goes because the other one may not.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import pod_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.live_pod import LivePod, decode_pod, read_pod
from capcard_sched.kube.writes.retry_class import RetryClass, asked_wait, code_of, names_another_uid, text_of, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.model.intents import Evict

#: The cause in a refusal by a disruption budget: other answers 429 only mean that the server is busy.
_BUDGET = "DisruptionBudget"
#: So many server errors in answer to a deletion count as a refusal: unlike a binding, nothing hangs on knowing.
_MAX_ERRORS = 5


class EvictionCall:
    """An eviction on its way."""

    __slots__ = ("asks_first", "attempts", "company", "errors", "evict", "marked", "term")

    def __init__(self, evict: Evict, term: int, company: EvictionGroup | None = None) -> None:
        self.evict = evict
        self.term = term
        #: Those it goes with, and whether it is to be asked about before.
        self.company = company
        self.asks_first = company is not None
        if company is not None:
            company.unasked.add(self)
        self.attempts = 0
        self.errors = 0
        #: The pod as it was when its conditions were written.
        self.marked: LivePod | None = None


class EvictionGroup:
    """Evictions that are made if all of them may be."""

    __slots__ = ("refusal", "unasked", "waiting")

    def __init__(self) -> None:
        self.unasked: set[EvictionCall] = set()
        #: Those that may be made, while others are asked about.
        self.waiting: list[EvictionCall] = []
        #: What was said of the first that may not be made.
        self.refusal: EvictionOutcome | None = None

    def hear(self, job: EvictionCall, ending: EvictionOutcome) -> list[EvictionCall]:
        """Take note of what came of asking about one. Returns those to go on with."""
        job.asks_first = False
        job.attempts = job.errors = 0
        self.unasked.discard(job)
        if ending.fate is EvictionResult.WILLING:
            self.waiting.append(job)
        elif ending.fate is EvictionResult.REFUSED and self.refusal is None:
            message = f"{job.evict.namespace}/{job.evict.name}, which would go with it, stays: {ending.message}"
            self.refusal = ending._replace(message=message)
        if self.unasked and self.refusal is None:
            return []
        ready, self.waiting = self.waiting, []
        return ready


class EvictionResult(enum.Enum):
    """How an attempt ended."""

    #: The pod may be evicted, and is not yet.
    WILLING = "willing"
    EVICTED = "evicted"
    #: There is no such pod any more.
    GONE = "gone"
    #: A definite refusal.
    REFUSED = "refused"
    #: Not known, or not possible right now: the same again.
    AGAIN = "again"


class EvictionOutcome(NamedTuple):
    """The end of one attempt."""

    fate: EvictionResult
    code: int = 0
    message: str = ""
    wait: float = 0.0
    throttled: bool = False


class PodEvictor:
    """Makes single attempts.

    `stamp()` is the time for conditions; `mark_failed(code, message)` hears of conditions that could not be written,
    which holds no eviction up.
    """

    def __init__(
        self,
        client: Client,
        permit: LeadershipGate,
        *,
        scheduler_name: str,
        use_eviction_api: bool,
        stamp: Callable[[], str],
        mark_failed: Callable[[int, str], None],
    ) -> None:
        self._client = client
        self._permit = permit
        self._preempting = f"{scheduler_name}: preempting to accommodate a higher priority pod"
        self._use_eviction_api = use_eviction_api
        self._stamp = stamp
        self._mark_failed = mark_failed

    async def attempt(self, job: EvictionCall) -> EvictionOutcome:
        """Go on where the last attempt stopped. Raises Revoked."""
        job.attempts += 1
        if job.company is not None and job.company.refusal is not None:
            return job.company.refusal
        try:
            if job.asks_first:
                return await self._rehearse(job)
            if self._use_eviction_api:
                return await self._ask(job)
            if job.marked is None:
                gone = await self._mark(job)
                if gone is not None:
                    return gone
            if job.marked is None or not job.marked.deleting:
                await self._delete(job)
        except (ApiError, Unreachable) as error:
            return await self._judge(job, error)
        return EvictionOutcome(EvictionResult.EVICTED)

    async def _rehearse(self, job: EvictionCall) -> EvictionOutcome:
        """Ask whether the pod may be evicted; nothing is done."""
        evict = job.evict
        body = requests.eviction(evict.namespace, evict.name, evict.uid)
        path = pod_path(evict.namespace, evict.name, "eviction")
        await self._permit.send(self._client, job.term, "POST", path, params={"dryRun": "All"}, body=body)
        return EvictionOutcome(EvictionResult.WILLING)

    async def _ask(self, job: EvictionCall) -> EvictionOutcome:
        """By the subresource; the conditions follow, while the pod takes leave."""
        evict = job.evict
        body = requests.eviction(evict.namespace, evict.name, evict.uid)
        path = pod_path(evict.namespace, evict.name, "eviction")
        await self._permit.send(self._client, job.term, "POST", path, body=body)
        await self._mark(job)
        return EvictionOutcome(EvictionResult.EVICTED)

    async def _delete(self, job: EvictionCall) -> None:
        evict = job.evict
        path = pod_path(evict.namespace, evict.name)
        await self._permit.send(self._client, job.term, "DELETE", path, body=requests.deletion(evict.uid))

    async def _mark(self, job: EvictionCall) -> EvictionOutcome | None:
        """Write the conditions. Returns an ending when the pod turns out to be gone."""
        evict = job.evict
        now = self._stamp()
        conditions = (
            requests.PodCondition("Ready", "False", "Evict", because(evict), now),
            requests.PodCondition("DisruptionTarget", "True", "PreemptionByScheduler", self._preempting, now),
        )
        try:
            answer = await self._permit.send(
                self._client,
                job.term,
                "PATCH",
                pod_path(evict.namespace, evict.name, "status"),
                body=requests.pod_conditions(evict.uid, conditions),
                content_type=requests.STRATEGIC,
            )
        except (ApiError, Unreachable) as error:
            found = verdict(error)
            if found is RetryClass.ABSENT or names_another_uid(error):
                return EvictionOutcome(EvictionResult.GONE, code_of(error), text_of(error))
            self._mark_failed(code_of(error), text_of(error))
            if found in (RetryClass.LATER, RetryClass.UNKNOWN) and not self._use_eviction_api:
                raise
            return None
        job.marked = decode_pod(answer)
        return None

    async def _judge(self, job: EvictionCall, error: ApiError | Unreachable) -> EvictionOutcome:
        evict, found = job.evict, verdict(error)
        code, message, wait = code_of(error), text_of(error), asked_wait(error)
        if found is RetryClass.ABSENT:
            return EvictionOutcome(EvictionResult.GONE, code, message)
        if found is RetryClass.REFUSED or is_protected(error):
            return EvictionOutcome(EvictionResult.REFUSED, code, message, wait)
        if found is RetryClass.CONFLICT and await self._is_gone(evict):
            return EvictionOutcome(EvictionResult.GONE, code, message)
        if code:
            job.errors += found is not RetryClass.LATER
            if job.errors >= _MAX_ERRORS:
                return EvictionOutcome(EvictionResult.REFUSED, code, message)
        return EvictionOutcome(
            EvictionResult.AGAIN, code, message, wait, throttled=found is RetryClass.LATER or not code
        )

    async def _is_gone(self, evict: Evict) -> bool:
        """Whether another pod has the name, or none: the words of a conflict differ from place to place."""
        try:
            return await read_pod(self._client, evict.namespace, evict.name, evict.uid) is None
        except (ApiError, Unreachable):
            return False


def because(evict: Evict) -> str:
    """What the pod's condition and its event say."""
    return f"Pod is evicted, because of {evict.message}"


def is_protected(error: ApiError | Unreachable) -> bool:
    """Whether a disruption budget forbids the eviction for now."""
    if not isinstance(error, ApiError) or error.status != 429:
        return False
    return any(cause.reason == _BUDGET for cause in error.details.causes or ())
