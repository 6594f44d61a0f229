"""Workloads and scenes of the benchmarks are data: sizes and shares hold, and the same name gives the same objects."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from benchmarks.bench import bench
from benchmarks.claim_objects import CLAIMED
from benchmarks.claims import PLAIN_PODS as PLAIN_CLAIMS
from benchmarks.claims import measure_claims
from benchmarks.eviction_scenes import SCENES, make_scene
from benchmarks.evictions import measure_taking
from benchmarks.measure import run_session
from benchmarks.neighbours import NEIGHBOURS, coming, measure_placing, scene_core
from benchmarks.shared_cards import PLAIN_PODS, SHARED, measure_sharing
from benchmarks.workloads import GPU, MIG_CARD, MPS_CARD, WORKLOADS, make


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_every_time_and_has_the_requested_size(name: str) -> None:
    workload = make(name, 40, 300)
    assert msgspec.json.encode(workload.deltas()) == msgspec.json.encode(make(name, 40, 300).deltas())
    assert make(name, 40, 300, seed=1).pods != make(name, 40, 300, seed=2).pods
    groups = [(pod.metadata.annotations or {})["scheduling.k8s.io/group-name"] for pod in workload.pods]
    assert (len(workload.nodes), len(workload.pods)) == (40, 300)
    assert Counter(groups) == {group.metadata.name: group.spec.min_member for group in workload.groups}
    assert len({pod.metadata.uid for pod in workload.pods}) == 300


def test_the_mixed_workload_has_the_shares_it_claims() -> None:
    workload = make("W3", 2000, 20_000)
    cards = Counter((pod.metadata.annotations or {}).get("volcano.sh/card.name", "") for pod in workload.pods)
    part = {
        "several": sum(count for card, count in cards.items() if "|" in card) / 20_000,
        "slices": (cards[MPS_CARD] + cards[MIG_CARD]) / 20_000,
        "none": cards[""] / 20_000,
    }
    assert part == pytest.approx({"several": 0.3, "slices": 0.1, "none": 0.3}, abs=0.05)
    assert len(workload.queues) == 40
    assert len(workload.short_queues) == 4


# --- scenes of taking cards back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_the_same_every_time_and_every_card_runs(name: str) -> None:
    scene, again = make_scene(name, 40, 400), make_scene(name, 40, 400)
    assert msgspec.json.encode([*scene.standing(), *scene.arriving()]) == msgspec.json.encode(
        [*again.standing(), *again.arriving()]
    )
    assert make_scene(name, 40, 400, seed=2).running != scene.running
    held: Counter[tuple[str | None, str]] = Counter()
    for pod in scene.running:
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


# --- scenes of neighbours and of shared cards -----------------------------------------------------------------------


@pytest.mark.parametrize("scene", NEIGHBOURS)
def test_every_scene_of_neighbours_places_all_of_its_pods(scene: str) -> None:
    found = measure_placing(scene, "S", 60, 1)
    assert (found.pods, found.placed) == (48, 48)


def placed(scene: str, nodes: int, groups: int) -> list[list[int]]:
    """The numbers of the nodes of each gang's pods."""
    core = scene_core(scene, nodes)
    for delta in coming(scene, groups):
        core.apply(delta)
    where: dict[str, list[int]] = {}
    for bind in run_session(core).binds:
        where.setdefault(bind.name.rpartition("-")[0], []).append(int(bind.node.removeprefix("node-")))
    return list(where.values())


def test_members_keep_apart_spread_over_zones_and_fill_hyper_nodes_one_after_the_other() -> None:
    assert [len(set(nodes)) for nodes in placed("A1", 40, 4)] == [8] * 4
    assert [sorted(node % 4 for node in nodes) for nodes in placed("Z1", 40, 4)] == [[0, 0, 1, 1, 2, 2, 3, 3]] * 4
    assert len({node // 20 for nodes in placed("N1", 80, 4) for node in nodes}) == 1


def test_pods_go_where_the_measured_load_is_low() -> None:
    session = scene_core("U1", 40).snapshot().session
    assert session is not None
    load = {
        int(name.removeprefix("node-")): (found.cpu or 0) + (found.memory or 0)
        for name, found in session.snapshot.usage.items()
    }
    used = {node for nodes in placed("U1", 40, 2) for node in nodes}
    assert 0 < len(used) < 40
    assert max(load[node] for node in used) < sorted(load.values())[30]


@pytest.mark.parametrize("scene", SHARED)
def test_the_engine_and_the_plain_loop_choose_the_same_nodes_for_shares(scene: str) -> None:
    found = measure_sharing(scene, "small", 40, repeats=1)
    assert found.placed == found.pods > PLAIN_PODS
    assert found.agreed == PLAIN_PODS
    assert found.card_bytes > 0


@pytest.mark.parametrize("scene", CLAIMED)
def test_the_engine_and_the_plain_loop_give_the_same_devices(scene: str) -> None:
    found = measure_claims(scene, "small", 40, repeats=1)
    assert found.placed == found.pods > PLAIN_CLAIMS
    assert found.agreed == PLAIN_CLAIMS
    assert found.claim_bytes > 0
