"""Which waiting pods with ResourceClaims a session attempts again after a change.

Another scheduler's pods hold all devices: those of kind a on node n0, those of kind b on n1.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.properties.test_failed_claims import CONFS, Claimants, Gang, World

#: Job to its pods: what the claim of each wants. All of a gang start, or none.
_JOBS: Final = {
    "one a": (0,),
    "two a": (0, 0),
    "one b": (1,),
    "a and b": (0, 1),
    "a pair of a": (3,),
    "share a claim": (-1, -1),
}
_NONE: Final[set[str]] = set()
#: Changes of one session to the jobs that it attempts, and those of them that it binds.
_CASES: Final[dict[str, tuple[list[tuple[Any, ...]], set[str], set[str]]]] = {
    "a claim that no pod has": ([("claim", "other", 0)], _NONE, _NONE),
    "a device of kind a is free": ([("free", 0)], {"one a", "a and b", "share a claim"}, {"one a"}),
    "two devices of kind a are free": (
        [("free", 0), ("free", 1)],
        {"one a", "two a", "a pair of a", "a and b", "share a claim"},
        {"one a", "share a claim"},
    ),
    "a device of kind b is free": ([("free", 2)], {"one b", "share a claim"}, {"one b"}),
    "a device of each kind is free": (
        [("free", 0), ("free", 2)],
        {"one a", "one b", "a and b", "share a claim"},
        {"one a", "one b"},
    ),
    "the claim of a pod is another one": ([("claim", "j2-0-x", 0, "j2-0", "new")], {"one b"}, _NONE),
    "the claim of a pod goes": ([("drop", "j1-1-x")], {"two a"}, _NONE),
    "the claim that pods share has a device": (
        [("free", 3), ("allocated", "shared", "n1", 1)],
        {"share a claim"},
        {"share a claim"},
    ),
    "a node has other devices": ([("slice", "n1")], {*_JOBS}, {"share a claim"}),
    "the class is another one": ([("class", "a")], {*_JOBS}, _NONE),
}


def _happen(run: Claimants, what: str, *more: Any) -> None:
    match what:
        case "free":
            run.drop_claim(f"foreign{more[0]}")
        case "claim":
            run.claim(*more)
        case "drop":
            run.drop_claim(*more)
        case "allocated":
            name, node, device = more
            run.allocate(name, node, device, [])
        case "slice":
            run.devices[more[0]].append(("c", 0))
            run.slice(more[0])
        case "class":
            run.device_class(more[0])


@pytest.mark.parametrize("case", _CASES)
def test_a_change_wakes_the_pods_that_it_may_help(case: str) -> None:
    changes, attempted, bound = _CASES[case]
    gangs = [Gang("q", len(pods), pods, 1) for pods in _JOBS.values()]
    nodes = [(40, [("a", 0), ("a", 0)]), (40, [("b", 0), ("b", 1)])]
    run = Claimants(CONFS["plain"], World(nodes, gangs, [], 4))
    names = {f"default/j{number}": name for number, name in enumerate(_JOBS)}
    for _ in range(3):
        run.step(1, late=False)
    assert not run.h.binds
    assert {names[job.key] for job in run.h.core.snapshot().failed_attempts} == {*_JOBS}
    for change in changes:
        _happen(run, *change)
    decisions, _ = run.step(1, late=False)
    started = {names[f"default/{bind.name.rpartition('-')[0]}"] for bind in decisions}
    assert {names[key] for key in run.h.last_session.results.touched_jobs} == attempted
    assert started == bound
