"""Every case of groups, gates and operators has a test: `group_cases.yaml` names it, and the test exists."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

TESTS = Path(__file__).parents[1]
CASES: dict[str, list[dict[str, str]]] = yaml.safe_load(Path(__file__).with_name("group_cases.yaml").read_text("utf-8"))
#: Names of tests may be cut into lines.
_WORDS = cache(lambda name: " ".join((TESTS / name).read_text("utf-8").split()))


def test_the_tests_of_all_cases_exist() -> None:
    rows = [(number, name, text) for number, found in CASES.items() for row in found for name, text in row.items()]
    assert [row for row in rows if " ".join(row[2].split()) not in _WORDS(row[1])] == []
