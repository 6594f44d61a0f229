"""Arguments of plugins and actions: `arguments.yaml` beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.testing import registry

ROWS: Final = [
    [plugin, *row]
    for plugin, rows in yaml.safe_load(Path(__file__).with_name("arguments.yaml").read_text()).items()
    for row in rows
]
#: What the rows of a plugin add to: without it there is one more warning.
BASES: Final = {"extender": {"extender.urlPrefix": "http://extender.example:8080", "extender.jobReadyVerb": "ready"}}


def in_use(name: str, given: dict[str, Any]) -> tuple[Any, list[Any], str]:
    """The arguments by name as JSON has them, None for a rejected conf; the problems; the place of the arguments."""
    action = name.partition("action ")[2]
    entry = {"name": action or name, "arguments": {**BASES.get(name, {}), **given}}
    conf = {"actions": action or "allocate", "tiers": [{"plugins": [{"name": "gang"} if action else entry]}]}
    conf["configurations"] = [entry] if action else []
    result = parse_conf(yaml.safe_dump(conf), registry=registry())
    place = "configurations[0].arguments" if action else "tiers[0].plugins[0].arguments"
    if result.conf is None:
        return None, list(result.problems), place
    found = result.conf.action_arguments.get(action) if action else result.conf.tiers[0][0].arguments
    return json.loads(msgspec.json.encode(found)), list(result.problems), place


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}"[:100])
def test_an_argument_is_read_or_reported_with_its_place_and_the_rest_stays(row: list[Any]) -> None:
    plugin, given, *more = row
    place, words, expected = (*more, {})[:3] if more else ("", "", given)
    found, problems, arguments = in_use(plugin, given)
    assert [problem.path for problem in problems] == [arguments + place] * bool(words)
    for problem in problems:
        assert problem.severity == ("error" if expected == "rejected" else "warning")
        for word in [words] if isinstance(words, str) else words:
            assert word in problem.render()
    if expected == "rejected":
        assert found is None
        return
    default: dict[str, Any] = in_use(plugin, {})[0] if given else {}
    assert {name: value for name, value in found.items() if value != default.get(name, ...)} == expected
