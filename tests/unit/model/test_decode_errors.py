"""Messages about wrong values: every error of the decoder becomes field, accepted form and value found."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from capcard_sched.model.decode_errors import FieldProblem, field_problem

ROOT = Path(__file__).parents[3]


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    count: int = 0


class _Needed(msgspec.Struct):
    name: str


@pytest.mark.parametrize(
    ("declared", "value", "text"),
    [
        (int, "x", 'expected an integer, got the string "x"'),
        (int | None, 1.5, "expected an integer, got the number 1.5"),
        (str | int | float, [], "expected a quantity such as 500m, 2 or 16Gi, got a list"),
        (dict[str, _Part], {"a": {}, "b.c/d": {"count": "x"}},
         '["b.c/d"].count: expected an integer, got the string "x"'),
        (list[_Part], [{}, {"count": None}], "[1].count: expected an integer, got null"),
        (dict[str, str], {1: "a"}, "a key: expected a string"),
        (dict[str, dict[str, int]], {"a": {"b": 1}, "c": {"d": True}}, "c.d: expected an integer, got true"),
        (_Part, {"coutn": 1}, "coutn: unknown field"),
        (list[_Needed], [{"name": "a"}, {}], "[1].name: is required"),
        (Annotated[int, Meta(ge=1)], 0, "expected an integer, at least 1, got the number 0"),
        (dict[str, Annotated[int, Meta(le=9)]], {"a": 9, "b": 10},
         "b: expected an integer, at most 9, got the number 10"),
        (Annotated[float, Meta(gt=0)], 0.0, "expected a number, above 0.0, got the number 0.0"),
        (Annotated[float, Meta(lt=1)], 2.5, "expected a number, below 1.0, got the number 2.5"),
        (Annotated[str, Meta(min_length=1)], "", 'expected a string, of length at least 1, got the string ""'),
        (dict[str, Annotated[str, Meta(max_length=1)]], {"a": "", "b": "xx"},
         'b: expected a string, of length at most 1, got the string "xx"'),
        (tuple[int, int], [1], "expected a list, of length exactly 2, got a list"),
        (Annotated[str, Meta(pattern="^a$")], "b", "expected a string matching regex '^a$', got the string \"b\""),
        (Literal["a", "b"], "c", "invalid enum value 'c'"),
    ],
)  # fmt: skip
def test_an_error_names_field_form_and_value(declared: Any, value: Any, text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, declared)
    assert str(field_problem(caught.value, value)) == text


def test_without_the_value_the_decoder_names_its_type() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"count": "x"}, _Part)
    assert field_problem(caught.value) == FieldProblem("count", "expected an integer, got a string")
    with pytest.raises(msgspec.DecodeError) as broken:
        msgspec.json.decode(b"{")
    assert str(field_problem(broken.value)) == "input data was truncated"
    with pytest.raises(msgspec.DecodeError) as malformed:
        msgspec.json.decode(b"{]")
    assert str(field_problem(malformed.value)).startswith("JSON is malformed")


@pytest.mark.parametrize(
    ("field", "whole"), [("b", "a.b: m"), ("[1].b", "a[1].b: m"), ("", "a: m"), ('["x/y"]', 'a["x/y"]: m')]
)
def test_a_field_of_a_field(field: str, whole: str) -> None:
    assert str(FieldProblem(field, "m").within("a")) == whole


def _formatted(handler: ast.ExceptHandler) -> Iterator[str]:
    """The places where the caught error is formatted as it is."""
    for node in ast.walk(handler):
        if isinstance(node, ast.FormattedValue):
            texts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
            texts = list(node.args)
        else:
            continue
        if any(isinstance(text, ast.Name) and text.id == handler.name for text in texts):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_message_has_the_text_of_the_decoder() -> None:
    """A caught error of the decoder is never formatted, only converted, handed on or raised from."""
    found, handlers = [], 0
    for folder in ("capcard_sched", "actions", "plugins", "distributions"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ExceptHandler) and node.name and "msgspec." in ast.unparse(node.type or node):
                    handlers += 1
                    found += [f"{path.relative_to(ROOT)}: {place}" for place in _formatted(node)]
    assert handlers > 15
    assert not found, "\n".join(found)
