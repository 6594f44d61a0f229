"""PersistentVolumeClaims, PersistentVolumes, StorageClasses and CSI drivers, with defaults; sizes in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capcard_sched.model.in_tree_volumes import CSI_DRIVERS, AttachmentKey, in_tree_key
from capcard_sched.model.objects import LabelSelector, NodeSelector
from capcard_sched.model.ownership import Owner, controller_of_meta
from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.selectors import label_selector_problem, matches_labels, node_selector_problem
from capcard_sched.model.volumes import (
    BIND_COMPLETED,
    CLASS_ANNOTATION,
    NO_PROVISIONER,
    SELECTED_NODE,
    ClaimReference,
    TopologySelectorTerm,
    attached_as,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.model.objects import RawQuantity
    from capcard_sched.model.volumes import PersistentVolumeClaimObject, PersistentVolumeObject

_MANY_NODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})


class VolumeClaim(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    #: The controller: the pod of a generic ephemeral volume.
    owner: Owner | None
    #: "" for none.
    class_name: str
    #: The volume it names, "" for none; assigned only when `bound`.
    volume_name: str
    bound: bool
    #: Phase Lost: its volume was deleted.
    lost: bool
    deleting: bool
    #: The node its volume is provisioned for, "" for none.
    selected_node: str
    size: int
    access_modes: frozenset[str]
    volume_mode: str
    selector: LabelSelector | None
    #: Problems of its fields, "" for none.
    problem: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_for_many_nodes(self) -> bool:
        """Whether pods on several nodes may use it at the same time."""
        return bool(self.access_modes & _MANY_NODES)


class PersistentVolume(msgspec.Struct, frozen=True):
    name: str
    class_name: str
    size: int
    access_modes: frozenset[str]
    volume_mode: str
    labels: dict[str, str]
    #: None for a volume without node affinity.
    affinity: NodeSelector | None
    #: The claim it is reserved for.
    claim: ClaimReference | None
    #: Phase Available, not being deleted, and valid.
    available: bool
    #: None unless it is a CSI volume, or an in-tree volume with a CSI driver.
    attachment: AttachmentKey | None
    #: Distinct for every version of every volume: usable as a cache key.
    version: int = 0

    def is_reserved_for(self, claim: VolumeClaim) -> bool:
        """Whether the claimRef of the volume names this claim."""
        mine = self.claim
        return (
            mine is not None
            and mine.name == claim.name
            and mine.namespace == claim.namespace
            and mine.uid in ("", claim.uid)
        )

    def suits(self, claim: VolumeClaim) -> bool:
        """Whether size and mode satisfy the claim."""
        return self.size >= claim.size and self.volume_mode == claim.volume_mode

    def is_candidate_for(self, claim: VolumeClaim) -> bool:
        """Whether the volume, of the claim's class, is available and satisfies the claim."""
        return (
            self.available
            and self.claim is None
            and self.suits(claim)
            and self.access_modes >= claim.access_modes
            and (claim.selector is None or matches_labels(claim.selector, self.labels))
        )


class StorageClass(msgspec.Struct, frozen=True):
    name: str
    provisioner: str
    #: Binding mode WaitForFirstConsumer.
    waits_for_consumer: bool
    #: Allowed topologies of new volumes; () for all.
    topologies: tuple[TopologySelectorTerm, ...]

    @property
    def provisions(self) -> bool:
        """Whether the class provisions volumes dynamically."""
        return self.provisioner not in ("", NO_PROVISIONER)


class StorageCapacity(msgspec.Struct, frozen=True):
    """Available capacity of a driver for one class on the nodes that a selector matches; None matches no node."""

    class_name: str
    topology: LabelSelector | None
    #: Maximum size of a volume.
    largest: int
    #: Total available capacity.
    left: int


class Decision(NamedTuple):
    """Volume binding decision for a claim with WaitForFirstConsumer."""

    #: The volume; "" provisions one.
    volume: str
    node: str


class Assumption(msgspec.Struct):
    """A decision with bindings in flight."""

    decision: Decision
    #: uids of the pods that are being bound with it.
    holders: set[str]


class Storage:
    """All storage objects and the assumed bindings. Owned by the state; plugins read it and never write it."""

    def __init__(self) -> None:
        #: By `namespace/name`.
        self.claims: dict[str, VolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        #: Claim key to the names of volumes with a claimRef to the claim.
        self.reserved: dict[str, set[str]] = {}
        #: Class name ("" for none) to the volumes of the class by name.
        self.volumes_of_class: dict[str, dict[str, PersistentVolume]] = {}
        self.classes: dict[str, StorageClass] = {}
        #: Node name to driver to its attachment limit; drivers without a limit are absent.
        self.limits: dict[str, Mapping[str, int]] = {}
        #: Node name to the in-tree plugins that its CSINode lists as migrated, without MIGRATED_EVERYWHERE.
        self.migrated: dict[str, frozenset[str]] = {}
        #: Node name to the drivers that its CSINode lists.
        self.drivers: dict[str, frozenset[str]] = {}
        #: Drivers with storage capacity tracking.
        self.tracked_drivers: set[str] = set()
        #: Drivers without which a node fits no pod with volumes of them.
        self.required_drivers: set[str] = set()
        self.capacities: dict[tuple[str, str], StorageCapacity] = {}
        #: Node name to attachment name to volume name.
        self.attachments: dict[str, dict[str, str]] = {}
        #: Claim key to its assumed binding.
        self.assumed: dict[str, Assumption] = {}
        #: Increases whenever volumes, classes or capacities change.
        self.generation = 0

    def attachment_key(self, volume_name: str) -> AttachmentKey | None:
        """Attachment key of a CSI volume; None for others and for unknown ones."""
        volume = self.volumes.get(volume_name)
        return volume.attachment if volume is not None else None

    def unprovisioned_key(self, claim: VolumeClaim) -> AttachmentKey | None:
        """Attachment key of the volume to provision for a claim; None without dynamic provisioning."""
        made_by = self.classes.get(claim.class_name)
        if made_by is None or not made_by.provisions:
            return None
        handle = f"claim {claim.key}"
        if made_by.provisioner in CSI_DRIVERS:
            return in_tree_key(made_by.provisioner, handle)
        return AttachmentKey(made_by.provisioner, handle)

    def attached(self, node: str) -> Iterator[AttachmentKey]:
        """Keys of the CSI volumes attached to a node, from VolumeAttachments."""
        for volume in self.attachments.get(node, {}).values():
            key = self.attachment_key(volume)
            if key is not None:
                yield key._replace(plugin="")  # a driver attached it


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
        owner=controller_of_meta(meta),
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
