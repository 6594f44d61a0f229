"""Applies intents of the scheduler: each becomes the writes that an API server would receive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from capcard_sched.controllers.objects import (
    CONFIG_MAP,
    POD,
    POD_GROUP,
    JsonObject,
    annotations_of,
    controller_key,
    key_of,
    meta,
    spec,
    status,
)
from capcard_sched.model.annotations import QUEUE_ALLOCATION_GATE
from capcard_sched.model.deltas import BindFailed, BindRetry, CapacityRequestRefused, EvictFailed
from capcard_sched.model.intents import (
    AnnotatePod,
    AnnotatePodGroup,
    AnnotateQueue,
    Bind,
    EmitEvent,
    Evict,
    Intent,
    ObjectRef,
    ReleaseClaims,
    RemoveGate,
    RequestCapacity,
    UpdatePodCondition,
    UpdatePodGroup,
    UpdateQueueStatus,
    WithdrawRequest,
    WriteConfigMap,
)
from capcard_sched.model.kinds import CORE_API
from capcard_sched.model.kube_groups import (
    DISRUPTION_TARGET,
    INITIALLY_SCHEDULED,
    KUBE_GROUP,
    disruption,
    kube_condition,
    kube_name,
    unschedulable_text,
)
from capcard_sched.model.namespace_queues import queue_ref
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.provisioning import POD_TEMPLATE, PROVISIONING_REQUEST, provisioning_bodies, template_name
from capcard_sched.model.reasons import BINDING_CONDITIONS_PENDING, POD_SCHEDULED
from capcard_sched.simulation.kinds import NODE
from capcard_sched.simulation.kubelet import with_condition
from capcard_sched.simulation.waiting_binds import WaitingBinds
from capcard_sched.simulation.workloads.claims import claim_refusal, create_claim, release_claim, reserve_claim
from capcard_sched.simulation.workloads.volumes import give_volume, volume_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.simulation.store import Store, StoreWatch
    from capcard_sched.simulation.workloads.controller_runner import EventRecorder


_OfQueue: TypeAlias = UpdateQueueStatus | AnnotateQueue
_AboutPod: TypeAlias = Bind | Evict | RemoveGate | UpdatePodCondition | AnnotatePod
_AboutObject: TypeAlias = _AboutPod | UpdatePodGroup | AnnotatePodGroup | _OfQueue


class PendingEviction(NamedTuple):
    """One pod that the scheduler evicted."""

    #: Microseconds since the start.
    at: int
    namespace: str
    pod: str
    group: str
    node: str
    reason: str
    message: str


class IntentExecutor:
    """The writing half of the simulated backend."""

    def __init__(self, store: Store, feed: StoreWatch, recorder: EventRecorder, component: str) -> None:
        self._store = store
        self._feed = feed
        self._recorder = recorder
        self._component = component
        self.evictions: list[PendingEviction] = []
        self._waiting = WaitingBinds(store, self._finish_bind, self._fail_bind, self._report_wait)
        self._effects: dict[type, Callable[[Any], None]] = {
            Bind: self._bind,
            Evict: self._evict,
            ReleaseClaims: self._release_claims,
            EmitEvent: self._emit,
            RemoveGate: self._remove_gate,
            UpdatePodCondition: self._set_condition,
            UpdatePodGroup: self._update_group,
            UpdateQueueStatus: self._update_queue,
            AnnotatePodGroup: self._annotate_group,
            AnnotatePod: lambda intent: self._patch(POD, intent, {"metadata": {"annotations": intent.annotations}}),
            RequestCapacity: self._request_capacity,
            WithdrawRequest: self._withdraw_request,
            AnnotateQueue: self._annotate_queue,
            WriteConfigMap: self._write_config_map,
        }

    def apply_all(self, intents: Sequence[Intent]) -> None:
        """Apply the intents of one session."""
        self._waiting.expect(intents)
        for intent in intents:
            self.apply(intent)

    def apply(self, intent: Intent) -> None:
        """Apply one intent; an intent about a deleted object is dropped, as the API server would reject it."""
        effect = self._effects.get(type(intent))
        if effect is not None:  # else AnnotateNode: no device plugin takes part in a handshake here
            effect(intent)

    def _emit(self, intent: EmitEvent) -> None:
        # The event is recorded at the time of the binding; the scheduler learns of it a schedule period later.
        if intent.object.kind != "Pod" or intent.reason != POD_SCHEDULED.code:
            self._recorder.record(intent)

    def _remove_gate(self, intent: RemoveGate) -> None:
        if pod := self._meant(POD, intent):
            self._store.patch(POD, intent.namespace, intent.name, _without_gate(pod))

    def _update_group(self, intent: UpdatePodGroup) -> None:
        if kube_name(intent.name):
            self._condition_of_kube_group(intent)
            return
        counts = {name: getattr(intent, name) or None for name in ("running", "succeeded", "failed")}
        conditions = [msgspec.to_builtins(condition) for condition in intent.conditions] or None
        self._patch(POD_GROUP, intent, {"status": {"phase": intent.phase, **counts, "conditions": conditions}})

    def _update_queue(self, intent: UpdateQueueStatus) -> None:
        kind = queue_ref(intent.name).kind
        stale = dict.fromkeys(status(self._meant(kind, intent) or {}).get("allocated") or {})
        self._patch(kind, intent, {"status": {"allocated": {**stale, **intent.allocated}}})

    def _annotate_group(self, intent: AnnotatePodGroup) -> None:
        self._patch(POD_GROUP, intent, {"metadata": {"annotations": dict(intent.annotations)}})

    def _annotate_queue(self, intent: AnnotateQueue) -> None:
        self._patch(queue_ref(intent.name).kind, intent, {"metadata": {"annotations": dict(intent.annotations)}})

    def _request_capacity(self, intent: RequestCapacity) -> None:
        """The PodTemplates and the request, as `kube` creates them. Operations set its status."""
        pods = [self._store.get(POD, intent.namespace, each.pod) for each in intent.pod_sets]
        found = [pod for pod in pods if pod is not None]
        if len(found) < len(pods):
            refused = CapacityRequestRefused(intent.namespace, intent.name, intent.group, "its pods are gone")
            self._feed.report(refused)
            return
        for body in provisioning_bodies(intent, found):
            kind, name = body["kind"], body["metadata"]["name"]
            if self._store.get(kind, intent.namespace, name) is not None:
                message = f"{kind} {name} exists, and another object owns it"
                self._feed.report(CapacityRequestRefused(intent.namespace, intent.name, intent.group, message))
                return
            self._store.create(kind, body)

    def _withdraw_request(self, intent: WithdrawRequest) -> None:
        names = [(POD_TEMPLATE, template_name(intent.name, index)) for index in range(intent.pod_sets)]
        for kind, name in [(PROVISIONING_REQUEST, intent.name), *names]:
            found = self._store.get(kind, intent.namespace, name)
            owner = None if found is None else controller_key(found)
            if owner is not None and owner.uid == intent.owner:
                self._store.delete(kind, intent.namespace, name)

    def _write_config_map(self, intent: WriteConfigMap) -> None:
        content: JsonObject = {"metadata": {"labels": dict(intent.labels)}, "data": dict(intent.data)}
        if self._store.get(CONFIG_MAP, intent.namespace, intent.name) is not None:
            self._store.patch(CONFIG_MAP, intent.namespace, intent.name, content)
            return
        metadata = {"namespace": intent.namespace, "name": intent.name, **content["metadata"]}
        self._store.create(CONFIG_MAP, {"apiVersion": CORE_API, "kind": CONFIG_MAP, **content, "metadata": metadata})

    def _condition_of_kube_group(self, intent: UpdatePodGroup) -> None:
        group = self._store.get(KUBE_GROUP, intent.namespace, kube_name(intent.name))
        if group is None:
            return
        wanted = kube_condition(intent.phase, unschedulable_text(intent.conditions))
        rows = status(group).get("conditions") or []
        others = [row for row in rows if row.get("type") != INITIALLY_SCHEDULED]
        present: JsonObject = next((row for row in rows if row.get("type") == INITIALLY_SCHEDULED), {})
        if present.get("status") == "True":
            return  # it started once
        if tuple(present.get(field) for field in ("status", "reason", "message")) != wanted:
            row = dict(zip(("type", "status", "reason", "message"), (INITIALLY_SCHEDULED, *wanted), strict=True))
            rows = [*others, {**row, "lastTransitionTime": self._store.clock.timestamp()}]
            self._store.patch(KUBE_GROUP, *key_of(group), {"status": {"conditions": rows}})

    def _mark_kube_group(self, namespace: str, name: str, uid: str, condition: JsonObject) -> None:
        group = self._store.get(KUBE_GROUP, namespace, name)
        if group is not None and meta(group)["uid"] == uid:
            rows = with_condition(status(group).get("conditions") or [], condition, self._store.clock.timestamp())
            self._store.patch(KUBE_GROUP, namespace, name, {"status": {"conditions": rows}})

    def _meant(self, kind: str, intent: _AboutObject) -> JsonObject | None:
        """The object of an intent; None when it is gone, or another one has its name."""
        if isinstance(intent, _OfQueue):
            ref = queue_ref(intent.name)
            return self._store.get(ref.kind, ref.namespace, ref.name)
        found = self._store.get(kind, intent.namespace, intent.name)
        return found if found is not None and (not intent.uid or meta(found)["uid"] == intent.uid) else None

    def _patch(self, kind: str, intent: _AboutObject, patch: JsonObject) -> None:
        """Patch the object of an intent, if it exists."""
        present = self._meant(kind, intent)
        if present is not None:
            self._store.patch(kind, *key_of(present), patch)

    def _bind(self, intent: Bind) -> None:
        pod = self._meant(POD, intent)
        refusal = _bind_refusal(pod, intent, self._store)
        for wanted in intent.volumes:
            refusal = refusal or volume_refusal(self._store, intent.namespace, wanted.claim, wanted.volume)
        for claim in intent.claims or ():
            refusal = refusal or claim_refusal(self._store, intent.namespace, claim)
        if refusal or pod is None:
            self._feed.report(BindFailed(intent.namespace, intent.name, intent.uid, refusal))
            return
        for wanted in intent.volumes:
            give_volume(self._store, intent.namespace, wanted.claim, wanted.volume, intent.node)
        for claim in intent.claims or ():
            if claim.extended:
                create_claim(self._store, intent, claim, pod)
            reserve_claim(self._store, intent.namespace, claim, pod)
        if not (intent.claims and self._waiting.add(intent)):
            self._finish_bind(intent)

    def _report_wait(self, intent: Bind, waiting: str) -> None:
        about = ObjectRef("Pod", intent.namespace, intent.name, intent.uid)
        row = BINDING_CONDITIONS_PENDING
        self._recorder.record(EmitEvent(about, row.type, row.code, row.render(detail=waiting)))

    def _fail_bind(self, intent: Bind, message: str) -> None:
        for claim in intent.claims or ():
            release_claim(self._store, intent.namespace, claim, intent.uid)
        self._feed.report(BindFailed(intent.namespace, intent.name, intent.uid, message))

    def _finish_bind(self, intent: Bind) -> None:
        pod = self._meant(POD, intent)
        refusal = _bind_refusal(pod, intent, self._store)
        if refusal or pod is None:
            self._fail_bind(intent, refusal)
            return
        patch: JsonObject = _without_gate(pod) if intent.gate else {"spec": {}}
        patch["spec"]["nodeName"] = intent.node
        if annotations := intent.pod_annotations():
            patch["metadata"] = {"annotations": annotations}
        conditions = status(pod).get("conditions") or []
        bound = {"type": "PodScheduled", "status": "True"}
        patch["status"] = {"conditions": with_condition(conditions, bound, self._store.clock.timestamp())}
        self._store.patch(POD, intent.namespace, intent.name, patch)
        about = ObjectRef("Pod", intent.namespace, intent.name, meta(pod)["uid"])
        message = POD_SCHEDULED.render(namespace=intent.namespace, name=intent.name, node=intent.node)
        self._recorder.record(EmitEvent(about, POD_SCHEDULED.type, POD_SCHEDULED.code, message))

    def _release_claims(self, intent: ReleaseClaims) -> None:
        for wanted in intent.claims:
            release_claim(self._store, intent.namespace, wanted, intent.uid)
        self._feed.report(BindRetry(intent.namespace, intent.name, intent.uid))

    def _evict(self, intent: Evict) -> None:
        pod = self._meant(POD, intent)
        if pod is None:
            message = f'pods "{intent.name}" not found'
            self._feed.report(EvictFailed(intent.namespace, intent.name, intent.uid, message))
            return
        group = group_of(annotations_of(pod))
        node = spec(pod).get("nodeName") or ""
        now = self._store.clock.now
        self.evictions.append(
            PendingEviction(now, intent.namespace, intent.name, group, node, intent.reason, intent.message)
        )
        stamp = self._store.clock.timestamp()
        conditions = status(pod).get("conditions") or []
        message = f"Pod is evicted, because of {intent.message}"
        not_ready = {"type": "Ready", "status": "False", "reason": "Evict", "message": message}
        disrupted = dict(
            zip(("type", "status", "reason", "message"), (DISRUPTION_TARGET, *disruption(self._component)), strict=True)
        )
        if isinstance(intent.whole_group, tuple):
            self._mark_kube_group(intent.namespace, *intent.whole_group, disrupted)
        for condition in (not_ready, disrupted):
            conditions = with_condition(conditions, condition, stamp)
        self._store.patch(POD, intent.namespace, intent.name, {"status": {"conditions": conditions}})
        self._store.delete(POD, intent.namespace, intent.name)
        about = ObjectRef("Pod", intent.namespace, intent.name, meta(pod)["uid"])
        self._recorder.record(EmitEvent(about, "Warning", "Evict", message))
        if group and not intent.by:  # preempt and reclaim emit their own event on the PodGroup, once for all victims
            about = ObjectRef("PodGroup", intent.namespace, group)
            self._recorder.record(EmitEvent(about, "Normal", "Evict", intent.reason))

    def _set_condition(self, intent: UpdatePodCondition) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": intent.reason, "message": intent.message}
        present = status(self._meant(POD, intent) or {}).get("conditions") or []
        patch: JsonObject = {"conditions": with_condition(present, condition, self._store.clock.timestamp())}
        if intent.nominated_node is not None:
            patch["nominatedNodeName"] = intent.nominated_node or None
        self._patch(POD, intent, {"status": patch})


def _gates(pod: JsonObject) -> list[JsonObject]:
    """The scheduling gates of a pod but that of the queue allocation."""
    return [gate for gate in spec(pod).get("schedulingGates") or () if gate.get("name") != QUEUE_ALLOCATION_GATE]


def _without_gate(pod: JsonObject) -> JsonObject:
    return {"spec": {"schedulingGates": _gates(pod) or None}}


def _bind_refusal(pod: JsonObject | None, intent: Bind, store: Store) -> str:
    """The reason why the API server would reject a binding, "" when it would accept it."""
    if pod is None:
        return f'pods "{intent.name}" not found'
    if meta(pod).get("deletionTimestamp"):
        return f"pod {intent.name} is being deleted, cannot be assigned to a host"
    if spec(pod).get("nodeName"):
        return f"pod {intent.name} is already assigned to node {spec(pod)['nodeName']}"
    if _gates(pod) or (not intent.gate and spec(pod).get("schedulingGates")):
        return f"pod {intent.name} has non-empty .spec.schedulingGates"
    return "" if store.get(NODE, "", intent.node) is not None else f'nodes "{intent.node}" not found'
