"""Locks of nodes with shared devices while pods are bound: schedulers beside each other do not overcommit a card.

Each scheduler decides by the pods that its watch delivered. The lock excludes other schedulers between the list of the
pods on the node and the binding: a binding whose decision did not count a pod of that list fails, and its pod is
requeued. Bindings of this process share a lock, because one core decides them all.

Two annotations are the lock: that of the device plugin, which Volcano takes too, and one of our own, because a device
plugin releases its annotation whichever pod it serves.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.kube.client import ApiError, RequestError, read_object
from capcard_sched.kube.errors import RequestWithheld, RetryClass
from capcard_sched.kube.node_locks import ENDED, EXPIRY_SECONDS, moment_of
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.kube.writes.requests import JSON_PATCH, MERGE, annotation_changes, annotation_removal
from capcard_sched.model.annotations import BINDING_LOCK, DEVICE_ANNOTATIONS
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.objects import NodeObject
from capcard_sched.model.timestamps import format_timestamp, parse_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from capcard_sched.kube.client import Client
    from capcard_sched.model.intents import Bind

#: Seconds after which our own annotation is void.
_OWN_EXPIRY: Final = 30.0
#: Seconds in which further bindings share a lock; others get their turn afterwards.
_SHARED_SECONDS: Final = 5.0
#: Seconds for which a lock is kept after its last binding: the next one of a gang is about to come.
_LINGER: Final = 0.05
#: Seconds before a held lock is tried again.
_PAUSE: Final = 0.5


class _LockMeta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _LockMeta = _LockMeta()
    status: _Status = _Status()


class _DevicePodList(msgspec.Struct, frozen=True):
    items: tuple[_Pod, ...] | None = None


_pod_lists = msgspec.json.Decoder(_DevicePodList)


class BindingLockedError(ApiError):
    """Another scheduler holds the lock: the binding is tried again."""

    def __init__(self, bind: Bind, holder: str) -> None:
        super().__init__(429, "NodeLocked", f"node {bind.node} is locked by {holder}", retry_after=_PAUSE)


class DevicesTakenError(ApiError):
    """A pod on the node was not counted by the decision: the pod is requeued."""

    def __init__(self, bind: Bind, pod: str) -> None:
        text = f"pod {pod} got devices of node {bind.node} meanwhile, from another scheduler"
        super().__init__(422, "DevicesTaken", text)


class _Hold:
    """A lock that this process holds."""

    __slots__ = ("devices", "is_uncertain", "since", "users", "value")

    def __init__(self, value: str, since: float) -> None:
        self.value = value
        #: Seconds of the monotonic clock.
        self.since = since
        #: Bindings under way.
        self.users = 0
        #: The outcome of a binding is unknown: the API server may still commit it.
        self.is_uncertain = False
        #: Pods with devices on the node when the lock was taken: name by uid.
        self.devices: dict[str, str] = {}


class _LockedNode:
    __slots__ = ("hold", "mutex", "own")

    def __init__(self) -> None:
        self.mutex = asyncio.Lock()
        self.hold: _Hold | None = None
        #: Uids of pods that this process binds, or has bound.
        self.own: set[str] = set()


class BindingLocks:
    """The locks of one process. `now` is the wall clock, Unix seconds; `clock` a monotonic one."""

    def __init__(self, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._clock = clock
        self._nodes: dict[str, _LockedNode] = {}
        self._releases: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def held(self, client: Client, bind: Bind) -> AsyncIterator[None]:
        """Hold the lock of the node while the pod is bound.

        Raises BindingLockedError, DevicesTakenError; ApiError, Unreachable.
        """
        node = self._nodes.setdefault(bind.node, _LockedNode())
        async with node.mutex:
            hold = await self._share(client, bind, node)
            unseen = hold.devices.keys() - node.own - set(bind.node_pods)
            if not unseen:
                node.own.add(bind.uid)
                hold.users += 1
        if unseen:
            self._release_later(client, bind, node, hold)
            raise DevicesTakenError(bind, min(hold.devices[uid] for uid in unseen))
        try:
            yield
        except RequestError as error:
            hold.is_uncertain = hold.is_uncertain or error.retry_class is RetryClass.UNKNOWN
            raise
        finally:
            hold.users -= 1
            self._release_later(client, bind, node, hold)

    async def released(self) -> None:
        """Wait until the locks without bindings are released."""
        await asyncio.gather(*self._releases)

    async def _share(self, client: Client, bind: Bind, node: _LockedNode) -> _Hold:
        """The lock of this process: the present one, or a new one."""
        hold = node.hold
        if hold is not None and self._clock() - hold.since < _SHARED_SECONDS:
            return hold
        if hold is not None and hold.users:
            raise BindingLockedError(bind, "earlier bindings of this scheduler")
        if hold is not None:
            await self._release(client, bind, hold)
        node.hold = None
        hold = await self._take(client, bind)
        try:
            hold.devices = await _devices_on(client, bind.node)
        except BaseException:
            self._release_later(client, bind, node, hold)
            raise
        node.own &= hold.devices.keys()
        node.hold = hold
        return hold

    async def _take(self, client: Client, bind: Bind) -> _Hold:
        node = await read_object(client, NodeObject, "", bind.node)
        notes = node.metadata.annotations or {}
        own, now = notes.get(BINDING_LOCK, ""), self._now()
        if own and abs(now - parse_time(own.partition(" ")[0])) < _OWN_EXPIRY:
            raise BindingLockedError(bind, "another scheduler")
        value = format_timestamp(now)
        changes: dict[str, str | None] = {BINDING_LOCK: f"{value} {uuid.uuid4()}"}
        if not bind.node_lock:  # else the pod holds it already
            theirs = notes.get(bind.binding_lock, "")
            left_over = bool(own) and theirs == own.partition(" ")[0]
            if theirs and not left_over and abs(now - (moment_of(theirs.partition(",")[0]) or 0.0)) < EXPIRY_SECONDS:
                raise BindingLockedError(bind, f"annotation {bind.binding_lock} of another client")
            changes[bind.binding_lock] = value
        body = annotation_changes(changes, version=node.metadata.resource_version)
        try:
            await client.request("PATCH", object_path("Node", "", bind.node), body=body, content_type=MERGE)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            raise BindingLockedError(bind, "another write") from error
        return _Hold(changes[BINDING_LOCK] or "", self._clock())

    def _release_later(self, client: Client, bind: Bind, node: _LockedNode, hold: _Hold) -> None:
        """Release a lock that no binding uses, after a moment. A binding without an outcome keeps it for a while."""

        async def release() -> None:
            await asyncio.sleep(_SHARED_SECONDS if hold.is_uncertain else _LINGER)
            async with node.mutex:
                if hold.users or (node.hold is not hold and node.hold is not None):
                    return
                node.hold = None
                await self._release(client, bind, hold)

        task = asyncio.create_task(release(), name=f"binding lock of {bind.node}")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    @staticmethod
    async def _release(client: Client, bind: Bind, hold: _Hold) -> None:
        """Remove the annotations, unless others replaced them. One that stays is void after its time."""
        removed = {BINDING_LOCK: hold.value}
        if not bind.node_lock:
            removed[bind.binding_lock] = hold.value.partition(" ")[0]
        path = object_path("Node", "", bind.node)
        for key, value in removed.items():
            try:
                body = annotation_removal(key, value)
                await client.request("PATCH", path, body=body, content_type=JSON_PATCH)
            except (RequestError, RequestWithheld):  # the device plugin released its own, or another replica leads
                continue


async def _devices_on(client: Client, node: str) -> dict[str, str]:
    """The pods with devices on a node that have not ended: name by uid."""
    query = {"fieldSelector": f"spec.nodeName={node}"}
    try:
        found = _pod_lists.decode(await client.request("GET", collection_path("Pod"), params=query)).items or ()
    except msgspec.DecodeError as error:
        problem = field_problem(error)
        raise ApiError(422, "Undecodable", f"the pods of node {node} cannot be decoded: {problem}") from error
    return {
        pod.metadata.uid: f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in found
        if pod.status.phase not in ENDED and not DEVICE_ANNOTATIONS.isdisjoint(pod.metadata.annotations or {})
    }
