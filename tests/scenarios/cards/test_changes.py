"""Quotas and nodes that change, cards that are given back, and pods beside a mistake."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.manifests import gang, gpu_node, pod, queue
from tests.scenarios.cards.card_scene import (
    CardScene,
    ObjectEvent,
    bound_pods,
    elastic,
    h200_gang,
    h200_refusals,
    short_of,
    unreadable,
    wants,
)

H200, A100 = "NVIDIA-H200", "NVIDIA-A100-80GB"
_NO_ROOM = "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."


@pytest.fixture
def scene() -> CardScene:
    return CardScene()


def _offer(scene: CardScene, name: str, devices: Mapping[str, int]) -> None:
    amounts = {device: str(count) for device, count in devices.items()}
    scene.cluster.patch("Node", name, {"status": {"allocatable": amounts, "capacity": amounts}})


def _quota(scene: CardScene, text: str | None) -> None:
    scene.cluster.patch("Queue", "q", {"metadata": {"annotations": {keys.CARD_QUOTA: text}}})


def test_a_deployment_scaled_in_lets_another_scale_out(scene: CardScene) -> None:
    scene.make(gpu_node("h", H200, 16), queue("q", cards={H200: 8}), elastic("d1", 8, cards=H200, requests=wants()))
    scene.expect(bound=8, phases={"d1": "Running"})
    scene.make(elastic("d2", 2, cards=H200, requests=wants()))
    # d1 could do with one pod: d2 is admitted, and each of its pods is refused.
    pods = [short_of("Pod", f"d2-{index}", H200, 1, 9, 8) for index in range(2)]
    scene.expect(bound=8, emitted=pods, phases={"d2": "Inqueue"})
    for index in (6, 7):
        scene.cluster.delete("Pod", f"d1-{index}")
    scene.expect(bound=bound_pods(("d1", 6), ("d2", 2)), cards={H200: 8}, phases={"d2": "Running"})


def test_a_lowered_quota_leaves_running_pods_alone(scene: CardScene) -> None:
    scene.make(gpu_node("h", H200, 16), queue("q", cards={H200: 8}), elastic("job", 8, cards=H200, requests=wants()))
    scene.expect(bound=8)
    _quota(scene, '{"NVIDIA-H200":4}')
    scene.make([pod("job-8", group="job", cards=H200, requests=wants())])
    scene.expect(bound=8, emitted=[short_of("Pod", "job-8", H200, 1, 9, 4)], cards={H200: 8})
    _quota(scene, '{"NVIDIA-H200":9}')
    scene.expect(bound=9, cards={H200: 9})


def test_a_quota_that_is_taken_away_admits_nothing_more(scene: CardScene) -> None:
    scene.make(gpu_node("h", H200, 8), queue("q", cards={H200: 8}, capability={"cpu": "8"}), h200_gang("first", 2))
    scene.expect(bound=2)
    _quota(scene, None)
    scene.make(h200_gang("second", 1))
    scene.expect(bound=2, emitted=h200_refusals("second", 1, 1, 3, 0))


def test_pods_of_a_card_that_left_the_cluster_keep_their_charge(scene: CardScene) -> None:
    scene.make(
        gpu_node("h", H200, 8), gpu_node("a", A100, 8), queue("q", cards={H200: 4, A100: 4}), h200_gang("job", 2)
    )
    scene.expect(bound=2, phases={"job": "Running"})
    scene.cluster.delete("Node", "h")
    late = [pod("late", queue="q", cards=H200, requests=wants()), pod("other", queue="q", cards=A100, requests=wants())]
    scene.make(late)
    scene.expect(bound={**bound_pods(("job", 2)), "other": "a"}, cards={H200: 2, A100: 1})
    assert scene.shown("late") == f"0/1 nodes are unavailable: 1 node(s) didn't have card <{H200}>."
    for member in range(2):
        scene.cluster.delete("Pod", f"job-{member}")
    scene.expect(
        bound={"other": "a"}, emitted=[unreadable("late", f"no resource name found for card <{H200}>")], cards={H200: 0}
    )


def test_a_node_that_loses_cards_keeps_its_pods(scene: CardScene) -> None:
    scene.make(gpu_node("h", H200, 4), queue("q", cards={H200: 8}), h200_gang("first", 3))
    scene.expect(bound=3)
    _offer(scene, "h", {"nvidia.com/gpu": 2})
    scene.make(h200_gang("second", 1))
    scene.expect(bound=3, cards={H200: 3})
    assert scene.metric("card_total", card=H200) == 2
    assert scene.shown("second-0") == _NO_ROOM
    scene.cluster.delete("Pod", "first-0")
    scene.expect(bound=2)
    _offer(scene, "h", {"nvidia.com/gpu": 3})
    scene.expect(bound={"first-1": "h", "first-2": "h", "second-0": "h"}, cards={H200: 3})


def test_a_node_that_turns_into_another_model_takes_pods_of_that(scene: CardScene) -> None:
    scene.make(gpu_node("n", H200, 4), queue("q", cards={H200: 4, A100: 1}), h200_gang("first", 2))
    scene.expect(bound=2, cards={H200: 2})
    scene.cluster.patch("Node", "n", {"metadata": {"labels": {"nvidia.com/gpu.product": A100}}})
    scene.cluster.delete("Pod", "first-0")
    scene.cluster.delete("Pod", "first-1")
    scene.make(pod("p", queue="q", cards=f"{H200}|{A100}", requests=wants()), *h200_gang("second", 1))
    why = f"no resource name found for card <{H200}>"
    emitted = [unreadable("second-0", why)]
    scene.expect(bound={"p": "n"}, cards={H200: 0, A100: 1}, emitted=emitted)
    assert scene.objects("Pod")["p"]["metadata"]["annotations"][keys.CARD_ASSIGNED] == A100


def test_an_unreadable_request_gets_an_event_and_is_ignored_when_pods_exist(scene: CardScene) -> None:
    job = gang("job", 2, queue="q", cards=H200, requests=wants())
    job[0]["metadata"]["annotations"][keys.CARD_REQUEST] = '{"NVIDIA-H200":"two"}'
    scene.make(gpu_node("h", H200, 8), queue("q", cards={H200: 2}), job)
    detail = '<NVIDIA-H200>: "two" is not a non-negative integer'
    emitted = ObjectEvent(
        "PodGroup", "job", "InvalidCardRequest", f"Invalid annotation volcano.sh/card.request: {detail}"
    )
    scene.expect(bound={"job-0": "h", "job-1": "h"}, noted=[emitted], phases={"job": "Running"})


def test_one_wrong_pod_of_a_job_does_not_hold_back_the_others(scene: CardScene) -> None:
    job = elastic("job", 2, cards=H200, requests=wants())
    scene.make(gpu_node("h", H200, 8), queue("q", cards={H200: 8}), job)
    scene.expect(bound=2)
    scene.make([pod("job-2", group="job", cards="X", requests=wants())])
    scene.make([pod("job-3", group="job", cards=H200, requests=wants())])
    scene.expect(
        bound={"job-0": "h", "job-1": "h", "job-3": "h"},
        emitted=[unreadable("job-2", "no resource name found for card <X>")],
    )
