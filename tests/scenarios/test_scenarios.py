"""Runs every `*.yaml` beside this file through `simulate` and compares the cluster with what the file expects.

A scenario file has manifests, as `capcard-sched simulate -f` reads them, and one document with the key `expect`: a list
of moments. Beside it, `cluster` has objects and `operations` what happens later, in the notation of `notation.py`.

    expect:
    - until: 30s                  # run from the start to this virtual time; absent: to the end
      objects:
      - kind: Pod                 # at least one such object exists; `count` asks for an exact number
        name: train-*             # absent: any name
        count: 2
        match:                    # these fields have these values; more fields may be there
          status: {phase: Running}

In `match`, `*` in a string stands for anything, and every entry of a list must fit some entry of the object's list.
`options` beside `expect` may hold schedulerNames, defaultQueue, schedulePeriod and conf (a scheduler-conf: its
text, or the list of `tests/vectors`).
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import default_conf, parse_conf
from capcard_sched.framework.core import Core
from capcard_sched.model.timestamps import parse_span
from capcard_sched.simulation.manifests import as_list, parse_manifest
from capcard_sched.simulation.run import DEFAULT_SCHEDULERS, SimulationOptions, simulate
from capcard_sched.simulation.scenario_reader import load_scenario
from tests.scenarios.notation import objects_of
from tests.vectors.world import conf_text

FILES = sorted(Path(__file__).parent.glob("*.yaml"))
REGISTRY = Registry.load()


def fits(wanted: Any, found: Any) -> bool:
    """Whether a value is what the file wants, or has it inside."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            (value is None and key not in found) or (key in found and fits(value, found[key]))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(fits(one, other) for other in found) for one in wanted)
    if isinstance(wanted, str) and isinstance(found, str):
        # Only `*` is special: messages are full of brackets.
        return fnmatchcase(found, wanted.replace("[", "[[]").replace("?", "[?]"))
    return bool(wanted == found)


def run(objects: list[dict[str, Any]], options: dict[str, Any], until: str | None) -> list[Any]:
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    scenario = load_scenario(["-"], stdin=_Text(json.dumps(listed)), existing_queues=("root", "default"))
    if "conf" in options:
        result = parse_conf(conf_text(options["conf"]), registry=REGISTRY)
        assert result.conf is not None, result.problems
        conf = result.conf
    else:
        conf = default_conf(REGISTRY)
    chosen = SimulationOptions(
        tuple(options.get("schedulerNames", DEFAULT_SCHEDULERS)),
        options.get("defaultQueue", "default"),
        parse_span(options.get("schedulePeriod", "1s")),
        None if until is None else parse_span(until),
    )
    core = Core(conf, REGISTRY, chosen.scheduler_names, chosen.default_queue)
    items: list[Any] = as_list(simulate(scenario, core, chosen).store)["items"]
    return items


class _Text:
    def __init__(self, text: str) -> None:
        self._text = text

    def read(self) -> str:
        return self._text


def moments() -> list[Any]:
    found = []
    for path in FILES:
        documents = [document.value for document in parse_manifest(str(path), path.read_text())]
        given = [document for document in documents if "expect" not in document]
        plan = next(document for document in documents if "expect" in document)
        objects = [*given, *objects_of(plan)]
        for number, moment in enumerate(plan["expect"]):
            name = f"{path.stem}-{moment.get('until', 'end')}-{number}"
            found.append(pytest.param(objects, plan.get("options", {}), moment, id=name))
    return found


@pytest.mark.parametrize("objects, options, moment", moments())
def test_scenario(objects: list[Any], options: dict[str, Any], moment: dict[str, Any]) -> None:
    items = run(objects, options, moment.get("until"))
    for wanted in moment["objects"]:
        assert set(wanted) <= {"kind", "name", "count", "match"}, wanted
        alike = [
            item
            for item in items
            if item["kind"] == wanted["kind"] and fits(wanted.get("name", "*"), item["metadata"]["name"])
        ]
        found = [item for item in alike if fits(wanted.get("match", {}), item)]
        right = len(found) == wanted["count"] if "count" in wanted else bool(found)
        assert right, f"wanted {wanted}, found {len(found)} among {json.dumps(alike, indent=1)[:6000]}"


def test_every_scenario_file_expects_something() -> None:
    assert FILES
    assert len(moments()) >= len(FILES)


def test_a_wanted_field_that_is_missing_or_different_does_not_fit() -> None:
    assert not fits({"status": {"phase": "Running"}}, {"status": {"phase": "Pending"}})
    assert not fits({"status": {"phase": "Running"}}, {})
    assert not fits([{"type": "Ready"}], [{"type": "Other"}])
    assert fits({"a": [{"b": "x*"}]}, {"a": [{"b": "no"}, {"b": "xyz", "c": 1}]})
