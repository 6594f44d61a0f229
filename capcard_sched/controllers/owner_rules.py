"""The rules of `ownerGroups`: pods whose operator makes no PodGroup, and the gang that they are.

A rule is data: the labels by which it applies, the name of the PodGroup, the object that has the numbers, the minimum
of each role. The built-in rules are `config/owner-groups.yaml`; rules of a user precede them, or replace those of their
name.
"""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from capcard_sched.controllers.owner_paths import RuleScene, count_of, holds, is_count, is_path, name_of, places
from capcard_sched.model.decode_errors import UNKNOWN_FIELD, field_problem
from capcard_sched.model.kinds import KIND_BY_NAME, Kind, group_of, qualified_kind
from capcard_sched.model.numbers import MAX_INT32, whole_number
from capcard_sched.model.selectors import label_key_problem
from capcard_sched.model.yaml_reader import YamlError, read_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from capcard_sched.controllers.objects import JsonObject


#: Kinds of this table that may have the numbers of a gang. The others have PodGroups of their own, or no pods.
_OWNER_KINDS: Final = ("Deployment", "ReplicaSet", "StatefulSet")
#: What no name of an object has.
_NO_NAME: Final = re.compile(r"[^a-z0-9.-]")
_PLACE: Final = re.compile(r"\{[^{}]*\}")
#: The fields of an object that are kept of it.
_READ: Final = ("metadata.", "spec.", "spec[")


class OwnerRulesError(ValueError):
    """Rules that cannot be read: one line per problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class _Part(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A part of a rule that holds under conditions."""

    #: Values that must stand at paths of the owner, and values that must not.
    if_: dict[str, str] = msgspec.field(name="if", default_factory=dict)
    unless: dict[str, str] = {}


class GroupName(_Part, frozen=True):
    """A name of the PodGroup. Of several, the first whose conditions hold applies."""

    name: str
    #: The PodGroup has the pods of one role.
    of_role: bool = False


class RoleMinimum(_Part, frozen=True):
    """The pods of a role, or of one role per item of a list."""

    role: str
    #: Path in the owner to the item, or with `[]` the items, that the other paths start from.
    at: str = ""
    #: Number of pods.
    count: str = "1"
    #: Number of pods that the gang needs to start; "" for all.
    min: str = ""
    #: Path of the pod template; several with `|`, of which the first that exists applies.
    template: str = ""


class RuleSubGroups(_Part, frozen=True):
    """Sub-groups of pods with equal labels, or one such set per item of a list."""

    #: Name of the sub-group policy; with `at` also the role whose pods it has.
    name: str
    labels: tuple[str, ...]
    #: Pods of a sub-group. Fewer than 2: no sub-groups.
    size: str
    at: str = ""


