"""Sessions do not import `numpy.ma`: that takes 0.1 CPU s, in the first session that sorts out equal numbers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import numpy as np
import pytest

_ROOT: Final = Path(__file__).parents[2]
#: NumPy imports `numpy.ma` to find out whether the argument is masked.
_IMPORTING: Final = frozenset({"unique", "union1d", "setdiff1d", "setxor1d"})
#: With one of these arguments it does not.
_SORTING: Final = frozenset({"return_index", "return_inverse", "return_counts"})


def importing_calls(source: str) -> list[int]:
    """The lines with calls of NumPy that import `numpy.ma`."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _IMPORTING
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "np"
        and not _SORTING & {keyword.arg for keyword in node.keywords}
    ]


def _packages() -> list[Path]:
    return [path for folder in ("capcard_sched", "actions", "plugins") for path in (_ROOT / folder).rglob("*.py")]


def test_no_module_calls_them() -> None:
    paths = _packages()
    assert len(paths) > 100
    found = [f"{path.relative_to(_ROOT)}:{line}" for path in paths for line in importing_calls(path.read_text())]
    assert found == [], "use np.bincount(numbers).nonzero()[0]"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("np.unique(rows)", [1]),
        ("x = 1\nnp.setdiff1d(a, b)", [2]),
        ("np.unique(rows, return_inverse=True)", []),
        ("rows.unique()", []),
    ],
)
def test_a_call_is_found(source: str, lines: list[int]) -> None:
    assert importing_calls(source) == lines


def test_the_replacement_is_the_same() -> None:
    numbers = np.array([5, 0, 5, 2, 2, 9])
    assert np.bincount(numbers).nonzero()[0].tolist() == sorted(set(numbers.tolist()))
