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
from capcard_sched.controllers.owner_groups import (
    OwnerGroups,
    RuledPod,
    group_fields,
    is_of_former_leader,
    planned,
)
from capcard_sched.controllers.owner_paths import RuleScene, name_of
from capcard_sched.controllers.owner_rules import OwnerParts, built_in_rules
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
    OWNER_RULE,
    POD_QUEUE_NAME,
    PREEMPTABLE,
    QUEUE_NAME,
    REVOCABLE_ZONE,
    SERVICE_TYPE,
    TASK_SPEC,
    VOLCANO_PREFIX,
)
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.pod_facts import group_of, role_of
from capcard_sched.model.quoting import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from capcard_sched.controllers.owner_rules import OwnerGang, OwnerRule
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
#: Fields of the spec that follow the owner of a rule.
_RULED_FIELDS: Final[tuple[str, ...]] = ("minMember", "minResources", "minTaskMember", "subGroupPolicy")
#: Seconds between two reads of a PodGroup that must go before its successor can be made.
_SUCCESSION_SECONDS: Final = 1.0


class PodGroupController:
    """Creates `podgroup-<owner uid>`, or the PodGroup of a rule, and writes its name into the pods."""

    def __init__(
        self,
        scheduler_names: Iterable[str],
        *,
        inherit_owner_annotations: bool = True,
        rules: Sequence[OwnerRule] | None = None,
    ) -> None:
        """`rules`: of `ownerGroups`, the built-in ones where there are none."""
        self._scheduler_names = frozenset(scheduler_names)
        self._inherit = inherit_owner_annotations
        self._owners = OwnerGroups(built_in_rules() if rules is None else rules, self._scheduler_names)
        self.watches = frozenset({POD, POD_GROUP, REPLICA_SET, STATEFUL_SET}) | self._owners.kinds
        self.replays = frozenset({POD, REPLICA_SET, STATEFUL_SET}) | self._owners.kinds
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
        elif kind == POD:
            yield from self._owners.observe(old, new)
            if old is None and new is not None and self._is_ours(new) and not group_of(annotations_of(new)):
                yield Key(POD, *key_of(new))
        elif new is None:
            self._reported.discard(meta(old)["uid"] if old is not None else "")
        elif kind in self._owners.kinds:
            if old is None or spec(old) != spec(new) or annotations_of(old) != annotations_of(new):
                yield Key(kind, *key_of(new))
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
        if key.kind == POD:
            return self._reconcile_pod(view, obj, now)
        writes: list[Write] = []
        if key.kind in self._owners.kinds:
            parts: dict[str, OwnerParts] = {}
            for name, pod in self._owners.groups_of(view, key):
                writes += self._follow(view, key, obj, parts, name, pod)
        if key.kind in (REPLICA_SET, STATEFUL_SET):  # not all of their pods have the labels of a rule
            writes += self._reconcile_owner(view, obj)
        return Result(writes)

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """The rejection by admission as an event on the pod that waits for its PodGroup."""
        pod = view.get(*key) if key.kind == POD else None
        if pod is None or not isinstance(failure.write, Create):
            return Result()
        return Result([event_on(POD, pod, "PodGroupError", failure.error, warning=True)])

    def _is_ours(self, pod: JsonObject) -> bool:
        body = spec(pod)
        named = (body.get("schedulingGroup") or {}).get("podGroupName")  # a PodGroup of scheduling.k8s.io
        return body.get("schedulerName") in self._scheduler_names and not named and not has_ended(pod)

    def _reconcile_pod(self, view: View, pod: JsonObject, now: float) -> Result:
        found = self._owners.ruled(pod) if self._is_ours(pod) and not group_of(annotations_of(pod)) else None
        if found is None or self._owners.is_plain(found):
            return Result(self._reconcile_plain(view, pod))
        owner = view.get(*found.owner) if found.owner is not None else None
        gang = planned(found, OwnerParts(found.rule, owner))
        if gang is None:
            return Result(self._reconcile_plain(view, pod))
        namespace, name = key_of(pod)
        group = view.get(POD_GROUP, namespace, gang.name)
        if group is not None and (is_terminating(group) or is_of_former_leader(view, group)):
            return Result(at=now + _SUCCESSION_SECONDS)
        if self._owners.must_wait(found, pod, gang.name):
            return Result()
        writes: list[Write] = []
        if found.owner is not None and owner is None and self._owners.is_first_report(found):
            # First: writes after one that fails are not sent, and pods of a gang may create its PodGroup at once.
            text = f"{found.owner} cannot be read: the gang of {name} has minMember {gang.min_member}"
            writes.append(event_on(POD, pod, "OwnerUnreadable", text, warning=True))
        if group is None:
            group = self._ruled_group(view, pod, found, gang, owner)
            writes.append(Create(group, adopt=True))
        notes = {GROUP_NAME: gang.name}
        role = found.rule.role_of(found.notes)
        if role and not role_of(annotations_of(pod), labels_of(pod)):
            notes[TASK_SPEC] = role
        patch = {"metadata": {"annotations": notes}}
        writes.append(Patch(Key(POD, namespace, name), patch, uid=meta(pod)["uid"]))
        return Result(writes)

    def _ruled_group(
        self, view: View, pod: JsonObject, found: RuledPod, gang: OwnerGang, owner: JsonObject | None
    ) -> JsonObject:
        """The PodGroup of a rule: fields of plain ones, but numbers and owner of the rule."""
        group = self._group(view, pod, gang.name, owner)
        group["spec"] = {**group["spec"], **_named_fields(found.rule, owner, pod), **group_fields(gang, pod)}
        metadata = group["metadata"]
        metadata["annotations"] = {**metadata.get("annotations", {}), OWNER_RULE: found.rule.name}
        leader = found.rule.leader and view.get(POD, key_of(pod)[0], name_of(RuleScene(found.notes), found.rule.leader))
        if leader:
            metadata["ownerReferences"] = [owner_reference({**leader, "apiVersion": "v1", "kind": POD})]
        elif owner is not None and found.kind is not None:
            typed = {**owner, "apiVersion": found.kind.api_version, "kind": found.kind.kind}
            # blockOwnerDeletion takes the right to update finalizers of the operator's objects.
            metadata["ownerReferences"] = [{**owner_reference(typed), "blockOwnerDeletion": False}]
        return group

    def _follow(
        self, view: View, key: Key, owner: JsonObject, parts: dict[str, OwnerParts], name: str, pod: JsonObject
    ) -> list[Write]:
        """The patch of a PodGroup of a rule after a change of its owner; one of an operator is not changed.

        `parts`: those of the owner, by rule; they are filled in.
        """
        found, group = self._owners.ruled(pod), view.get(POD_GROUP, key_of(pod)[0], name)
        if found is None or found.owner != key or group is None or OWNER_RULE not in annotations_of(group):
            return []
        if found.rule.name not in parts:
            parts[found.rule.name] = OwnerParts(found.rule, owner)
        gang = planned(found, parts[found.rule.name])
        if gang is None or gang.name != name:
            return []
        present = {field: spec(group)[field] for field in _RULED_FIELDS if field in spec(group)}
        patch: JsonObject = {}
        changed = merge_diff(present, group_fields(gang, pod))
        if changed:
            patch["spec"] = changed
        changed = self._inherited_diff(group, self._group(view, pod, name, owner))
        if changed:
            patch["metadata"] = {"annotations": changed}
        return [Patch(Key(POD_GROUP, *key_of(group)), patch, uid=meta(group)["uid"])] if patch else []

    def _reconcile_plain(self, view: View, pod: JsonObject) -> list[Write]:
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
            return self._reconcile_plain(view, pod)
        writes: list[Write] = []
        patch = self._group_patch(view, pod, owner, group)
        if patch:
            writes.append(Patch(Key(POD_GROUP, *key_of(group)), patch, uid=meta(group)["uid"]))
        annotated = _annotated_minimum(owner)
        if self._inherit and annotated is not None and annotated > _replicas(owner) and uid not in self._reported:
            self._reported.add(uid)
            name = meta(owner)["name"]
            text = f"{GROUP_MIN_MEMBER}={annotated} is more than the {plural(_replicas(owner), 'replica')} of {name}"
            writes.append(event_on(POD_GROUP, group, "MinMemberCapped", text, warning=True))
        return writes

    def _is_member(self, pod: JsonObject) -> bool:
        if not self._is_ours(pod) or is_terminating(pod):
            return False
        named = group_of(annotations_of(pod))
        return named == group_name(pod) or (not named and self._owners.ruled(pod) is None)

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
        changed = self._inherited_diff(group, wanted)
        if changed:
            patch["metadata"] = {"annotations": changed}
        return patch

    @staticmethod
    def _inherited_diff(group: JsonObject, wanted: JsonObject) -> JsonObject:
        inherited = [INHERITED_KEYS, *annotations_of(group).get(INHERITED_KEYS, "").split(","), *annotations_of(wanted)]
        present = {key: annotations_of(group)[key] for key in inherited if key in annotations_of(group)}
        return merge_diff(present, annotations_of(wanted))

    def _group(self, view: View, pod: JsonObject, name: str, owner: JsonObject | None = None) -> JsonObject:
        """`owner`: the object with the numbers of a rule; its annotations precede those of the direct owners."""
        typed = {"apiVersion": "v1", "kind": POD, **pod}  # items of a list come without their type
        ruled = [owner] if owner is not None else []
        owners = [*ruled, *_owners(view, pod)] if self._inherit else []
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
        minimum = _min_member(owners[0]) if owners and not ruled else 1
        body: JsonObject = {"minMember": minimum, "minResources": quota_usage([({"spec": spec(pod)}, minimum)])}
        own = annotations_of(pod)
        queue = own.get(POD_QUEUE_NAME) or (_written_queue(owner) if owner is not None else "")
        if queue:
            body["queue"] = queue
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


def _written_queue(owner: JsonObject) -> str:
    """The queue that an object of an operator names, "" for none; KubeRay reads it from a label."""
    notes = annotations_of(owner)
    return notes.get(POD_QUEUE_NAME) or notes.get(QUEUE_NAME) or labels_of(owner).get(QUEUE_NAME) or ""


def _named_fields(rule: OwnerRule, owner: JsonObject | None, pod: JsonObject) -> JsonObject:
    """Queue and priority class at the paths of a rule; the queue that the pod itself names precedes."""
    scene = RuleScene({}, owner)
    paths = {"queue": rule.queue, "priorityClassName": rule.priority_class}
    found = {field: next(scene.values(path), None) for field, path in paths.items() if path}
    if annotations_of(pod).get(POD_QUEUE_NAME):
        found.pop("queue", None)
    return {field: name for field, name in found.items() if name and isinstance(name, str)}


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
