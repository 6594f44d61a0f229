"""Label selectors, node selectors, taints and tolerations, with the semantics of Kubernetes.

Matching never raises: a malformed requirement matches nothing, so that one invalid object affects only itself. The
`*_problem` functions describe what is malformed; they return None for what the API server accepts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import NODE_UNSCHEDULABLE
from capcard_sched.model.objects import Taint
from capcard_sched.model.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.objects import (
        LabelSelector,
        NodeSelector,
        NodeSelectorTerm,
        Requirement,
        Toleration,
    )

#: Effects that keep a pod off a node.
BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
#: The taint of a cordoned node.
UNSCHEDULABLE_TAINT: Final = Taint(key=NODE_UNSCHEDULABLE, effect="NoSchedule")
NAME_FIELD: Final = "metadata.name"
MAX_TERM_WEIGHT: Final = 100
#: The label that the API server sets on every namespace.
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"

_LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_NODE_OPERATORS = (*_LABEL_OPERATORS, "Gt", "Lt")
_FIELD_OPERATORS = ("In", "NotIn")

_INTEGER = re.compile(r"[+-]?[0-9]{1,25}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


# --- matching -------------------------------------------------------------------------------------------------------


def _integer(text: str) -> int | None:
    """A 64-bit integer as Go parses it, else None."""
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def _matches_requirement(requirement: Requirement, labels: Mapping[str, str], *, ordered: bool) -> bool:
    """Match one expression. `ordered` admits Gt and Lt, which only node selectors support."""
    operator, values = requirement.operator, requirement.values or ()
    label = labels.get(requirement.key)
    if operator == "In":
        return label is not None and label in values
    if operator == "NotIn":
        return bool(values) and (label is None or label not in values)
    if operator == "Exists":
        return label is not None and not values
    if operator == "DoesNotExist":
        return label is None and not values
    if ordered and operator in ("Gt", "Lt") and label is not None and len(values) == 1:
        have, bound = _integer(label), _integer(values[0])
        if have is not None and bound is not None:
            return have > bound if operator == "Gt" else have < bound
    return False


def matches_labels(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels. None selects nothing, an empty selector everything."""
    if selector is None:
        return False
    for key, value in (selector.match_labels or {}).items():
        if labels.get(key) != value:
            return False
    return all(_matches_requirement(item, labels, ordered=False) for item in selector.match_expressions or ())


def namespace_labels(name: str, labels: Mapping[str, str] | None) -> Mapping[str, str]:
    """A namespace's labels for selectors; an unknown namespace (None) has only the label of its name."""
    return {**(labels or {}), NAMESPACE_NAME_LABEL: name}


def _matches_field(requirement: Requirement, name: str) -> bool:
    if requirement.key != NAME_FIELD or len(requirement.values or ()) != 1:
        return False
    if requirement.operator == "In":
        return name in (requirement.values or ())
    return requirement.operator == "NotIn" and name not in (requirement.values or ())


