"""Effects of the plugin's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from tests.controlplane.manifests import gang, gpu_node, pod, queue
from tests.scenarios.cards.card_scene import (
    SOMEWHERE,
    CardScene,
    ObjectEvent,
    elastic,
    request,
    short_of,
    short_of_cpu,
    unreadable,
    wants,
)
from tests.scenarios.stepped import Manifest

H200, H100, A100 = "NVIDIA-H200", "NVIDIA-H100", "NVIDIA-A100-80GB"
EITHER = f"{A100}|{H100}"
_H = [gpu_node("h", H200, 16, cpu=64)]
_AH = [gpu_node("a", A100, 8), gpu_node("h", H100, 8)]
_CAPPED = queue("q", cards={H200: 8}, capability={"cpu": "4"})
_HELD = [
    *gang("held-a", 2, queue="q", cards=A100, requests=wants()),
    *gang("held-h", 1, queue="q", cards=H100, requests=wants()),
]


class Case(NamedTuple):
    """`held` is bound when `work` comes."""

    name: str
    arguments: Mapping[str, Any]
    nodes: Sequence[Manifest]
    queue: Manifest
    work: Sequence[Manifest]
    bound: int = 0
    emitted: tuple[ObjectEvent, ...] = ()
    phases: Mapping[str, str] = {}
    cards: Mapping[str, int] = {}
    held: Sequence[Manifest] = ()


CASES = [
    Case(
        "cpu of a job with cards counts",
        {"cardUnlimitedCpuMemory": False},
        _H,
        _CAPPED,
        [request("job", {H200: 2}, minResources={"cpu": "16"})],
        emitted=(short_of_cpu("PodGroup", "job", 16000, 16000, 4000),),
        phases={"job": "Pending"},
    ),
    Case(
        "cpu of a job with cards does not count",
        {"cardUnlimitedCpuMemory": True},
        _H,
        _CAPPED,
        [request("job", {H200: 2}, minResources={"cpu": "16"})],
        phases={"job": "Inqueue"},
    ),
    Case(
        "cpu of pods without cards counts still, that of pods with cards never did",
        {"cardUnlimitedCpuMemory": True},
        _H,
        _CAPPED,
        [pod("more", queue="q"), pod("card", queue="q", cards=H200, requests=wants(cpu="8"))],
        6,
        (short_of_cpu("Pod", "more", 1000, 5000, 4000),),
        cards={H200: 2},
        held=[*gang("card", 1, queue="q", cards=H200, requests=wants(cpu="16")), *gang("plain", 4, queue="q")],
    ),
    Case(
        "one alternative must carry the whole job",
        {"multiCardJobMode": "single"},
        _AH,
        queue("q", cards={A100: 5, H100: 3}),
        [request("job", {EITHER: 4})],
        3,
        (short_of("PodGroup", "job", EITHER, 4, 5, 3),),
        {"job": "Pending"},
        held=_HELD,
    ),
    Case(
        "one alternative carries the whole job",
        {"multiCardJobMode": "single"},
        _AH,
        queue("q", cards={A100: 5, H100: 3}),
        [request("job", {EITHER: 3})],
        3,
        phases={"job": "Inqueue"},
        held=_HELD,
    ),
    # R18
    Case(
        "all pods of a job get the same card",
        {"multiCardJobMode": "single"},
        [gpu_node("a", A100, 2), gpu_node("h", H100, 8)],
        queue("q", cards={A100: 8, H100: 8}),
        elastic("job", 3, cards=EITHER, requests=wants()),
        2,
        cards={A100: 2, H100: 0},
        phases={"job": "Running"},
    ),
    Case(
        "all pods of a job must fit",
        {"cardMinimum": "allPods"},
        _H,
        queue("q", cards={H200: 8}),
        elastic("job", 10, cards=H200, requests=wants()),
        0,
        (
            short_of("PodGroup", "job", H200, 10, 10, 8),
            *(short_of("Pod", f"job-{n}", H200, 10, 10, 8) for n in range(10)),
        ),
        {"job": "Pending"},
    ),
    Case(
        "no pod of a job has to go",
        {"cardMinimum": "allPods"},
        _H,
        queue("q", cards={H200: 8}),
        [request("job", {H200: 4})],
        8,
        (short_of("PodGroup", "job", H200, 4, 12, 8),),
        held=elastic("wide", 8, members=2, cards=H200, requests=wants()),
    ),
    Case(
        "twice the quota may be admitted",
        {"overCommitFactor": 2},
        _H,
        queue("q", cards={H200: 4}),
        [request("job", {H200: 4})],
        4,
        phases={"job": "Inqueue"},
        held=gang("held", 4, queue="q", cards=H200, requests=wants()),
    ),
    Case(
        "more than twice the quota may not",
        {"overCommitFactor": 2},
        _H,
        queue("q", cards={H200: 4}),
        [request("job", {H200: 5})],
        4,
        (short_of("PodGroup", "job", H200, 5, 9, 8),),
        {"job": "Pending"},
        held=gang("held", 4, queue="q", cards=H200, requests=wants()),
    ),
    # 70h: of an admitted gang that is too large nothing is bound
    Case(
        "a gang admitted beyond the quota is not half bound",
        {"overCommitFactor": 2},
        _H,
        queue("q", cards={H200: 3}),
        gang("job", 4, queue="q", cards=H200, requests=wants()),
        0,
        (short_of("Pod", "job-*", H200, 1, 4, 3),),
        {"job": "Inqueue"},
        {H200: 0},
    ),
    Case(
        "cards without a name are refused",
        {"unnamedCards": "deny"},
        _H,
        queue("q", cards={H200: 8}),
        [pod("p", queue="q", requests=wants())],
        0,
        (unreadable("p", "card resource <nvidia.com/gpu> requested without annotation volcano.sh/card.name"),),
    ),
    Case(
        "cards without a name are charged as what they are",
        {"unnamedCards": "infer"},
        _H,
        queue("q", cards={H200: 1}),
        [pod("p", queue="q", requests=wants())],
        1,
        cards={H200: 1},
    ),
    Case(
        "cards without a name need quota",
        {"unnamedCards": "infer"},
        _H,
        queue("q", cards={H100: 1}),
        [pod("p", queue="q", requests=wants())],
        0,
        (short_of("Pod", "p", H200, 1, 1, 0),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_argument_of_the_scheduler_conf(case: Case) -> None:
    scene = CardScene(case.arguments)
    scene.make(case.nodes, case.queue, case.held)
    held = {item["metadata"]["name"]: SOMEWHERE for item in case.held if item["kind"] == "Pod"}
    scene.expect(bound=held)
    scene.make(case.work)
    scene.expect(bound=case.bound, emitted=case.emitted, phases=case.phases, cards=case.cards)
