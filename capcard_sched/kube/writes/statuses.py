"""Statuses, conditions and annotations: minimal patches, with the latest value of each object."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from capcard_sched.kube.client import ApiError, Client
from capcard_sched.kube.errors import RequestError, RetryClass
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.lru import Lru
from capcard_sched.kube.writes.write_backoff import WriteBackoff
from capcard_sched.kube.writes.write_call import DONE, CallWriter, WriteCall, WriteOutcome, WriteResult
from capcard_sched.model.annotations import QUEUE_ALLOCATION_GATE
from capcard_sched.model.intents import (
    AnnotateNode,
    AnnotatePod,
    AnnotatePodGroup,
    AnnotateQueue,
    EmitEvent,
    ObjectRef,
    RemoveGate,
    UpdatePodCondition,
    UpdatePodGroup,
    UpdateQueueStatus,
    WriteConfigMap,
)
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.kube_groups import KUBE_GROUP, kube_condition, kube_name, unschedulable_text
from capcard_sched.model.namespace_queues import queue_ref
from capcard_sched.model.objects import PodConditionObject
from capcard_sched.model.reasons import GATE_NOT_REMOVED

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.writes.status_rate_limiter import StatusRateLimiter
    from capcard_sched.kube.writes.write_call import WriterContext
    from capcard_sched.model.intents import Bind

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
        """Whether `<plural>/status` exists. Raises ApiError, Unreachable or DecodeError when discovery fails."""
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
        except ApiError as error:
            if error.retry_class is not RetryClass.REFUSED:
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
    UpdatePodGroup
    | AnnotatePodGroup
    | UpdateQueueStatus
    | AnnotateQueue
    | AnnotateNode
    | AnnotatePod
    | WriteConfigMap
    | UpdatePodCondition
    | RemoveGate
)
_ANNOTATIONS: Final = (AnnotatePodGroup, AnnotateQueue, AnnotateNode, AnnotatePod)
#: Writes to objects themselves, not to a subresource.
_OF_OBJECTS: Final = (*_ANNOTATIONS, WriteConfigMap, RemoveGate)
#: Status of a write without the right to it.
_FORBIDDEN: Final = 403
#: Intent to the kind of write; of annotations that of the object comes before `Annotations`.
_WRITES: Final[dict[type, str]] = {
    UpdatePodGroup: "PodGroup",
    AnnotatePodGroup: "PodGroupAnnotations",
    UpdateQueueStatus: "QueueStatus",
    AnnotateQueue: "QueueAnnotations",
    AnnotateNode: "NodeAnnotations",
    AnnotatePod: "PodAnnotations",
    RemoveGate: "PodGate",
    WriteConfigMap: "ConfigMap",
}
#: Kind of write, then namespace and name, or uid, of the object.
StatusKey: TypeAlias = tuple[str, str, str]

#: Seconds between attempts while the server is overloaded or unreachable.
_AWAY_BACKOFF: Final = WriteBackoff(first=0.5, longest=10.0)
#: Number of pods whose transition is remembered.
_TRANSITIONS = 65_536
#: Seconds after which an unwritten condition of a pod is outdated.
_CONDITION_SECONDS = 60.0


class _StatusResponse(msgspec.Struct, frozen=True):
    status: dict[str, Any] | None = None


_RESPONSE = msgspec.json.Decoder(_StatusResponse)


def key_of(intent: StatusIntent) -> StatusKey:
    """Key of a write: a later write with the same key replaces it. The first part is the kind in metrics."""
    if isinstance(intent, UpdatePodCondition):
        return condition_key(intent.uid)
    return _WRITES[type(intent)], getattr(intent, "namespace", ""), intent.name


def condition_key(uid: str) -> StatusKey:
    return ("PodCondition", "", uid)


def gate_event(pod: RemoveGate | Bind, message: str) -> EmitEvent:
    """The event of a pod that keeps its queue allocation gate. `message`: the response of the API server."""
    text = GATE_NOT_REMOVED.render(gate=QUEUE_ALLOCATION_GATE, detail=message)
    about = ObjectRef("Pod", pod.namespace, pod.name, pod.uid)
    return EmitEvent(about, GATE_NOT_REMOVED.type, GATE_NOT_REMOVED.code, text)


class StatusCall(WriteCall):
    """A queued status, condition or change of annotations of one object; the latest value wins."""

    __slots__ = ("_key", "intent")

    def __init__(self, writer: CallWriter[StatusCall], intent: StatusIntent, term: int) -> None:
        super().__init__(writer, term)
        self._key = key_of(intent)
        self.intent = intent

    @property
    def kind(self) -> str:
        return self._key[0]

    @property
    def key(self) -> StatusKey:
        return self._key

    def merge(self, older: WriteCall) -> WriteCall:
        """The latest value; annotations of one object and term accumulate."""
        mine = self.intent
        if isinstance(mine, _ANNOTATIONS) and isinstance(older, StatusCall) and older.term == self.term:
            theirs = older.intent
            if isinstance(theirs, _ANNOTATIONS) and getattr(theirs, "uid", "") == getattr(mine, "uid", ""):
                self.intent = msgspec.structs.replace(mine, annotations={**theirs.annotations, **mine.annotations})
        if isinstance(mine, UpdatePodGroup) and isinstance(older, StatusCall):
            before = older.intent
            if isinstance(before, UpdatePodGroup) and before.uid == mine.uid and kube_name(mine.name):
                # A group that started once stays so.
                has_started = kube_condition(before.phase, "")[0] == "True"
                self.intent = before if has_started else mine
        return super().merge(older)


class Statuses(CallWriter[StatusCall]):
    """Writes one status per call. `stamp()` returns the time for conditions in the format of Kubernetes."""

    backoff = WriteBackoff(first=0.5, longest=60.0)

    def __init__(
        self,
        context: WriterContext,
        limiter: StatusRateLimiter[Any],
        stamp: Callable[[], str],
    ) -> None:
        super().__init__(context)
        self._discovery = StatusDiscovery(self.client, self.clock)
        self._limiter = limiter
        self._stamp = stamp
        #: Uids of pods whose PodScheduled=False is written: the transition time changes only with the status.
        self._transitions: Lru[str, bool] = Lru(_TRANSITIONS)
        #: The conditions of PodGroups of `scheduling.k8s.io` as written.
        self._kube_conditions: Lru[str, tuple[str, str, str]] = Lru(_TRANSITIONS)

    def not_before(self, call: StatusCall) -> float | None:
        """Updates that differ in numbers only are rate-limited."""
        return self._limiter.delay_until(call.key, call.intent, self.clock())

    def wait(self, call: StatusCall, outcome: WriteOutcome) -> float:
        """Shorter while the server is overloaded or unreachable, so that statuses are current soon after it returns."""
        away = outcome.throttled or outcome.code >= 500
        return (_AWAY_BACKOFF if away else self.backoff).wait(call.attempts, outcome.wait)

    def end(self, call: StatusCall, outcome: WriteOutcome) -> None:
        """Start the interval of the rate limit; report a gate that is not removed, once."""
        intent = call.intent
        if outcome.result is WriteResult.DONE:
            self._limiter.record(call.key, intent, self.clock())
        elif isinstance(intent, RemoveGate) and outcome.code == _FORBIDDEN and call.attempts == 1:
            self.context.submit([gate_event(intent, outcome.message)])

    async def attempt(self, call: StatusCall) -> WriteOutcome:
        """Send the latest value. Raises LeadershipLost, ApiError, Unreachable and DecodeError."""
        intent = call.intent
        if isinstance(intent, UpdatePodCondition):
            return await self._write_condition(intent, call)
        if isinstance(intent, UpdatePodGroup):
            return await self._write_group(intent, call.term)
        if isinstance(intent, UpdateQueueStatus):
            return await self._write_queue(intent, call.term)
        if isinstance(intent, RemoveGate):
            path = object_path("Pod", intent.namespace, intent.name)
            await self._patch(path, requests.gate_removal(intent.uid), call.term, requests.STRATEGIC)
            return DONE
        if isinstance(intent, WriteConfigMap):
            path, params = object_path("ConfigMap", intent.namespace, intent.name), requests.APPLY_PARAMS
            body = requests.config_map(intent)
            await self.gate.send(
                self.client, call.term, "PATCH", path, body=body, content_type=requests.APPLY, params=params
            )
            return DONE
        kind, namespace, name = call.key
        if isinstance(intent, AnnotateQueue):
            ref = queue_ref(intent.name)
            kind, namespace, name = ref.kind, ref.namespace, ref.name
        body = requests.annotation_changes(intent.annotations, getattr(intent, "uid", ""))
        await self._patch(object_path(kind.removesuffix("Annotations"), namespace, name), body, call.term)
        return DONE

    def forget_pod(self, uid: str) -> None:
        """Forget the transition of a pod that is bound or gone."""
        self._transitions.pop(uid)

    async def _patch(self, path: str, body: bytes, term: int, content_type: str = requests.MERGE) -> bytes:
        return await self.gate.send(self.client, term, "PATCH", path, body=body, content_type=content_type)

    def _is_outdated(self, call: StatusCall) -> bool:
        return isinstance(call.intent, UpdatePodCondition) and self.clock() - call.since > _CONDITION_SECONDS

    async def _write_condition(self, intent: UpdatePodCondition, call: StatusCall) -> WriteOutcome:
        if self._is_outdated(call):
            message = f"not written for {_CONDITION_SECONDS:g} s: outdated"
            return WriteOutcome(WriteResult.REFUSED, message=message)
        known = self._transitions.get(intent.uid)
        condition = PodConditionObject(
            "PodScheduled", "False", intent.reason, intent.message, None if known else self._stamp()
        )
        await self._patch(
            object_path("Pod", intent.namespace, intent.name, "status"),
            requests.pod_conditions(intent.uid, (condition,), intent.nominated_node),
            call.term,
            requests.STRATEGIC,
        )
        if not known:
            self._transitions.put(intent.uid, True)
        return DONE

    async def _write_group(self, intent: UpdatePodGroup, term: int) -> WriteOutcome:
        name = kube_name(intent.name)
        if name:
            await self._write_kube_group(intent, name, term)
            return DONE
        sub = "status" if await self._discovery.has_status("podgroups") else ""
        body = requests.group_status(intent)
        response = await self._patch(object_path("PodGroup", intent.namespace, intent.name, sub), body, term)
        return self._written(body, _status_in(response))

    async def _write_kube_group(self, intent: UpdatePodGroup, name: str, term: int) -> None:
        """The condition of a PodGroup of `scheduling.k8s.io`, when it changed: phase and counts are internal."""
        condition = kube_condition(intent.phase, unschedulable_text(intent.conditions))
        written = self._kube_conditions.get(intent.uid)
        is_final = intent.started is True or (written is not None and written[0] == "True")
        if written == condition or (is_final and condition[0] != "True"):
            return
        body = requests.kube_group_condition(intent.uid, condition, self._stamp())
        path = object_path(KUBE_GROUP, intent.namespace, name, "status")
        await self._patch(path, body, term, requests.STRATEGIC)
        self._kube_conditions.put(intent.uid, condition)

    def _written(self, body: bytes, status: dict[str, Any]) -> WriteOutcome:
        """AGAIN where `status`, that of the response, is not what the patch `body` writes.

        The API server ignored it: the kind has a subresource that it had not when discovery was read. A status that
        changed in one count only is ignored like one with another phase, so all fields are compared.
        """
        ignored = any(status.get(field) != value for field, value in _status_in(body).items())
        if ignored and self._discovery.invalidate():
            return WriteOutcome(WriteResult.AGAIN, 200, "the API server ignored the status")
        return DONE

    async def _write_queue(self, intent: UpdateQueueStatus, term: int) -> WriteOutcome:
        ref = queue_ref(intent.name)
        sub = "status" if await self._discovery.has_status(KIND_BY_NAME[ref.kind].resource) else ""
        path = object_path(ref.kind, ref.namespace, ref.name, sub)
        body = requests.queue_status(intent.allocated)
        status = _status_in(await self._patch(path, body, term))
        # A merge patch keeps resources that it does not name, such as unused ones.
        stale = (status.get("allocated") or {}).keys() - intent.allocated.keys()
        if stale:
            removal = requests.queue_status({**dict.fromkeys(sorted(stale)), **intent.allocated})
            status = _status_in(await self._patch(path, removal, term))
        return self._written(body, status)

    async def classify(self, call: StatusCall, error: RequestError) -> WriteOutcome:
        """Try again unless the object is gone, or the pod's condition is rejected or outdated."""
        is_condition = isinstance(call.intent, UpdatePodCondition)
        found, again = error.retry_class, not self._is_outdated(call)
        if found is RetryClass.ABSENT:
            # The object is gone, or only its subresource.
            again = not is_condition and not isinstance(call.intent, _OF_OBJECTS) and self._discovery.invalidate()
        elif found is RetryClass.REFUSED:
            again = not is_condition and not error.is_uid_mismatch
        return WriteOutcome.of(WriteResult.AGAIN if again else WriteResult.REFUSED, error)


def _status_in(response: bytes) -> dict[str, Any]:
    return _RESPONSE.decode(response).status or {}
