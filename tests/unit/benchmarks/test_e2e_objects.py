"""Objects of the end-to-end benchmark, and its detection of a wrong placement."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.e2e import objects
from benchmarks.e2e.explaining import saved
from benchmarks.e2e.objects import Document, Gang
from capcard_sched.daemon.diagnosis.saved_state import manifests_of, read_saved_state
from capcard_sched.model import annotations as keys

MADE = objects.gangs(80)
QUOTA = objects.quotas(MADE)


def cards(gang: Gang) -> list[str]:
    return str(gang.pods[0]["metadata"]["annotations"][keys.CARD_NAME]).split("|")


def bound(*, of: int = len(MADE)) -> list[Document]:
    """Every pod of the first gangs on a node of its own model, eight to a node."""
    free = {model: iter(range(8 * objects.CARDS_PER_NODE)) for model in objects.MODELS}
    pods = []
    for gang in MADE[:of]:
        model = cards(gang)[0]
        for pod in gang.pods:
            number = next(free[model]) // objects.CARDS_PER_NODE * len(objects.MODELS) + list(objects.MODELS).index(
                model
            )
            pods.append({**pod, "spec": {**pod["spec"], "nodeName": f"node-{number:05d}"}})
    return pods


def test_the_workload_is_as_described() -> None:
    made = objects.gangs(5000)
    assert len(made) == 625
    assert {len(gang.pods) for gang in made} == {8}
    assert sum(len(cards(gang)) == 2 for gang in made) / len(made) == pytest.approx(0.3, abs=0.01)
    assert all(len(set(cards(gang))) == len(cards(gang)) for gang in made)
    queues = Counter(gang.group["spec"]["queue"] for gang in made)
    assert set(queues) == set(objects.QUEUES)
    assert max(queues.values()) - min(queues.values()) <= 1
    assert len({node["metadata"]["labels"]["nvidia.com/gpu.product"] for node in objects.nodes(8)}) == 4


def test_a_right_placement_passes() -> None:
    assert objects.violations(bound(), MADE, QUOTA) == []


def test_a_wrong_placement_is_noticed() -> None:
    pods = bound()
    model = cards(MADE[0])
    wrong = next(number for number in range(4) if objects.card_of(number) not in model)
    pods[0]["spec"]["nodeName"] = f"node-{wrong:05d}"
    assert any("accepts" in text for text in objects.violations(pods, MADE, QUOTA))


def test_a_full_node_a_torn_gang_and_an_exceeded_quota_are_noticed() -> None:
    pods = bound()
    crowded = [{**pod, "spec": {**pod["spec"], "nodeName": pods[0]["spec"]["nodeName"]}} for pod in pods[:9]]
    assert any("has 9 pods" in text for text in objects.violations(crowded + pods[9:], MADE, QUOTA))
    assert any("7 of 8 pods" in text for text in objects.violations(pods[:-1], MADE, QUOTA))
    short = {queue: dict.fromkeys(quota, 7) for queue, quota in QUOTA.items()}
    assert any("of 7" in text for text in objects.violations(pods, MADE, short))


def test_the_file_of_a_full_cluster_is_a_saved_state_in_which_every_card_is_held(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_bytes(saved(10, 100))
    state = read_saved_state(file)
    assert state is not None
    pods = [pod for pod in manifests_of(state.deltas) if pod["kind"] == "Pod"]
    held = Counter(pod["spec"]["nodeName"] for pod in pods if pod["status"]["phase"] == "Running")
    assert held == dict.fromkeys((f"node-{number:05d}" for number in range(10)), objects.CARDS_PER_NODE)