def matches_term(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """Whether all expressions and fields of a term hold for a node; a term without any matches nothing."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False
    return all(_matches_requirement(item, labels, ordered=True) for item in expressions) and all(
        _matches_field(item, name) for item in fields
    )


def matches_node_selector(selector: NodeSelector | None, labels: Mapping[str, str], name: str) -> bool:
    """Whether any term matches. None matches every node; a selector without terms matches none."""
    return selector is None or any(matches_term(term, labels, name) for term in selector.node_selector_terms)


def term_weight(weight: int) -> int:
    """The weight of a preferred term, clamped to the valid range 1 to 100; 0 for one that is not above 0."""
    return min(max(weight, 0), MAX_TERM_WEIGHT)


# --- taints ---------------------------------------------------------------------------------------------------------


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration covers one taint: an empty effect covers every effect, an empty key every key."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Whether any toleration covers the taint."""
    return any(tolerates(toleration, taint) for toleration in tolerations)


def untolerated_taint(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint, in list order, that keeps the pod off the node; None when there is none."""
    for taint in taints:
        if taint.effect in BLOCKING_EFFECTS and not is_tolerated(taint, tolerations):
            return taint
    return None


def untolerated_preferences(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> int:
    """The number of PreferNoSchedule taints that the pod does not tolerate."""
    return sum(taint.effect == PREFER_NO_SCHEDULE and not is_tolerated(taint, tolerations) for taint in taints)


# --- validation -----------------------------------------------------------------------------------------------------


def label_key_problem(key: str) -> str | None:
    """The problem of a label key, or None. A key is a name of at most 63 characters, optionally after `domain/`."""
    if not key:
        return "empty label key"
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _PREFIX.fullmatch(prefix)):
        return f"label key {quoted(key)} does not start with a DNS domain before its slash"
    if not _NAME.fullmatch(name):
        return f"label key {quoted(key)} is not a name of 1 to 63 letters, digits, '-', '_' and '.'"
    return None


def label_value_problem(value: str) -> str | None:
    """The problem of a label value, or None. A value may be empty."""
    if value and not _NAME.fullmatch(value):
        return f"label value {quoted(value)} is not empty or 1 to 63 letters, digits, '-', '_' and '.'"
    return None


def _operator_problem(requirement: Requirement, operators: tuple[str, ...]) -> str | None:
    operator, values = requirement.operator, requirement.values or ()
    if operator not in operators:
        return f"unknown operator {quoted(operator)}; expected {', '.join(operators)}"
    if operator in ("In", "NotIn") and not values:
        return f"operator {operator} needs at least one value"
    if operator in ("Exists", "DoesNotExist") and values:
        return f"operator {operator} takes no values"
    if operator in ("Gt", "Lt"):
        if len(values) != 1:
            return f"operator {operator} needs exactly one value"
        if _integer(values[0]) is None:
            return f"operator {operator} needs an integer, not {quoted(values[0])}"
    return None


def _requirement_problem(requirement: Requirement, operators: tuple[str, ...]) -> str | None:
    problem = label_key_problem(requirement.key) or _operator_problem(requirement, operators)
    if problem is None and requirement.operator in ("In", "NotIn"):
        problem = next(filter(None, map(label_value_problem, requirement.values or ())), None)
    return problem


def label_selector_problem(selector: LabelSelector | None) -> str | None:
    """The problem of a label selector, as `path: problem`, or None."""
    if selector is None:
        return None
    for key, value in (selector.match_labels or {}).items():
        problem = label_key_problem(key) or label_value_problem(value)
        if problem:
            return f"matchLabels[{key}]: {problem}"
    for index, item in enumerate(selector.match_expressions or ()):
        problem = _requirement_problem(item, _LABEL_OPERATORS)
        if problem:
            return f"matchExpressions[{index}]: {problem}"
    return None


def node_selector_term_problem(term: NodeSelectorTerm) -> str | None:
    """The problem of one term, as `path: problem`, or None. An empty term is well-formed; it matches nothing."""
    for index, item in enumerate(term.match_expressions or ()):
        problem = _requirement_problem(item, _NODE_OPERATORS)
        if problem:
            return f"matchExpressions[{index}]: {problem}"
    for index, item in enumerate(term.match_fields or ()):
        if item.key != NAME_FIELD:
            return f"matchFields[{index}]: unknown field {quoted(item.key)}; expected {NAME_FIELD}"
        problem = _operator_problem(item, _FIELD_OPERATORS)
        if problem is None and len(item.values or ()) != 1:
            problem = f"operator {item.operator} needs exactly one value"
        if problem:
            return f"matchFields[{index}]: {problem}"
    return None


def node_selector_problem(selector: NodeSelector | None) -> str | None:
    """The problem of a node selector, as `path: problem`, or None."""
    if selector is None:
        return None
    if not selector.node_selector_terms:
        return "nodeSelectorTerms: needs at least one term"
    for index, term in enumerate(selector.node_selector_terms):
        problem = node_selector_term_problem(term)
        if problem:
            return f"nodeSelectorTerms[{index}].{problem}"
    return None
