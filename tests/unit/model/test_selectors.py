"""Selectors, taints and tolerations: what Kubernetes matches."""

from __future__ import annotations

import pytest

from capcard_sched.model.objects import (
    LabelSelector,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)
from capcard_sched.model.selectors import (
    UNSCHEDULABLE_TAINT,
    is_tolerated,
    matches_labels,
    matches_node_selector,
    matches_term,
    tolerates,
    untolerated_preferences,
    untolerated_taint,
)

LABELS = {"zone": "a", "size": "16", "empty": ""}


def _r(key: str, operator: str, *values: str) -> Requirement:
    return Requirement(key, operator, values or None)


# --- label selectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requirement, expected",
    [
        (_r("zone", "In", "a", "b"), True),
        (_r("zone", "In", "b"), False),
        (_r("absent", "In", "a"), False),
        (_r("empty", "In", ""), True),
        (_r("zone", "NotIn", "b"), True),
        (_r("zone", "NotIn", "a", "b"), False),
        (_r("absent", "NotIn", "a"), True),
        (_r("zone", "Exists"), True),
        (_r("empty", "Exists"), True),
        (_r("absent", "Exists"), False),
        (_r("zone", "DoesNotExist"), False),
        (_r("absent", "DoesNotExist"), True),
        # malformed: nothing matches
        (_r("zone", "In"), False),
        (_r("zone", "NotIn"), False),
        (_r("zone", "Exists", "a"), False),
        (_r("absent", "DoesNotExist", "a"), False),
        (_r("zone", "Equals", "a"), False),
        (_r("zone", "in", "a"), False),
        (_r("zone", ""), False),
        (_r("size", "Gt", "1"), False),  # only node selectors compare
        (_r("size", "Lt", "99"), False),
    ],
)
def test_label_expressions(requirement: Requirement, expected: bool) -> None:
    assert matches_labels(LabelSelector(match_expressions=(requirement,)), LABELS) is expected


@pytest.mark.parametrize(
    "selector, expected",
    [
        pytest.param(None, False, id="no selector selects nothing"),
        pytest.param(LabelSelector(), True, id="an empty selector selects everything"),
        pytest.param(LabelSelector({}, ()), True, id="empty parts are no conditions"),
        pytest.param(LabelSelector({"zone": "a"}), True, id="equal"),
        pytest.param(LabelSelector({"zone": "a", "size": "8"}), False, id="all labels must match"),
        pytest.param(LabelSelector({"absent": ""}), False, id="an absent label is not an empty one"),
        pytest.param(LabelSelector({"empty": ""}), True, id="an empty value matches itself"),
        pytest.param(LabelSelector({"zone": "a"}, (_r("size", "In", "8"),)), False, id="labels and expressions"),
        pytest.param(
            LabelSelector(None, (_r("zone", "Exists"), _r("size", "Exists"))), True, id="all expressions must match"
        ),
    ],
)
def test_label_selectors(selector: LabelSelector | None, expected: bool) -> None:
    assert matches_labels(selector, LABELS) is expected


# --- node selectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requirement, expected",
    [
        (_r("size", "Gt", "15"), True),
        (_r("size", "Gt", "16"), False),
        (_r("size", "Lt", "17"), True),
        (_r("size", "Lt", "16"), False),
        (_r("size", "Gt", "-1"), True),
        (_r("absent", "Lt", "1"), False),
        (_r("absent", "Gt", "1"), False),
        (_r("zone", "Gt", "1"), False),
        (_r("size", "Gt", "x"), False),
        (_r("size", "Gt", "1.5"), False),
        (_r("size", "Gt", "1", "2"), False),
        (_r("size", "Gt"), False),
        (_r("size", "Lt", "9223372036854775807"), True),
        (_r("size", "Lt", "9223372036854775808"), False),  # no 64-bit integer
        (_r("size", "Lt", "9" * 10_000), False),
        (_r("absent", "NotIn", "x"), True),
    ],
)
def test_node_expressions_compare_integers(requirement: Requirement, expected: bool) -> None:
    assert matches_term(NodeSelectorTerm((requirement,)), LABELS, "n1") is expected


@pytest.mark.parametrize(
    "field, expected",
    [
        (_r("metadata.name", "In", "n1"), True),
        (_r("metadata.name", "In", "n2"), False),
        (_r("metadata.name", "NotIn", "n2"), True),
        (_r("metadata.name", "NotIn", "n1"), False),
        (_r("metadata.name", "In", "n1", "n2"), False),
        (_r("metadata.name", "In"), False),
        (_r("metadata.name", "Exists"), False),
        (_r("metadata.uid", "In", "n1"), False),
    ],
)
def test_fields_match_the_node_name_only(field: Requirement, expected: bool) -> None:
    assert matches_term(NodeSelectorTerm(None, (field,)), LABELS, "n1") is expected


