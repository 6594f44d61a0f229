"""The PodGroup controller: a group for each pod of ours that names none (controllers reference §2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import (
    CARD_REQUEST,
    COOLDOWN_TIME,
    GROUP_MIN_MEMBER,
    GROUP_NAME,
    GROUP_NAME_ALIAS,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    POD_QUEUE_NAME,
    PREEMPTABLE,
    REVOCABLE_ZONE,
    SERVICE_TYPE,
    VOLCANO_PREFIX,
)
from capcard_sched.simulation.kinds import (
    DEPLOYMENT,
    POD,
    POD_GROUP,
    REPLICA_SET,
    SCHEDULING_API,
    STATEFUL_SET,
    JsonObject,
    annotations_of,
    controller_of,
    labels_of,
    meta,
    spec,
    status,
)
from capcard_sched.simulation.store import ENDED_PHASES
from capcard_sched.simulation.workloads.quota_usage import quota_usage
from capcard_sched.simulation.workloads.templates import owner_reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.simulation.store import Change, Store

#: Pod annotations that win over the owner's.
_FROM_POD = (PREEMPTABLE, COOLDOWN_TIME, REVOCABLE_ZONE)
#: Read from the pod template too, where the reference loses them (C-12).
_FROM_TEMPLATE = (SERVICE_TYPE, CARD_REQUEST)
_LABELS = (PREEMPTABLE, COOLDOWN_TIME)


class PodGroupController:
    """Makes `podgroup-<owner uid>` and points the pods to it."""

    def __init__(self, store: Store, scheduler_names: Iterable[str]) -> None:
        self._store = store
        self._scheduler_names = frozenset(scheduler_names)
        self._pods: dict[tuple[str, str], None] = {}
        self._owners: dict[tuple[str, str, str], None] = {}

    def observe(self, change: Change) -> None:
        """Take note of new pods, and of owners whose replicas may have changed."""
        if change.kind == POD and change.new is not None and change.verb == "added":
            self._pods[change.key] = None
        elif change.kind in (REPLICA_SET, STATEFUL_SET) and change.new is not None and _is_scaled(change):
            self._owners[(change.kind, *change.key)] = None

    def reconcile(self) -> bool:
        """Make what is missing; whether there was anything to look at."""
        worked = bool(self._pods or self._owners)
        while self._owners:
            key = next(iter(self._owners))
            del self._owners[key]
            self._keep_owner(*key)
        while self._pods:
            pod_key = next(iter(self._pods))
            del self._pods[pod_key]
            pod = self._store.get(POD, *pod_key)
            if pod is not None:
                self._keep_pod(pod)
        return worked

    def _keep_owner(self, kind: str, namespace: str, name: str) -> None:
        """Scaled to 0 the group goes; scaled up again the old pods' group must be there."""
        owner = self._store.get(kind, namespace, name)
        if owner is None:
            return
        group_name = f"podgroup-{meta(owner)['uid']}"
        group = self._store.get(POD_GROUP, namespace, group_name)
        replicas = int(spec(owner).get("replicas", 1))
        if replicas == 0:
            if group is not None:
                self._store.delete(POD_GROUP, namespace, group_name)
            return
        live = [pod for pod in self._store.owned(meta(owner)["uid"], POD) if not meta(pod).get("deletionTimestamp")]
        if group is None:
            for pod in live[:1]:
                self._pods[namespace, meta(pod)["name"]] = None
            return
        if GROUP_MIN_MEMBER in annotations_of(owner) and live:
            minimum = _min_member(owner)
            patch = {"minMember": minimum, "minResources": quota_usage([(spec(live[0]), minimum)])}
            self._store.patch(POD_GROUP, namespace, group_name, {"spec": patch})

    def _keep_pod(self, pod: JsonObject) -> None:
        if spec(pod).get("schedulerName") not in self._scheduler_names or status(pod).get("phase") in ENDED_PHASES:
            return
        namespace, name = meta(pod)["namespace"], meta(pod)["name"]
        owner = controller_of(pod)
        group_name = f"podgroup-{owner['uid'] if owner is not None else meta(pod)['uid']}"
        named = annotations_of(pod).get(GROUP_NAME) or annotations_of(pod).get(GROUP_NAME_ALIAS)
        if named and named != group_name:
            return
        if self._store.get(POD_GROUP, namespace, group_name) is None:
            self._store.create(POD_GROUP, self._group(pod, group_name))
        if not named:
            self._store.patch(POD, namespace, name, {"metadata": {"annotations": {GROUP_NAME: group_name}}})

    def _group(self, pod: JsonObject, name: str) -> JsonObject:
        controller = controller_of(pod)
        owners = [found for found in map(self._owner, _references(pod, controller)) if found is not None]
        notes: dict[str, str] = {}
        for owner in owners:
            for key, value in annotations_of(owner).items():
                if key.startswith(VOLCANO_PREFIX):
                    notes.setdefault(key, value)
        for owner in owners:
            above = controller_of(owner)
            deployment = self._store.get(DEPLOYMENT, meta(owner)["namespace"], above["name"]) if above else None
            for key in _FROM_TEMPLATE:
                if deployment is not None and key in annotations_of(deployment):
                    notes.setdefault(key, annotations_of(deployment)[key])
        own = annotations_of(pod)
        wanted = [*_FROM_POD, *_FROM_TEMPLATE, JDB_MIN_AVAILABLE]
        if JDB_MIN_AVAILABLE not in own:
            wanted.append(JDB_MAX_UNAVAILABLE)
        notes.update({key: own[key] for key in wanted if key in own})
        minimum = _min_member(owners[0]) if owners else 1
        metadata: JsonObject = {
            "name": name,
            "namespace": meta(pod)["namespace"],
            "ownerReferences": list(meta(pod)["ownerReferences"]) if controller else [owner_reference(pod)],
        }
        marks = {key: labels_of(pod)[key] for key in _LABELS if key in labels_of(pod)}
        if notes:
            metadata["annotations"] = notes
        if marks:
            metadata["labels"] = marks
        found: JsonObject = {"minMember": minimum, "minResources": quota_usage([(spec(pod), minimum)])}
        if own.get(POD_QUEUE_NAME):
            found["queue"] = own[POD_QUEUE_NAME]
        if spec(pod).get("priorityClassName"):
            found["priorityClassName"] = spec(pod)["priorityClassName"]
        return {"apiVersion": SCHEDULING_API, "kind": POD_GROUP, "metadata": metadata, "spec": found}

    def _owner(self, reference: JsonObject) -> JsonObject | None:
        kind = reference.get("kind", "")
        if kind not in (REPLICA_SET, STATEFUL_SET):
            # Owners of kinds we do not run (DaemonSet, batch Job) are found under their full names.
            kind = f"{kind}.{reference.get('apiVersion', '')}"
        found = self._store.get(kind, reference["namespace"], reference.get("name", ""))
        return found if found is not None and meta(found)["uid"] == reference.get("uid") else None


def _is_scaled(change: Change) -> bool:
    """Whether an owner is new or asks for another number of replicas."""
    return change.old is None or spec(change.old).get("replicas") != spec(change.object).get("replicas")


def _references(pod: JsonObject, controller: JsonObject | None) -> list[JsonObject]:
    """Owner references with the pod's namespace, the controller first."""
    references = [{**owner, "namespace": meta(pod)["namespace"]} for owner in meta(pod).get("ownerReferences") or ()]
    uid = controller["uid"] if controller else ""
    return sorted(references, key=lambda owner: owner.get("uid") != uid)


def _min_member(owner: JsonObject) -> int:
    """The owner's annotated gang size, at most its replicas (C-13); 1 when there is none or it is no number."""
    written = annotations_of(owner).get(GROUP_MIN_MEMBER, "1")
    minimum = int(written) if written.isascii() and written.isdigit() else 1
    return max(1, min(minimum, int(spec(owner).get("replicas", minimum)))) if minimum else 0
