"""The watch of the scheduler: changes of the objects it reads, decoded once, newest version only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from capcard_sched.controllers.objects import (
    CLAIM,
    CONFIG_MAP,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE,
    annotations_of,
    meta,
)
from capcard_sched.model import deltas
from capcard_sched.model.annotations import DEVICE_CONFIG_KEY, NODE_VGPU_HANDSHAKE, POD_QUEUE_NAME, SIMULATION_USAGE
from capcard_sched.model.card_registration import handshake_state
from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.model.objects import (
    ConfigMapObject,
    NamespaceObject,
    NodeObject,
    PodGroupObject,
    PodObject,
    PriorityClassObject,
    QueueObject,
)
from capcard_sched.model.usage import parse_usage
from capcard_sched.model.volumes import (
    CSIDriverObject,
    CSINodeObject,
    CSIStorageCapacityObject,
    PersistentVolumeClaimObject,
    PersistentVolumeObject,
    StorageClassObject,
    VolumeAttachmentObject,
)
from capcard_sched.simulation.clock import EPOCH
from capcard_sched.simulation.kinds import (
    CSI_DRIVER,
    CSI_NODE,
    DISRUPTION_BUDGET,
    HYPER_NODE,
    NAMESPACE,
    NODE,
    NUMATOPOLOGY,
    RESOURCE_QUOTA,
    STORAGE_CAPACITY,
    STORAGE_CLASS,
    VOLUME,
    VOLUME_ATTACHMENT,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.model.deltas import Delta
    from capcard_sched.simulation.store import Change, Store


class _Watched(NamedTuple):
    """One kind that the scheduler watches."""

    type: type[msgspec.Struct]
    changed: Callable[[Any], Delta]
    #: From namespace, name and uid.
    gone: Callable[[str, str, str], Delta]


#: In the order of the deltas of a step: kinds that others refer to come first.
_WATCHED: dict[str, _Watched] = {
    PRIORITY_CLASS: _Watched(
        PriorityClassObject, deltas.PriorityClassChanged, lambda _, name, __: deltas.PriorityClassGone(name)
    ),
    NAMESPACE: _Watched(
        NamespaceObject,
        lambda obj: deltas.NamespaceChanged(
            obj.metadata.name,
            obj.metadata.labels or {},
            (obj.metadata.annotations or {}).get(POD_QUEUE_NAME, ""),
        ),
        lambda _, name, __: deltas.NamespaceGone(name),
    ),
    RESOURCE_QUOTA: _Watched(
        ResourceQuotaObject,
        deltas.ResourceQuotaChanged,
        lambda namespace, name, _: deltas.ResourceQuotaGone(namespace, name),
    ),
    DISRUPTION_BUDGET: _Watched(
        PodDisruptionBudgetObject,
        deltas.PodDisruptionBudgetChanged,
        lambda namespace, name, _: deltas.PodDisruptionBudgetGone(namespace, name),
    ),
    QUEUE: _Watched(QueueObject, deltas.QueueChanged, lambda _, name, __: deltas.QueueGone(name)),
    CONFIG_MAP: _Watched(
        ConfigMapObject, deltas.ConfigMapChanged, lambda namespace, name, _: deltas.ConfigMapGone(namespace, name)
    ),
    NODE: _Watched(NodeObject, deltas.NodeChanged, lambda _, name, __: deltas.NodeGone(name)),
    HYPER_NODE: _Watched(HyperNodeObject, deltas.HyperNodeChanged, lambda _, name, __: deltas.HyperNodeGone(name)),
    STORAGE_CLASS: _Watched(
        StorageClassObject, deltas.StorageClassChanged, lambda _, name, __: deltas.StorageClassGone(name)
    ),
    CSI_DRIVER: _Watched(CSIDriverObject, deltas.CSIDriverChanged, lambda _, name, __: deltas.CSIDriverGone(name)),
    STORAGE_CAPACITY: _Watched(
        CSIStorageCapacityObject,
        deltas.CSIStorageCapacityChanged,
        lambda namespace, name, _: deltas.CSIStorageCapacityGone(namespace, name),
    ),
    CSI_NODE: _Watched(CSINodeObject, deltas.CSINodeChanged, lambda _, name, __: deltas.CSINodeGone(name)),
    NUMATOPOLOGY: _Watched(
        NumatopologyObject, deltas.NumatopologyChanged, lambda _, name, __: deltas.NumatopologyGone(name)
    ),
    VOLUME: _Watched(
        PersistentVolumeObject, deltas.PersistentVolumeChanged, lambda _, name, __: deltas.PersistentVolumeGone(name)
    ),
    CLAIM: _Watched(
        PersistentVolumeClaimObject,
        deltas.PersistentVolumeClaimChanged,
        lambda namespace, name, _: deltas.PersistentVolumeClaimGone(namespace, name),
    ),
    VOLUME_ATTACHMENT: _Watched(
        VolumeAttachmentObject, deltas.VolumeAttachmentChanged, lambda _, name, __: deltas.VolumeAttachmentGone(name)
    ),
    POD_GROUP: _Watched(PodGroupObject, deltas.PodGroupChanged, deltas.PodGroupGone),
    POD: _Watched(PodObject, deltas.PodChanged, deltas.PodGone),
}


class StoreWatch:
    """Collects the changes since the last `drain`."""

    def __init__(self, store: Store, started: float = EPOCH) -> None:
        """`started`: wall clock at the start of the program, Unix seconds; input handshakes are compared with it."""
        self._started = started
        self._store = store
        self._changed: dict[str, dict[tuple[str, str], None]] = {kind: {} for kind in _WATCHED}
        self._gone: list[Delta] = []
        #: Node to the load of the last delta, as written.
        self._loads: dict[str, str] = {}
        self._outcomes: list[Delta] = []

    def observe(self, change: Change) -> None:
        """Queue a change."""
        changed = self._changed.get(change.kind)
        if changed is None or (change.kind == CONFIG_MAP and not _has_device_config(change)):
            return
        key = change.key
        if change.verb == "removed":
            changed.pop(key, None)
            if change.kind == NODE:
                self._gone += self._load(key[1], "")
            self._gone.append(_WATCHED[change.kind].gone(*key, meta(change.object)["uid"]))
        else:
            changed[key] = None

    def report(self, outcome: Delta) -> None:
        """Queue the outcome of an intent."""
        self._outcomes.append(outcome)

    @property
    def pending(self) -> bool:
        """Whether there are deltas."""
        return bool(self._gone or self._outcomes or any(self._changed.values()))

    def drain(self) -> list[Delta]:
        """The deltas since the last call: removals, then the newest version of changed objects, then outcomes."""
        found = self._gone
        self._gone = []
        for kind, keys in self._changed.items():
            watched = _WATCHED[kind]
            for key in keys:
                obj = self._store.get(kind, *key)
                if obj is not None:
                    decoded = msgspec.convert(obj, watched.type)
                    found.append(watched.changed(self._judged(decoded) if isinstance(decoded, NodeObject) else decoded))
                    if kind == NODE:
                        found += self._load(key[1], annotations_of(obj).get(SIMULATION_USAGE, ""))
            keys.clear()
        found += self._outcomes
        self._outcomes = []
        return found

    def _judged(self, node: NodeObject) -> NodeObject:
        """A node without the age of its handshake: no device plugin answers in virtual time."""
        notes = node.metadata.annotations or {}
        text = notes.get(NODE_VGPU_HANDSHAKE)
        if text is None:
            return node
        dead = handshake_state(text, self._started) in ("overdue", "deleted")
        judged = {**notes, NODE_VGPU_HANDSHAKE: "Deleted" if dead else "Reported"}
        return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=judged))

    def _load(self, node: str, text: str) -> list[Delta]:
        """The load of a node if it changed. The text was validated on input."""
        if text == self._loads.get(node, ""):
            return []
        if not text:
            del self._loads[node]
            return [deltas.NodeUsageGone(node)]
        self._loads[node] = text
        return [deltas.NodeUsageChanged({node: parse_usage(text)})]


def _has_device_config(change: Change) -> bool:
    """Whether a ConfigMap holds, or held, settings of a device plugin: the scheduler reads no others."""
    return any(DEVICE_CONFIG_KEY in (version.get("data") or {}) for version in (change.old, change.new) if version)