@pytest.mark.parametrize(
    "selector, expected",
    [
        pytest.param(None, True, id="no selector admits every node"),
        pytest.param(NodeSelector(()), False, id="no term matches nothing"),
        pytest.param(NodeSelector((NodeSelectorTerm(),)), False, id="an empty term matches nothing"),
        pytest.param(NodeSelector((NodeSelectorTerm((), ()),)), False, id="a term of empty lists matches nothing"),
        pytest.param(
            NodeSelector((NodeSelectorTerm(), NodeSelectorTerm((_r("zone", "In", "a"),)))), True, id="terms are ORed"
        ),
        pytest.param(
            NodeSelector((NodeSelectorTerm((_r("zone", "In", "a"), _r("size", "In", "8"))),)),
            False,
            id="expressions are ANDed",
        ),
        pytest.param(
            NodeSelector((NodeSelectorTerm((_r("zone", "In", "a"),), (_r("metadata.name", "In", "n2"),)),)),
            False,
            id="expressions and fields are ANDed",
        ),
        pytest.param(
            NodeSelector((NodeSelectorTerm((_r("zone", "??"),)), NodeSelectorTerm((_r("zone", "Exists"),)))),
            True,
            id="a malformed term spoils only itself",
        ),
    ],
)
def test_node_selectors(selector: NodeSelector | None, expected: bool) -> None:
    assert matches_node_selector(selector, LABELS, "n1") is expected


# --- taints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "toleration, taint, expected",
    [
        (Toleration("k", "Equal", "v", "NoSchedule"), Taint("k", "v", "NoSchedule"), True),
        (Toleration("k", "Equal", "w", "NoSchedule"), Taint("k", "v", "NoSchedule"), False),
        (Toleration("k", "Equal", "v", "NoExecute"), Taint("k", "v", "NoSchedule"), False),
        (Toleration("k", "", "v", ""), Taint("k", "v", "NoSchedule"), True),
        (Toleration("k", "Equal", "v"), Taint("k", "v", "NoExecute"), True),
        (Toleration("j", "Equal", "v"), Taint("k", "v", "NoExecute"), False),
        (Toleration("k", "Equal", ""), Taint("k", "", "NoSchedule"), True),
        (Toleration("k", "Exists"), Taint("k", "anything", "NoSchedule"), True),
        (Toleration("j", "Exists"), Taint("k", "anything", "NoSchedule"), False),
        (Toleration("", "Exists"), Taint("k", "v", "NoExecute"), True),
        (Toleration("", "Exists", "", "NoSchedule"), Taint("k", "v", "NoExecute"), False),
        (Toleration("", "Equal", "v"), Taint("k", "v", "NoExecute"), True),
        (Toleration("k", "Sometimes", "v"), Taint("k", "v", "NoExecute"), False),
    ],
)
def test_tolerations_cover_taints(toleration: Toleration, taint: Taint, expected: bool) -> None:
    assert tolerates(toleration, taint) is expected
    assert is_tolerated(taint, (Toleration("other", "Exists"), toleration)) is expected


def test_the_first_untolerated_blocking_taint_is_named() -> None:
    taints = (Taint("p", "", "PreferNoSchedule"), Taint("a", "1", "NoSchedule"), Taint("b", "2", "NoExecute"))
    assert untolerated_taint(taints, ()) == Taint("a", "1", "NoSchedule")
    assert untolerated_taint(taints, (Toleration("a", "Exists"),)) == Taint("b", "2", "NoExecute")
    assert untolerated_taint(taints, (Toleration("", "Exists"),)) is None
    assert untolerated_taint((), ()) is None


def test_soft_taints_are_counted_unless_tolerated() -> None:
    taints = (Taint("p", "", "PreferNoSchedule"), Taint("q", "", "PreferNoSchedule"), Taint("a", "1", "NoSchedule"))
    assert untolerated_preferences(taints, ()) == 2
    assert untolerated_preferences(taints, (Toleration("p", "Exists", "", "PreferNoSchedule"),)) == 1
    assert untolerated_preferences(taints, (Toleration("p", "Exists", "", "NoSchedule"),)) == 2
    assert untolerated_preferences(taints, (Toleration("", "Exists"),)) == 0


def test_a_cordon_is_a_taint_that_daemons_tolerate() -> None:
    daemon = Toleration("node.kubernetes.io/unschedulable", "Exists", "", "NoSchedule")
    assert untolerated_taint((UNSCHEDULABLE_TAINT,), ()) == UNSCHEDULABLE_TAINT
    assert untolerated_taint((UNSCHEDULABLE_TAINT,), (daemon,)) is None
