"""The scenes of neighbours place everything, as their pods prefer."""

from __future__ import annotations

import pytest

from benchmarks.measure import run_session
from benchmarks.neighbours import NEIGHBOURS, coming, measure_placing, scene_core


@pytest.mark.parametrize("scene", NEIGHBOURS)
def test_every_scene_places_all_of_its_pods(scene: str) -> None:
    found = measure_placing(scene, "S", 60, 1)
    assert (found.pods, found.placed) == (48, 48)


def _placed(scene: str, nodes: int, groups: int) -> list[list[str]]:
    """The nodes of each gang's pods."""
    core = scene_core(scene, nodes)
    for delta in coming(scene, groups):
        core.apply(delta)
    where: dict[str, list[str]] = {}
    for bind in run_session(core).binds:
        where.setdefault(bind.name.rpartition("-")[0], []).append(bind.node)
    return list(where.values())


def test_members_that_keep_apart_are_on_nodes_of_their_own() -> None:
    gangs = _placed("A1", 40, 4)
    assert [len(set(nodes)) for nodes in gangs] == [8] * 4


def test_members_that_spread_are_even_over_the_zones() -> None:
    for nodes in _placed("Z1", 40, 4):
        zones = [int(node.removeprefix("node-")) % 4 for node in nodes]
        assert sorted(zones) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_hyper_nodes_fill_up_one_after_the_other() -> None:
    leaves = {int(node.removeprefix("node-")) // 20 for nodes in _placed("N1", 80, 4) for node in nodes}
    assert len(leaves) == 1


def test_pods_go_where_the_measured_load_is_low() -> None:
    session = scene_core("U1", 40).snapshot().session
    assert session is not None
    load = {name: (measured.cpu or 0) + (measured.memory or 0) for name, measured in session.usage.items()}
    used = {node for nodes in _placed("U1", 40, 2) for node in nodes}
    assert 0 < len(used) < 40
    assert max(load[node] for node in used) < sorted(load.values())[30]
