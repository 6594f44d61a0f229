"""The PodGroup controller: a PodGroup for each pod of our schedulers that names none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import (
    DEPLOYMENT,
    POD,
    POD_GROUP,
    REPLICA_SET,
    SCHEDULING_API,
    STATEFUL_SET,
    JsonObject,
    Key,
    annotations_of,
    controller_of,
    has_ended,
    is_owned,
    is_terminating,
    key_of,
    labels_of,
    merge_diff,
    meta,
    owner_reference,
    spec,
    status,
)
from capcard_sched.controllers.quota_usage import quota_usage
from capcard_sched.controllers.view import Create, Patch, Result, Write, delete, event_on
from capcard_sched.model.annotations import (
    CARD_REQUEST,
    COOLDOWN_TIME,
    GROUP_MIN_MEMBER,
    GROUP_NAME,
    INHERITED_KEYS,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    NETWORK_TOPOLOGY_HIGHEST_TIER,
    NETWORK_TOPOLOGY_MODE,
    POD_QUEUE_NAME,
    PREEMPTABLE,
    REVOCABLE_ZONE,
    SERVICE_TYPE,
    VOLCANO_PREFIX,
)
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.pod_facts import group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.controllers.view import Failure, View

#: Kinds of direct owners whose annotations reach the PodGroup, by apiVersion and kind, and their names in a view.
OWNER_KINDS: Final = {
    ("apps/v1", "ReplicaSet"): REPLICA_SET,
    ("apps/v1", "StatefulSet"): STATEFUL_SET,
    ("apps/v1", "DaemonSet"): "DaemonSet.apps/v1",
    ("batch/v1", "Job"): "Job.batch/v1",
}
#: Pod annotations that override those of the owners.
_FROM_POD: Final = (PREEMPTABLE, COOLDOWN_TIME, REVOCABLE_ZONE)
#: Read from the pod template and from the owner's owner too.
_FROM_ANYWHERE: Final = (SERVICE_TYPE, CARD_REQUEST)
_LABELS: Final = (PREEMPTABLE, COOLDOWN_TIME)
_REVISION: Final = "controller-revision-hash"


class PodGroupController:
    """Creates `podgroup-<owner uid>` and writes its name into the pods."""

    watches = frozenset({POD, POD_GROUP, REPLICA_SET, STATEFUL_SET})
    replays = frozenset({POD, REPLICA_SET, STATEFUL_SET})

    def __init__(self, scheduler_names: Iterable[str], *, inherit_owner_annotations: bool = True) -> None:
        self._scheduler_names = frozenset(scheduler_names)
        self._inherit = inherit_owner_annotations
        #: Uids of owners whose gang size was reported to be more than their replicas.
        self._reported: set[str] = set()

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """New pods without a group, owners that are scaled or annotated, and the owners of new PodGroups.

        A PodGroup may have been created for a pod that the watch showed before its owner.
        """
        if kind == POD_GROUP:
            owner = controller_of(new) if old is None and new is not None else None
            owner_kind = OWNER_KINDS.get((owner.get("apiVersion", ""), owner["kind"])) if owner is not None else None
            if new is not None and owner is not None and owner_kind in (REPLICA_SET, STATEFUL_SET):
                yield Key(owner_kind, key_of(new)[0], owner["name"])
        elif new is None:
            self._reported.discard(meta(old)["uid"] if old is not None else "")
        elif kind == POD:
            if old is None and self._is_ours(new) and not group_of(annotations_of(new)):
                yield Key(POD, *key_of(new))
        elif (
            old is None
            or spec(old).get("replicas") != spec(new).get("replicas")
            or annotations_of(old) != annotations_of(new)
        ):
            yield Key(kind, *key_of(new))

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        """Create what is missing; the owner decides about a PodGroup that exists."""
        obj = view.get(*key)
        if obj is None or is_terminating(obj):
            return Result()
        return Result(self._reconcile_pod(view, obj) if key.kind == POD else self._reconcile_owner(view, obj))

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """The rejection by admission as an event on the pod that waits for its PodGroup."""
        pod = view.get(*key) if key.kind == POD else None
        if pod is None or not isinstance(failure.write, Create):
            return Result()
        return Result([event_on(POD, pod, "PodGroupError", failure.error, warning=True)])

    def _is_ours(self, pod: JsonObject) -> bool:
        return spec(pod).get("schedulerName") in self._scheduler_names and not has_ended(pod)

    def _reconcile_pod(self, view: View, pod: JsonObject) -> list[Write]:
        name = group_name(pod)
        named = group_of(annotations_of(pod))
        if not self._is_ours(pod) or (named and named != name):
            return []
        writes: list[Write] = []
        if view.get(POD_GROUP, key_of(pod)[0], name) is None:
            writes.append(Create(self._group(view, pod, name), adopt=True))
        if not named:
            patch = {"metadata": {"annotations": {GROUP_NAME: name}}}
            writes.append(Patch(Key(POD, *key_of(pod)), patch, uid=meta(pod)["uid"]))
        return writes

    def _reconcile_owner(self, view: View, owner: JsonObject) -> list[Write]:
        """Without replicas the PodGroup goes; with replicas it follows the owner."""
        namespace, uid = key_of(owner)[0], meta(owner)["uid"]
        group = view.get(POD_GROUP, namespace, f"podgroup-{uid}")
        if group is not None and controller_of(group) is not None and not is_owned(group, owner):
            return []
        if _replicas(owner) == 0:
            return [delete(POD_GROUP, group)] if group is not None else []
        pod = _newest_member(owner, [each for each in view.owned(owner, POD) if self._is_member(each)])
        if pod is None:
            return []
        if group is None:
            return self._reconcile_pod(view, pod)
        writes: list[Write] = []
        patch = self._group_patch(view, pod, owner, group)
        if patch:
            writes.append(Patch(Key(POD_GROUP, *key_of(group)), patch, uid=meta(group)["uid"]))
        annotated = _annotated_minimum(owner)
        if self._inherit and annotated is not None and annotated > _replicas(owner) and uid not in self._reported:
            self._reported.add(uid)
            name = meta(owner)["name"]
            text = f"{GROUP_MIN_MEMBER}={annotated} is more than the {_replicas(owner)} replicas of {name}"
            writes.append(event_on(POD_GROUP, group, "MinMemberCapped", text, warning=True))
        return writes

    def _is_member(self, pod: JsonObject) -> bool:
        return self._is_ours(pod) and not is_terminating(pod) and group_of(annotations_of(pod)) in ("", group_name(pod))

    def _group_patch(self, view: View, pod: JsonObject, owner: JsonObject, group: JsonObject) -> JsonObject:
        """A three-way merge: only what this controller wrote before is changed."""
        wanted = self._group(view, pod, meta(group)["name"])
        patch: JsonObject = {}
        if self._inherit and GROUP_MIN_MEMBER in annotations_of(owner):
            fields = ("minMember", "minResources")
            present = {field: spec(group)[field] for field in fields if field in spec(group)}
            changed = merge_diff(present, {field: spec(wanted)[field] for field in fields})
            if changed:
                patch["spec"] = changed
        inherited = [INHERITED_KEYS, *annotations_of(group).get(INHERITED_KEYS, "").split(","), *annotations_of(wanted)]
        present = {key: annotations_of(group)[key] for key in inherited if key in annotations_of(group)}
        changed = merge_diff(present, annotations_of(wanted))
        if changed:
            patch["metadata"] = {"annotations": changed}
        return patch

    def _group(self, view: View, pod: JsonObject, name: str) -> JsonObject:
        typed = {"apiVersion": "v1", "kind": POD, **pod}  # items of a list come without their type
        owners = list(_owners(view, pod)) if self._inherit else []
        metadata: JsonObject = {
            "name": name,
            "namespace": key_of(pod)[0],
            "ownerReferences": list(meta(pod)["ownerReferences"]) if controller_of(pod) else [owner_reference(typed)],
        }
        notes = _annotations(view, pod, owners)
        if notes:
            metadata["annotations"] = {**notes, INHERITED_KEYS: ",".join(sorted(notes))}
        labels = {key: labels_of(pod)[key] for key in _LABELS if key in labels_of(pod)}
        if labels:
            metadata["labels"] = labels
        minimum = _min_member(owners[0]) if owners else 1
        body: JsonObject = {"minMember": minimum, "minResources": quota_usage([({"spec": spec(pod)}, minimum)])}
        own = annotations_of(pod)
        if own.get(POD_QUEUE_NAME):
            body["queue"] = own[POD_QUEUE_NAME]
        if spec(pod).get("priorityClassName"):
            body["priorityClassName"] = spec(pod)["priorityClassName"]
        if NETWORK_TOPOLOGY_MODE in own or NETWORK_TOPOLOGY_HIGHEST_TIER in own:
            body["networkTopology"] = _network_topology(own)
        group: JsonObject = {"apiVersion": SCHEDULING_API, "kind": POD_GROUP, "metadata": metadata, "spec": body}
        return {**group, "status": {"phase": "Pending"}}


def group_name(pod: JsonObject) -> str:
    """`podgroup-<uid>` of the controller owner, or of the pod itself."""
    owner = controller_of(pod)
    return f"podgroup-{owner['uid'] if owner is not None else meta(pod)['uid']}"


def _owners(view: View, pod: JsonObject) -> Iterator[JsonObject]:
    """The direct owners whose annotations count, the controller first."""
    controller = controller_of(pod)
    uid = controller["uid"] if controller else ""
    for reference in sorted(meta(pod).get("ownerReferences") or (), key=lambda owner: owner.get("uid") != uid):
        kind = OWNER_KINDS.get((reference.get("apiVersion", ""), reference.get("kind", "")))
        found = view.get(kind, key_of(pod)[0], reference.get("name", "")) if kind is not None else None
        if found is not None and meta(found)["uid"] == reference.get("uid"):
            yield found


def _annotations(view: View, pod: JsonObject, owners: list[JsonObject]) -> dict[str, str]:
    notes: dict[str, str] = {}
    for owner in owners:
        for key, value in annotations_of(owner).items():
            if key.startswith(VOLCANO_PREFIX):
                notes.setdefault(key, value)
    for owner in owners:
        above = controller_of(owner)
        if above is None or kind_of(above) != DEPLOYMENT:
            continue
        deployment = view.get(DEPLOYMENT, key_of(owner)[0], above["name"])
        for key in _FROM_ANYWHERE if deployment is not None and is_owned(owner, deployment) else ():
            if deployment is not None and key in annotations_of(deployment):
                notes.setdefault(key, annotations_of(deployment)[key])
    own = annotations_of(pod)
    budget = JDB_MIN_AVAILABLE if JDB_MIN_AVAILABLE in own else JDB_MAX_UNAVAILABLE
    notes.update({key: own[key] for key in (*_FROM_POD, *_FROM_ANYWHERE, budget) if key in own})
    return notes


def _network_topology(annotations: dict[str, str]) -> JsonObject:
    mode = annotations.get(NETWORK_TOPOLOGY_MODE, "").lower()
    found: JsonObject = {"mode": mode if mode in {"hard", "soft"} else "hard"}
    tier = whole_number(annotations.get(NETWORK_TOPOLOGY_HIGHEST_TIER))
    if tier is not None:
        found["highestTierAllowed"] = tier
    return found


def _replicas(owner: JsonObject) -> int:
    written = spec(owner).get("replicas")
    return 1 if written is None else int(written)


def _annotated_minimum(owner: JsonObject) -> int | None:
    """The annotated gang size, None when there is none or it is no number of pods."""
    return whole_number(annotations_of(owner).get(GROUP_MIN_MEMBER))


def _min_member(owner: JsonObject) -> int:
    """The annotated gang size, at most the replicas: a rolling update starts with one replica of the new template."""
    minimum = _annotated_minimum(owner)
    if minimum is None:
        return 1
    if spec(owner).get("replicas") is None and "template" not in spec(owner):
        return minimum  # a DaemonSet or batch Job has no replicas
    return max(1, min(minimum, _replicas(owner))) if minimum else 0


def _newest_member(owner: JsonObject, pods: list[JsonObject]) -> JsonObject | None:
    """A pod of the owner, of its newest revision where it has revisions."""
    revision = status(owner).get("updateRevision")
    current = [pod for pod in pods if revision and labels_of(pod).get(_REVISION) == revision]
    return next(iter(current or pods), None)
