"""PreBind of volumes: binds a pod's claims before the pod.

A claim in mode WaitForFirstConsumer gets a volume by writing the claim into `spec.claimRef` of the volume, or gets one
provisioned by writing the selected node into the claim. The volume controller and the provisioner do the rest. Every
step is idempotent.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.kube.client import ApiError, RequestError, read_object
from capcard_sched.kube.errors import RetryClass
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes.requests import MERGE, annotation_changes
from capcard_sched.model.objects import NodeObject
from capcard_sched.model.selectors import matches_node_selector
from capcard_sched.model.volumes import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    SELECTED_NODE,
    PersistentVolumeClaimObject,
    PersistentVolumeObject,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.kube.client import Client
    from capcard_sched.model.intents import Bind, ClaimBinding

#: Seconds between two reads of unbound claims: doubling.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: Number of attempts at a rollback that conflicts with other writes.
_ROLLBACK_ATTEMPTS = 5
_MANY_NODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})


class VolumeBindingError(ApiError):
    """A claim cannot be bound. Handled like a rejection of the binding (422)."""

    def __init__(self, message: str) -> None:
        super().__init__(422, "VolumeBindingFailed", message)


class _Progress(NamedTuple):
    """Writes for the claims of one pod."""

    #: Claims with a write, successful or not: rolled back when the pod is not bound.
    written: list[ClaimBinding]
    #: Claims whose annotation had the node at the last read.
    selected: set[str]


async def bind_volumes(client: Client, bind: Bind) -> None:
    """Return when every claim of `bind.volumes` is bound to a volume that its node can use.

    Retries 401, 408, 409, 425, 429, 5xx and missing responses until the timeout. Raises VolumeBindingError (an ApiError
    with status 422) when a volume belongs to another claim, is not accessible from the node, or is not bound in time,
    and ApiError for a rejection; earlier writes are then rolled back where possible.
    """
    progress = _Progress([], set())
    try:
        await _bind_all(client, bind, progress)
    except ApiError:
        for binding in reversed(progress.written):
            await _try_to_roll_back(client, bind, binding)
        raise


async def _bind_all(client: Client, bind: Bind, progress: _Progress) -> None:
    start, pause = time.monotonic(), _FIRST_PAUSE
    remaining = list(bind.volumes)
    while True:
        pending: list[ClaimBinding] = []
        detail, retry_after = "", 0.0
        for binding in remaining:
            try:
                if not await _advance(client, bind, binding, progress):
                    pending.append(binding)
            except RequestError as error:
                if error.retry_class in (RetryClass.ABSENT, RetryClass.REFUSED):
                    raise
                retry_after = max(retry_after, (error.retry_after or 0.0))
                detail = f": {error}"
                pending.append(binding)
        if not pending:
            return
        remaining = pending
        for binding in remaining:
            if time.monotonic() - start >= binding.timeout:
                name = f"{bind.namespace}/{binding.claim}"
                raise VolumeBindingError(f"claim {name} is not bound after {binding.timeout} s{detail}")
        await asyncio.sleep(max(pause, retry_after))
        pause = min(pause * 2, _LONGEST_PAUSE)


async def _advance(client: Client, bind: Bind, binding: ClaimBinding, progress: _Progress) -> bool:
    """Take the next step for one claim; whether it is bound."""
    name = f"{bind.namespace}/{binding.claim}"
    claim = await _claim(client, bind, binding)
    meta, volume_name = claim.metadata, claim.spec.volume_name or ""
    annotations = meta.annotations or {}
    if volume_name and (BIND_COMPLETED in annotations or claim.status.phase == "Bound"):
        if volume_name != binding.volume:
            await _check_reach(client, bind, binding, volume_name)
        return True
    if claim.status.phase == "Lost":
        raise VolumeBindingError(f"claim {name} has lost its volume {volume_name}")
    if binding.volume:
        if volume_name and volume_name != binding.volume:
            raise VolumeBindingError(f"claim {name} is given volume {volume_name}, not {binding.volume}")
        await _prebind_volume(client, bind, binding, progress)
        return False
    selected = annotations.get(SELECTED_NODE, "")
    if selected == bind.node:
        progress.selected.add(binding.claim)
    elif not selected:
        if binding.claim in progress.selected:
            raise VolumeBindingError(f"no volume can be made for claim {name} on node {bind.node}")
        progress.written.append(binding)
        await _patch_claim(client, bind, binding, meta.resource_version, bind.node)
    elif not _MANY_NODES & set(claim.spec.access_modes or ()):
        raise VolumeBindingError(f"a volume for claim {name} is being made for node {selected}, not {bind.node}")
    return False


async def _claim(client: Client, bind: Bind, binding: ClaimBinding) -> PersistentVolumeClaimObject:
    claim = await read_object(client, PersistentVolumeClaimObject, bind.namespace, binding.claim)
    if binding.uid and claim.metadata.uid != binding.uid:
        raise VolumeBindingError(
            f"claim {bind.namespace}/{binding.claim} was replaced by another claim of the same name"
        )
    return claim


async def _prebind_volume(client: Client, bind: Bind, binding: ClaimBinding, progress: _Progress) -> None:
    """Write the claim into the volume, unless it is there already."""
    volume = await read_object(client, PersistentVolumeObject, "", binding.volume)
    owner = volume.spec.claim_ref
    if owner is None:
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": bind.namespace,
            "name": binding.claim,
            "uid": binding.uid,
        }
        progress.written.append(binding)
        await _patch_volume(client, binding, volume.metadata.resource_version, reference, "yes")
    elif (owner.namespace, owner.name) != (bind.namespace, binding.claim) or owner.uid not in ("", binding.uid):
        raise VolumeBindingError(f"volume {binding.volume} is given to claim {owner.namespace}/{owner.name}")


async def _check_reach(client: Client, bind: Bind, binding: ClaimBinding, name: str) -> None:
    """Check the node affinity of a volume that the filters have not checked against the node."""
    volume = await read_object(client, PersistentVolumeObject, "", name)
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return
    node = await read_object(client, NodeObject, "", bind.node)
    if not matches_node_selector(affinity.required, node.metadata.labels or {}, bind.node):
        raise VolumeBindingError(
            f"claim {bind.namespace}/{binding.claim} is bound to volume {name}, which node {bind.node} cannot use"
        )


# --- writes -----------------------------------------------------------------------------------------------------------


async def _try_to_roll_back(client: Client, bind: Bind, binding: ClaimBinding) -> None:
    """Roll back with retries on conflicts with controllers; the next attempt finds the remaining writes."""
    for _ in range(_ROLLBACK_ATTEMPTS):
        try:
            await _roll_back(client, bind, binding)
        except RequestError as error:
            if error.status != HTTPStatus.CONFLICT:
                return
        else:
            return


async def _roll_back(client: Client, bind: Bind, binding: ClaimBinding) -> None:
    """Undo one write, unless the claim was bound or another client wrote since."""
    claim = await _claim(client, bind, binding)
    if claim.spec.volume_name:
        return
    if not binding.volume:
        if (claim.metadata.annotations or {}).get(SELECTED_NODE) == bind.node:
            await _patch_claim(client, bind, binding, claim.metadata.resource_version, None)
        return
    volume = await read_object(client, PersistentVolumeObject, "", binding.volume)
    owner = volume.spec.claim_ref
    if owner is not None and owner.uid == binding.uid:
        await _patch_volume(client, binding, volume.metadata.resource_version, None, None)


async def _patch_claim(client: Client, bind: Bind, binding: ClaimBinding, version: str, node: str | None) -> None:
    body = annotation_changes({SELECTED_NODE: node}, version=version)
    await client.request(
        "PATCH", object_path("PersistentVolumeClaim", bind.namespace, binding.claim), body=body, content_type=MERGE
    )


async def _patch_volume(
    client: Client, binding: ClaimBinding, version: str, owner: Mapping[str, str] | None, controlled: str | None
) -> None:
    patch = {
        "metadata": {"resourceVersion": version, "annotations": {BOUND_BY_CONTROLLER: controlled}},
        "spec": {"claimRef": owner},
    }
    body = msgspec.json.encode(patch)
    await client.request("PATCH", object_path("PersistentVolume", "", binding.volume), body=body, content_type=MERGE)
