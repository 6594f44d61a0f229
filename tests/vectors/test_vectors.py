"""Runs the vectors of `*.yaml` beside this file on the harness. CONTRIBUTING.md has an example.

    - conf: [allocate, [priority, gang]]   # actions, tiers; what a block has, its cases have
      cases:
      - name: a gang waits for its last pod
        given: node n1 cpu=2; queue q; group g min=3; pod p0..2
        expect: {refuse: ...}

Keys of a vector: `name`, `conf`, `run` (bound pods run), `provisioning` (class of ProvisioningRequests), `settle`
(`sessions: 0` in all steps), `given` (statements of `notation.py`), then one step or a list `steps`, `cases` (vectors
that continue this one). Keys of a step, in the order of execution: `reload` (another conf), `do` (statements), `try`
(operations of a statement), `ask` (questions to plugins), `after` (seconds since the last session), `sessions` (their
number; 0: until nothing changes), `expect` (what they decide: `bind` and `evict` always, other keys where given).

`pytest --rewrite tests/vectors` writes `expect` and `ask` anew with what the code gives: every key that is there,
and for an empty `expect:` what was decided and refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.vectors.document import FOLDER, Span, Vector, read, rewritten
from tests.vectors.world import DECISIONS, World, conf_text

FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def changes(request: pytest.FixtureRequest) -> Iterator[dict[Any, dict[Span, Any]] | None]:
    """With `--rewrite`, collects new values by file and writes them at the end; else None."""
    if not request.config.getoption("--rewrite"):
        yield None
        return
    if os.environ.get("CI"):
        pytest.fail("--rewrite is for a checkout: CI compares")
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail("--rewrite needs one process: -n 0")
    found: dict[Any, dict[Span, Any]] = {}
    yield found
    for path, values in found.items():
        path.write_text(rewritten(path.read_text(), values))


def _outcome(world: World, step: dict[str, Any], sessions: int | None) -> dict[str, Any]:
    """New values of the keys of a step, which runs this number of sessions unless it names another."""
    found: dict[str, Any] = {}
    if "reload" in step:
        world.harness.reconfigure(conf_text(step["reload"]))
    if "do" in step:
        world.do(step["do"])
    if "after" in step and "expect" not in step:
        world.wait(step["after"])
    if "try" in step:
        world.try_out(step["try"])
    if "ask" in step:
        found["ask"] = {question: world.ask(question) for question in step["ask"]}
    if "expect" in step:
        decided = world.step(step.get("after"), step.get("sessions", sessions))
        wanted = step["expect"]
        keys = ("nominate", "phase", "refuse") if wanted is None else tuple(wanted)
        for key in {"texts", "annotations"} & set(wanted or ()):
            decided[key] = {one: decided[key].get(one, "") for one in wanted[key]}
        for key in {"uses", "explain"} & set(wanted or ()):
            decided[key] = {name: getattr(world, key)(name) for name in wanted[key]}
        kept = {key: decided[key] for key in keys if key not in DECISIONS and (decided[key] or wanted is not None)}
        found["expect"] = {**{key: decided[key] for key in DECISIONS if decided[key]}, **kept}
        if "errors" not in keys:
            assert not decided["errors"], decided["errors"]
    return found


@pytest.mark.parametrize(
    "vector", [pytest.param(one, id=f"{path.stem}: {one.name}") for path in FILES for one in read(path)]
)
def test_vector(vector: Vector, changes: dict[Any, dict[Span, Any]] | None) -> None:
    world = World(vector.conf, run=vector.run, provisioning=vector.provisioning)
    for given in vector.given:
        world.do(given)
    for number, step in enumerate(vector.steps, 1):
        for key, value in _outcome(world, step, 0 if vector.settle else None).items():
            if changes is None:
                assert value == step[key], f"{vector.path.name}, {vector.name}, step {number}: {key}"
            elif value != step[key]:
                changes.setdefault(vector.path, {})[step.spans[key]] = value
