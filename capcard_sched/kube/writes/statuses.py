"""Statuses, conditions and annotations: patches that touch nothing else, the latest of each object (W-04, W-39)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import pod_path, podgroup_path, queue_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.retry_class import RetryClass, asked_wait, code_of, names_another_uid, text_of, verdict
from capcard_sched.kube.writes.write_outcome import WriteOutcome
from capcard_sched.model.intents import (
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

StatusIntent: TypeAlias = UpdatePodGroup | AnnotatePodGroup | UpdateQueueStatus | AnnotateQueue | UpdatePodCondition
#: Kind of write, then what names the object.
StatusKey: TypeAlias = tuple[str, str, str]

#: How many pods' transition times are remembered.
_TRANSITIONS = 65_536
#: A condition of a pod that could not be written for so many seconds is out of date.
_CONDITION_SECONDS = 60.0


class StatusWrite(NamedTuple):
    """What is to be written about one object."""

    intent: StatusIntent
    term: int
    attempts: int = 0


class _Status(msgspec.Struct, frozen=True):
    phase: str | None = None
    allocated: dict[str, object] | None = None


class _StatusResponse(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_ANSWER = msgspec.json.Decoder(_StatusResponse)


def key_of(intent: StatusIntent) -> StatusKey:
    """Writes with the same key replace each other. The first part is the kind that observers are told."""
    if isinstance(intent, UpdatePodGroup):
        return ("PodGroup", intent.namespace, intent.name)
    if isinstance(intent, AnnotatePodGroup):
        return ("PodGroupAnnotations", intent.namespace, intent.name)
    if isinstance(intent, UpdatePodCondition):
        return condition_key(intent.uid)
    if isinstance(intent, UpdateQueueStatus):
        return ("QueueStatus", "", intent.name)
    return ("QueueAnnotations", "", intent.name)


def condition_key(uid: str) -> StatusKey:
    """The key of a pod's condition."""
    return ("PodCondition", "", uid)


def merge(old: StatusWrite, new: StatusWrite) -> StatusWrite:
    """The latest value wins; annotations add up. A failing object stays a failing one."""
    intent = new.intent
    if isinstance(intent, AnnotateQueue) and isinstance(old.intent, AnnotateQueue) and old.term == new.term:
        intent = AnnotateQueue(intent.name, {**old.intent.annotations, **intent.annotations})
    elif (
        isinstance(intent, AnnotatePodGroup)
        and isinstance(old.intent, AnnotatePodGroup)
        and (old.term, old.intent.uid) == (new.term, intent.uid)
    ):
        intent = msgspec.structs.replace(intent, annotations={**old.intent.annotations, **intent.annotations})
    return StatusWrite(intent, new.term, max(old.attempts, new.attempts))


class Statuses:
    """Writes one status at a time per call. `stamp()`: the time for conditions, as Kubernetes writes it."""

    def __init__(
        self, client: Client, permit: LeadershipGate, subresources: StatusDiscovery, stamp: Callable[[], str]
    ) -> None:
        self._client = client
        self._permit = permit
        self._subresources = subresources
        self._stamp = stamp
        #: Since when a pod is unscheduled, by uid: the time in a condition moves only with its status.
        self._transitions: OrderedDict[str, None] = OrderedDict()

    async def write(self, write: StatusWrite, age: float) -> WriteOutcome:
        """Send it. `age`: seconds since it was submitted. Raises Revoked."""
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
            await self._patch(queue_path(intent.name), requests.annotation_changes(intent.annotations), write.term)
        except (ApiError, Unreachable) as error:
            return self._judge(intent, error, age)
        return WriteOutcome(written=True)

    def forget_pod(self, uid: str) -> None:
        """The pod is bound or gone: its condition changes status, if it ever comes back."""
        self._transitions.pop(uid, None)

    async def _patch(self, path: str, body: bytes, term: int, content_type: str = requests.MERGE) -> bytes:
        return await self._permit.send(self._client, term, "PATCH", path, body=body, content_type=content_type)

    async def _write_condition(self, intent: UpdatePodCondition, term: int, age: float) -> WriteOutcome:
        if age > _CONDITION_SECONDS:
            return WriteOutcome(written=False, message=f"not written for {_CONDITION_SECONDS:g} s: out of date")
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
        sub = "status" if await self._subresources.has_status("podgroups") else ""
        answer = await self._patch(
            podgroup_path(intent.namespace, intent.name, sub), requests.group_status(intent), term
        )
        if _decode(answer).phase != intent.phase and self._subresources.doubt():
            # The status was ignored: the kind has a subresource by now.
            return WriteOutcome(written=False, retry=True, code=200, message="the API server ignored the status")
        return WriteOutcome(written=True)

    async def _write_queue(self, intent: UpdateQueueStatus, term: int) -> WriteOutcome:
        sub = "status" if await self._subresources.has_status("queues") else ""
        path = queue_path(intent.name, sub)
        answer = _decode(await self._patch(path, requests.queue_status(intent.allocated), term))
        # A merge patch leaves what it does not name: resources that are no longer used.
        stale = (answer.allocated or {}).keys() - intent.allocated.keys()
        if stale:
            await self._patch(path, requests.queue_status({**dict.fromkeys(sorted(stale)), **intent.allocated}), term)
        elif intent.allocated and not answer.allocated and self._subresources.doubt():
            return WriteOutcome(written=False, retry=True, code=200, message="the API server ignored the status")
        return WriteOutcome(written=True)

    def _judge(self, intent: StatusIntent, error: ApiError | Unreachable, age: float) -> WriteOutcome:
        found = verdict(error)
        retry = True
        if found is RetryClass.ABSENT:
            # Gone with its object, unless it is the subresource that is gone.
            plain = isinstance(intent, UpdatePodCondition | AnnotateQueue | AnnotatePodGroup)
            retry = not plain and self._subresources.doubt()
        elif found is RetryClass.REFUSED:
            retry = not names_another_uid(error)
        if isinstance(intent, UpdatePodCondition) and (found is RetryClass.REFUSED or age > _CONDITION_SECONDS):
            retry = False
        return WriteOutcome(
            written=False,
            retry=retry,
            code=code_of(error),
            message=text_of(error),
            wait=asked_wait(error),
            throttled=found is RetryClass.LATER or not code_of(error),
        )


def _decode(answer: bytes) -> _Status:
    try:
        return _ANSWER.decode(answer).status
    except msgspec.DecodeError as error:
        raise Unreachable(f"the answer is no object with a status: {error}", sent=True) from error
