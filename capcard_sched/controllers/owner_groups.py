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
from capcard_sched.controllers.owner_rules import OwnerGang, OwnerKind, OwnerRule, gang_of
from capcard_sched.controllers.quota_usage import quota_usage
from capcard_sched.model.annotations import GROUP_MIN_MEMBER
from capcard_sched.model.kinds import group_of as api_group
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.quantity import QuantityError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from capcard_sched.controllers.view import View

#: Prefix of the PodGroups that are made without a rule.
_PLAIN_GROUP: Final = "podgroup-"


class _Membership(NamedTuple):
    """What counts of a live pod for the other pods of its owner."""

    #: The PodGroup that it names, "" for none.
    group: str
    incarnation: str


class _Family:
    """The live pods of one owner and rule."""

    def __init__(self) -> None:
        self.pods: dict[str, _Membership] = {}
        self.memberships: Counter[_Membership] = Counter()
        #: Pods that wait for the end of others.
        self.waiting: dict[str, None] = {}


class RuledPod(NamedTuple):
    """A pod to which a rule applies."""

    rule: OwnerRule
    notes: Mapping[str, str]
    #: The object with the numbers, and its kind; None where the rule names none.
    owner: Key | None
    kind: OwnerKind | None
    family: tuple[str, str, str]
    incarnation: str


class OwnerGroups:
    """The rules, and an index of the pods to which they apply. Belongs to one PodGroup controller."""

    def __init__(self, rules: Sequence[OwnerRule], scheduler_names: Collection[str]) -> None:
        self._rules = tuple(rules)
        self._scheduler_names = scheduler_names
        #: Kinds that the rules read, by their names in a view.
        self.kinds = frozenset(kind.view_name for rule in rules for kind in rule.owners)
        self._families: dict[tuple[str, str, str], _Family] = {}
        #: Owner to its families.
        self._of_owner: dict[Key, set[tuple[str, str, str]]] = {}

    def ruled(self, pod: JsonObject) -> RuledPod | None:
        """The first rule that applies to a pod of our schedulers."""
        notes = {**annotations_of(pod), **labels_of(pod)}
        for rule in self._rules:
            if not rule.matches(notes):
                continue
            namespace = key_of(pod)[0]
            name = name_of(RuleScene(notes), rule.owner_name) if rule.owner_name else ""
            kind = _owner_kind(rule, pod)
            if rule.owners and (kind is None or not name):
                continue
            owner = Key(kind.view_name, namespace, name) if kind is not None else None
            family = (rule.name, namespace, name or name_of(RuleScene(notes), rule.group[0].name))
            incarnation = notes.get(rule.incarnation, "") if rule.incarnation else ""
            return RuledPod(rule, notes, owner, kind, family, incarnation)
        return None

    def observe(self, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """Update the index; the pods whose wait may be over."""
        pod = new if new is not None else old
        if not self._rules or pod is None or spec(pod).get("schedulerName") not in self._scheduler_names:
            return
        found = self.ruled(pod)
        if found is None:
            return
        namespace, name = key_of(pod)
        live = new is not None and not is_terminating(new) and not has_ended(new)
        family = self._families.get(found.family)
        if family is None:
            if not live:
                return
            family = self._families[found.family] = _Family()
            if found.owner is not None:
                self._of_owner.setdefault(found.owner, set()).add(found.family)
        before = family.pods.pop(name, None)
        if before is not None:
            family.memberships -= Counter([before])
        if live:
            now = _Membership(group_of(annotations_of(pod)), found.incarnation)
            family.pods[name] = now
            family.memberships[now] += 1
        else:
            family.waiting.pop(name, None)
        if before is not None and before not in family.memberships:
            waiting, family.waiting = family.waiting, {}
            yield from (Key(POD, namespace, each) for each in waiting)
        if not family.pods:
            del self._families[found.family]
            if found.owner is not None:
                self._of_owner.get(found.owner, set()).discard(found.family)
                if not self._of_owner.get(found.owner):
                    self._of_owner.pop(found.owner, None)

    def is_plain(self, found: RuledPod) -> bool:
        """Whether pods of the owner run in PodGroups that were made without the rule: the others follow them."""
        family = self._families.get(found.family)
        return family is not None and any(each.group.startswith(_PLAIN_GROUP) for each in family.memberships)

    def must_wait(self, found: RuledPod, pod: JsonObject, group: str) -> bool:
        """Whether pods of before a restart are in the group still; the pod is reconciled again when they are gone."""
        family = self._families.get(found.family)
        if family is None or not any(
            each.group == group and each.incarnation != found.incarnation for each in family.memberships
        ):
            return False
        family.waiting[key_of(pod)[1]] = None
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


def planned(found: RuledPod, owner: JsonObject | None) -> OwnerGang | None:
    """The gang of a pod; the annotated minimum of the pod or its owner replaces that of the rule."""
    gang = gang_of(found.rule, found.notes, owner)
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
