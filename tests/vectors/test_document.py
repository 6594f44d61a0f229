"""`--rewrite` changes what a file expects and nothing else; the notation is strict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vectors.document import read, rewritten
from tests.vectors.notation import Call, calls

FILE = """\
# A file.
- conf: [allocate]
  given: node n1
  cases:
  - name: first  # kept
    expect:
  - {name: second, expect: {bind: old@n1}}  # kept too
"""


def test_new_values_stand_where_the_old_ones_stood(tmp_path: Path) -> None:
    path = tmp_path / "vectors.yaml"
    path.write_text(FILE)
    first, second = read(path)
    assert (first.name, second.name, second.given) == ("first", "second", ("node n1",))
    changes = {
        first.steps[0].spans["expect"]: {"bind": "p@n1"},
        second.steps[0].spans["expect"]: {"events": ["a b", "c: d"]},
    }
    path.write_text(rewritten(FILE, changes))
    assert path.read_text() == FILE.replace("expect:\n", "expect: {bind: p@n1}\n").replace(
        "{bind: old@n1}", "{events: [a b, 'c: d']}"
    )
    assert [vector.steps[0]["expect"] for vector in read(path)] == list(changes.values())


def test_statements_are_calls_of_the_harness() -> None:
    assert calls("group b/a min=2; pod a/x0..1 @n1 cpu=2 labels=app:1; queue q -reclaimable") == [
        Call("group", ("a",), {"queue": "b", "min_member": 2}),
        Call("pod", ("x0",), {"group": "a", "node": "n1", "requests": {"cpu": "2"}, "labels": {"app": "1"}}),
        Call("pod", ("x1",), {"group": "a", "node": "n1", "requests": {"cpu": "2"}, "labels": {"app": "1"}}),
        Call("queue", ("q",), {"reclaimable": False}),
    ]


@pytest.mark.parametrize("statement", ["pods a", "pod", "node n1 taints=[a", "queue q =3"])
def test_a_statement_that_is_not_understood_is_named(statement: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"statement <{statement}>")):
        calls(statement)
