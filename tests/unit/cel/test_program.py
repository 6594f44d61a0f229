"""Expressions over one device, as data, against the verdicts of cel-go."""

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from capcard_sched.cel.program import Program
from capcard_sched.cel.values import EvaluationError
from capcard_sched.devices.selectors import compile_selector, device_value
from capcard_sched.model.device_objects import SliceDevice

CASES: Final = yaml.safe_load((Path(__file__).parent / "selectors.yaml").read_text("utf-8"))
DEVICE: Final[dict[str, Any]] = {
    "name": "g0",
    "attributes": {
        "model": {"string": "a100"},
        "mem": {"int": 80},
        "flag": {"bool": True},
        "version": {"version": "1.9.3"},
        "other.com/speed": {"int": 5},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}
#: cel-go compiles constants, and lists of one type only.
KNOWN_DIFFERENCES: Final = {
    'int("x") == 12': "runtime",
    '[?device.attributes["d"].?nope, 1] == [1]': "true",
}
#: Each of eight variables is ten times as long as the one before.
_NAMES: Final = "abcdefghi"
DOUBLING: Final = (
    'cel.bind(a, "xxxxxxxxxx", '
    + "".join(f"cel.bind({name}, {'+'.join(before * 10)}, " for before, name in pairwise(_NAMES))
    + "true"
    + ")" * len(_NAMES)
)


def verdict(expression: str) -> str:
    program = compile_selector(expression)
    if not isinstance(program, Program):
        return "compile"
    try:
        return str(program.evaluate(device_value(msgspec.convert(DEVICE, SliceDevice), "d"))).lower()
    except EvaluationError:
        return "runtime"


@pytest.mark.parametrize(("expected", "expression"), CASES, ids=[case[1] for case in CASES])
def test_an_expression_has_the_verdict_of_cel_go(expected: str, expression: str) -> None:
    assert verdict(expression) == KNOWN_DIFFERENCES.get(expression, expected)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("[0,1,2,3,4,5,6,7,8,9].all(a, " * 7 + "true" + ")" * 7, "CEL: too many steps"),
        (DOUBLING, "CEL: too many steps"),
        ("lists.range(1000000000).size() > 0", "CEL: too many steps"),
        ('"%s".format([lists.range(90000)]) == ""', "CEL: too many steps"),
    ],
    ids=["nested loops", "doubling strings", "a long list", "a long text"],
)
def test_an_expensive_expression_ends_with_an_error(expression: str, text: str) -> None:
    program = compile_selector(expression)
    assert isinstance(program, Program), program
    with pytest.raises(EvaluationError, match=text):
        program.evaluate(device_value(msgspec.convert(DEVICE, SliceDevice), "d"))


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5000 + "true" + ")" * 5000,
        "!" * 9000 + "true",
        "1" + "+1" * 5000 + " == 1",
        "device" + ".a" * 5000,
        "true" + " && true" * 1200,
        "[" * 3000,
        "true ? " * 1000 + "true",
        "9" * 10000 + " == 1",
        "'" + "x" * 11000 + "' == ''",
        '"x".matches("' + "(" * 1000 + '")',
        '"x".matches("' + "a{1000}" * 10 + '")',
        '"' + "a" * 2000 + 'b".matches("(a|aa|aaa)*c") || true',
        "\x00",
        "",
    ],
    ids=range(14),
)
def test_no_expression_raises_anything_else(expression: str) -> None:
    assert verdict(expression) in {"true", "compile", "runtime"}


def test_the_cost_error_is_not_absorbed() -> None:
    assert verdict("lists.range(1000000).size() > 0 || true") == "runtime"
