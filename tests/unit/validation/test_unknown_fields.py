"""Unknown fields are found with their path and the field that they resemble; known ones never are."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.kinds import KINDS
from capcard_sched.validation.unknown_fields import MAX_FINDINGS, _field_names, unknown_fields
from tests.manifests import every_field

NAMES = _field_names()
#: `kind_of` of every kind with known fields, to its `apiVersion`.
VERSIONS = {kind.name: kind.api_version for kind in KINDS} | {
    name: name.partition(".")[2] for name in NAMES.kinds if "/" in name
}
OURS = [
    every_field.QUEUE + "status:\n" + "".join(f"  {line}\n" for line in every_field.QUEUE_STATUS.split("\n")),
    every_field.POD_GROUP,
    every_field.JOB.replace("somethingFromTheFuture: {kept: true}", "tty: true"),
    every_field.JOB.replace("somethingFromTheFuture: {kept: true}", "tty: true").partition("spec:")[0]
    + "status:\n"
    + "".join(f"  {line}\n" for line in every_field.JOB_STATUS.split("\n")),
    every_field.COMMAND,
    every_field.HYPER_NODE,
]


def complete(of: str, above: tuple[str, ...] = ()) -> Any:
    """A value of a type with every field, lists of one entry included; recursive types end."""
    if of.startswith("{}"):
        return {"name": complete(of[2:], above)}
    if not of or of in above:
        return "x"
    return {field: [complete(inner, (*above, of))] if number % 2 else complete(inner, (*above, of))
            for number, (field, inner) in enumerate(NAMES.types[of].items())}  # fmt: skip


def an_object(kind: str, **fields: Any) -> dict[str, Any]:
    whole: dict[str, Any] = complete(NAMES.kinds[kind])
    return whole | {"apiVersion": VERSIONS[kind], "kind": kind.partition(".")[0]} | fields


@pytest.mark.parametrize("kind", NAMES.kinds)
def test_a_complete_object_has_no_unknown_field(kind: str) -> None:
    assert unknown_fields(an_object(kind)) == []


@pytest.mark.parametrize("text", OURS, ids=lambda text: text.split()[3])
def test_the_examples_with_every_field_have_no_unknown_one(text: str) -> None:
    assert unknown_fields(yaml.safe_load(text)) == []


@pytest.mark.parametrize("of", NAMES.types)
def test_a_missing_letter_is_found_with_the_field_that_is_meant(of: str) -> None:
    for field in islice(NAMES.types[of], 40):
        typo = field[:3] + field[4:]
        if len(field) < 6 or typo in NAMES.types[of]:
            continue
        holder = next((kind for kind, name in NAMES.kinds.items() if name == of), None)
        if holder is None:
            continue
        (finding,) = unknown_fields(an_object(holder) | {typo: 1})
        assert (finding.field, finding.severity) == (typo, "error")
        assert f'did you mean "{field}"?' in finding.message


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("Queue", {"spec": {"capabilty": {}}}, ['error spec.capabilty "capability"']),
        ("Pod", {"spec": {"nodeSelecter": {}, "containers": [{"name": "a"}, {"comand": []}]}},
         ['error spec.nodeSelecter "nodeSelector"', 'error spec.containers[1].comand "command"']),
        ("Job", {"spec": {"tasks": [{"template": {"spec": {"tolerationz": []}}, "minAvailble": 1}]}},
         ['error spec.tasks[0].template.spec.tolerationz "tolerations"',
          'error spec.tasks[0].minAvailble "minAvailable"']),
        ("CronJob", {"spec": {"jobTemplate": {"spec": {"schedulerNme": "x"}}}},
         ['error spec.jobTemplate.spec.schedulerNme "schedulerName"']),
        ("Node", {"status": {"allocatble": {}}}, ['warning status.allocatble "allocatable"']),
        ("CronJob.batch/v1", {"spec": {"jobTemplate": {"spec": {"templat": {}}}}},
         ['error spec.jobTemplate.spec.templat "template"']),
        ("Pod", {"metadata": {"lables": {}, "annotations": {"any": "x"}}}, ['error metadata.lables "labels"']),
        ("Pod", {"spec": {"x" * 5000: 1}}, [f"error spec.{'x' * 5000} "]),
    ],
)  # fmt: skip
def test_each_unknown_field_is_named_where_it_is(kind: str, body: dict[str, Any], expected: list[str]) -> None:
    found = unknown_fields({"apiVersion": VERSIONS[kind], "kind": kind.partition(".")[0], **body})
    assert [f"{one.severity} {one.field} {one.message.partition('mean ')[2].rstrip('?')}" for one in found] == expected


def test_findings_of_one_object_are_bounded() -> None:
    found = unknown_fields({"apiVersion": "v1", "kind": "Pod", "spec": {f"unknown{n}": n for n in range(10_000)}})
    assert len(found) == MAX_FINDINGS + 1
    assert found[-1].message == f"{10_000 - MAX_FINDINGS} more unknown fields"


def test_kinds_of_other_groups_and_unknown_kinds_are_not_checked() -> None:
    for api_version, kind in [("mq.example.com/v1", "Queue"), ("v2", "Widget"), ("batch/v9", "Job"), ("", "")]:
        assert unknown_fields({"apiVersion": api_version, "kind": kind, "spec": {"vhost": "/"}}) == []


FIELDS = sorted({field for fields in NAMES.types.values() for field in fields})
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), one, max_size=4),
)


@given(st.sampled_from(sorted(VERSIONS)), st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_objects_of_any_form_are_survived(kind: str, body: dict[str, Any]) -> None:
    unknown_fields({"apiVersion": VERSIONS[kind], "kind": kind.partition(".")[0], **body})
