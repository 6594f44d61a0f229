"""Rules of admission over files: objects of any form are survived, and a tree is judged as by its definition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.admission.manifests import MAX_FINDINGS, FileView
from capcard_sched.validation.queue_tree import QueueTree, amounts_of
from capcard_sched.validation.structure import check_object
from capcard_sched.validation.unknown_fields import _field_names
from tests.unit.validation.test_unknown_fields import VERSIONS

FIELDS = sorted({field for name in ("Pod", "PodSpec", "Container", "PodTemplateSpec", "Job.spec", "Job.spec.tasks",
                                    "Queue.spec", "ObjectMeta", "CronJob.spec.jobTemplate", "VolumeMount", "EnvVar")
                 for field in _field_names().types[name]})  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), one, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from(sorted(VERSIONS)), st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_objects_whose_known_fields_have_their_types_are_checked(kind: str, body: dict[str, Any]) -> None:
    obj = {"apiVersion": VERSIONS[kind], "kind": kind.partition(".")[0], **body}
    plain = json.loads(json.dumps(obj))
    if not list(check_object(kind, plain)):
        FileView([plain]).check(plain)
    assert plain == obj


def test_findings_of_one_object_are_bounded() -> None:
    containers = [{"name": f"c{number}"} for number in range(1000)]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": containers}}
    found = FileView([pod]).check(pod)
    assert len(found) == MAX_FINDINGS + 1
    assert found[-1].message == f"{1000 - MAX_FINDINGS} more problems"


AMOUNT = st.none() | st.integers(0, 4)
QUEUE = st.tuples(st.integers(-1, 5), AMOUNT, AMOUNT, AMOUNT)


@given(st.lists(QUEUE, min_size=1, max_size=6))
def test_a_tree_is_judged_as_by_its_definition(rows: list[tuple[int, int | None, int | None, int | None]]) -> None:
    """Each row: the number of the parent, capability, deserved and guarantee of cpu. Parents may form cycles."""
    tree = QueueTree()
    for number, (parent, *amounts) in enumerate(rows):
        capability, deserved, guarantee = ({} if each is None else {"cpu": each} for each in amounts)
        spec = {"capability": capability, "deserved": deserved, "guarantee": {"resource": guarantee}}
        tree.set_queue(f"q{number}", f"q{parent}" if parent >= 0 else "root", amounts_of(spec))

    def ancestors(number: int) -> Iterator[int]:
        seen = {number}
        while (number := rows[number][0]) not in seen and 0 <= number < len(rows):
            seen.add(number)
            yield number

    for number, (_, most, *sums) in enumerate(rows):
        above = next((rows[one][1] for one in ancestors(number) if rows[one][1] is not None), None)
        exceeds = most is not None and above is not None and most > above
        assert bool(list(tree.below_ancestors(f"q{number}"))) is exceeds
        expected = set()
        for field, limit, column in zip(("deserved", "guarantee"), sums, (2, 3), strict=True):
            below = [row[column] or 0 for row in rows if row[0] == number]
            if limit is not None and sum(below) > limit:
                expected.add(field)
        assert {one.field.split(".")[1].partition("[")[0] for one in tree.sums_below(f"q{number}")} == expected
