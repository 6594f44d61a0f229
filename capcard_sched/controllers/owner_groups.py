"""Pods of the rules of `ownerGroups`: which pods are of one owner, which of them wait, and the PodGroup of a pod."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.controllers.objects import (
    POD,
    JsonObject,
    Key,
    annotations_of,
    controller_of,
    has_ended,
    is_terminating,
    key_of,
    labels_of,
    meta,
    spec,
)
from capcard_sched.controllers.owner_paths import RuleScene, name_of
from capcard_sched.controllers.quota_usage import quota_usage
from capcard_sched.model.annotations import GROUP_MIN_MEMBER
from capcard_sched.model.kinds import group_of as api_group
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.quantity import QuantityError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from capcard_sched.controllers.owner_rules import OwnerGang, OwnerKind, OwnerParts, OwnerRule
    from capcard_sched.controllers.view import View

#: Prefix of the PodGroups that are made without a rule.
_PLAIN_GROUP: Final = "podgroup-"


#: Characters of a name of an object. A longer annotation names no owner and no PodGroup.
_NAME_LENGTH: Final = 253


class _Membership(NamedTuple):
    """What counts of a live pod for the other pods of its owner."""

    #: The PodGroup that it names, "" for none.
    group: str
    incarnation: str


class _FamilyKey(NamedTuple):
    rule: str
    namespace: str
    #: Kind and name of the owner; of a rule without owners "" and the name of the PodGroup.
    kind: str
    name: str


class _Family:
    """The live pods of one owner and rule. Methods take constant time, and `put` that of the pods that it wakes."""

    def __init__(self, owner: Key | None) -> None:
        self.owner = owner
        self.pods: dict[str, _Membership] = {}
        #: PodGroup to the number of its pods by incarnation.
        self._groups: dict[str, Counter[str]] = {}
        #: Number of pods in PodGroups that were made without the rule.
        self.plain = 0
        #: PodGroup to the pods that wait for the end of others in it, and the PodGroup of each.
        self._waiting: dict[str, dict[str, None]] = {}
        self._awaited: dict[str, str] = {}
        self.is_reported = False

    def put(self, name: str, now: _Membership | None) -> Iterator[str]:
        """Set the membership of a pod, None for one that is gone; the pods whose wait may be over."""
        before = self.pods.pop(name, None)
        if now is not None:
            self.pods[name] = now
            self._groups.setdefault(now.group, Counter())[now.incarnation] += 1
            self.plain += now.group.startswith(_PLAIN_GROUP)
        else:
            self._forget_wait(name)
        if before is None:
            return
        self.plain -= before.group.startswith(_PLAIN_GROUP)
        counts = self._groups[before.group]
        counts[before.incarnation] -= 1
        if not counts[before.incarnation]:
            del counts[before.incarnation]
            if len(counts) <= 1:
                woken = self._waiting.pop(before.group, {})
                for each in woken:
                    del self._awaited[each]
                yield from woken
        if not counts:
            del self._groups[before.group]

    def has_others(self, group: str, incarnation: str) -> bool:
        """Whether a PodGroup has pods of another incarnation; false for one without pods."""
        counts = self._groups.get(group, ())
        return len(counts) > (incarnation in counts)

    def wait(self, name: str, group: str) -> None:
        """Wake a pod when the PodGroup has pods of one incarnation at most."""
        self._forget_wait(name)
        self._awaited[name] = group
        self._waiting.setdefault(group, {})[name] = None

    def _forget_wait(self, name: str) -> None:
        group = self._awaited.pop(name, None)
        if group is not None:
            del self._waiting[group][name]
            if not self._waiting[group]:
                del self._waiting[group]


class RuledPod(NamedTuple):
    """A pod to which a rule applies."""

    rule: OwnerRule
    notes: Mapping[str, str]
    #: The object with the numbers, and its kind; None for a rule without numbers.
    owner: Key | None
    kind: OwnerKind | None
    family: _FamilyKey
    incarnation: str


class OwnerGroups:
    """The rules, and an index of the pods to which they apply. Belongs to one PodGroup controller."""

    def __init__(self, rules: Sequence[OwnerRule], scheduler_names: Collection[str]) -> None:
        self._rules = tuple(rules)
        self._scheduler_names = scheduler_names
        #: Kinds that the rules read, by their names in a view.
        self.kinds = frozenset(kind.view_name for rule in rules for kind in rule.owners)
        self._families: dict[_FamilyKey, _Family] = {}
        #: Namespace and name of a pod to its family: its labels may change.
        self._of_pod: dict[tuple[str, str], _FamilyKey] = {}
        #: Owner to its families.
        self._of_owner: dict[Key, set[_FamilyKey]] = {}

    def __len__(self) -> int:
        """The number of owners with live pods."""
        return len(self._families)

    def ruled(self, pod: JsonObject) -> RuledPod | None:
        """The first rule that applies to a pod of our schedulers."""
        written = {**annotations_of(pod), **labels_of(pod)}
        notes = {key: text for key, text in written.items() if len(text) <= _NAME_LENGTH}
        for rule in self._rules:
            if not rule.matches(notes):
                continue
            namespace = key_of(pod)[0]
            name = name_of(RuleScene(notes), rule.owner_name) if rule.owner_name else ""
            kind = _owner_kind(rule, pod)
            if rule.owners and (kind is None or not name):
                continue
            owner = Key(kind.view_name, namespace, name) if kind is not None else None
            named = name or name_of(RuleScene(notes), rule.group[0].name)
            family = _FamilyKey(rule.name, namespace, kind.view_name if kind is not None else "", named)
            incarnation = notes.get(rule.incarnation, "") if rule.incarnation else ""
            return RuledPod(rule, notes, owner, kind, family, incarnation)
        return None

    def observe(self, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """Update the index; the pods whose wait may be over."""
        pod = new if new is not None else old
        if not self._rules or pod is None or spec(pod).get("schedulerName") not in self._scheduler_names:
            return
        namespace, name = key_of(pod)
        live = new is not None and not is_terminating(new) and not has_ended(new)
        found = self.ruled(pod) if live else None
        former = self._of_pod.get((namespace, name))
        if former is not None and (found is None or found.family != former):
            del self._of_pod[namespace, name]
            yield from self._put(former, namespace, name, None)
        if found is not None:
            if found.family not in self._families:
                self._families[found.family] = _Family(found.owner)
                if found.owner is not None:
                    self._of_owner.setdefault(found.owner, set()).add(found.family)
            self._of_pod[namespace, name] = found.family
            now = _Membership(group_of(annotations_of(pod)), found.incarnation)
            yield from self._put(found.family, namespace, name, now)

    def _put(self, key: _FamilyKey, namespace: str, name: str, now: _Membership | None) -> Iterator[Key]:
        """Set the membership of a pod; an owner without live pods is forgotten."""
        family = self._families[key]
        yield from (Key(POD, namespace, each) for each in family.put(name, now))
        if not family.pods:
            del self._families[key]
            if family.owner is not None:
                self._of_owner[family.owner].discard(key)
                if not self._of_owner[family.owner]:
                    del self._of_owner[family.owner]

    def is_plain(self, found: RuledPod) -> bool:
        """Whether pods of the owner run in PodGroups that were made without the rule: the others follow them."""
        family = self._families.get(found.family)
        return family is not None and family.plain > 0

    def must_wait(self, found: RuledPod, pod: JsonObject, group: str) -> bool:
        """Whether pods of before a restart are in the group still; the pod is reconciled again when they are gone."""
        family = self._families.get(found.family)
        if family is None or not family.has_others(group, found.incarnation):
            return False
        family.wait(key_of(pod)[1], group)
        return True

    def is_first_report(self, found: RuledPod) -> bool:
        """Whether no pod of the owner was reported since it has live ones."""
        family = self._families.get(found.family)
        if family is None or family.is_reported:
            return False
        family.is_reported = True
        return True

    def groups_of(self, view: View, owner: Key) -> Iterator[tuple[str, JsonObject]]:
        """The PodGroups of the pods of an owner, each with one of its pods."""
        for key in self._of_owner.get(owner, ()):
            family, seen = self._families[key], set[str]()
            for name, membership in family.pods.items():
                if membership.group and membership.group not in seen:
                    pod = view.get(POD, owner.namespace, name)
                    if pod is not None:
                        seen.add(membership.group)
                        yield membership.group, pod


def _owner_kind(rule: OwnerRule, pod: JsonObject) -> OwnerKind | None:
    """The kind of the object with the numbers: that of the pod's controller where the rule has several."""
    reference = controller_of(pod)
    if reference is not None:
        kind = (api_group(reference.get("apiVersion", "")), reference["kind"])
        for each in rule.owners:
            if (api_group(each.api_version), each.kind) == kind:
                return each
    return rule.owners[0] if len(rule.owners) == 1 else None


