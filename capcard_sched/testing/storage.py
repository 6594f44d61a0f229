"""Claims, volumes, classes and drivers for the harness, and the role of the volume controller in a binding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model import deltas
from capcard_sched.model.in_tree_volumes import MIGRATED_PLUGINS
from capcard_sched.model.volumes import (
    BIND_COMPLETED,
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
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Bind


def on_nodes(*names: str) -> dict[str, Any]:
    """The node affinity of a volume that only these nodes can use."""
    return labelled("kubernetes.io/hostname", *names)


def labelled(key: str, *values: str) -> dict[str, Any]:
    """The node affinity of a volume that nodes with these values of a label can use."""
    expression = {"key": key, "operator": "In", "values": list(values)}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


class StorageObjects:
    """The storage part of the harness. Objects of the same name replace each other."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._claims: dict[str, dict[str, Any]] = {}
        self._volumes: dict[str, dict[str, Any]] = {}

    def storage_class(
        self,
        name: str,
        *,
        provisioner: str = "csi.test",
        mode: str = WAIT_FOR_CONSUMER,
        topologies: Iterable[tuple[str, Iterable[str]]] = (),
    ) -> None:
        """Add a class; `topologies` are label keys with values, one term each."""
        body: dict[str, Any] = {
            "metadata": {"name": name, "uid": f"{name}-uid"},
            "provisioner": provisioner,
            "volumeBindingMode": mode,
        }
        terms = [{"matchLabelExpressions": [{"key": key, "values": list(values)}]} for key, values in topologies]
        if terms:
            body["allowedTopologies"] = terms
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(body, StorageClassObject)))

    def claim(
        self,
        name: str,
        *,
        namespace: str = "default",
        storage_class: str = "",
        size: Any = "1Gi",
        modes: Iterable[str] = ("ReadWriteOnce",),
        volume: str = "",
        bound: bool | None = None,
        annotations: Mapping[str, str] | None = None,
        owner: str = "",
        uid: str = "",
        phase: str = "",
        deleting: bool = False,
        **spec: Any,
    ) -> None:
        """Add a claim; one with a volume is bound to it unless `bound` is False."""
        notes = dict(annotations or {})
        if bound if bound is not None else bool(volume):
            notes[BIND_COMPLETED] = "yes"
        meta: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid or f"{namespace}-{name}-uid"}
        if owner:
            pod = owner.removeprefix(f"{namespace}-").removesuffix("-uid")
            reference = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": owner, "controller": True}
            meta["ownerReferences"] = [reference]
        if deleting:
            meta["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        body: dict[str, Any] = {
            "metadata": {**meta, "annotations": notes},
            "spec": {
                "accessModes": list(modes),
                "resources": {"requests": {"storage": size}},
                "storageClassName": storage_class,
                **spec,
            },
            "status": {"phase": phase or ("Bound" if BIND_COMPLETED in notes else "Pending")},
        }
        if volume:
            body["spec"]["volumeName"] = volume
        self._tell_claim(body)

    def _tell_claim(self, body: dict[str, Any]) -> None:
        meta = body["metadata"]
        self._claims[f"{meta['namespace']}/{meta['name']}"] = body
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(body, PersistentVolumeClaimObject)))

    def delete_claim(self, name: str, *, namespace: str = "default") -> None:
        """Delete a claim."""
        self._claims.pop(f"{namespace}/{name}", None)
        self._deltas.append(deltas.ObjectGone("PersistentVolumeClaim", namespace, name))

    def volume(
        self,
        name: str,
        *,
        storage_class: str = "",
        size: Any = "1Gi",
        modes: Iterable[str] = ("ReadWriteOnce",),
        affinity: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        claim: str = "",
        namespace: str = "default",
        phase: str = "",
        driver: str = "",
        handle: str = "",
        **spec: Any,
    ) -> None:
        """Add a volume; `claim` is the claim it is reserved for, `affinity` is its `nodeAffinity.required`."""
        body: dict[str, Any] = {
            "metadata": {"name": name, "uid": f"{name}-uid", "labels": dict(labels or {})},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": list(modes),
                "storageClassName": storage_class,
                **spec,
            },
            "status": {"phase": phase or ("Bound" if claim else "Available")},
        }
        if affinity is not None:
            body["spec"]["nodeAffinity"] = {"required": dict(affinity)}
        if claim:
            body["spec"]["claimRef"] = {"name": claim, "namespace": namespace, "uid": f"{namespace}-{claim}-uid"}
        if driver:
            body["spec"]["csi"] = {"driver": driver, "volumeHandle": handle or name}
        self._tell_volume(body)

    def _tell_volume(self, body: dict[str, Any]) -> None:
        self._volumes[body["metadata"]["name"]] = body
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(body, PersistentVolumeObject)))

    def delete_volume(self, name: str) -> None:
        """Delete a volume."""
        self._volumes.pop(name, None)
        self._deltas.append(deltas.ObjectGone("PersistentVolume", "", name))

    def csi_node(self, node: str, *, migrated: Iterable[str] = (), **limits: int | None) -> None:
        """Set the drivers of a node and their volume limits; `_` in a name becomes a dot.

        `migrated`: in-tree plugins in its annotation.
        """
        drivers = [
            {"name": name.replace("_", "."), **({} if count is None else {"allocatable": {"count": count}})}
            for name, count in limits.items()
        ]
        notes = {MIGRATED_PLUGINS: ",".join(migrated)} if migrated else {}
        meta = {"name": node, "annotations": notes}
        body = {"metadata": meta, "spec": {"drivers": drivers}}
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(body, CSINodeObject)))

    def csi_driver(self, name: str, *, storage_capacity: bool = False, required: bool = False) -> None:
        """Add a driver. `required`: pods with volumes of it fit only nodes that have it."""
        flags = {"storageCapacity": storage_capacity, "preventPodSchedulingIfMissing": required}
        body = {"metadata": {"name": name}, "spec": flags}
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(body, CSIDriverObject)))

    def storage_capacity(
        self, name: str, *, storage_class: str, capacity: Any, labels: Mapping[str, str] | None, largest: Any = None
    ) -> None:
        """Set the free capacity of a class on nodes with these labels; None matches none."""
        body: dict[str, Any] = {
            "metadata": {"name": name, "namespace": "kube-system"},
            "storageClassName": storage_class,
            "capacity": capacity,
        }
        if labels is not None:
            body["nodeTopology"] = {"matchLabels": dict(labels)}
        if largest is not None:
            body["maximumVolumeSize"] = largest
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(body, CSIStorageCapacityObject)))

    def attachment(self, name: str, *, node: str, volume: str, driver: str = "csi.test") -> None:
        """Attach a volume to a node."""
        body = {
            "metadata": {"name": name},
            "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}},
        }
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(body, VolumeAttachmentObject)))

    def delete_attachment(self, name: str) -> None:
        """Detach a volume."""
        self._deltas.append(deltas.ObjectGone("VolumeAttachment", "", name))

    def _settle(self, bind: Bind) -> None:
        """Bind the claims of a binding, as the volume controller and provisioners do."""
        for wanted in bind.volumes:
            claim = self._claims[f"{bind.namespace}/{wanted.claim}"]
            if BIND_COMPLETED in claim["metadata"]["annotations"]:
                continue
            name = wanted.volume or f"made-for-{wanted.claim}"
            if wanted.volume:
                volume = self._volumes[name]
                reference = {"name": wanted.claim, "namespace": bind.namespace, "uid": wanted.uid}
                self._tell_volume(
                    {**volume, "spec": {**volume["spec"], "claimRef": reference}, "status": {"phase": "Bound"}}
                )
            else:
                spec = claim["spec"]
                size = spec["resources"]["requests"]["storage"]
                self.volume(
                    name,
                    storage_class=spec["storageClassName"],
                    size=size,
                    modes=spec["accessModes"],
                    claim=wanted.claim,
                    namespace=bind.namespace,
                    driver="csi.test",
                    affinity=None if len(spec["accessModes"]) > 1 else on_nodes(bind.node),
                )
            notes = {**claim["metadata"]["annotations"], BIND_COMPLETED: "yes"}
            self._tell_claim(
                {
                    "metadata": {**claim["metadata"], "annotations": notes},
                    "spec": {**claim["spec"], "volumeName": name},
                    "status": {"phase": "Bound"},
                }
            )
