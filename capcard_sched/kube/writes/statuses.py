"""Statuses, conditions and annotations: minimal patches, with the latest value of each object."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.lru import Lru
from capcard_sched.kube.writes.write_backoff import WriteBackoff
from capcard_sched.kube.writes.write_call import (
    DONE,
    CallWriter,
    RetryClass,
    WriteCall,
    WriteOutcome,
    WriteResult,
    code_of,
    is_uid_mismatch,
    outcome_of,
    retry_class,
)
from capcard_sched.model.intents import (
    AnnotateNode,
    AnnotatePodGroup,
    AnnotateQueue,
    UpdatePodCondition,
    UpdatePodGroup,
    UpdateQueueStatus,
)
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.objects import PodConditionObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.writes.status_rate_limiter import StatusRateLimiter
    from capcard_sched.kube.writes.write_call import WriterContext

#: Path of the API group.
_GROUP: Final = KIND_BY_NAME["Queue"].api
#: Seconds between two discovery requests after writes that contradict the result.
_REFRESH_SECONDS = 30.0
#: Resources assumed where discovery is forbidden: those of Volcano's CRDs.
_DEFAULT: Final = frozenset({"podgroups", "queues", "queues/status"})


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _ResourceList(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


class StatusDiscovery:
    """The resources of the API group; fetched once, and again when a write contradicts them.

    With a status subresource, the API server silently ignores a status sent to the object itself; without one,
    `/status` is 404. The CRD of PodGroup may or may not have one.
    """

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: frozenset[str] | None = None
        self._fetched_at = 0.0
        self._lock = asyncio.Lock()

    async def has_status(self, plural: str) -> bool:
        """Whether `<plural>/status` exists. Raises ApiError or Unreachable when discovery fails."""
        known = self._known
        if known is None:
            async with self._lock:
                known = self._known if self._known is not None else await self._fetch()
        if plural not in known:
            # The kind was created after the discovery request.
            self._known = None
            known = _DEFAULT
        return f"{plural}/status" in known

    async def _fetch(self) -> frozenset[str]:
        self._fetched_at = self._clock()
        try:
            found = msgspec.json.decode(await self._client.request("GET", _GROUP), type=_ResourceList)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the response of {_GROUP} is not a list of resources: {error}", sent=True) from error
        except ApiError as error:
            if retry_class(error) is not RetryClass.REFUSED:
                raise
            self._known = _DEFAULT
            return self._known
        self._known = frozenset(resource.name for resource in found.resources)
        return self._known

    def invalidate(self) -> bool:
        """Fetch again at the next call, after a write without effect. False when the last fetch was recent."""
        if self._known is None or self._clock() - self._fetched_at < _REFRESH_SECONDS:
            return False
        self._known = None
        return True


StatusIntent: TypeAlias = (
    UpdatePodGroup | AnnotatePodGroup | UpdateQueueStatus | AnnotateQueue | AnnotateNode | UpdatePodCondition
)
_ANNOTATIONS: Final = (AnnotatePodGroup, AnnotateQueue, AnnotateNode)
#: Intent to the kind of write; of annotations that of the object comes before `Annotations`.
_WRITES: Final[dict[type, str]] = {
    UpdatePodGroup: "PodGroup",
    AnnotatePodGroup: "PodGroupAnnotations",
    UpdateQueueStatus: "QueueStatus",
    AnnotateQueue: "QueueAnnotations",
    AnnotateNode: "NodeAnnotations",
}
#: Kind of write, then namespace and name, or uid, of the object.
StatusKey: TypeAlias = tuple[str, str, str]

#: Seconds between attempts while the server is overloaded or unreachable.
_AWAY_BACKOFF: Final = WriteBackoff(first=0.5, longest=10.0)
#: Number of pods whose transition is remembered.
_TRANSITIONS = 65_536
#: Seconds after which an unwritten condition of a pod is outdated.
_CONDITION_SECONDS = 60.0


class _Status(msgspec.Struct, frozen=True):
    phase: str | None = None
    allocated: dict[str, object] | None = None


class _StatusResponse(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_RESPONSE = msgspec.json.Decoder(_StatusResponse)


def key_of(intent: StatusIntent) -> StatusKey:
    """Key of a write: a later write with the same key replaces it. The first part is the kind in metrics."""
    if isinstance(intent, UpdatePodCondition):
        return condition_key(intent.uid)
    return _WRITES[type(intent)], getattr(intent, "namespace", ""), intent.name


def condition_key(uid: str) -> StatusKey:
    """The key of a pod's condition."""
    return ("PodCondition", "", uid)


class StatusCall(WriteCall):
    """A queued status, condition or change of annotations of one object; the latest value wins."""

    __slots__ = ("_key", "intent")

    def __init__(self, writer: CallWriter[StatusCall], intent: StatusIntent, term: int) -> None:
        super().__init__(writer, term)
        self._key = key_of(intent)
        self.intent = intent

    @property
    def key(self) -> StatusKey:
        """Kind of write and object."""
        return self._key

    def merge(self, older: WriteCall) -> WriteCall:
        """The latest value; annotations of one object and term accumulate."""
        mine = self.intent
        if isinstance(mine, _ANNOTATIONS) and isinstance(older, StatusCall) and older.term == self.term:
            theirs = older.intent
            if isinstance(theirs, _ANNOTATIONS) and getattr(theirs, "uid", "") == getattr(mine, "uid", ""):
                self.intent = msgspec.structs.replace(mine, annotations={**theirs.annotations, **mine.annotations})
        return super().merge(older)


