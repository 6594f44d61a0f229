"""Statuses, conditions and annotations: minimal patches, with the latest value of each object."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import node_path, pod_path, podgroup_path, queue_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.retry_class import (
    RetryClass,
    code_of,
    is_uid_mismatch,
    retry_after_of,
    retry_class,
    text_of,
)
from capcard_sched.kube.writes.write_outcome import WriteOutcome
from capcard_sched.model.intents import (
    AnnotateNode,
    AnnotatePodGroup,
    AnnotateQueue,
    UpdatePodCondition,
    UpdatePodGroup,
    UpdateQueueStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.kube.writes.status_discovery import StatusDiscovery

StatusIntent: TypeAlias = (
    UpdatePodGroup | AnnotatePodGroup | UpdateQueueStatus | AnnotateQueue | AnnotateNode | UpdatePodCondition
)
#: Kind of write, then namespace and name, or uid, of the object.
StatusKey: TypeAlias = tuple[str, str, str]

#: Number of pods whose transition is remembered.
_TRANSITIONS = 65_536
#: Seconds after which an unwritten condition of a pod is outdated.
_CONDITION_SECONDS = 60.0


class StatusWrite(NamedTuple):
    """A queued write about one object."""

    intent: StatusIntent
    term: int
    attempts: int = 0


class _Status(msgspec.Struct, frozen=True):
    phase: str | None = None
    allocated: dict[str, object] | None = None


class _StatusResponse(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_RESPONSE = msgspec.json.Decoder(_StatusResponse)


def key_of(intent: StatusIntent) -> StatusKey:
    """Key of a write: a later write with the same key replaces it. The first part is the kind in metrics."""
    if isinstance(intent, UpdatePodGroup):
        return ("PodGroup", intent.namespace, intent.name)
    if isinstance(intent, AnnotatePodGroup):
        return ("PodGroupAnnotations", intent.namespace, intent.name)
    if isinstance(intent, UpdatePodCondition):
        return condition_key(intent.uid)
    if isinstance(intent, UpdateQueueStatus):
        return ("QueueStatus", "", intent.name)
    if isinstance(intent, AnnotateNode):
        return ("NodeAnnotations", "", intent.name)
    return ("QueueAnnotations", "", intent.name)


def condition_key(uid: str) -> StatusKey:
    """The key of a pod's condition."""
    return ("PodCondition", "", uid)


def merge(old: StatusWrite, new: StatusWrite) -> StatusWrite:
    """Merge two writes: the latest value wins, annotations accumulate, the larger number of attempts stays."""
    intent = new.intent
    if isinstance(intent, AnnotateQueue) and isinstance(old.intent, AnnotateQueue) and old.term == new.term:
        intent = AnnotateQueue(intent.name, {**old.intent.annotations, **intent.annotations})
    elif isinstance(intent, AnnotateNode) and isinstance(old.intent, AnnotateNode) and old.term == new.term:
        intent = AnnotateNode(intent.name, {**old.intent.annotations, **intent.annotations})
    elif (
        isinstance(intent, AnnotatePodGroup)
        and isinstance(old.intent, AnnotatePodGroup)
        and (old.term, old.intent.uid) == (new.term, intent.uid)
    ):
        intent = msgspec.structs.replace(intent, annotations={**old.intent.annotations, **intent.annotations})
    return StatusWrite(intent, new.term, max(old.attempts, new.attempts))


