"""PreBind of ResourceClaims: writes allocation and reservation before the pod is bound, and undoes them.

The finalizer and the annotations of the charge are written first, then allocation and reservation in one write: an
allocation cannot be changed, only cleared together with all consumers. Every step carries the version that was read,
and is idempotent. For devices with binding conditions, the PreBind is repeated until the driver reports them: it does
not wait itself.

An allocation or spec with opaque parameters must not go through JSON, which changes their bytes (`protobuf`): such a
claim is updated instead of patched, in its version that was read.

A claim for extended resources is created first, and deleted if the binding fails. Its name follows from the pod: a
creation with an unknown outcome is repeated without a second claim. The status of the pod maps its containers to the
requests of the claim; the API server keeps this entry once it is set.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.kube.client import ApiError, RequestError, read_object
from capcard_sched.kube.errors import RetryClass
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.kube.protobuf import PROTOBUF, ProtobufError, changed, has, message, within, without
from capcard_sched.kube.writes.requests import MERGE, deletion
from capcard_sched.kube.writes.write_call import PreBindPendingError
from capcard_sched.model.annotations import FENCE
from capcard_sched.model.binding_conditions import PreparedClaimStatus, binding_state
from capcard_sched.model.device_objects import EXTENDED_CLAIM, MAX_CONSUMERS, ResourceClaimSpec
from capcard_sched.model.kinds import RESOURCE_API
from capcard_sched.model.objects import ApiStruct, ObjectMeta
from capcard_sched.model.ownership import controller_of_meta, owner_of
from capcard_sched.model.reasons import FAILED_ALLOCATION
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capcard_sched.kube.client import Client
    from capcard_sched.model.device_objects import AllocatedDevice, AllocatedDevices, Allocation, DeviceClaim
    from capcard_sched.model.intents import Bind, ClaimAllocation, ExtendedClaim, ReleaseClaims

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
#: Attempts at a write that conflicts with other writes.
_ATTEMPTS: Final = 5
#: Codes of writes that the API server, or a policy of it, rejects.
_REJECTED: Final = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY})
_KIND: Final = "ResourceClaim"
_JSON: Final = "application/json"
#: Characters of a field manager.
_LONGEST_MANAGER: Final = 128
_SILENT: Final = Observer()
#: Fields of a ResourceClaim in protobuf: `metadata`, its `resourceVersion`, `annotations` and `finalizers`; `status`,
#: its `reservedFor`; `resource`, `name` and `uid` of a consumer; key and value of an annotation.
_METADATA, _VERSION, _ANNOTATIONS, _FINALIZERS = 1, 6, 12, 14
_STATUS, _RESERVED = 3, 2
_RESOURCE, _NAME, _UID = 3, 4, 5
_KEY, _VALUE = 1, 2

_encode = msgspec.json.Encoder().encode


class _Meta(ObjectMeta, frozen=True):
    finalizers: tuple[str, ...] | None = None


class _Claim(ApiStruct, frozen=True, tag=_KIND, tag_field="kind"):
    """A claim with its finalizers, which the core does not read."""

    metadata: _Meta = _Meta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: PreparedClaimStatus = PreparedClaimStatus()


class ClaimError(ApiError):
    """A claim cannot be allocated or reserved. Handled like a rejection of the binding (422)."""

    def __init__(self, message: str, status: int = HTTPStatus.UNPROCESSABLE_ENTITY) -> None:
        super().__init__(status, FAILED_ALLOCATION.code, message)


async def reserve_claims(
    client: Client, bind: Bind, observer: Observer = _SILENT, fence: Callable[[], str | None] = lambda: None
) -> None:
    """Return when every claim of `bind.claims` is allocated and reserved for the pod.

    `fence` returns the token of a write. Raises PreBindPendingError while a device lacks a binding condition,
    ClaimError if a claim is gone, deleted or allocated to other devices, or a device cannot be prepared.
    """
    waiting = ""
    waited: list[float] = []
    for wanted in bind.claims or ():
        write = _Write(client, observer, fence, bind.namespace, wanted.claim)
        claim = await _repeat(write, bind, wanted)
        if wanted.extended:
            await write.report(bind, wanted.extended)
        state = binding_state(claim.status, time.time(), wanted.timeout)
        if state.failed:
            observer.devices_prepared("failed", state.waited or 0.0)
            await _give_back(write, bind, wanted, clear=True)
            raise ClaimError(f"resourceclaim {bind.namespace}/{wanted.claim}: {state.failed}")
        if state.waited is not None and wanted.allocation is not None:  # else another pod waited for these devices
            waited.append(state.waited)
        waiting = waiting or (state.waiting and f"resourceclaim {bind.namespace}/{wanted.claim}: {state.waiting}")
    if waiting:
        raise PreBindPendingError(waiting)
    if waited:
        observer.devices_prepared("ready", max(waited))


class _Write(NamedTuple):
    """Writes to one claim."""

    client: Client
    observer: Observer
    fence: Callable[[], str | None]
    namespace: str
    name: str

    async def read(self) -> _Claim:
        return await read_object(self.client, _Claim, self.namespace, self.name)

    async def patch(self, step: str, patch: dict[str, Any], subresource: str = "") -> bytes:
        """Sends one step. Returns the response."""
        path = object_path(_KIND, self.namespace, self.name, subresource)
        return await self._send(step, "PATCH", path, _encode(patch), MERGE)

    async def update(self, step: str, version: str, change: Callable[[bytes], bytes], subresource: str = "") -> bytes:
        """Sends one step, for the claim of a version in protobuf. Returns the response in JSON."""
        body = await self.client.request("GET", object_path(_KIND, self.namespace, self.name), accept=PROTOBUF)
        read = message(_METADATA, message(_VERSION, version))  # else a newer one that the request above found
        try:
            body = changed(body, lambda claim: change(claim) + read)
        except ProtobufError as error:
            raise ClaimError(f"resourceclaim {self.namespace}/{self.name}: {error}") from error
        path = object_path(_KIND, self.namespace, self.name, subresource)
        return await self._send(step, "PUT", path, body, PROTOBUF)

    async def create(self, pod: Bind, wanted: ExtendedClaim, annotations: dict[str, str] | msgspec.UnsetType) -> _Claim:
        """Creates the claim for the extended resources of a pod. An earlier attempt may have created it."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
        metadata = {
            "name": self.name,
            "namespace": self.namespace,
            "annotations": {EXTENDED_CLAIM: "true", **(annotations or {})},
            "finalizers": [FINALIZER],
            "ownerReferences": [owner],
        }
        spec = {"devices": msgspec.to_builtins(wanted.spec)}
        body = _encode({"apiVersion": RESOURCE_API, "kind": _KIND, "metadata": metadata, "spec": spec})
        try:
            response = await self._send("create", "POST", collection_path(_KIND, self.namespace), body)
        except RequestError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return await self.read()
        return msgspec.json.decode(response, type=_Claim)

    async def report(self, pod: Bind, wanted: ExtendedClaim) -> None:
        """Maps the containers of a pod to the requests of its claim."""
        status = {"resourceClaimName": self.name, "requestMappings": msgspec.to_builtins(wanted.mappings)}
        patch = {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": status}}
        path = object_path("Pod", pod.namespace, pod.name, "status")
        await self.client.request("PATCH", path, body=_encode(patch), content_type=MERGE)

    async def delete(self, claim: _Claim) -> None:
        """Deletes the claim, whatever its allocation."""
        meta = claim.metadata
        left = [each for each in meta.finalizers or () if each != FINALIZER]
        if len(left) < len(meta.finalizers or ()):
            await self.patch("unprotect", {"metadata": {"resourceVersion": meta.resource_version, "finalizers": left}})
        await self._send("delete", "DELETE", object_path(_KIND, self.namespace, self.name), deletion(meta.uid))

    async def _send(self, step: str, method: str, path: str, body: bytes, content_type: str = _JSON) -> bytes:
        params = _manager(self.fence()) if method != "DELETE" else None
        try:
            response = await self.client.request(method, path, params=params, body=body, content_type=content_type)
        except RequestError as error:
            self.observer.claim_written(step, error.status)
            raise
        self.observer.claim_written(step, HTTPStatus.OK)
        return response


async def _repeat(write: _Write, bind: Bind, wanted: ClaimAllocation) -> _Claim:
    attempt = 0
    while True:
        attempt += 1
        try:
            return await _reserve(write, bind, wanted)
        except RequestError as error:
            if error.status in _REJECTED:
                raise ClaimError(error.text, error.status) from error
            if error.status != HTTPStatus.CONFLICT or attempt == _ATTEMPTS:
                raise


async def _reserve(write: _Write, bind: Bind, wanted: ClaimAllocation) -> _Claim:
    """The claim, allocated and reserved for the pod."""
    name = f"{bind.namespace}/{wanted.claim}"
    claim = await (write.create(bind, wanted.extended, wanted.annotations) if wanted.extended else write.read())
    meta, status = claim.metadata, claim.status
    if wanted.extended and not (_is_owner(bind, claim) and claim.spec.devices == wanted.extended.spec):
        raise ClaimError(f"resourceclaim {name} exists, and is not that of the pod on node {bind.node}")
    if not wanted.extended and meta.uid != wanted.uid:
        raise ClaimError(f"resourceclaim {name} is another one by now")
    if meta.deletion_timestamp:
        raise ClaimError(f"resourceclaim {name} is being deleted")
    consumers = status.reserved_for or ()
    is_reserved = any(each.uid == bind.uid for each in consumers)
    body: dict[str, Any] = {}
    version, step = meta.resource_version, "reserve"
    if status.allocation is None:
        if wanted.allocation is None:
            raise ClaimError(f"resourceclaim {name} is not allocated any more")
        version, step = await _protect(write, claim, wanted.annotations or {}), "allocate"
        stamp = format_timestamp(time.time())
        body["allocation"] = {**msgspec.to_builtins(wanted.allocation), "allocationTimestamp": stamp}
    elif wanted.allocation is not None and not _is_same(status.allocation, wanted.allocation):
        raise ClaimError(f"resourceclaim {name} is allocated to other devices")
    elif is_reserved:
        return claim
    if not is_reserved:
        if len(consumers) >= MAX_CONSUMERS:
            raise ClaimError(f"resourceclaim {name} has {len(consumers)} consumers")
        consumer = {"resource": "pods", "name": bind.name, "uid": bind.uid}
        body["reservedFor"] = [*msgspec.to_builtins(consumers), consumer]
    if status.allocation is not None and _is_opaque(status.allocation.devices):
        new = message(_RESOURCE, "pods") + message(_NAME, bind.name) + message(_UID, bind.uid)
        added = message(_STATUS, message(_RESERVED, new))
        response = await write.update(step, version, lambda found: found + added, "status")
    else:
        response = await write.patch(step, {"metadata": {"resourceVersion": version}, "status": body}, "status")
    return msgspec.json.decode(response, type=_Claim)


def _is_opaque(devices: DeviceClaim | AllocatedDevices) -> bool:
    """Whether there are parameters for drivers, which an update must not write anew."""
    return any(each.get("opaque") for each in devices.config or ())


def _is_owner(pod: Bind | ReleaseClaims, claim: _Claim) -> bool:
    return controller_of_meta(claim.metadata) == owner_of(pod.namespace, "v1", "Pod", pod.name, pod.uid)


async def _protect(write: _Write, claim: _Claim, annotations: Mapping[str, str]) -> str:
    """Adds the finalizer, and the annotations of the allocation. Returns the version of the claim."""
    meta = claim.metadata
    known, present = meta.finalizers or (), meta.annotations or {}
    missing = {key: value for key, value in annotations.items() if present.get(key) != value}
    finalizers = [] if FINALIZER in known else [FINALIZER]
    version = meta.resource_version
    if not finalizers and not missing:
        return version
    if _is_opaque(claim.spec.devices):
        entries = [message(_KEY, key) + message(_VALUE, value) for key, value in missing.items()]
        added = message(_METADATA, message(_ANNOTATIONS, *entries) + message(_FINALIZERS, *finalizers))
        response = await write.update("protect", version, lambda found: found + added)
    else:
        metadata = {"resourceVersion": version, "finalizers": [*known, *finalizers], "annotations": missing}
        response = await write.patch("protect", {"metadata": metadata})
    return msgspec.json.decode(response, type=_Claim).metadata.resource_version


def _devices(allocation: Allocation) -> list[tuple[object, ...]]:
    results: Sequence[AllocatedDevice] = allocation.devices.results or ()
    return [(each.request, each.driver, each.pool, each.device, each.share_id) for each in results]


def _is_same(allocation: Allocation, wanted: Allocation | None) -> bool:
    return wanted is not None and _devices(allocation) == _devices(wanted)


def _manager(token: str | None) -> dict[str, str] | None:
    """The field manager by which the fence recognizes a writer; None without a token, or for one that is too long."""
    manager = f"{FENCE}={token}"
    return {"fieldManager": manager} if token is not None and len(manager) <= _LONGEST_MANAGER else None


async def release_claims(
    client: Client,
    bind: Bind | ReleaseClaims,
    observer: Observer = _SILENT,
    fence: Callable[[], str | None] = lambda: None,
) -> None:
    """Removes the pod from the claims that `reserve_claims` wrote; the last consumer takes our allocation with it.

    An allocation without a consumer goes, too. A claim for its extended resources is deleted.

    Gives up on an error: the reservation stays, and the pod is bound later where the claim is.
    """
    for wanted in reversed(bind.claims or ()):
        write = _Write(client, observer, fence, bind.namespace, wanted.claim)
        await _give_back(write, bind, wanted, clear=wanted.allocation is not None)


async def _give_back(write: _Write, bind: Bind | ReleaseClaims, wanted: ClaimAllocation, *, clear: bool) -> None:
    """Removes the pod from a claim. `clear`: the last consumer takes the allocation with it."""
    for _ in range(_ATTEMPTS):
        try:
            await _release(write, bind, wanted, clear=clear)
        except msgspec.DecodeError:
            pass
        except RequestError as error:
            if error.retry_class is RetryClass.CONFLICT:
                continue
        break


async def _release(write: _Write, bind: Bind | ReleaseClaims, wanted: ClaimAllocation, *, clear: bool) -> None:
    claim = await write.read()
    consumers = claim.status.reserved_for or ()
    if wanted.extended:
        if _is_owner(bind, claim) and wanted.uid in {"", claim.metadata.uid}:
            await write.delete(claim)
        return
    left = [each for each in consumers if each.uid != bind.uid]
    allocation, version = claim.status.allocation, claim.metadata.resource_version
    is_without = allocation is not None and not consumers and _is_same(allocation, wanted.allocation)
    if claim.metadata.uid != wanted.uid or (len(left) == len(consumers) and not is_without):
        return
    status: dict[str, Any] = {"reservedFor": msgspec.to_builtins(left) or None}
    if not left and clear and allocation is not None:
        status["allocation"] = allocation = None
    if allocation is not None and _is_opaque(allocation.devices):
        await write.update("release", version, lambda found: _without_consumer(found, bind.uid), "status")
        return
    await write.patch("release", {"metadata": {"resourceVersion": version}, "status": status}, "status")


def _without_consumer(claim: bytes, uid: str) -> bytes:
    return within(claim, _STATUS, lambda status: without(status, _RESERVED, lambda consumer: has(consumer, _UID, uid)))
