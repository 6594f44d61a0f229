"""Wrong annotations and labels: their object gets an event, and everything else is scheduled.

Each class of malformed annotations, beside valid jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.manifests import gang, gpu_node, pod, queue
from tests.scenarios.cards.card_scene import CardScene, ObjectEvent, elastic, request, short_of, unreadable, wants
from tests.scenarios.stepped import Manifest

H200, A100, MIG = "NVIDIA-H200", "NVIDIA-A100-80GB", "NVIDIA-H200/mig-1g.18gb-mixed"
_SLICE = "nvidia.com/mig-1g.18gb"
_NODES = [gpu_node("h", H200, 8, devices={_SLICE: 2}), gpu_node("a", A100, 8)]
_MIXED = f"cards <{A100}|{MIG}> use different resources <nvidia.com/gpu, {_SLICE}>, which is not supported"
#: Work that is fine.
_FINE = [queue("fine", cards={H200: 2}), *gang("fine", 2, queue="fine", cards=H200, requests=wants())]
_BOUND = {"fine-0": "h", "fine-1": "h"}


@pytest.fixture
def scene() -> CardScene:
    return CardScene()


QUOTAS = {
    "no JSON": ("H200=8", 'not JSON: Expecting value at line 1 column 1; expected an object such as {"NVIDIA-H200":8}'),
    "no object": ("[1]", '[...] is not a JSON object such as {"NVIDIA-H200":8}'),
    "a fraction": ('{"NVIDIA-H200":8,"NVIDIA-H100":2.5}', "<NVIDIA-H100>: 2.5 is not a non-negative integer"),
    "text": ('{"NVIDIA-H200":"8"}', '<NVIDIA-H200>: "8" is not a non-negative integer'),
    "true": ('{"NVIDIA-H200":true}', "<NVIDIA-H200>: true is not a non-negative integer"),
    "a list": ('{"NVIDIA-H200":[]}', "<NVIDIA-H200>: [] is not a non-negative integer"),
    "negative": ('{"NVIDIA-H200":-1}', "<NVIDIA-H200>: -1 is not a non-negative integer"),
    "alternatives": ('{"A|B":2}', "<A|B>: 2 is set for alternatives; a quota names one card, without '|'"),
    "no name": ('{" ":2}', "< >: 2 has an empty card name"),
    "a name twice": ('{"NVIDIA-H200":8,"NVIDIA-H200":4}', "<NVIDIA-H200>: 4 is a duplicate key; name each card once"),
}


@pytest.mark.parametrize("text, detail", QUOTAS.values(), ids=QUOTAS)
def test_an_unreadable_quota_is_void_until_it_is_fixed(scene: CardScene, text: str, detail: str) -> None:
    bad = queue("q", annotations={keys.CARD_QUOTA: text}, capability={"cpu": "4"})
    scene.make(_NODES, _FINE, bad, gang("job", 1, queue="q", cards=H200, requests=wants()), pod("plain", queue="q"))
    message = f"Invalid annotation volcano.sh/card.quota: {detail}; all card quotas of Queue <q> are 0"
    scene.expect(
        bound={**_BOUND, "plain": "*"},
        emitted=[
            ObjectEvent("Queue", "q", "InvalidCardQuota", message),
            short_of("PodGroup", "job", H200, 1, 1, 0),
            short_of("Pod", "job-0", H200, 1, 1, 0),
        ],
    )
    assert _malformed(scene, "Queue") == 1
    scene.cluster.patch("Queue", "q", {"metadata": {"annotations": {keys.CARD_QUOTA: '{"NVIDIA-H200":1}'}}})
    scene.expect(bound={**_BOUND, "plain": "*", "job-0": "h"})
    assert _malformed(scene, "Queue") == 0


@pytest.mark.parametrize("text", ["", "null", "{}"])
def test_a_quota_that_is_empty_is_no_mistake(scene: CardScene, text: str) -> None:
    empty = queue("q", annotations={keys.CARD_QUOTA: text}, capability={"cpu": "4"})
    scene.make(_NODES, empty, request("job", {H200: 1}))
    scene.expect(bound={}, emitted=[short_of("PodGroup", "job", H200, 1, 1, 0)])


REQUESTS = {
    "no JSON": ("8", '8 is not a JSON object such as {"NVIDIA-H200":8}'),
    "text": ('{"NVIDIA-H200":"2"}', '<NVIDIA-H200>: "2" is not a non-negative integer'),
    "negative": ('{"NVIDIA-H200":-2}', "<NVIDIA-H200>: -2 is not a non-negative integer"),
    "an empty alternative": ('{"NVIDIA-H200||B":2}', "invalid card name <NVIDIA-H200||B>: empty alternative"),
    "a name twice": ('{"A|B":1," A | B ":1}', "< A | B >: 1 is a duplicate key; name each card once"),
    "different resources": (f'{{"{A100}|{MIG}":1}}', _MIXED),
}


@pytest.mark.parametrize("text, detail", REQUESTS.values(), ids=REQUESTS)
def test_an_unreadable_request_blocks_admission_of_its_job_until_it_is_fixed(
    scene: CardScene, text: str, detail: str
) -> None:
    scene.make(_NODES, _FINE, queue("q", cards={H200: 8, A100: 8, MIG: 2}), request("job", text))
    emitted = ObjectEvent(
        "PodGroup", "job", "InvalidCardRequest", f"Invalid annotation volcano.sh/card.request: {detail}"
    )
    scene.expect(bound=_BOUND, emitted=[emitted], phases={"job": "Pending"})
    mended = {"metadata": {"annotations": {keys.CARD_REQUEST: '{"NVIDIA-H200":2}'}}}
    scene.cluster.patch("PodGroup", "job", mended)
    scene.expect(bound=_BOUND, phases={"job": "Inqueue"})


def test_an_unreadable_request_gets_an_event_and_is_ignored_when_pods_exist(scene: CardScene) -> None:
    job = gang("job", 2, queue="q", cards=H200, requests=wants())
    job[0]["metadata"]["annotations"][keys.CARD_REQUEST] = '{"NVIDIA-H200":"two"}'
    scene.make(_NODES, queue("q", cards={H200: 2}), job)
    detail = '<NVIDIA-H200>: "two" is not a non-negative integer'
    emitted = ObjectEvent(
        "PodGroup", "job", "InvalidCardRequest", f"Invalid annotation volcano.sh/card.request: {detail}"
    )
    scene.expect(bound={"job-0": "h", "job-1": "h"}, noted=[emitted], phases={"job": "Running"})


class Named(NamedTuple):
    """A pod whose card name is of no use, and its event."""

    cards: str
    requests: Mapping[str, object]
    error: str


NAMES = {
    "an empty alternative": Named("A||B", wants(), "invalid card name <A||B>: empty alternative"),
    "nothing before the bar": Named("|A", wants(), "invalid card name <|A>: empty alternative"),
    "nothing behind the bar": Named(f"{H200}|", wants(), f"invalid card name <{H200}|>: empty alternative"),
    "a card on no node": Named("X", wants(), "no resource name found for card <X>"),
    "cards on no node": Named("X|Y", wants(), "no resource name found for card <X|Y>"),
    "nothing requested": Named(
        H200, {"cpu": 1}, f"no resource <nvidia.com/gpu> defined in requests/limits for card <{H200}>"
    ),
    "another resource requested": Named(
        H200, wants(1, _SLICE), f"no resource <nvidia.com/gpu> defined in requests/limits for card <{H200}>"
    ),
    "different resources": Named(f"{A100}|{MIG}", wants(), _MIXED),
}


@pytest.mark.parametrize("case", NAMES.values(), ids=NAMES)
def test_a_card_name_of_no_use_keeps_only_its_pod_out(scene: CardScene, case: Named) -> None:
    wrong: Sequence[Manifest] = [pod("p", queue="q", cards=case.cards, requests=case.requests)]
    scene.make(_NODES, _FINE, queue("q", cards={H200: 8, A100: 8, MIG: 2}), wrong)
    scene.expect(bound=_BOUND, emitted=[unreadable("p", case.error)])


def test_one_wrong_pod_of_a_job_does_not_hold_back_the_others(scene: CardScene) -> None:
    job = elastic("job", 2, cards=H200, requests=wants())
    scene.make(_NODES, queue("q", cards={H200: 8}), job)
    scene.expect(bound=2)
    scene.make([pod("job-2", group="job", cards="X", requests=wants())])
    scene.make([pod("job-3", group="job", cards=H200, requests=wants())])
    scene.expect(
        bound={"job-0": "h", "job-1": "h", "job-3": "h"},
        emitted=[unreadable("job-2", "no resource name found for card <X>")],
    )


def test_a_pod_gets_the_card_that_a_node_brings_later(scene: CardScene) -> None:
    scene.make(_NODES, queue("q", cards={"X": 1}), pod("p", queue="q", cards="X", requests=wants()))
    scene.expect(bound={}, emitted=[unreadable("p", "no resource name found for card <X>")])
    scene.make(gpu_node("x", "X", 1))
    scene.expect(bound={"p": "x"}, cards={"X": 1})


def test_an_unknown_service_type_gets_an_event(scene: CardScene) -> None:
    job = gang("job", 1, queue="q", cards=H200, requests=wants())
    job[0]["metadata"]["annotations"][keys.SERVICE_TYPE] = "batch"
    scene.make(_NODES, queue("q", cards={H200: 8}), job)
    text = "Invalid annotation volcano.sh/service.type: <batch> is neither inference nor training; treated as unknown"
    scene.expect(bound={"job-0": "h"}, emitted=[ObjectEvent("PodGroup", "job", "InvalidServiceType", text)])


LABELS = {
    "replicas": ("nvidia.com/gpu.replicas", "two"),
    "memory": ("nvidia.com/gpu.memory", "0"),
}


@pytest.mark.parametrize("label, value", LABELS.values(), ids=LABELS)
def test_a_label_that_is_no_number_takes_only_the_shares_away(scene: CardScene, label: str, value: str) -> None:
    shared = "nvidia.com/gpu.shared"
    labels = {"nvidia.com/gpu.replicas": "8", label: value}
    wrong = gpu_node("m", A100, 2, memory_mib=81_920, labels=labels, devices={shared: 8})
    card = f"{A100}/mps-80g*1/8"
    work = [
        pod("p", queue="q", cards=card, requests=wants(1, shared)),
        pod("w", queue="q", cards=A100, requests=wants()),
    ]
    scene.make(wrong, queue("q", cards={A100: 2, card: 8}), work)
    text = f"Label {label}={value} is not a positive integer"
    scene.expect(
        bound={"w": "m"},
        emitted=[
            ObjectEvent("Node", "m", "InvalidCardLabel", text),
            unreadable("p", f"no resource name found for card <{card}>"),
        ],
    )
    mended = {"nvidia.com/gpu.replicas": "8", "nvidia.com/gpu.memory": "81920"}
    scene.cluster.patch("Node", "m", {"metadata": {"labels": mended}})
    scene.expect(bound={"w": "m", "p": "m"}, cards={A100: 1, card: 1})


def test_a_pod_in_a_queue_that_is_not_there_waits_for_it(scene: CardScene) -> None:
    scene.make(_NODES, pod("p", queue="q", cards=H200, requests=wants()))
    scene.expect(bound={}, emitted=[ObjectEvent("Pod", "p", "QueueNotFound", "Queue <q> does not exist")])
    scene.make(queue("q", cards={H200: 1}))
    scene.expect(bound={"p": "h"})


def _malformed(scene: CardScene, kind: str) -> float:
    return scene.metric("capacity_card_invalid_objects", kind=kind)
