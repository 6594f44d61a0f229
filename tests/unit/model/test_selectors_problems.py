"""Words for selectors, taints and tolerations that an API server would not accept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.objects import (
    LabelSelector,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
)
from capcard_sched.model.selectors import (
    label_key_problem,
    label_selector_problem,
    label_value_problem,
    matches_labels,
    matches_term,
    node_selector_problem,
    node_selector_term_problem,
)

LABELS = {"zone": "a", "size": "16", "empty": ""}


def _r(key: str, operator: str, *values: str) -> Requirement:
    return Requirement(key, operator, values or None)


KEY_PROBLEMS = [
    ("", "empty label key"),
    ("-a", "label key '-a' is not a name of 1 to 63 letters, digits, '-', '_' and '.'"),
    ("a-", "label key 'a-' is not a name of 1 to 63"),
    ("a b", "label key 'a b' is not a name of 1 to 63"),
    ("a" * 64, "is not a name of 1 to 63"),
    ("é", "label key 'é' is not a name of 1 to 63"),
    ("x.io/", "label key 'x.io/' is not a name of 1 to 63"),
    ("/a", "label key '/a' does not start with a DNS domain before its slash"),
    ("X.io/a", "label key 'X.io/a' does not start with a DNS domain before its slash"),
    ("x..io/a", "label key 'x..io/a' does not start with a DNS domain before its slash"),
    ("x.io/a/b", "label key 'x.io/a/b' does not start with a DNS domain before its slash"),
    ("x" * 254 + "/a", "does not start with a DNS domain before its slash"),
]


@pytest.mark.parametrize("key, words", KEY_PROBLEMS)
def test_bad_label_keys_are_explained(key: str, words: str) -> None:
    assert words in (label_key_problem(key) or "")


@pytest.mark.parametrize("key", ["a", "A_1.b-2", "nvidia.com/gpu.product", "x-1.y/z", "a" * 63])
def test_good_label_keys_have_no_problem(key: str) -> None:
    assert label_key_problem(key) is None


@pytest.mark.parametrize(
    "value, words",
    [
        ("a b", "label value 'a b' is not empty or 1 to 63 letters, digits, '-', '_' and '.'"),
        ("_a", "label value '_a' is not empty or 1 to 63"),
        ("a/b", "label value 'a/b' is not empty or 1 to 63"),
        ("a\n", "is not empty or 1 to 63"),
        ("a" * 64, "is not empty or 1 to 63"),
    ],
)
def test_bad_label_values_are_explained(value: str, words: str) -> None:
    assert words in (label_value_problem(value) or "")
    assert label_value_problem("") is None


OPERATORS = "expected In, NotIn, Exists, DoesNotExist"
SHARED_PROBLEMS = [
    (_r("k", "Equals", "v"), f"matchExpressions[1]: unknown operator 'Equals'; {OPERATORS}"),
    (_r("k", ""), f"matchExpressions[1]: unknown operator ''; {OPERATORS}"),
    (_r("k", "in", "v"), f"matchExpressions[1]: unknown operator 'in'; {OPERATORS}"),
    (_r("k", "x" * 1000), f"matchExpressions[1]: unknown operator '{'x' * 64}...'; {OPERATORS}"),
    (_r("k", "In"), "matchExpressions[1]: operator In needs at least one value"),
    (_r("k", "NotIn"), "matchExpressions[1]: operator NotIn needs at least one value"),
    (_r("k", "Exists", "v"), "matchExpressions[1]: operator Exists takes no values"),
    (_r("k", "DoesNotExist", "v"), "matchExpressions[1]: operator DoesNotExist takes no values"),
    (_r("", "Exists"), "matchExpressions[1]: empty label key"),
    (_r("a b", "Exists"), "matchExpressions[1]: label key 'a b' is not a name"),
    (_r("k", "In", "good", "b@d"), "matchExpressions[1]: label value 'b@d' is not empty or 1 to 63"),
]


@pytest.mark.parametrize(
    "requirement, words",
    [*SHARED_PROBLEMS, (_r("k", "Gt", "1"), f"matchExpressions[1]: unknown operator 'Gt'; {OPERATORS}")],
)
def test_bad_label_expressions_are_explained(requirement: Requirement, words: str) -> None:
    problem = label_selector_problem(LabelSelector(None, (_r("ok", "Exists"), requirement)))
    assert problem is not None
    assert problem.startswith(words)


@pytest.mark.parametrize(
    "requirement, words",
    [
        *SHARED_PROBLEMS,
        (_r("k", "Gt"), "matchExpressions[1]: operator Gt needs exactly one value"),
        (_r("k", "Lt", "1", "2"), "matchExpressions[1]: operator Lt needs exactly one value"),
        (_r("k", "Gt", "x"), "matchExpressions[1]: operator Gt needs an integer, not 'x'"),
        (_r("k", "Lt", "1.5"), "matchExpressions[1]: operator Lt needs an integer, not '1.5'"),
        (_r("k", "Lt", "9" * 20), f"matchExpressions[1]: operator Lt needs an integer, not '{'9' * 20}'"),
    ],
)
def test_bad_node_expressions_are_explained(requirement: Requirement, words: str) -> None:
    term = NodeSelectorTerm((_r("ok", "Exists"), requirement))
    problem = node_selector_term_problem(term)
    assert problem is not None
    assert problem.startswith(words)
    assert node_selector_problem(NodeSelector((NodeSelectorTerm(), term))) == f"nodeSelectorTerms[1].{problem}"


@pytest.mark.parametrize(
    "field, words",
    [
        (_r("metadata.uid", "In", "x"), "matchFields[0]: unknown field 'metadata.uid'; expected metadata.name"),
        (_r("metadata.name", "Exists"), "matchFields[0]: unknown operator 'Exists'; expected In, NotIn"),
        (_r("metadata.name", "In"), "matchFields[0]: operator In needs at least one value"),
        (_r("metadata.name", "In", "a", "b"), "matchFields[0]: operator In needs exactly one value"),
    ],
)
def test_bad_fields_are_explained(field: Requirement, words: str) -> None:
    assert node_selector_term_problem(NodeSelectorTerm(None, (field,))) == words


@pytest.mark.parametrize(
    "labels, words",
    [
        ({"a b": "v"}, "matchLabels[a b]: label key 'a b' is not a name of 1 to 63"),
        ({"k": "a b"}, "matchLabels[k]: label value 'a b' is not empty or 1 to 63"),
    ],
)
def test_bad_match_labels_are_explained(labels: dict[str, str], words: str) -> None:
    assert (label_selector_problem(LabelSelector(labels)) or "").startswith(words)


def test_a_node_selector_needs_terms() -> None:
    assert node_selector_problem(NodeSelector(())) == "nodeSelectorTerms: needs at least one term"


def test_well_formed_objects_have_no_problem() -> None:
    expressions = (_r("k", "In", "a", ""), _r("k", "NotIn", "b"), _r("k", "Exists"), _r("k", "DoesNotExist"))
    fields = (_r("metadata.name", "In", "n1"), _r("metadata.name", "NotIn", "n2"))
    assert label_selector_problem(None) is None
    assert label_selector_problem(LabelSelector({"k": "v"}, expressions)) is None
    assert node_selector_problem(None) is None
    term = NodeSelectorTerm((*expressions, _r("k", "Gt", "-1"), _r("k", "Lt", "+5")), fields)
    assert node_selector_problem(NodeSelector((term,))) is None


_requirements = st.builds(
    Requirement,
    st.sampled_from(["zone", "size", "absent", "", "a b"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "?", ""]),
    st.none() | st.lists(st.sampled_from(["a", "b", "16", "x y", "", "9" * 30]), max_size=2).map(tuple),
)


@given(_requirements)
def test_a_selector_with_a_structural_problem_matches_no_node(requirement: Requirement) -> None:
    # A bad key or value can still be compared; a bad operator or number of values cannot.
    problem = node_selector_term_problem(NodeSelectorTerm((requirement,))) or ""
    if "operator" in problem:
        assert not matches_term(NodeSelectorTerm((requirement,)), LABELS, "n1")


@given(
    key=st.sampled_from(["zone", "size", "absent", "empty"]),
    values=st.lists(st.sampled_from(["a", "b", "16", ""]), min_size=1, max_size=3),
)
def test_in_and_not_in_are_opposites(key: str, values: list[str]) -> None:
    one, other = (
        matches_labels(LabelSelector(None, (Requirement(key, operator, tuple(values)),)), LABELS)
        for operator in ("In", "NotIn")
    )
    assert one is not other
