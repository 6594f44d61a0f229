"""Storage objects and assumed volume bindings: the only writer of `model.storage.Storage`.

An assumption lasts from the commit of a binding until the claim is bound, or until no pod is being bound with it. A
volume is assumed for at most one claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model.in_tree_volumes import CSI_DRIVERS, MIGRATED_EVERYWHERE, MIGRATED_PLUGINS
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.objects import ObjectMeta
from capcard_sched.model.selectors import label_selector_problem
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.storage import (
    Assumption,
    Decision,
    PersistentVolume,
    Storage,
    StorageCapacity,
    StorageClass,
    claim_facts,
    storage_bytes,
    volume_facts,
)
from capcard_sched.model.volumes import (
    IMMEDIATE,
    WAIT_FOR_CONSUMER,
    CSIDriverObject,
    CSINodeObject,
    CSIStorageCapacityObject,
    PersistentVolumeClaimObject,
    PersistentVolumeObject,
    StorageClassObject,
    VolumeAttachmentObject,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.intents import ClaimBinding
    from capcard_sched.model.job import Task
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.invalid_objects import InvalidObjects


class VolumeTable:
    """Applies storage deltas and assumes the bindings of claims."""

    def __init__(self, changes: Changes, invalid: InvalidObjects) -> None:
        self.storage = Storage()
        self._changes = changes
        self._invalid = invalid
        self._versions = 0
        #: Attachment name to node and volume name.
        self._attached: dict[str, tuple[str, str]] = {}
        #: Volume name to the nodes with an attachment of it.
        self._nodes_of: dict[str, set[str]] = {}
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            PersistentVolumeClaimObject: self._apply_claim,
            "PersistentVolumeClaim": lambda gone: self._drop_claim(gone.namespace, gone.name),
            PersistentVolumeObject: self._apply_volume,
            "PersistentVolume": lambda gone: self._drop_volume(gone.name),
            StorageClassObject: self._apply_class,
            "StorageClass": lambda gone: self._drop_class(gone.name),
            CSINodeObject: self._apply_csi_node,
            "CSINode": lambda gone: self._drop_csi_node(gone.name),
            CSIDriverObject: self._apply_csi_driver,
            "CSIDriver": lambda gone: self._apply_csi_driver(CSIDriverObject(ObjectMeta(name=gone.name))),
            CSIStorageCapacityObject: self._apply_capacity,
            "CSIStorageCapacity": lambda gone: self._drop_capacity(gone.namespace, gone.name),
            VolumeAttachmentObject: self._apply_attachment,
            "VolumeAttachment": lambda gone: self._drop_attachment(gone.name),
        }

    def _note(self, kind: Any, namespace: str, name: str, problems: Iterable[str], uid: str = "") -> str:
        text = "; ".join(problems)
        self._invalid.note(ObjectRef(kind, namespace, name, uid), text)
        return text

    def _apply_claim(self, obj: PersistentVolumeClaimObject) -> None:
        claim, problems = claim_facts(obj)
        self._note("PersistentVolumeClaim", claim.namespace, claim.name, problems, claim.uid)
        key = claim.key
        known = self.storage.claims.get(key)
        if claim == known:
            return
        self.storage.claims[key] = claim
        if claim.bound or (known is not None and known.uid != claim.uid):
            self.storage.assumed.pop(key, None)
        self._changes.volumes.add(key)

    def _drop_claim(self, namespace: str, name: str) -> None:
        key = f"{namespace}/{name}"
        self._invalid.forget("PersistentVolumeClaim", namespace, name)
        if self.storage.claims.pop(key, None) is not None:
            self.storage.assumed.pop(key, None)
            self._changes.volumes.add(key)

    def _apply_volume(self, obj: PersistentVolumeObject) -> None:
        volume, problems = volume_facts(obj)
        self._note("PersistentVolume", "", volume.name, problems, obj.metadata.uid)
        storage, name = self.storage, volume.name
        known = storage.volumes.get(name)
        if known is not None:
            if msgspec.structs.replace(known, version=0) == volume:
                return
            self._unlist(known)
        self._versions += 1
        volume = msgspec.structs.replace(volume, version=self._versions)
        storage.volumes[name] = volume
        storage.volumes_of_class.setdefault(volume.class_name, {})[name] = volume
        if volume.claim is not None:
            storage.reserved.setdefault(f"{volume.claim.namespace}/{volume.claim.name}", set()).add(name)
        self._volume_changed(volume)

    def _drop_volume(self, name: str) -> None:
        self._invalid.forget("PersistentVolume", "", name)
        volume = self.storage.volumes.pop(name, None)
        if volume is not None:
            self._unlist(volume)
            self._volume_changed(volume)

    def _unlist(self, volume: PersistentVolume) -> None:
        listed = self.storage.volumes_of_class[volume.class_name]
        del listed[volume.name]
        if not listed:
            del self.storage.volumes_of_class[volume.class_name]
        if volume.claim is not None:
            key = f"{volume.claim.namespace}/{volume.claim.name}"
            self.storage.reserved[key].remove(volume.name)
            if not self.storage.reserved[key]:
                del self.storage.reserved[key]

    def _volume_changed(self, volume: PersistentVolume) -> None:
        self.storage.generation += 1
        self._changes.nodes |= self._nodes_of.get(volume.name, set())
        owner = volume.claim
        self._changes.volumes.add(
            f"{owner.namespace}/{owner.name}" if owner is not None else f"PersistentVolume {volume.name}"
        )

    def _apply_class(self, obj: StorageClassObject) -> None:
        name = obj.metadata.name
        mode = obj.volume_binding_mode or IMMEDIATE
        problems = []
        if mode not in (IMMEDIATE, WAIT_FOR_CONSUMER):
            problems.append(f"volumeBindingMode: {mode!r} is none of {IMMEDIATE}, {WAIT_FOR_CONSUMER}")
        self._note("StorageClass", "", name, problems, obj.metadata.uid)
        fresh = StorageClass(name, obj.provisioner, mode == WAIT_FOR_CONSUMER, obj.allowed_topologies or ())
        if self.storage.classes.get(name) != fresh:
            self.storage.classes[name] = fresh
            self._provisioning_changed(f"StorageClass {name}")

    def _drop_class(self, name: str) -> None:
        self._invalid.forget("StorageClass", "", name)
        if self.storage.classes.pop(name, None) is not None:
            self._provisioning_changed(f"StorageClass {name}")

    def _apply_csi_driver(self, obj: CSIDriverObject) -> None:
        name, storage = obj.metadata.name, self.storage
        for drivers, is_member in (
            (storage.tracked_drivers, bool(obj.spec.storage_capacity)),
            (storage.required_drivers, bool(obj.spec.prevent_pod_scheduling_if_missing)),
        ):
            if is_member != (name in drivers):
                drivers ^= {name}
                self._provisioning_changed(f"CSIDriver {name}")

    def _apply_capacity(self, obj: CSIStorageCapacityObject) -> None:
        meta = obj.metadata
        namespace, name = meta.namespace or "default", meta.name
        problems: list[str] = []
        left = storage_bytes(obj.capacity, "capacity", problems)
        most = obj.maximum_volume_size
        largest = left if most is None else storage_bytes(most, "maximumVolumeSize", problems)
        wrong = label_selector_problem(obj.node_topology)
        if wrong:
            problems.append(f"nodeTopology.{wrong}")
        self._note("CSIStorageCapacity", namespace, name, problems, meta.uid)
        fresh = StorageCapacity(obj.storage_class_name, obj.node_topology, largest, left)
        if self.storage.capacities.get((namespace, name)) != fresh:
            self.storage.capacities[namespace, name] = fresh
            self._provisioning_changed(f"CSIStorageCapacity {namespace}/{name}")

    def _drop_capacity(self, namespace: str, name: str) -> None:
        self._invalid.forget("CSIStorageCapacity", namespace, name)
        if self.storage.capacities.pop((namespace, name), None) is not None:
            self._provisioning_changed(f"CSIStorageCapacity {namespace}/{name}")

    def _provisioning_changed(self, name: str) -> None:
        self.storage.generation += 1
        self._changes.volumes.add(name)

    def _apply_csi_node(self, obj: CSINodeObject) -> None:
        name = obj.metadata.name
        limits: dict[str, int] = {}
        problems = []
        drivers = frozenset(driver.name for driver in obj.spec.drivers or ())
        for index, driver in enumerate(obj.spec.drivers or ()):
            count = driver.allocatable.count if driver.allocatable is not None else None
            if count is None:
                continue
            if count < 0:
                problems.append(f"spec.drivers[{index}].allocatable.count: {count} is negative; it counts as 0")
            limits[driver.name] = max(0, count)
        self._note("CSINode", "", name, problems, obj.metadata.uid)
        listed = (obj.metadata.annotations or {}).get(MIGRATED_PLUGINS, "").split(",")
        self._set_csi_node(name, limits, frozenset(CSI_DRIVERS.keys() & listed) - MIGRATED_EVERYWHERE, drivers)

    def _drop_csi_node(self, name: str) -> None:
        self._invalid.forget("CSINode", "", name)
        self._set_csi_node(name, {}, frozenset(), frozenset())

    def _set_csi_node(
        self, node: str, limits: Mapping[str, int], migrated: frozenset[str], drivers: frozenset[str]
    ) -> None:
        storage, none = self.storage, frozenset[str]()
        known = storage.limits.get(node, {}), storage.migrated.get(node, none), storage.drivers.get(node, none)
        if known == (limits, migrated, drivers):
            return
        storage.limits.pop(node, None)
        storage.migrated.pop(node, None)
        storage.drivers.pop(node, None)
        if drivers:
            storage.drivers[node] = drivers
        if limits:
            storage.limits[node] = limits
        if migrated:
            storage.migrated[node] = migrated
        self._changes.nodes.add(node)

    def _apply_attachment(self, obj: VolumeAttachmentObject) -> None:
        name, node, volume = obj.metadata.name, obj.spec.node_name, obj.spec.source.persistent_volume_name or ""
        if self._attached.get(name) == (node, volume):
            return
        self._drop_attachment(name)
        self._attached[name] = (node, volume)
        self._nodes_of.setdefault(volume, set()).add(node)
        self.storage.attachments.setdefault(node, {})[name] = volume
        self._changes.nodes.add(node)

    def _drop_attachment(self, name: str) -> None:
        known = self._attached.pop(name, None)
        if known is None:
            return
        node, volume = known
        on_node = self.storage.attachments[node]
        del on_node[name]
        if volume not in on_node.values():
            self._nodes_of[volume].discard(node)
            if not self._nodes_of[volume]:
                del self._nodes_of[volume]
        if not on_node:
            del self.storage.attachments[node]
        self._changes.nodes.add(node)

    def assume(self, task: Task, node: str, bindings: Iterable[ClaimBinding]) -> None:
        """Assume the volume bindings of a pod at the commit of its statement."""
        for binding in bindings:
            key = f"{task.namespace}/{binding.claim}"
            known = self.storage.assumed.get(key)
            if known is None:
                self.storage.assumed[key] = Assumption(Decision(binding.volume, node), {task.uid})
            else:
                known.holders.add(task.uid)

    def release_unused(self, tasks: Mapping[str, Task]) -> None:
        """Drop assumptions whose pods are unbound or deleted."""
        assumed = self.storage.assumed
        for key in list(assumed):
            holders = assumed[key].holders
            for uid in [uid for uid in holders if _is_unbound(tasks.get(uid))]:
                holders.remove(uid)
            if not holders:
                del assumed[key]


def _is_unbound(task: Task | None) -> bool:
    return task is None or task.status is TaskStatus.PENDING
