"""Reading files: order, formats, and the scalar rules of Kubernetes' tools."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.simulation.manifests import parse_manifest, read_manifests


def value(text: str) -> Any:
    return next(iter(parse_manifest("x.yaml", text))).value


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a: 2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("a: 2026-01-01", "2026-01-01"),
        ("a: 1:30", "1:30"),
        ("a: 08", 8.0),
        ("a: 010", 8),
        ("a: 0x1F", 31),
        ("a: 1_000", 1000),
        ("a: -7", -7),
        ("a: 1e3", 1000.0),
        ("a: .5", 0.5),
        ("a: 1.5Gi", "1.5Gi"),
        ("a: yes", True),
        ("a: Off", False),
        ("a: ~", None),
        ("a:", None),
        ("a: '8'", "8"),
        ("a: !!str 8", "8"),
        ("a: =", "="),
    ],
)
def test_scalars_parse_as_kubectl_parses_them(text: str, expected: object) -> None:
    found = value(text)["a"]
    assert found == expected
    assert type(found) is type(expected)


def test_keys_become_strings() -> None:
    assert value("{1: a, true: b, 2.5: c}") == {"1": "a", "true": "b", "2.5": "c"}


def test_aliases_are_copies_and_merge_keys_give_way_to_own_keys() -> None:
    found = value("a: &x {p: 1, q: 2}\nb: *x\nc:\n  <<: *x\n  q: 3\n")
    assert found == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 2}, "c": {"p": 1, "q": 3}}
    assert found["a"] is not found["b"]


def test_documents_are_numbered_with_the_empty_ones() -> None:
    documents = list(parse_manifest("x.yaml", "# first\n---\na: 1\n---\n---\nb: 2\n"))
    assert [(document.number, document.value) for document in documents] == [(1, {"a": 1}), (3, {"b": 2})]


def test_json_may_hold_several_documents() -> None:
    documents = list(parse_manifest("x.json", '{"a": 1}\n{"a": 2}\n'))
    assert [document.value for document in documents] == [{"a": 1}, {"a": 2}]


def test_folders_give_their_files_by_name_and_a_dash_is_standard_input(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"n": 2}')
    (tmp_path / "a.yml").write_text("n: 1")
    (tmp_path / "c.txt").write_text("n: 9")
    documents = list(read_manifests([str(tmp_path), "-"], io.BytesIO(b"\xef\xbb\xbfn: 3")))
    assert [document.value["n"] for document in documents] == [1, 2, 3]
    assert documents[-1].source == "-"
