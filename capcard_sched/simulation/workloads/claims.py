"""Stand-in for the controller of ResourceClaims: generates claims from templates, and releases those of ended pods.

A claim is free when no pod that it is reserved for is left. Claims that were generated for a pod are deleted with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.controllers.objects import ENDED_PHASES, POD, JsonObject, key_of, meta, owner_reference, spec, status
from capcard_sched.model.device_objects import EXTENDED_CLAIM
from capcard_sched.model.intents import ExtendedClaim
from capcard_sched.model.kinds import RESOURCE_API
from capcard_sched.simulation.generated_names import name_suffix
from capcard_sched.simulation.kinds import CLAIM_TEMPLATE, RESOURCE_CLAIM

if TYPE_CHECKING:
    from collections.abc import Container

    from capcard_sched.model.intents import Bind, ClaimAllocation
    from capcard_sched.simulation.store import Change, Store

#: Annotation of a generated claim: the entry of its pod.
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
_FINALIZER = "resource.kubernetes.io/delete-protection"


class ResourceClaimController:
    """Generates, releases and deletes ResourceClaims."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Pods to visit, and those that wait for a template.
        self._pods: dict[tuple[str, str], None] = {}
        self._waiting: dict[tuple[str, str], None] = {}
        #: Uids of pods that are gone or have ended, with their namespaces.
        self._gone: dict[str, str] = {}

    def observe(self, change: Change) -> None:
        """Queue pods with claims, and pods that end."""
        if change.kind == CLAIM_TEMPLATE and change.new is not None:
            self._pods.update(self._waiting)
            self._waiting.clear()
        if change.kind != POD or not (
            spec(change.object).get("resourceClaims") or status(change.object).get("extendedResourceClaimStatus")
        ):
            return
        if change.new is None or status(change.new).get("phase") in ENDED_PHASES:
            self._gone[meta(change.object)["uid"]] = change.key[0]
            self._waiting.pop(change.key, None)
        else:
            self._pods[change.key] = None

    def reconcile(self) -> bool:
        """Generate and release claims; whether there was anything to do."""
        progressed = bool(self._pods or self._gone)
        while self._pods:
            key = next(iter(self._pods))
            del self._pods[key]
            pod = self._store.get(POD, *key)
            if pod is not None and not meta(pod).get("deletionTimestamp"):
                self._generate(pod)
        while self._gone:
            uid = next(iter(self._gone))
            self._release(uid, self._gone.pop(uid))
        return progressed

    def _generate(self, pod: JsonObject) -> None:
        namespace, name = key_of(pod)
        known = list(status(pod).get("resourceClaimStatuses") or ())
        names = {each["name"] for each in known}
        made: list[dict[str, Any]] = []
        for entry in spec(pod).get("resourceClaims") or ():
            template_name = entry.get("resourceClaimTemplateName")
            if not template_name or entry["name"] in names:
                continue
            template = self._store.get(CLAIM_TEMPLATE, namespace, template_name)
            if template is None:
                self._waiting[namespace, name] = None
                continue
            claim = f"{name}-{entry['name']}-{name_suffix(meta(pod)['uid'] + '/' + entry['name'])}"
            if self._store.get(RESOURCE_CLAIM, namespace, claim) is None:
                self._store.create(RESOURCE_CLAIM, _generated(template, claim, pod, entry["name"]))
            made.append({"name": entry["name"], "resourceClaimName": claim})
        if made:
            self._store.patch(POD, namespace, name, {"status": {"resourceClaimStatuses": [*known, *made]}})

    def _release(self, uid: str, namespace: str) -> None:
        """Release the claims of an ended pod; those that were generated for it are deleted."""
        for claim in list(self._store.list(RESOURCE_CLAIM)):
            if meta(claim).get("namespace") != namespace:
                continue
            consumers = status(claim).get("reservedFor") or []
            left = [each for each in consumers if each.get("uid") != uid]
            is_own = any(each.get("uid") == uid for each in meta(claim).get("ownerReferences") or ())
            if len(left) != len(consumers):
                self._store.patch(RESOURCE_CLAIM, *key_of(claim), released(left))
            if is_own and not left:
                self._store.delete(RESOURCE_CLAIM, *key_of(claim))


def released(left: list[dict[str, Any]]) -> JsonObject:
    """The patch that removes consumers; the last one takes the allocation with it."""
    if left:
        return {"status": {"reservedFor": left}}
    return {"metadata": {"finalizers": None}, "status": {"reservedFor": None, "allocation": None, "devices": None}}


def without_consumers(obj: JsonObject, gone: Container[str]) -> JsonObject:
    """A ResourceClaim after the end of pods, by uid; other objects as they are."""
    consumers = status(obj).get("reservedFor") if obj.get("kind") == RESOURCE_CLAIM else None
    if not isinstance(consumers, list):
        return obj
    left = [each for each in consumers if each.get("uid") not in gone]
    if len(left) == len(consumers):
        return obj
    return {**obj, "status": {**status(obj), "reservedFor": left} if left else {}}