class OwnerKind(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A kind of objects that rules read."""

    api_version: str
    kind: str
    #: As in RBAC: `jobsets`.
    resource: str

    @property
    def view_name(self) -> str:
        return qualified_kind(self.api_version, self.kind)

    @property
    def api_kind(self) -> Kind:
        return Kind(self.kind, self.api_version, self.resource)


class OwnerRule(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One rule."""

    name: str
    #: Labels or annotations of a pod that must exist (`key`), or be equal (`key=value`).
    when: tuple[str, ...] = ()
    group: tuple[GroupName, ...] = ()
    #: Kinds of the object with the numbers; of several, the controller of the pod decides.
    owners: tuple[OwnerKind, ...] = ()
    owner_name: str = ""
    #: Name of the pod that owns the PodGroup; "" for the object with the numbers.
    leader: str = ""
    #: Label with the role of a pod, and names that replace its values; that of "" replaces all others.
    role: str = ""
    role_names: dict[str, str] = {}
    #: A number that replaces the sum of the roles.
    min_member: str = ""
    #: Paths in the owner to the names of queue and priority class of the PodGroup.
    queue: str = ""
    priority_class: str = ""
    min: tuple[RoleMinimum, ...] = ()
    #: The minimum when the owner cannot be read; "" for 1.
    fallback: str = ""
    sub_groups: tuple[RuleSubGroups, ...] = ()
    #: Label that differs between the pods of before and after a restart of the whole group.
    incarnation: str = ""
    #: False: the rule of this name does not apply.
    enabled: bool = True

    def matches(self, notes: Mapping[str, str]) -> bool:
        """Whether a pod with these labels and annotations is of the rule."""
        for each in self.when:
            key, equals, value = each.partition("=")
            if not notes.get(key) or (equals and notes[key] != value):
                return False
        return True

    def role_of(self, notes: Mapping[str, str]) -> str:
        """The role of a pod, "" for none."""
        written = notes.get(self.role, "") if self.role else ""
        return written and (self.role_names.get(written) or self.role_names.get("", written))

    def read_keys(self) -> Iterator[str]:
        """The labels and annotations of pods that the rule reads."""
        yield from (each.partition("=")[0] for each in self.when)
        for template in (self.owner_name, self.leader, *(each.name for each in self.group)):
            yield from (place for place in places(template) if not place.startswith("owner:"))
        counts = [self.min_member, self.fallback, *(count for each in self.min for count in (each.count, each.min))]
        for count in (*counts, *(each.size for each in self.sub_groups)):
            yield from (item[1:] for word in count.split() for item in word.split("|") if item.startswith("@"))
        yield from filter(None, (self.role, self.incarnation))
        yield from (key for each in self.sub_groups for key in each.labels)


class OwnerGang(NamedTuple):
    """The PodGroup of pods by a rule."""

    name: str
    min_member: int
    #: Empty: the roles have no minimum.
    min_task_member: dict[str, int]
    #: Pod templates, None for the pod itself, and the number of pods.
    templates: tuple[tuple[JsonObject | None, int], ...]
    policies: tuple[JsonObject, ...]


class OwnerParts:
    """What a rule finds in the object of an owner, in one pass over it: the gangs of its pods cost their own part.

    Belongs to one object; `owner` is None when it cannot be read.
    """

    def __init__(self, rule: OwnerRule, owner: JsonObject | None) -> None:
        self.owner = owner
        self._rule = rule
        scene = RuleScene({}, owner)
        self._named = [
            row
            for row in rule.group
            if not ((row.if_ or row.unless) and (owner is None or not holds(scene, row.if_, row.unless)))
        ]
        #: Per row of `min`, and per row of `subGroups`: role to the parts of it. Rows of the owner itself have none.
        self._roles = [_parts(scene, row, row.role) for row in rule.min]
        self._sub_groups = [_parts(scene, row, row.name) for row in rule.sub_groups]

    def gang_of(self, notes: Mapping[str, str]) -> OwnerGang | None:
        """The gang of a pod with these labels and annotations; None when the rule gives it no name."""
        scene = RuleScene(notes, self.owner)
        for row in self._named:
            name = name_of(scene, row.name)
            if name:
                return self._gang(scene, name, self._rule.role_of(notes) if row.of_role else "")
        return None

    def _gang(self, scene: RuleScene, name: str, role: str) -> OwnerGang:
        """`role`: the only role of the gang, "" for all."""
        rule = self._rule
        if scene.owner is None and rule.owners:
            minimum = max(1, count_of(scene, rule.fallback) or 1) if rule.fallback else 1
            return OwnerGang(name, minimum, {}, ((None, minimum),), ())
        minimums: dict[str, int] = {}
        templates: list[tuple[JsonObject | None, int]] = []
        for row, parts in zip(rule.min, self._roles, strict=True):
            for named, part in _of_role(parts, scene, row, row.role, role):
                count = count_of(part, row.count)
                count = 1 if count is None else count
                least = count_of(part, row.min) if row.min else count
                minimums[named] = min(MAX_INT32, minimums.get(named, 0) + (count if least is None else least))
                found = (each for path in row.template.split("|") for each in part.values(path))
                template = next((each for each in found if isinstance(each, dict)), None) if row.template else None
                templates.append((template, count))
        total = max(1, min(MAX_INT32, sum(minimums.values())))
        written = count_of(scene, rule.min_member) if rule.min_member else None
        roles = {named: least for named, least in minimums.items() if least > 0} if rule.role else {}
        if written is not None and written > 0:
            total, roles = written, {}
        return OwnerGang(name, total, roles, tuple(templates), tuple(self._policies(scene, minimums, role)))

    def _policies(self, scene: RuleScene, minimums: Mapping[str, int], role: str) -> Iterator[JsonObject]:
        rule = self._rule
        for row, parts in zip(rule.sub_groups, self._sub_groups, strict=True):
            for name, part in _of_role(parts, scene, row, row.name, role if row.at else ""):
                size = count_of(part, row.size)
                if size is None or size < 2:
                    continue
                policy: JsonObject = {"name": name, "matchLabelKeys": list(row.labels), "subGroupSize": size}
                if row.at:
                    policy["labelSelector"] = {"matchLabels": {rule.role: name}}
                    policy["minSubGroups"] = minimums.get(name, 0) // size
                yield policy


_RoleParts: TypeAlias = "dict[str, list[RuleScene]] | None"


def _parts(scene: RuleScene, row: RoleMinimum | RuleSubGroups, name: str) -> _RoleParts:
    """The parts of an owner that a row selects, by role, in their order; None for the owner itself."""
    if not row.at:
        return None
    found: dict[str, list[RuleScene]] = {}
    for part in scene.parts(row.at):
        named = name_of(part, name)
        if named and holds(part, row.if_, row.unless):
            found.setdefault(named, []).append(part)
    return found


def _of_role(
    parts: _RoleParts, scene: RuleScene, row: RoleMinimum | RuleSubGroups, name: str, role: str
) -> Iterator[tuple[str, RuleScene]]:
    """The parts of a role, "" for all, each with the labels and annotations of the pod."""
    if parts is None:
        named = name_of(scene, name)
        if named and (not role or named == role) and holds(scene, row.if_, row.unless):
            yield named, scene
        return
    for named in (role,) if role else parts:
        yield from ((named, part._replace(notes=scene.notes)) for part in parts.get(named, ()))


def parse_owner_rules(text: str | bytes, base: Iterable[OwnerRule] = ()) -> tuple[OwnerRule, ...]:
    """The rules of a text before those of `base`, except for names that the text has. Raises OwnerRulesError.

    An empty list, `ownerGroups: []`, is no rules at all.
    """
    try:
        document = read_document(text).value
    except YamlError as error:
        raise OwnerRulesError([f"line {error.line}: {error}"]) from None
    if not isinstance(document, dict) or set(document) != {"ownerGroups"}:
        raise OwnerRulesError(["expected one key, ownerGroups, with a list of rules"])
    rows = document["ownerGroups"]
    if rows in (None, []):
        return ()
    if not isinstance(rows, list):
        raise OwnerRulesError(["ownerGroups: expected a list of rules"])
    found: list[OwnerRule] = []
    problems: list[str] = []
    known = {rule.name: rule for rule in base}
    for number, row in enumerate(rows):
        place = f"ownerGroups[{number}]"
        try:
            rule = msgspec.convert(row, OwnerRule, strict=False)
        except msgspec.ValidationError as error:
            problem = field_problem(error, row)
            accepted = _accepted_fields(problem.field) if problem.message == UNKNOWN_FIELD else ""
            problems.append(f"{problem.within(place)}{accepted}")
            continue
        if any(rule.name == other.name for other in found):
            problems.append(f"{place}.name: {rule.name!r} is the name of another rule")
        if not rule.enabled and not rule.when and known and rule.name not in known:
            problems.append(f"{place}.name: {rule.name!r} is no built-in rule; accepted: {', '.join(known)}")
        problems += [f"{place}.{problem}" for problem in (_problems(rule) if rule.enabled else ())]
        found.append(rule)
    if problems:
        raise OwnerRulesError(problems)
    names = {rule.name for rule in found}
    rules = (*found, *(rule for name, rule in known.items() if name not in names))
    return tuple(rule for rule in rules if rule.enabled)


def _accepted_fields(unknown: str) -> str:
    """The fields of the struct that has an unknown one, by the path of that."""
    parts: dict[str, type[msgspec.Struct]] = {
        "group[": GroupName,
        "owners[": OwnerKind,
        "min[": RoleMinimum,
        "subGroups[": RuleSubGroups,
        "subGroups.": RuleSubGroups,
    }
    struct: type[msgspec.Struct] = next((each for path, each in parts.items() if unknown.startswith(path)), OwnerRule)
    return f"; accepted: {', '.join(field.encode_name for field in msgspec.structs.fields(struct))}"


def _problems(rule: OwnerRule) -> Iterator[str]:
    if not rule.when:
        yield "when: expected labels or annotations, as in [example.com/job-name]"
    if not rule.group:
        yield "group: expected a list of names, as in [{name: '{example.com/job-name}'}]"
    yield from _owner_problems(rule)
    yield from _key_problems(rule)
    yield from _name_problems(rule)
    yield from _text_problems(rule)


def _text_problems(rule: OwnerRule) -> Iterator[str]:
    """Counts and paths that cannot be read."""
    counts = {"minMember": rule.min_member, "fallback": rule.fallback}
    for field, path in (("queue", rule.queue), ("priorityClass", rule.priority_class)):
        if path and not is_path(path):
            yield f"{field}: {path!r} is no path"
    for place, part in _rows(rule):
        paths = {f"{place}.if": [*part.if_], f"{place}.unless": [*part.unless]}
        if isinstance(part, RoleMinimum):
            counts |= {f"{place}.count": part.count, f"{place}.min": part.min}
            paths |= {f"{place}.at": [part.at], f"{place}.template": part.template.split("|")}
        elif isinstance(part, RuleSubGroups):
            counts[f"{place}.size"] = part.size
            paths[f"{place}.at"] = [part.at]
        for field, texts in paths.items():
            yield from (f"{field}: {text!r} is no path" for text in texts if text and not is_path(text))
    for field, text in counts.items():
        if text and not is_count(text):
            yield f"{field}: {text!r} is no count; accepted: a number, a path or @label, joined by *, -, min and max"
    for field, path in _paths(rule):
        if not path.removeprefix("owner.").startswith(_READ):
            yield f"{field}: {path!r} is not read; accepted: paths that start with metadata or spec"


def _paths(rule: OwnerRule) -> Iterator[tuple[str, str]]:
    """The paths that start at the object of the owner, each with its field."""
    yield from _count_paths("minMember", rule.min_member)
    yield from _count_paths("fallback", rule.fallback)
    named = (("queue", rule.queue), ("priorityClass", rule.priority_class))
    yield from ((field, path) for field, path in named if path and is_path(path))
    for number, each in enumerate(rule.group):
        yield from ((f"group[{number}].name", place[6:]) for place in places(each.name) if place.startswith("owner:"))
    for place, row in _rows(rule):
        found = [
            (f"{place}.{field}", path) for field, paths in (("if", row.if_), ("unless", row.unless)) for path in paths
        ]
        at = "" if isinstance(row, GroupName) else row.at
        if isinstance(row, RoleMinimum):
            found += [*_count_paths(f"{place}.count", row.count), *_count_paths(f"{place}.min", row.min)]
            found += [(f"{place}.template", path) for path in row.template.split("|") if path]
        elif isinstance(row, RuleSubGroups):
            found += _count_paths(f"{place}.size", row.size)
        if at:
            yield f"{place}.at", at
        yield from ((field, path) for field, path in found if not at or path.startswith("owner."))


def _count_paths(field: str, text: str) -> Iterator[tuple[str, str]]:
    items = (item for word in text.split()[::2] for item in word.split("|")) if is_count(text) else ()
    yield from ((field, item) for item in items if not item.startswith("@") and whole_number(item) is None)


def _owner_problems(rule: OwnerRule) -> Iterator[str]:
    if bool(rule.owners) != bool(rule.owner_name):
        yield "ownerName: expected together with owners"
    for number, kind in enumerate(rule.owners):
        if not group_of(kind.api_version) or not kind.kind or not kind.resource:
            yield f"owners[{number}]: expected apiVersion (group/version), kind and resource"
        elif kind.view_name in KIND_BY_NAME and kind.kind not in _OWNER_KINDS:
            accepted = f"{', '.join(_OWNER_KINDS)}, kinds of batch/v1 and of operators"
            yield f"owners[{number}]: {kind.kind} of {kind.api_version} is no owner; accepted: {accepted}"


def _rows(rule: OwnerRule) -> Iterator[tuple[str, GroupName | RoleMinimum | RuleSubGroups]]:
    """The rows of the lists of a rule, each with its place."""
    yield from ((f"group[{number}]", each) for number, each in enumerate(rule.group))
    yield from ((f"min[{number}]", each) for number, each in enumerate(rule.min))
    yield from ((f"subGroups[{number}]", each) for number, each in enumerate(rule.sub_groups))


def _key_problems(rule: OwnerRule) -> Iterator[str]:
    """Labels and annotations that no pod has, and fields that count by role without a label with the role."""
    keys = [(f"when[{number}]", each.partition("=")[0]) for number, each in enumerate(rule.when)]
    keys += [(field, key) for field, key in (("role", rule.role), ("incarnation", rule.incarnation)) if key]
    for place, row in _rows(rule):
        if isinstance(row, RuleSubGroups):
            keys += [(f"{place}.labels[{number}]", key) for number, key in enumerate(row.labels)]
    for field, key in keys:
        problem = label_key_problem(key)
        if problem:
            yield f"{field}: {problem}"
    if rule.role:
        return
    of_role = [f"{place}.ofRole" for place, row in _rows(rule) if isinstance(row, GroupName) and row.of_role]
    of_role += [f"{place}.at" for place, row in _rows(rule) if isinstance(row, RuleSubGroups) and row.at]
    if rule.role_names:
        of_role.append("roleNames")
    yield from (f"{field}: expected together with role, the label with the role of a pod" for field in of_role)


def _name_problems(rule: OwnerRule) -> Iterator[str]:
    """Templates that give no name of an object, whatever the labels are."""
    templates = [(f"group[{number}].name", each.name) for number, each in enumerate(rule.group)]
    templates += [(field, text) for field, text in (("ownerName", rule.owner_name), ("leader", rule.leader)) if text]
    for field, text in templates:
        rest = _PLACE.sub("", text)
        if not text or not all(places(text)) or _NO_NAME.search(rest):
            form = "lower-case letters, digits, '-', '.' and places like {label}"
            yield f"{field}: {text!r} is no name; accepted: {form}"
        for place in places(text):
            path = place.removeprefix("owner:")
            if path == place:
                continue
            if not field.startswith("group") or not rule.owners:
                yield f"{field}: {{{place}}} has no object to be read from; accepted: places like {{label}}"
            elif not is_path(path):
                yield f"{field}: {path!r} is no path"
    named = [(place, row.name) for place, row in _rows(rule) if isinstance(row, RuleSubGroups)]
    for number, (place, name) in enumerate(named):
        if not name:
            yield f"{place}.name: expected a name of the sub-group policy"
        elif any(name == other for _, other in named[:number]):
            yield f"{place}.name: {name!r} is the name of another row"


@cache
def built_in_rules() -> tuple[OwnerRule, ...]:
    """The rules of `config/owner-groups.yaml`."""
    text: Final = pkgutil.get_data("capcard_sched.config", "owner-groups.yaml")
    if text is None:
        raise FileNotFoundError("capcard_sched/config/owner-groups.yaml")
    return parse_owner_rules(text)
