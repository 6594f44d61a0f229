"""Scenes of taking cards back are data on which every card runs; a small run of each wastes no eviction."""

from collections import Counter

import msgspec
import pytest

from benchmarks.bench import bench
from benchmarks.eviction_scenes import SCENES, make_scene
from benchmarks.evictions import measure_taking
from benchmarks.workloads import GPU


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_the_same_every_time(name: str) -> None:
    first, second = make_scene(name, 40, 400), make_scene(name, 40, 400)
    assert msgspec.json.encode([*first.standing(), *first.arriving()]) == msgspec.json.encode(
        [*second.standing(), *second.arriving()]
    )
    assert make_scene(name, 40, 400, seed=2).running != first.running


@pytest.mark.parametrize("name", SCENES)
def test_every_card_runs(name: str) -> None:
    scene = make_scene(name, 40, 400)
    held: Counter[tuple[str, str]] = Counter()
    for pod in scene.running:
        assert pod.spec.node_name is not None
        requested = pod.spec.containers[0].resources
        assert requested is not None
        for resource, amount in (requested.limits or {}).items():
            held[pod.spec.node_name, resource] += int(amount)
    assert len(scene.running) == 400
    for node in scene.nodes:
        for resource, amount in (node.status.allocatable or {}).items():
            if resource.startswith("nvidia.com/"):
                assert held[node.metadata.name, resource] == int(amount)


def test_t1_requests_three_cards_of_ten() -> None:
    scene = make_scene("T1", 100, 1_000)
    whole = sum(8 for node in scene.nodes if GPU in (node.status.allocatable or {}))
    kinds = [scene.kinds[pod.metadata.name.rpartition("-")[0]] for pod in scene.takers]
    requested = sum(kind.cards for kind in kinds if kind.resource == GPU)
    assert 0.3 * whole <= requested < 0.3 * whole + 64
    assert {kind.service for kind in kinds} == {"inference"}


def test_a_scene_with_too_few_pods_for_its_cards_is_an_error() -> None:
    with pytest.raises(ValueError, match="pods have cards: ask for more than 50"):
        make_scene("P1", 40, 50)


@pytest.mark.parametrize("name", SCENES)
def test_no_eviction_is_wasted(name: str) -> None:
    found = measure_taking(name, "small", 60, 600, 1)
    assert found.victims > 0
    assert found.in_vain == 0
    assert found.evictions == found.victims, "one session finds all the room there is"
    assert found.takers / 2 <= found.bound <= found.takers
    assert found.session_cpu_seconds >= found.action_cpu_seconds > 0


def test_scenes_can_be_measured_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(workloads="R1", quick=True) == 0
    printed = capsys.readouterr().out
    assert "Preemption and reclaim" in printed
    assert "Growth" not in printed
