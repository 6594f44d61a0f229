"""Claims get their volumes before their pod is bound (core reference §5.3, step 3: pre-bind).

A claim that waits for its pod is given a volume by writing the claim into the volume, or has one made by writing the
node into the claim; the volume controller and the provisioner do the rest. Everything here may be done again from any
point: what is there already is taken as done.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.kube.client import ApiError, Unreachable
from capcard_sched.kube.paths import claim_path, node_path, volume_path
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
    from collections.abc import Callable, Mapping

    from capcard_sched.kube.client import Client
    from capcard_sched.model.intents import Bind, ClaimBinding

#: Between two looks at claims that are not bound yet, in seconds: doubling.
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 2.0
#: Writes of others that a taking back may meet.
_TAKE_BACK_ATTEMPTS = 5
_MANY_NODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_MERGE: Final = "application/merge-patch+json"
#: Answers after which the same request may succeed: a token that is renewed, a conflict, too many requests.
_PASSING: Final = frozenset({401, 408, 409, 425, 429})

_claims = msgspec.json.Decoder(PersistentVolumeClaimObject)
_volumes = msgspec.json.Decoder(PersistentVolumeObject)
_nodes = msgspec.json.Decoder(NodeObject)


class NotSettledError(ApiError):
    """A claim does not get its volume. Not the server's answer: told like a refusal of the binding (422)."""

    def __init__(self, message: str) -> None:
        super().__init__(422, "VolumesNotSettled", message)


class _Progress(NamedTuple):
    """What was done for the claims of one pod."""

    #: Claims that something was written for, perhaps in vain: to be taken back when the pod is not bound.
    written: list[ClaimBinding]
    #: Claims that had the node in their annotation when last seen.
    selected: set[str]


