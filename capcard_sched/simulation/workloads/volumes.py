"""Stand-ins for the volume controller, the provisioners and the controller of generic ephemeral volumes.

A claim of a WaitForFirstConsumer class is bound when the scheduler has selected a volume (`spec.claimRef`) or a node
(an annotation of the claim). Every other claim is bound as soon as a volume or a provisioner fits. A volume that is
provisioned for a node in a zone is limited to that zone, unless many nodes may mount it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.controllers.objects import (
    CLAIM,
    ENDED_PHASES,
    POD,
    JsonObject,
    annotations_of,
    key_of,
    labels_of,
    meta,
    owner_reference,
    spec,
    status,
)
from capcard_sched.model.storage import claim_facts, volume_facts
from capcard_sched.model.volumes import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    SELECTED_NODE,
    WAIT_FOR_CONSUMER,
    PersistentVolumeClaimObject,
    PersistentVolumeObject,
)
from capcard_sched.simulation.kinds import NODE, STORAGE_CLASS, VOLUME

if TYPE_CHECKING:
    from capcard_sched.model.storage import PersistentVolume, VolumeClaim
    from capcard_sched.simulation.store import Change, Store

_ZONE = "topology.kubernetes.io/zone"


class VolumeController:
    """Binds, provisions and releases volumes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Unbound claims, in order of creation.
        self._waiting: dict[tuple[str, str], None] = {}
        self._pods: dict[tuple[str, str], None] = {}
        #: Deleted claims whose volumes are to be released.
        self._gone: list[JsonObject] = []
        self._again = False

    def observe(self, change: Change) -> None:
        """Queue claims, volumes and classes that changed, and pods with ephemeral volumes."""
        if change.kind == CLAIM:
            if change.new is None:
                self._waiting.pop(change.key, None)
                self._gone.append(change.object)
            elif not _is_bound(change.new):
                self._waiting[change.key] = None
                self._again = True
        elif change.kind in (VOLUME, STORAGE_CLASS):
            self._again = self._again or bool(self._waiting)
        elif change.kind == POD and change.verb == "added":
            self._pods[change.key] = None

    def reconcile(self) -> bool:
        """Provision, bind and release; whether there was anything to do."""
        progressed = bool(self._pods or self._gone or self._again)
        for key in list(self._pods):
            del self._pods[key]
            pod = self._store.get(POD, *key)
            if pod is not None:
                self._make_own_claims(pod)
        while self._gone:
            self._release(self._gone.pop(0))
        if self._again:
            self._again = False
            for key in list(self._waiting):
                claim = self._store.get(CLAIM, *key)
                if claim is None or self._bind(claim):
                    self._waiting.pop(key, None)
        return progressed

    def _make_own_claims(self, pod: JsonObject) -> None:
        if status(pod).get("phase") in ENDED_PHASES:
            return
        namespace, name = key_of(pod)
        for volume in spec(pod).get("volumes") or ():
            if not volume.get("ephemeral"):
                continue
            claim = f"{name}-{volume['name']}"
            if self._store.get(CLAIM, namespace, claim) is None:
                template = volume["ephemeral"].get("volumeClaimTemplate") or {}
                self._store.create(CLAIM, claim_from(template, claim, namespace, owner=pod))

    def _bind(self, obj: JsonObject) -> bool:
        """Bind a claim if possible; whether it is bound."""
        if _is_bound(obj):
            return True
        claim, _ = claim_facts(msgspec.convert(obj, PersistentVolumeClaimObject))
        of_class = self._store.get(STORAGE_CLASS, "", claim.class_name) or {}
        volume = self._chosen(claim)
        waits = of_class.get("volumeBindingMode") == WAIT_FOR_CONSUMER
        if volume is None and not claim.volume_name and (claim.selected_node or not waits):
            volume = None if waits else self._best(claim)
            if volume is None and of_class.get("provisioner", NO_PROVISIONER) != NO_PROVISIONER:
                volume = self._make(obj, claim, of_class)
        if volume is None:
            return False
        owner = {
            "apiVersion": "v1",
            "kind": CLAIM,
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
        }
        self._store.patch(VOLUME, "", volume, {"spec": {"claimRef": owner}, "status": {"phase": "Bound"}})
        patch: JsonObject = {
            "metadata": {"annotations": {BIND_COMPLETED: "yes"}},
            "spec": {"volumeName": volume},
            "status": {"phase": "Bound"},
        }
        self._store.patch(CLAIM, claim.namespace, claim.name, patch)
        return True

    def _chosen(self, claim: VolumeClaim) -> str | None:
        """The volume that is reserved for the claim, or that the claim names and that is free."""
        if claim.volume_name:
            named = self._store.get(VOLUME, "", claim.volume_name)
            if named is None:
                return None
            volume = _facts(named)
            return volume.name if volume.claim is None or volume.is_reserved_for(claim) else None
        kept = [
            volume
            for volume in map(_facts, self._store.list(VOLUME))
            if volume.is_reserved_for(claim) and volume.class_name == claim.class_name and volume.suits(claim)
        ]
        return min(kept, key=_smallest).name if kept else None

    def _best(self, claim: VolumeClaim) -> str | None:
        volumes = map(_facts, self._store.list(VOLUME))
        fitting = [each for each in volumes if each.class_name == claim.class_name and each.is_candidate_for(claim)]
        return min(fitting, key=_smallest).name if fitting else None

    def _make(self, obj: JsonObject, claim: VolumeClaim, of_class: JsonObject) -> str:
        """Provision a volume and return its name."""
        name = f"pvc-{claim.uid}"
        wanted: JsonObject = {
            "capacity": {"storage": spec(obj).get("resources", {}).get("requests", {}).get("storage", "0")},
            "accessModes": list(spec(obj).get("accessModes") or ()),
            "volumeMode": claim.volume_mode,
            "storageClassName": claim.class_name,
            "persistentVolumeReclaimPolicy": of_class.get("reclaimPolicy") or "Delete",
            "csi": {"driver": of_class["provisioner"], "volumeHandle": name},
        }
        node = self._store.get(NODE, "", claim.selected_node)
        zone = labels_of(node).get(_ZONE) if node is not None else None
        if zone and not claim.is_for_many_nodes:
            expression = {"key": _ZONE, "operator": "In", "values": [zone]}
            wanted["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        notes = {"pv.kubernetes.io/provisioned-by": of_class["provisioner"], BOUND_BY_CONTROLLER: "yes"}
        self._store.create(
            VOLUME,
            {"apiVersion": "v1", "kind": VOLUME, "metadata": {"name": name, "annotations": notes}, "spec": wanted},
        )
        return name

    def _release(self, claim: JsonObject) -> None:
        """Release the volume of a deleted claim: delete or retain it, by its reclaim policy."""
        for volume in list(self._store.list(VOLUME)):
            if (spec(volume).get("claimRef") or {}).get("uid") != meta(claim)["uid"]:
                continue
            if spec(volume).get("persistentVolumeReclaimPolicy") == "Delete":
                self._store.delete(VOLUME, *key_of(volume))
            else:
                self._store.patch(VOLUME, *key_of(volume), {"status": {"phase": "Released"}})


def claim_from(template: JsonObject, name: str, namespace: str, owner: JsonObject | None = None) -> JsonObject:
    """A claim from a claim template."""
    described = template.get("metadata") or {}
    metadata: JsonObject = {"name": name, "namespace": namespace}
    metadata.update({field: described[field] for field in ("labels", "annotations") if described.get(field)})
    if owner is not None:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return {"apiVersion": "v1", "kind": CLAIM, "metadata": metadata, "spec": dict(template.get("spec") or {})}


def volume_refusal(store: Store, namespace: str, claim: str, volume: str) -> str:
    """The reason why a claim cannot get a volume (a provisioned one with volume ""); "" when it can."""
    found = store.get(CLAIM, namespace, claim)
    if found is None:
        return f'persistentvolumeclaims "{claim}" not found'
    if not volume or _is_bound(found):
        return ""
    chosen = store.get(VOLUME, "", volume)
    if chosen is None:
        return f'persistentvolumes "{volume}" not found'
    owner = spec(chosen).get("claimRef")
    if owner and owner.get("uid", "") not in ("", meta(found)["uid"]):
        return f"volume {volume} is given to claim {owner.get('namespace')}/{owner.get('name')}"
    return ""


def give_volume(store: Store, namespace: str, claim: str, volume: str, node: str) -> None:
    """The writes before the binding of a pod: the claim into the volume, or the node into the claim."""
    found = store.get(CLAIM, namespace, claim)
    if found is None or _is_bound(found):
        return
    if volume:
        owner = {"apiVersion": "v1", "kind": CLAIM, "namespace": namespace, "name": claim, "uid": meta(found)["uid"]}
        store.patch(VOLUME, "", volume, {"spec": {"claimRef": owner}})
        store.patch(CLAIM, namespace, claim, {"metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}}})
    elif SELECTED_NODE not in annotations_of(found):
        store.patch(CLAIM, namespace, claim, {"metadata": {"annotations": {SELECTED_NODE: node}}})


def _facts(obj: JsonObject) -> PersistentVolume:
    return volume_facts(msgspec.convert(obj, PersistentVolumeObject))[0]


def _smallest(volume: PersistentVolume) -> tuple[int, str]:
    return volume.size, volume.name


def _is_bound(claim: JsonObject) -> bool:
    bound = status(claim).get("phase") == "Bound" or BIND_COMPLETED in annotations_of(claim)
    return bool(spec(claim).get("volumeName")) and bound