def planned(found: RuledPod, parts: OwnerParts) -> OwnerGang | None:
    """The gang of a pod; the annotated minimum of the pod or its owner replaces that of the rule."""
    gang, owner = parts.gang_of(found.notes), parts.owner
    if gang is None:
        return None
    written = found.notes.get(GROUP_MIN_MEMBER) or (annotations_of(owner).get(GROUP_MIN_MEMBER) if owner else None)
    minimum = whole_number(written)
    if minimum is None:
        return gang
    return gang._replace(min_member=minimum, min_task_member={}, templates=((None, minimum),), policies=())


def group_fields(gang: OwnerGang, pod: JsonObject) -> JsonObject:
    """The fields of `spec` that follow the owner."""
    own = {"spec": spec(pod)}
    templates = [(template if template is not None else own, count) for template, count in gang.templates]
    try:
        usage = quota_usage(templates)
    except (QuantityError, msgspec.ValidationError):  # no API server checks the templates in such objects
        usage = quota_usage([(own, gang.min_member)])
    fields: JsonObject = {"minMember": gang.min_member, "minResources": usage}
    if gang.min_task_member:
        fields["minTaskMember"] = gang.min_task_member
    if gang.policies:
        fields["subGroupPolicy"] = list(gang.policies)
    return fields


def is_of_former_leader(view: View, group: JsonObject) -> bool:
    """Whether a PodGroup goes with a pod that is gone: a new one of its name must follow."""
    owner = controller_of(group)
    if owner is None or owner["kind"] != POD:
        return False
    leader = view.get(POD, key_of(group)[0], owner["name"])
    return leader is None or meta(leader)["uid"] != owner["uid"]