class Statuses:
    """Writes one status per call. `stamp()` returns the time for conditions in the format of Kubernetes."""

    def __init__(
        self, client: Client, gate: LeadershipGate, discovery: StatusDiscovery, stamp: Callable[[], str]
    ) -> None:
        self._client = client
        self._gate = gate
        self._discovery = discovery
        self._stamp = stamp
        #: Uids of pods whose PodScheduled=False is written: the transition time changes only with the status.
        self._transitions: OrderedDict[str, None] = OrderedDict()

    async def write(self, write: StatusWrite, age: float) -> WriteOutcome:
        """Send the write. `age`: seconds since its submission. Raises LeadershipLost."""
        intent = write.intent
        try:
            if isinstance(intent, UpdatePodCondition):
                return await self._write_condition(intent, write.term, age)
            if isinstance(intent, UpdatePodGroup):
                return await self._write_group(intent, write.term)
            if isinstance(intent, UpdateQueueStatus):
                return await self._write_queue(intent, write.term)
            if isinstance(intent, AnnotatePodGroup):
                body = requests.annotation_changes(intent.annotations, intent.uid)
                await self._patch(podgroup_path(intent.namespace, intent.name), body, write.term)
                return WriteOutcome(written=True)
            path = node_path(intent.name) if isinstance(intent, AnnotateNode) else queue_path(intent.name)
            await self._patch(path, requests.annotation_changes(intent.annotations), write.term)
        except (ApiError, Unreachable) as error:
            return self._classify(intent, error, age)
        return WriteOutcome(written=True)

    def forget_pod(self, uid: str) -> None:
        """Forget the transition of a pod that is bound or gone."""
        self._transitions.pop(uid, None)

    async def _patch(self, path: str, body: bytes, term: int, content_type: str = requests.MERGE) -> bytes:
        return await self._gate.send(self._client, term, "PATCH", path, body=body, content_type=content_type)

    async def _write_condition(self, intent: UpdatePodCondition, term: int, age: float) -> WriteOutcome:
        if age > _CONDITION_SECONDS:
            return WriteOutcome(written=False, message=f"not written for {_CONDITION_SECONDS:g} s: outdated")
        known = intent.uid in self._transitions
        condition = requests.PodCondition(
            "PodScheduled", "False", intent.reason, intent.message, None if known else self._stamp()
        )
        await self._patch(
            pod_path(intent.namespace, intent.name, "status"),
            requests.pod_conditions(intent.uid, (condition,), intent.nominated_node),
            term,
            requests.STRATEGIC,
        )
        if not known:
            self._transitions[intent.uid] = None
            if len(self._transitions) > _TRANSITIONS:
                self._transitions.popitem(last=False)
        return WriteOutcome(written=True)

    async def _write_group(self, intent: UpdatePodGroup, term: int) -> WriteOutcome:
        sub = "status" if await self._discovery.has_status("podgroups") else ""
        response = await self._patch(
            podgroup_path(intent.namespace, intent.name, sub), requests.group_status(intent), term
        )
        if _decode(response).phase != intent.phase and self._discovery.invalidate():
            # The API server ignored the status: the kind now has a subresource.
            return WriteOutcome(written=False, retry=True, code=200, message="the API server ignored the status")
        return WriteOutcome(written=True)

    async def _write_queue(self, intent: UpdateQueueStatus, term: int) -> WriteOutcome:
        sub = "status" if await self._discovery.has_status("queues") else ""
        path = queue_path(intent.name, sub)
        response = _decode(await self._patch(path, requests.queue_status(intent.allocated), term))
        # A merge patch keeps resources that it does not name, such as unused ones.
        stale = (response.allocated or {}).keys() - intent.allocated.keys()
        if stale:
            await self._patch(path, requests.queue_status({**dict.fromkeys(sorted(stale)), **intent.allocated}), term)
        elif intent.allocated and not response.allocated and self._discovery.invalidate():
            return WriteOutcome(written=False, retry=True, code=200, message="the API server ignored the status")
        return WriteOutcome(written=True)

    def _classify(self, intent: StatusIntent, error: ApiError | Unreachable, age: float) -> WriteOutcome:
        found = retry_class(error)
        retry = True
        if found is RetryClass.ABSENT:
            # The object is gone, or only its subresource.
            plain = isinstance(intent, UpdatePodCondition | AnnotateQueue | AnnotateNode | AnnotatePodGroup)
            retry = not plain and self._discovery.invalidate()
        elif found is RetryClass.REFUSED:
            retry = not is_uid_mismatch(error)
        if isinstance(intent, UpdatePodCondition) and (found is RetryClass.REFUSED or age > _CONDITION_SECONDS):
            retry = False
        return WriteOutcome(
            written=False,
            retry=retry,
            code=code_of(error),
            message=text_of(error),
            wait=retry_after_of(error),
            throttled=found is RetryClass.LATER or not code_of(error),
        )


def _decode(response: bytes) -> _Status:
    try:
        return _RESPONSE.decode(response).status
    except msgspec.DecodeError as error:
        raise Unreachable(f"the response is not an object with a status: {error}", sent=True) from error
