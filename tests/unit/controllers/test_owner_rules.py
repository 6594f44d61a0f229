"""Rules of `ownerGroups` that a user writes: which replace the built-in ones, and which are refused with a reason."""

from __future__ import annotations

import pytest

from capcard_sched.controllers.owner_paths import RuleScene, count_of, name_of
from capcard_sched.controllers.owner_rules import OwnerRulesError, built_in_rules, parse_owner_rules

_BUILT_IN = [rule.name for rule in built_in_rules()]
_RULE = "when: [a], group: [{name: '{a}'}]"
_JOBS = "{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, resource: jobs}"
_UNKNOWN = "ownerGroups[0].{}: unknown field; accepted: "


@pytest.mark.parametrize(
    "text, names",
    [
        (f"ownerGroups: [{{name: mine, {_RULE}}}]", ["mine", *_BUILT_IN]),
        (f"ownerGroups: [{{name: ray, {_RULE}}}]", ["ray", *(name for name in _BUILT_IN if name != "ray")]),
        ("ownerGroups: [{name: ray, enabled: false}]", [name for name in _BUILT_IN if name != "ray"]),
        ("ownerGroups: []", []),
        ("ownerGroups:", []),
    ],
)
def test_rules_of_a_user_precede_and_replace_the_built_in_ones(text: str, names: list[str]) -> None:
    assert [rule.name for rule in parse_owner_rules(text, built_in_rules())] == names


@pytest.mark.parametrize(
    "text, problem",
    [
        ("a: [", "line 1"),
        ("rules: []", "expected one key, ownerGroups"),
        ("ownerGroups: 5", "ownerGroups: expected a list"),
        ("ownerGroups: [{}]", "ownerGroups[0].name: is required"),
        ("ownerGroups: [{name: a, wen: [b]}]", "ownerGroups[0].wen: unknown field"),
        ("ownerGroups: [{name: a}]", "ownerGroups[0].when: expected labels"),
        (
            f"ownerGroups: [{{name: a, {_RULE}}}, {{name: a, {_RULE}}}]",
            "ownerGroups[1].name: 'a' is the name of another",
        ),
        (f"ownerGroups: [{{name: a, {_RULE}, ownerName: x}}]", "ownerGroups[0].ownerName: expected together"),
        (
            f"ownerGroups: [{{name: a, {_RULE}, ownerName: x, owners: [{{apiVersion: v1, kind: A, resource: as}}]}}]",
            "ownerGroups[0].owners[0]: expected apiVersion (group/version)",
        ),
        (f"ownerGroups: [{{name: a, {_RULE}, minMember: a +}}]", "ownerGroups[0].minMember: 'a +' is no count"),
        (
            f"ownerGroups: [{{name: a, {_RULE}, min: [{{role: r, at: 'a b'}}]}}]",
            "ownerGroups[0].min[0].at: 'a b' is no path",
        ),
        ("ownerGroups: [{name: a, wen: [b]}]", _UNKNOWN.format("wen") + "name, when, group, owners, ownerName, "),
        (
            f"ownerGroups: [{{name: a, {_RULE}, min: [{{n: r}}]}}]",
            _UNKNOWN.format("min[0].n") + "role, at, ",
        ),
        (
            "ownerGroups: [{name: rays, enabled: false}]",
            "ownerGroups[0].name: 'rays' is no built-in rule; accepted: lws, ",
        ),
        ("ownerGroups: [{name: a, when: ['=b']}]", "ownerGroups[0].when[0]: empty label key"),
        (f"ownerGroups: [{{name: a, {_RULE}, role: a b}}]", "ownerGroups[0].role: label key 'a b' is not a name of"),
        (
            "ownerGroups: [{name: a, when: [a], group: [{name: '{a'}]}]",
            "ownerGroups[0].group[0].name: '{a' is no name; ",
        ),
        (
            "ownerGroups: [{name: a, when: [a], group: [{name: 'A-{a}'}]}]",
            "ownerGroups[0].group[0].name: 'A-{a}' is no ",
        ),
        (
            f"ownerGroups: [{{name: a, {_RULE}, leader: '{{owner:spec.a}}'}}]",
            "ownerGroups[0].leader: {owner:spec.a} has no object to be read from; accepted: places like {label}",
        ),
        (
            "ownerGroups: [{name: a, when: [a], group: [{name: '{a}', ofRole: true}]}]",
            "ownerGroups[0].group[0].ofRole: expected together with role",
        ),
        (
            f"ownerGroups: [{{name: a, {_RULE}, subGroups: [{{name: '', labels: [a], size: '2', at: 'spec.b[]'}}]}}]",
            "ownerGroups[0].subGroups[0].at: expected together with role",
        ),
        (
            f"ownerGroups: [{{name: a, {_RULE}, subGroups: [{{name: '', labels: [a], size: '2'}}]}}]",
            "ownerGroups[0].subGroups[0].name: expected a name of the sub-group policy",
        ),
        (
            f"ownerGroups: [{{name: a, {_RULE}, minMember: status.replicas}}]",
            "ownerGroups[0].minMember: 'status.replicas' is not read; accepted: paths that start with metadata or spec",
        ),
        (f"ownerGroups: [{{name: a, {_RULE}, queue: a b}}]", "ownerGroups[0].queue: 'a b' is no path"),
        (
            f"ownerGroups: [{{name: a, {_RULE}, priorityClass: status.class}}]",
            "ownerGroups[0].priorityClass: 'status.class' is not read",
        ),
        (
            f"ownerGroups: [{{name: a, {_RULE}, min: [{{role: r, at: 'spec.b[]', count: owner.status.n}}]}}]",
            "ownerGroups[0].min[0].count: 'owner.status.n' is not read",
        ),
        (
            f"ownerGroups: [{{name: a, {_RULE}, ownerName: '{{a}}', owners: [{_JOBS}]}}]",
            "ownerGroups[0].owners[0]: Job of batch.volcano.sh/v1alpha1 is no owner; accepted: Deployment, ",
        ),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_its_field(text: str, problem: str) -> None:
    with pytest.raises(OwnerRulesError) as error:
        parse_owner_rules(text, built_in_rules())
    assert any(each.startswith(problem) for each in error.value.problems), error.value.problems


@pytest.mark.parametrize(
    "text, value",
    [
        ("3", 3),
        ("a", 2),
        ("none|a", 2),
        ("none", None),
        ("@size - 1", 3),
        ("@none", None),
        ("a * b.c", 14),
        ("a min b.c * 5", 10),
        ("a max b.c * 5", 35),
        ("a max 5 min 4", 4),
        ("1 - 5", 0),
        ("b.c * 2147483647", 2147483647),
        ("list[].n", 4),
        ("text", None),
    ],
)
def test_a_count_is_read_from_left_to_right(text: str, value: int | None) -> None:
    owner = {"a": 2, "b": {"c": 7}, "list": [{"m": 1}, {"n": 4}], "text": "x"}
    assert count_of(RuleScene({"size": "4"}, owner), text) == value


@pytest.mark.parametrize(
    "template, name",
    [("{a}-{b.c/d}", "x-y"), ("{a}-{none}", ""), ("r-{owner:metadata.labels[k/e.y]}", "r-z"), ("{owner:spec}", "")],
)
def test_a_name_needs_all_its_places(template: str, name: str) -> None:
    scene = RuleScene({"a": "x", "b.c/d": "y"}, {"metadata": {"labels": {"k/e.y": "z"}}, "spec": {}})
    assert name_of(scene, template) == name