async def settle(client: Client, bind: Bind, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Return when every claim of `bind.volumes` is bound to a volume that its node can use.

    Raises NotSettledError (an ApiError with status 422) when one is given to somebody else, cannot be used on the node,
    or is not bound after its timeout, and ApiError for a refusal; what was written is then taken back as far as that
    can be done. Answers that may pass (401, 408, 409, 429, 5xx) and none at all are tried again until the timeout.
    """
    progress = _Progress([], set())
    try:
        await _settle_all(client, bind, progress, clock)
    except ApiError:
        for wanted in reversed(progress.written):
            await _try_to_take_back(client, bind, wanted)
        raise


async def _settle_all(client: Client, bind: Bind, progress: _Progress, clock: Callable[[], float]) -> None:
    start, pause = clock(), _FIRST_LOOK
    waiting = list(bind.volumes)
    while True:
        left: list[ClaimBinding] = []
        trouble, asked = "", 0.0
        for wanted in waiting:
            try:
                if not await _advance(client, bind, wanted, progress):
                    left.append(wanted)
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError):
                    if error.status not in _PASSING and error.status < 500:
                        raise
                    asked = max(asked, error.retry_after or 0.0)
                trouble = f": {error}"
                left.append(wanted)
        if not left:
            return
        waiting = left
        for wanted in waiting:
            if clock() - start >= wanted.timeout:
                name = f"{bind.namespace}/{wanted.claim}"
                raise NotSettledError(f"claim {name} is not bound after {wanted.timeout} s{trouble}")
        await asyncio.sleep(max(pause, asked))
        pause = min(pause * 2, _LONGEST_LOOK)


async def _advance(client: Client, bind: Bind, wanted: ClaimBinding, progress: _Progress) -> bool:
    """Do what is to be done next for one claim; whether it has its volume."""
    name = f"{bind.namespace}/{wanted.claim}"
    claim = await _claim(client, bind, wanted)
    meta, given = claim.metadata, claim.spec.volume_name or ""
    notes = meta.annotations or {}
    if given and (BIND_COMPLETED in notes or claim.status.phase == "Bound"):
        if given != wanted.volume:
            await _check_reach(client, bind, wanted, given)
        return True
    if claim.status.phase == "Lost":
        raise NotSettledError(f"claim {name} has lost its volume {given}")
    if wanted.volume:
        if given and given != wanted.volume:
            raise NotSettledError(f"claim {name} is given volume {given}, not {wanted.volume}")
        await _reserve(client, bind, wanted, progress)
        return False
    selected = notes.get(SELECTED_NODE, "")
    if selected == bind.node:
        progress.selected.add(wanted.claim)
    elif not selected:
        if wanted.claim in progress.selected:
            raise NotSettledError(f"no volume can be made for claim {name} on node {bind.node}")
        progress.written.append(wanted)
        await _patch_claim(client, bind, wanted, meta.resource_version, bind.node)
    elif not _MANY_NODES & set(claim.spec.access_modes or ()):
        raise NotSettledError(f"a volume for claim {name} is being made for node {selected}, not {bind.node}")
    return False


async def _claim(client: Client, bind: Bind, wanted: ClaimBinding) -> PersistentVolumeClaimObject:
    claim = _claims.decode(await client.request("GET", claim_path(bind.namespace, wanted.claim)))
    if wanted.uid and claim.metadata.uid != wanted.uid:
        raise NotSettledError(f"claim {bind.namespace}/{wanted.claim} was replaced by another one of its name")
    return claim


async def _reserve(client: Client, bind: Bind, wanted: ClaimBinding, progress: _Progress) -> None:
    """Write the claim into the volume, unless it stands there."""
    volume = _volumes.decode(await client.request("GET", volume_path(wanted.volume)))
    owner = volume.spec.claim_ref
    if owner is None:
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": bind.namespace,
            "name": wanted.claim,
            "uid": wanted.uid,
        }
        progress.written.append(wanted)
        await _patch_volume(client, wanted, volume.metadata.resource_version, reference, "yes")
    elif (owner.namespace, owner.name) != (bind.namespace, wanted.claim) or owner.uid not in ("", wanted.uid):
        raise NotSettledError(f"volume {wanted.volume} is given to claim {owner.namespace}/{owner.name}")


async def _check_reach(client: Client, bind: Bind, wanted: ClaimBinding, name: str) -> None:
    """A claim has a volume that nobody has held against the node so far."""
    volume = _volumes.decode(await client.request("GET", volume_path(name)))
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return
    node = _nodes.decode(await client.request("GET", node_path(bind.node)))
    if not matches_node_selector(affinity.required, node.metadata.labels or {}, bind.node):
        raise NotSettledError(
            f"claim {bind.namespace}/{wanted.claim} is bound to volume {name}, which node {bind.node} cannot use"
        )


# --- writing ----------------------------------------------------------------------------------------------------------


async def _try_to_take_back(client: Client, bind: Bind, wanted: ClaimBinding) -> None:
    """`_take_back`, again when controllers write at the same time; what cannot be undone the next attempt finds."""
    for _ in range(_TAKE_BACK_ATTEMPTS):
        try:
            await _take_back(client, bind, wanted)
        except Unreachable:
            return
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                return
        else:
            return


async def _take_back(client: Client, bind: Bind, wanted: ClaimBinding) -> None:
    """Undo one write, unless it has led to a binding or somebody else has written since."""
    claim = await _claim(client, bind, wanted)
    if claim.spec.volume_name:
        return
    if not wanted.volume:
        if (claim.metadata.annotations or {}).get(SELECTED_NODE) == bind.node:
            await _patch_claim(client, bind, wanted, claim.metadata.resource_version, None)
        return
    volume = _volumes.decode(await client.request("GET", volume_path(wanted.volume)))
    owner = volume.spec.claim_ref
    if owner is not None and owner.uid == wanted.uid:
        await _patch_volume(client, wanted, volume.metadata.resource_version, None, None)


async def _patch_claim(client: Client, bind: Bind, wanted: ClaimBinding, version: str, node: str | None) -> None:
    patch = {"metadata": {"resourceVersion": version, "annotations": {SELECTED_NODE: node}}}
    await _patch(client, claim_path(bind.namespace, wanted.claim), patch)


async def _patch_volume(
    client: Client, wanted: ClaimBinding, version: str, owner: Mapping[str, str] | None, controlled: str | None
) -> None:
    patch = {
        "metadata": {"resourceVersion": version, "annotations": {BOUND_BY_CONTROLLER: controlled}},
        "spec": {"claimRef": owner},
    }
    await _patch(client, volume_path(wanted.volume), patch)


async def _patch(client: Client, path: str, patch: Mapping[str, Any]) -> None:
    """Merge patch; the resourceVersion in it makes it fail (409) when anything was written meanwhile."""
    await client.request("PATCH", path, body=msgspec.json.encode(patch), content_type=_MERGE)
