"""Node locks of device plugins: an annotation on the node that one pod holds from its binding until it has its devices.

Bindings of one node wait in the order of their submission. A binding whose turn has not come, or whose node is locked,
fails with a retriable error, so that no worker waits with it. The device plugin releases a lock when its pod has its
devices; that of a pod that ends before is released here.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.kube.client import ApiError, RequestError, read_object
from capcard_sched.kube.errors import RequestWithheld
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.kube.writes.requests import MERGE, annotation_changes
from capcard_sched.model.annotations import BIND_PHASE
from capcard_sched.model.objects import NodeObject, PodObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.client import Client
    from capcard_sched.model.intents import Bind

#: Seconds after which a lock is void, and after which a binding gives up waiting for one.
EXPIRY_SECONDS: Final = 300.0
#: Seconds after which a waiting binding that was not retried is dropped.
_FORGOTTEN_SECONDS = 120.0
#: Seconds after which a pod with a lock and without a node has no binding under way.
_BINDING_SECONDS = 30.0
#: Seconds between two attempts at a held lock: doubling.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
ENDED: Final = frozenset({"Succeeded", "Failed"})
_ALLOCATING: Final = "allocating"


class _PodList(msgspec.Struct, frozen=True):
    items: tuple[PodObject, ...] = ()


_pod_lists = msgspec.json.Decoder(_PodList)


class NodeLockedError(ApiError):
    """The lock is not available yet (429), or was not in time (422)."""

    def __init__(self, bind: Bind, holder: str, waited: float) -> None:
        given_up = waited >= EXPIRY_SECONDS
        message = f"node {bind.node} locked for {waited:.0f} s {bind.node_lock} by {holder}"
        super().__init__(422 if given_up else 429, "NodeLocked", message)
        self.given_up = given_up


class _LockOwner(NamedTuple):
    namespace: str
    name: str
    uid: str
    #: Of the annotation.
    value: str
    #: Seconds of the monotonic clock.
    since: float


class _LockWaiter:
    __slots__ = ("attempts", "seen", "since", "uid")

    def __init__(self, uid: str, since: float) -> None:
        self.uid = uid
        self.since = since
        self.seen = since
        self.attempts = 0


class NodeLocks:
    """Takes locks before bindings. `now` is the wall clock, Unix seconds; `clock` a monotonic one."""

    def __init__(self, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._clock = clock
        self._started = now()
        self._queues: dict[str, list[_LockWaiter]] = {}
        #: By node: the pod for which this process holds the lock.
        self._owners: dict[str, _LockOwner] = {}
        self._releases: set[asyncio.Task[None]] = set()

    async def acquire(self, client: Client, bind: Bind) -> None:
        """Return when the pod holds the lock of its node. Raises NodeLockedError until then; ApiError, Unreachable."""
        queue = self._queues.setdefault(bind.node, [])
        at = self._clock()
        queue[:] = [other for other in queue if other.uid == bind.uid or at - other.seen < _FORGOTTEN_SECONDS]
        own = next((other for other in queue if other.uid == bind.uid), None)
        if own is None:
            own = _LockWaiter(bind.uid, at)
            queue.append(own)
        own.seen = at
        try:
            if queue[0] is not own:
                raise self._turn(bind, own)
            await self._take(client, bind, own)
        except NodeLockedError as error:
            if error.given_up:
                self._leave(bind, own)
            raise
        self._leave(bind, own)

    async def _take(self, client: Client, bind: Bind, own: _LockWaiter) -> None:
        node = await read_object(client, NodeObject, "", bind.node)
        text = (node.metadata.annotations or {}).get(bind.node_lock)
        holder = await self._holder(client, bind, text)
        if holder:
            raise self._held(bind, own, holder)
        value = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            await _annotate(client, node, bind.node_lock, value)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            raise self._held(bind, own, "another write") from error
        owner = self._owners[bind.node] = _LockOwner(bind.namespace, bind.name, bind.uid, value, self._clock())
        release = asyncio.create_task(self._release(client, bind, owner), name=f"lock of {bind.node}")
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    async def released(self) -> None:
        """Wait until no pod with a lock waits for its devices."""
        await asyncio.gather(*self._releases)

    async def _release(self, client: Client, bind: Bind, owner: _LockOwner) -> None:
        """Release the lock when its pod has ended or has its devices, unless that happened or another pod has it."""
        pause = _FIRST_PAUSE
        while self._clock() - owner.since <= EXPIRY_SECONDS:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                if not await self._is_waiting(client, owner):
                    node = await read_object(client, NodeObject, "", bind.node)
                    if (node.metadata.annotations or {}).get(bind.node_lock) == owner.value:
                        await _annotate(client, node, bind.node_lock, None)
                    return
            except RequestWithheld:  # another replica leads
                return
            except RequestError:
                continue

    async def _holder(self, client: Client, bind: Bind, text: str | None) -> str:
        """The holder of a lock with this value, "" when the lock is free."""
        if text is None:
            return await self._holder_without_lock(client, bind)
        locked = moment_of(text)
        if locked is None or self._now() - locked > EXPIRY_SECONDS:
            return ""
        owner = self._owners.get(bind.node)
        if owner is not None:
            if owner.uid == bind.uid:  # an earlier attempt at the same binding
                return ""
            return f"pod {owner.namespace}/{owner.name}" if await self._is_waiting(client, owner) else ""
        if locked < self._started:  # of an earlier run of this scheduler, if some pod still waits for its devices
            query = {"fieldSelector": f"spec.nodeName={bind.node}"}
            found = _pod_lists.decode(await client.request("GET", collection_path("Pod"), params=query)).items
            waiting = sorted(
                (pod for pod in found if _waits(pod)), key=lambda pod: pod.metadata.creation_timestamp or ""
            )
            if not waiting:
                return ""
            return f"pod {waiting[0].metadata.namespace}/{waiting[0].metadata.name}"
        return "another client"

    async def _holder_without_lock(self, client: Client, bind: Bind) -> str:
        """The pod that still waits for its devices although the lock that it held is released, "" for none.

        A device plugin releases the lock of a node whichever pod it served.
        """
        owner = self._owners.get(bind.node)
        recent = owner is not None and self._clock() - owner.since <= EXPIRY_SECONDS
        if owner is not None and recent and owner.uid != bind.uid and await self._is_waiting(client, owner):
            return f"pod {owner.namespace}/{owner.name}"
        self._owners.pop(bind.node, None)
        return ""

    async def _is_waiting(self, client: Client, owner: _LockOwner) -> bool:
        """Whether a pod that took the lock has not got its devices yet; its binding may still be under way."""
        try:
            pod = await read_object(client, PodObject, owner.namespace, owner.name)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        if pod.metadata.uid != owner.uid:
            return False
        unbound = not pod.spec.node_name and BIND_PHASE not in (pod.metadata.annotations or {})
        return _waits(pod) or (unbound and self._clock() - owner.since <= _BINDING_SECONDS)

    def _held(self, bind: Bind, own: _LockWaiter, holder: str) -> NodeLockedError:
        error = NodeLockedError(bind, holder, self._clock() - own.since)
        error.retry_after = min(_FIRST_PAUSE * 2**own.attempts, _LONGEST_PAUSE)
        own.attempts = min(own.attempts + 1, 10)
        return error

    def _turn(self, bind: Bind, own: _LockWaiter) -> NodeLockedError:
        """An earlier binding of the node comes first; its turn costs no request."""
        error = NodeLockedError(bind, "an earlier binding", self._clock() - own.since)
        error.retry_after = _FIRST_PAUSE
        return error

    def _leave(self, bind: Bind, own: _LockWaiter) -> None:
        queue = self._queues[bind.node]
        queue.remove(own)
        if not queue:
            del self._queues[bind.node]


async def _annotate(client: Client, node: NodeObject, key: str, value: str | None) -> None:
    """Set or remove an annotation of a node that has not changed since it was read."""
    body = annotation_changes({key: value}, version=node.metadata.resource_version)
    await client.request("PATCH", object_path("Node", "", node.metadata.name), body=body, content_type=MERGE)


def _waits(pod: PodObject) -> bool:
    phase = (pod.metadata.annotations or {}).get(BIND_PHASE)
    return phase == _ALLOCATING and pod.status.phase not in ENDED


def moment_of(text: str) -> float | None:
    """Unix seconds of the time in a lock of a device plugin; None without one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