def _generated(template: JsonObject, name: str, pod: JsonObject, entry: str) -> JsonObject:
    described = spec(template).get("metadata") or {}
    metadata: JsonObject = {
        "name": name,
        "namespace": meta(template)["namespace"],
        "annotations": {**(described.get("annotations") or {}), POD_CLAIM_NAME: entry},
        "ownerReferences": [owner_reference(pod)],
    }
    if described.get("labels"):
        metadata["labels"] = described["labels"]
    body = dict(spec(template).get("spec") or {})
    return {"apiVersion": RESOURCE_API, "kind": RESOURCE_CLAIM, "metadata": metadata, "spec": body}


def create_claim(store: Store, bind: Bind, wanted: ClaimAllocation, pod: JsonObject) -> None:
    """The writes for the extended resources of a pod: their claim, and the status of the pod."""
    assert isinstance(wanted.extended, ExtendedClaim)
    metadata: JsonObject = {
        "name": wanted.claim,
        "namespace": bind.namespace,
        "annotations": {EXTENDED_CLAIM: "true"},
        "ownerReferences": [owner_reference(pod)],
    }
    devices = msgspec.to_builtins(wanted.extended.spec)
    body: JsonObject = {"metadata": metadata, "spec": {"devices": devices}}
    if store.get(RESOURCE_CLAIM, bind.namespace, wanted.claim) is None:
        store.create(RESOURCE_CLAIM, {"apiVersion": RESOURCE_API, "kind": RESOURCE_CLAIM, **body})
    mappings = msgspec.to_builtins(wanted.extended.mappings)
    found = {"resourceClaimName": wanted.claim, "requestMappings": mappings}
    store.patch(POD, bind.namespace, bind.name, {"status": {"extendedResourceClaimStatus": found}})


def claim_refusal(store: Store, namespace: str, wanted: ClaimAllocation) -> str:
    """The reason why a claim cannot be reserved; "" when it can."""
    name = wanted.claim
    found = store.get(RESOURCE_CLAIM, namespace, name)
    if found is None and wanted.extended:
        return ""
    if found is None or (not wanted.extended and meta(found)["uid"] != wanted.uid):
        return f'resourceclaims "{name}" not found'
    return f'resourceclaim "{name}" is being deleted' if meta(found).get("deletionTimestamp") else ""


def reserve_claim(store: Store, namespace: str, wanted: ClaimAllocation, pod: JsonObject) -> None:
    """The writes before the binding of a pod: the allocation, unless there is one, and the reservation."""
    name = wanted.claim
    found = store.get(RESOURCE_CLAIM, namespace, name)
    assert found is not None, name
    present = status(found)
    consumers = list(present.get("reservedFor") or ())
    if all(each.get("uid") != meta(pod)["uid"] for each in consumers):
        consumers.append({"resource": "pods", "name": meta(pod)["name"], "uid": meta(pod)["uid"]})
    patch: JsonObject = {"status": {"reservedFor": consumers}}
    if wanted.allocation is not None and not present.get("allocation"):
        patch["metadata"] = {"finalizers": [_FINALIZER], "annotations": wanted.annotations or {}}
        allocation = msgspec.to_builtins(wanted.allocation)
        patch["status"]["allocation"] = {**allocation, "allocationTimestamp": store.clock.timestamp()}
    store.patch(RESOURCE_CLAIM, namespace, name, patch)


def release_claim(store: Store, namespace: str, wanted: ClaimAllocation, uid: str) -> None:
    """The write that takes a reservation back, and with the last one the allocation, or a claim that was created."""
    name = wanted.claim
    found = store.get(RESOURCE_CLAIM, namespace, name)
    if found is not None and wanted.extended:
        store.patch(RESOURCE_CLAIM, namespace, name, {"metadata": {"finalizers": None}})
        store.delete(RESOURCE_CLAIM, namespace, name)
        return
    state = status(found) if found is not None else {}
    consumers = state.get("reservedFor") or []
    left = [each for each in consumers if each.get("uid") != uid]
    if len(left) < len(consumers) or (not consumers and state.get("allocation") and wanted.allocation is not None):
        store.patch(RESOURCE_CLAIM, namespace, name, released(left))


def missing_claims(store: Store, pod: JsonObject) -> list[str]:
    """The names of the claims that keep the kubelet from starting a pod: not allocated, or not reserved for it."""
    generated = {each["name"]: each.get("resourceClaimName") for each in status(pod).get("resourceClaimStatuses") or ()}
    found: list[str] = []
    for entry in spec(pod).get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or generated.get(entry["name"])
        if not name:
            if entry["name"] not in generated:
                found.append(entry["name"])
            continue
        if not _is_held(store, pod, name):
            found.append(name)
    extended = status(pod).get("extendedResourceClaimStatus") or {}
    if extended and not _is_held(store, pod, extended["resourceClaimName"]):
        found.append(extended["resourceClaimName"])
    return found


def _is_held(store: Store, pod: JsonObject, name: str) -> bool:
    """Whether a claim is allocated, and reserved for a pod."""
    claim = store.get(RESOURCE_CLAIM, key_of(pod)[0], name)
    state = status(claim) if claim is not None else {}
    consumers = {each.get("uid") for each in state.get("reservedFor") or ()}
    return bool(state.get("allocation")) and meta(pod)["uid"] in consumers
