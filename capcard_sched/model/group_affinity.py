"""`spec.topologyAffinity.podGroupAntiAffinity` of a PodGroup: HyperNodes that it does not share with other groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.numbers import MAX_INT32
from capcard_sched.model.objects import ApiStruct, LabelSelector
from capcard_sched.model.quoting import shown
from capcard_sched.model.selectors import label_selector_problem
from capcard_sched.model.term_limits import DEFAULT_TERM_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.model.hyper_nodes import HyperNodeTree

#: The plugin without which the terms have no effect.
AFFINITY_PLUGIN: Final = "group-topology-affinity"
AFFINITY_FIELD: Final = "spec.topologyAffinity"
_FIELD: Final = f"{AFFINITY_FIELD}.podGroupAntiAffinity"
_SELECTORS: Final = ("podGroupSelector", "namespaceSelector")
_SIDES: Final = ("required", "preferred")
#: Terms of a PodGroup, and labels and values of expressions in their selectors together: those of a pod.
_LIMITS: Final = DEFAULT_TERM_LIMITS


class _TermSpec(ApiStruct, frozen=True):
    """One entry of `required` or `preferred`."""

    pod_group_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    topology_tier_name: str | None = None
    topology_tier: int | None = None
    weight: int | None = None


class GroupTerm(msgspec.Struct, frozen=True):
    """A term with its defaults."""

    #: Its place among the terms: `required[0]`.
    at: str
    #: Selects PodGroups by their labels; None for an invalid term.
    groups: LabelSelector | None
    #: Selects namespaces by their labels; None is the namespace of the PodGroup.
    namespaces: LabelSelector | None
    tier: int
    #: The same by the name of the tier; "" when it is given by number.
    tier_name: str
    #: 1 to 100 for a preferred term, 0 for a required one.
    weight: int = 0
    #: Equal for terms that select the same groups of a namespace.
    selection: bytes = b""
    #: Why a required term is not evaluated: the group then waits.
    problem: str = ""

    def tier_in(self, tree: HyperNodeTree) -> int | None:
        """The tier as a number; None when no HyperNode has it."""
        tier = tree.tier_names.get(self.tier_name) if self.tier_name else self.tier
        return tier if tier in tree.by_tier else None


def group_terms(raw: object, problems: list[str]) -> tuple[GroupTerm, ...]:
    """The terms of `spec.topologyAffinity`, required ones first.

    An invalid entry adds a line to `problems`. An invalid required term keeps its group waiting, an invalid preferred
    one is left out.
    """
    if not raw:
        return ()
    found: list[GroupTerm] = []
    if excess := terms_excess(raw):
        problems.append(f"{_FIELD}: {excess}; the group waits")
        return (GroupTerm("it", None, None, 0, "", problem=excess),)
    for at, entry in _entries(raw):
        is_required = at.startswith(_SIDES[0])
        problem = "; ".join(
            f"{field.lstrip('.')} {text}".lstrip() for field, text, _ in term_problems(entry, is_required=is_required)
        )
        if problem:
            effect = "the group waits" if is_required else "the term has no effect"
            problems.append(f"{_FIELD}.{at}: {problem}; {effect}")
            if is_required:
                found.append(GroupTerm(at, None, None, 0, "", problem=problem))
            continue
        term = msgspec.convert(entry, _TermSpec)
        name, tier = term.topology_tier_name or "", term.topology_tier or 0
        weight = 0 if is_required else term.weight or 0
        groups, namespaces = term.pod_group_selector, term.namespace_selector
        selection = msgspec.json.encode((groups, namespaces))
        found.append(GroupTerm(at, groups, namespaces, tier, name, weight, selection))
    return tuple(found)


def terms_excess(raw: object) -> str:
    """The limit that the terms of `spec.topologyAffinity` exceed; "" for none."""
    entries = [entry for _, entry in _entries(raw)]
    if len(entries) > _LIMITS.affinity_terms:
        return f"{len(entries)} terms, the limit is {_LIMITS.affinity_terms}"
    needed = sum(
        _requirements(entry.get(field)) for entry in entries if isinstance(entry, dict) for field in _SELECTORS
    )
    if needed > _LIMITS.requirements:
        return f"{needed} labels and values in its selectors, the limit is {_LIMITS.requirements}"
    return ""


def _requirements(selector: object) -> int:
    """Labels and values of a selector as written."""
    if not isinstance(selector, dict):
        return 0
    labels, expressions = selector.get("matchLabels"), selector.get("matchExpressions")
    values = [each.get("values") if isinstance(each, dict) else None for each in _listed(expressions)]
    return (len(labels) if isinstance(labels, dict) else 0) + sum(1 + len(_listed(each)) for each in values)


def _listed(raw: object) -> Sequence[Any]:
    return raw if isinstance(raw, list | tuple) else ()


def _entries(raw: object) -> Iterator[tuple[str, Any]]:
    """The terms as written, with their places."""
    rules = raw.get("podGroupAntiAffinity") if isinstance(raw, dict) else None
    for side in _SIDES:
        entries = rules.get(side) if isinstance(rules, dict) else None
        for number, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
            yield f"{side}[{number}]", entry


def term_problems(term: object, *, is_required: bool) -> Iterator[tuple[str, str, str]]:
    """Fields, messages and accepted forms of what Volcano rejects in a term, too."""
    if not isinstance(term, dict):
        form = "a mapping with podGroupSelector, and topologyTierName or topologyTier"
        yield "", f"expected a term, got {shown(term)}", form
        return
    if term.get("podGroupSelector") is None:
        yield ".podGroupSelector", "is required", "a label selector of PodGroups"
    tier, name, weight = (term.get(key) for key in ("topologyTier", "topologyTierName", "weight"))
    if (tier is None) == (not name):
        yield "", f"has {'both' if name else 'none'} of topologyTierName and topologyTier", "one of them"
    elif tier is not None and not _is_within(tier, 0, MAX_INT32):
        yield ".topologyTier", f"expected a tier, got {shown(tier)}", "a whole number from 0 on"
    elif name and not isinstance(name, str):
        yield ".topologyTierName", f"expected the name of a tier, got {shown(name)}", "a text"
    if is_required and weight is not None:
        yield ".weight", f"is not accepted in a required term, got {shown(weight)}", "no value"
    elif not is_required and not _is_within(weight, 1, 100):
        text = "is required in a preferred term" if weight is None else f"expected a weight, got {shown(weight)}"
        yield ".weight", text, "a whole number from 1 to 100"
    for field in _SELECTORS:
        try:
            problem = label_selector_problem(msgspec.convert(term.get(field), LabelSelector | None))
        except msgspec.ValidationError as error:
            problem = str(field_problem(error, term[field]))
        if problem:
            yield f".{field}", f"is no label selector: {problem}", "matchLabels and matchExpressions"


def _is_within(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