class Statuses(CallWriter[StatusCall]):
    """Writes one status per call. `stamp()` returns the time for conditions in the format of Kubernetes."""

    backoff = WriteBackoff(first=0.5, longest=60.0)

    def __init__(
        self,
        context: WriterContext,
        limiter: StatusRateLimiter,
        stamp: Callable[[], str],
    ) -> None:
        super().__init__(context)
        self._discovery = StatusDiscovery(self.client, self.clock)
        self._limiter = limiter
        self._stamp = stamp
        #: Uids of pods whose PodScheduled=False is written: the transition time changes only with the status.
        self._transitions: Lru[str, bool] = Lru(_TRANSITIONS)

    def not_before(self, call: StatusCall) -> float | None:
        """Updates that differ in numbers only are rate-limited."""
        return self._limiter.delay_until(call.key, call.intent, self.clock())

    def wait(self, call: StatusCall, outcome: WriteOutcome) -> float:
        """Shorter while the server is overloaded or unreachable, so that statuses are current soon after it returns."""
        away = outcome.throttled or outcome.code >= 500
        return (_AWAY_BACKOFF if away else self.backoff).wait(call.attempts, outcome.wait)

    def end(self, call: StatusCall, outcome: WriteOutcome) -> None:
        """Start the interval of the rate limit."""
        if outcome.result is WriteResult.DONE:
            self._limiter.record(call.key, call.intent, self.clock())

    async def send(self, call: StatusCall) -> WriteOutcome:
        """Send the latest value. Raises LeadershipLost."""
        return self.observe(call.key[0], call, await self._attempt(call, self.clock() - call.since))

    async def _attempt(self, call: StatusCall, age: float) -> WriteOutcome:
        intent = call.intent
        try:
            if isinstance(intent, UpdatePodCondition):
                return await self._write_condition(intent, call.term, age)
            if isinstance(intent, UpdatePodGroup):
                return await self._write_group(intent, call.term)
            if isinstance(intent, UpdateQueueStatus):
                return await self._write_queue(intent, call.term)
            kind, namespace, name = call.key
            body = requests.annotation_changes(intent.annotations, getattr(intent, "uid", ""))
            await self._patch(object_path(kind.removesuffix("Annotations"), namespace, name), body, call.term)
        except (ApiError, Unreachable) as error:
            return self._classify(intent, error, age)
        return DONE

    def forget_pod(self, uid: str) -> None:
        """Forget the transition of a pod that is bound or gone."""
        self._transitions.pop(uid)

    async def _patch(self, path: str, body: bytes, term: int, content_type: str = requests.MERGE) -> bytes:
        return await self.gate.send(self.client, term, "PATCH", path, body=body, content_type=content_type)

    async def _write_condition(self, intent: UpdatePodCondition, term: int, age: float) -> WriteOutcome:
        if age > _CONDITION_SECONDS:
            message = f"not written for {_CONDITION_SECONDS:g} s: outdated"
            return WriteOutcome(WriteResult.REFUSED, message=message)
        known = self._transitions.get(intent.uid)
        condition = PodConditionObject(
            "PodScheduled", "False", intent.reason, intent.message, None if known else self._stamp()
        )
        await self._patch(
            object_path("Pod", intent.namespace, intent.name, "status"),
            requests.pod_conditions(intent.uid, (condition,), intent.nominated_node),
            term,
            requests.STRATEGIC,
        )
        if not known:
            self._transitions.put(intent.uid, True)
        return DONE

    async def _write_group(self, intent: UpdatePodGroup, term: int) -> WriteOutcome:
        sub = "status" if await self._discovery.has_status("podgroups") else ""
        response = await self._patch(
            object_path("PodGroup", intent.namespace, intent.name, sub), requests.group_status(intent), term
        )
        if _decode(response).phase != intent.phase and self._discovery.invalidate():
            # The API server ignored the status: the kind now has a subresource.
            return WriteOutcome(WriteResult.AGAIN, 200, "the API server ignored the status")
        return DONE

    async def _write_queue(self, intent: UpdateQueueStatus, term: int) -> WriteOutcome:
        sub = "status" if await self._discovery.has_status("queues") else ""
        path = object_path("Queue", "", intent.name, sub)
        response = _decode(await self._patch(path, requests.queue_status(intent.allocated), term))
        # A merge patch keeps resources that it does not name, such as unused ones.
        stale = (response.allocated or {}).keys() - intent.allocated.keys()
        if stale:
            await self._patch(path, requests.queue_status({**dict.fromkeys(sorted(stale)), **intent.allocated}), term)
        elif intent.allocated and not response.allocated and self._discovery.invalidate():
            return WriteOutcome(WriteResult.AGAIN, 200, "the API server ignored the status")
        return DONE

    def _classify(self, intent: StatusIntent, error: ApiError | Unreachable, age: float) -> WriteOutcome:
        found = retry_class(error)
        retry = True
        if found is RetryClass.ABSENT:
            # The object is gone, or only its subresource.
            plain = isinstance(intent, (UpdatePodCondition, *_ANNOTATIONS))
            retry = not plain and self._discovery.invalidate()
        elif found is RetryClass.REFUSED:
            retry = not is_uid_mismatch(error)
        if isinstance(intent, UpdatePodCondition) and (found is RetryClass.REFUSED or age > _CONDITION_SECONDS):
            retry = False
        throttled = found is RetryClass.LATER or not code_of(error)
        return outcome_of(WriteResult.AGAIN if retry else WriteResult.REFUSED, error, throttled=throttled)


def _decode(response: bytes) -> _Status:
    try:
        return _RESPONSE.decode(response).status
    except msgspec.DecodeError as error:
        raise Unreachable(f"the response is not an object with a status: {error}", sent=True) from error
