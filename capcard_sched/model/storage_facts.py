"""Converts PersistentVolumeClaims and PersistentVolumes: applies defaults, parses sizes, lists problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.objects import NodeSelector
from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.selectors import label_selector_problem, node_selector_problem
from capcard_sched.model.storage import PersistentVolume, VolumeClaim
from capcard_sched.model.volumes import BIND_COMPLETED, CLASS_ANNOTATION, SELECTED_NODE, attached_as

if TYPE_CHECKING:
    from capcard_sched.model.objects import RawQuantity
    from capcard_sched.model.volumes import PersistentVolumeClaimObject, PersistentVolumeObject

_FILESYSTEM = "Filesystem"
#: A selector that matches no node: replaces an invalid node affinity.
_NOWHERE = NodeSelector()


def claim_facts(obj: PersistentVolumeClaimObject) -> tuple[VolumeClaim, list[str]]:
    """The facts of a claim, and its problems: an invalid claim is usable only when it is bound."""
    meta, spec = obj.metadata, obj.spec
    notes = meta.annotations or {}
    problems: list[str] = []
    size = storage_bytes(((spec.resources and spec.resources.requests) or {}).get("storage"),
                  "spec.resources.requests[storage]", problems)  # fmt: skip
    wrong = label_selector_problem(spec.selector)
    if wrong:
        problems.append(f"spec.selector.{wrong}")
    phase = obj.status.phase or ""
    volume = spec.volume_name or ""
    claim = VolumeClaim(
        namespace=meta.namespace or "default",
        name=meta.name,
        uid=meta.uid,
        owner_uid=next((owner.uid for owner in meta.owner_references or () if owner.controller), ""),
        class_name=notes.get(CLASS_ANNOTATION) or spec.storage_class_name or "",
        volume_name=volume,
        bound=bool(volume) and (BIND_COMPLETED in notes or phase == "Bound"),
        lost=phase == "Lost",
        deleting=bool(meta.deletion_timestamp),
        selected_node=notes.get(SELECTED_NODE, ""),
        size=size,
        access_modes=frozenset(spec.access_modes or ()),
        volume_mode=spec.volume_mode or _FILESYSTEM,
        selector=spec.selector,
        problem="; ".join(problems),
    )
    return claim, problems


def volume_facts(obj: PersistentVolumeObject) -> tuple[PersistentVolume, list[str]]:
    """The facts of a volume, and its problems: an invalid volume is never bound, and its pods fit no node."""
    meta, spec = obj.metadata, obj.spec
    problems: list[str] = []
    size = storage_bytes((spec.capacity or {}).get("storage"), "spec.capacity[storage]", problems)
    affinity = spec.node_affinity.required if spec.node_affinity is not None else None
    wrong = node_selector_problem(affinity)
    if wrong:
        problems.append(f"spec.nodeAffinity.required.{wrong}")
        affinity = _NOWHERE
    volume = PersistentVolume(
        name=meta.name,
        class_name=(meta.annotations or {}).get(CLASS_ANNOTATION) or spec.storage_class_name or "",
        size=size,
        access_modes=frozenset(spec.access_modes or ()),
        volume_mode=spec.volume_mode or _FILESYSTEM,
        labels=meta.labels or {},
        affinity=affinity,
        claim=spec.claim_ref,
        available=obj.status.phase == "Available" and not meta.deletion_timestamp and not problems,
        attachment=attached_as(spec),
    )
    return volume, problems


def storage_bytes(raw: RawQuantity | None, field: str, problems: list[str]) -> int:
    """An amount of storage, 0 when absent; an invalid amount counts as 0 and adds a line to `problems`."""
    if raw is None:
        return 0
    try:
        amount = base_amount("ephemeral-storage", raw) or 0
    except QuantityError as error:
        problems.append(f"{field}: {error}")
        return 0
    if amount < 0:
        problems.append(f"{field}: {raw!r} is negative")
        return 0
    return amount
