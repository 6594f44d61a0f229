"""What the scheduler knows of claims, volumes, classes and drivers; sizes are in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from capcard_sched.model.objects import LabelSelector, NodeSelector
from capcard_sched.model.selectors import matches_labels
from capcard_sched.model.volumes import NO_PROVISIONER, ClaimReference, TopologySelectorTerm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: What is attached to nodes and counted: driver and handle.
AttachmentKey: TypeAlias = tuple[str, str]

_MANY_NODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})


class VolumeClaim(msgspec.Struct, frozen=True):
    """One PersistentVolumeClaim."""

    namespace: str
    name: str
    uid: str
    #: uid of the controlling owner: the pod of a generic ephemeral volume; "" without one.
    owner_uid: str
    #: "" for none.
    class_name: str
    #: The volume it names, "" for none; it has it only when `bound`.
    volume_name: str
    bound: bool
    #: Its volume is gone.
    lost: bool
    deleting: bool
    #: The node its volume is being made for, "" for none.
    selected_node: str
    size: int
    access_modes: frozenset[str]
    volume_mode: str
    selector: LabelSelector | None
    #: What cannot be read, "" for nothing.
    problem: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_for_many_nodes(self) -> bool:
        """Whether pods on several nodes may use it at once."""
        return bool(self.access_modes & _MANY_NODES)


class PersistentVolume(msgspec.Struct, frozen=True):
    """One PersistentVolume."""

    name: str
    class_name: str
    size: int
    access_modes: frozenset[str]
    volume_mode: str
    labels: dict[str, str]
    #: None for a volume that every node can use.
    affinity: NodeSelector | None
    #: The claim it is reserved for.
    claim: ClaimReference | None
    #: Phase Available, not being deleted, and readable.
    available: bool
    #: "" unless it is a CSI volume.
    driver: str
    handle: str
    #: Different for every version of every volume: what follows from a volume may be kept under it.
    version: int = 0

    def is_reserved_for(self, claim: VolumeClaim) -> bool:
        """Whether the volume names this claim as its own."""
        mine = self.claim
        return (
            mine is not None
            and mine.name == claim.name
            and mine.namespace == claim.namespace
            and mine.uid in ("", claim.uid)
        )

    def suits(self, claim: VolumeClaim) -> bool:
        """Whether size and mode are what the claim asks for."""
        return self.size >= claim.size and self.volume_mode == claim.volume_mode

    def is_candidate_for(self, claim: VolumeClaim) -> bool:
        """Whether the volume is free and, of the claim's class, has all the claim asks for."""
        return (
            self.available
            and self.claim is None
            and self.suits(claim)
            and self.access_modes >= claim.access_modes
            and (claim.selector is None or matches_labels(claim.selector, self.labels))
        )


class StorageClass(msgspec.Struct, frozen=True):
    """One StorageClass."""

    name: str
    provisioner: str
    #: Claims are bound when a pod of theirs is placed.
    waits_for_consumer: bool
    #: Where volumes can be made; () for everywhere.
    topologies: tuple[TopologySelectorTerm, ...]

    @property
    def provisions(self) -> bool:
        """Whether volumes are made on demand."""
        return self.provisioner not in ("", NO_PROVISIONER)


class StorageCapacity(msgspec.Struct, frozen=True):
    """What a driver can still make of one class on the nodes that a selector matches; None matches no node."""

    class_name: str
    topology: LabelSelector | None
    #: The largest volume it can make.
    largest: int
    #: What is left in total.
    left: int


class Decision(NamedTuple):
    """How a claim that waits for its pod gets its volume."""

    #: The volume; "" to have one made.
    volume: str
    node: str


class Assumption(msgspec.Struct):
    """A decision whose bindings are under way."""

    decision: Decision
    #: uids of the pods that are being bound with it.
    holders: set[str]


class Storage:
    """All storage objects, and what is assumed of them. Owned by the state; plugins read it and never write it."""

    def __init__(self) -> None:
        #: By `namespace/name`.
        self.claims: dict[str, VolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        #: Claim key to the names of volumes that name the claim as their own.
        self.reserved: dict[str, set[str]] = {}
        #: Class name ("" for none) to the volumes of the class by name.
        self.volumes_of_class: dict[str, dict[str, PersistentVolume]] = {}
        self.classes: dict[str, StorageClass] = {}
        #: Node name to driver to the most volumes it attaches there; drivers without a limit are absent.
        self.limits: dict[str, Mapping[str, int]] = {}
        #: Drivers that say what they can still make.
        self.tracked_drivers: set[str] = set()
        self.capacities: dict[tuple[str, str], StorageCapacity] = {}
        #: Node name to attachment name to volume name.
        self.attachments: dict[str, dict[str, str]] = {}
        #: Claim key to how it is being settled.
        self.assumed: dict[str, Assumption] = {}
        #: Raised whenever volumes, classes or capacities change.
        self.generation = 0

    def attachment_key(self, volume_name: str) -> AttachmentKey | None:
        """What a CSI volume counts as; None for others and for unknown ones."""
        volume = self.volumes.get(volume_name)
        return (volume.driver, volume.handle) if volume is not None and volume.driver else None

    def unprovisioned_key(self, claim: VolumeClaim) -> AttachmentKey | None:
        """What the volume still to be made for a claim counts as; None when nothing will be made."""
        made_by = self.classes.get(claim.class_name)
        return (made_by.provisioner, f"claim {claim.key}") if made_by is not None and made_by.provisions else None

    def attached(self, node: str) -> Iterator[AttachmentKey]:
        """What the API server says is attached to a node."""
        for volume in self.attachments.get(node, {}).values():
            key = self.attachment_key(volume)
            if key is not None:
                yield key
