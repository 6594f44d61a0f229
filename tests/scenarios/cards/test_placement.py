"""Pods and the cards they get: single cards, alternatives, slices and shares of cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.manifests import gang, gpu_node, node, pod, queue
from tests.scenarios.cards.card_scene import (
    SOMEWHERE,
    CardScene,
    ObjectEvent,
    elastic,
    request,
    short_of,
    wants,
)
from tests.scenarios.stepped import Manifest

H200, H100, A100 = "NVIDIA-H200", "NVIDIA-H100", "NVIDIA-A100-80GB"
V4090, V4090D = "NVIDIA-GeForce-RTX-4090", "NVIDIA-GeForce-RTX-4090-D"
EITHER = f"{A100}|{H100}"
MPS, MIG_1G, MIG_3G = f"{A100}/mps-80g*1/8", f"{H200}/mig-1g.18gb-mixed", f"{H200}/mig-3g.71gb-mixed"
SHARED = "nvidia.com/gpu.shared"
_AH = (gpu_node("a", A100, 8), gpu_node("h", H100, 8))
_H = (gpu_node("h", H200, 8),)
_Q8 = queue("q", cards={H200: 8})


class Case(NamedTuple):
    """`held` is bound when `work` comes; `bound` is about the pods of `work`, `assigned` about their annotation."""

    name: str
    nodes: Sequence[Manifest]
    queue: Manifest
    work: Sequence[Manifest]
    bound: Mapping[str, str] | int
    cards: Mapping[str, int] = {}
    emitted: tuple[ObjectEvent, ...] = ()
    held: Sequence[Manifest] = ()
    totals: Mapping[str, int] = {}
    assigned: Mapping[str, str] = {}
    shown: Mapping[str, str] = {}


def _alone(cards: str, count: int = 1, resource: str = "nvidia.com/gpu", **rest: Any) -> list[Manifest]:
    """The pod `p`, without a group."""
    return [pod("p", queue="q", cards=cards, requests=wants(count, resource), **rest)]


def _sliced(name: str, **devices: int) -> Manifest:
    """An H200 node some of whose cards are sliced."""
    slices = {f"nvidia.com/mig-{profile.replace('_', '.')}": count for profile, count in devices.items()}
    return gpu_node(name, H200, 7, memory_mib=143_771, devices=slices)


def _shared(name: str, product: str, memory_mib: int, replicas: object, shares: int) -> Manifest:
    """A node whose cards are split by MPS, besides one whole card."""
    labels = {"nvidia.com/gpu.replicas": str(replicas)}
    return gpu_node(name, product, 1, memory_mib=memory_mib, labels=labels, devices={SHARED: shares}, cpu=64)


CASES = [
    Case(
        "what is promised to others counts at admission only",
        _H,
        queue("q", cards={H200: 3}),
        [pod("wide-2", group="wide", cards=H200, requests=wants())],
        3,
        {H200: 3},
        held=[*elastic("wide", 2, cards=H200, requests=wants()), request("promised", {H200: 1})],
    ),
    Case(
        "the next alternative when the first has no quota left",
        _AH,
        queue("q", cards={A100: 2, H100: 3}),
        _alone(EITHER),
        {"p": "h"},
        {A100: 2, H100: 1, EITHER: 0},
        held=gang("held", 2, queue="q", cards=A100, requests=wants()),
        assigned={"p": H100},
    ),
    Case(
        "pods of one job on different cards",
        _AH,
        queue("q", cards={A100: 2, H100: 3}),
        gang("job", 4, queue="q", cards=EITHER, requests=wants()),
        4,
        {A100: 2, H100: 2, EITHER: 0},
    ),
    Case(
        "another model's free cards are no help",
        [gpu_node("g", V4090, 8), gpu_node("h", H200, 1)],
        _Q8,
        _alone(H200),
        {"held-0": "h"},
        {H200: 1},
        held=gang("held", 1, queue="q", cards=H200, requests=wants()),
        shown={
            "p": "0/2 nodes are unavailable: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't have card <NVIDIA-H200>."
        },
    ),
    Case(
        "an alternative that is not in the cluster is passed over",
        [gpu_node("d", V4090D, 8)],
        queue("q", cards={V4090D: 1}),
        _alone(f"{V4090}|{V4090D}"),
        {"p": "d"},
        {V4090D: 1},
        assigned={"p": V4090D},
    ),
    Case(
        "quotas of more than there is",
        [gpu_node("h", H200, 10)],
        _Q8,
        _alone(H200),
        10,
        {H200: 5},
        held=[
            queue("other", cards={H200: 5}),
            *gang("others", 5, queue="other", cards=H200, requests=wants()),
            *gang("held", 5, queue="q", cards=H200, requests=wants()),
        ],
        shown={"p": "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."},
    ),
    Case(
        "shares of cards",
        [_shared("m", A100, 81_920, 8, 32)],
        queue("q", cards={MPS: 16}),
        elastic("job", 18, cards=MPS, requests=wants(1, SHARED)),
        16,
        {MPS: 16, A100: 0},
        (short_of("Pod", "job-*", MPS, 1, 17, 16),),
        totals={MPS: 32, A100: 1},
    ),
    # 7, 8: the size of a share is rounded half up
    Case(
        "names of shares",
        [_shared("m", "NVIDIA-H20", 97_871, 2, 16), _shared("n", "NVIDIA-X", 82_432, 4, 4)],
        queue("q", cards={"NVIDIA-H20/mps-96g*1/2": 8, "NVIDIA-X/mps-81g*1/4": 1}),
        [
            pod("p", queue="q", cards="NVIDIA-H20/mps-96g*1/2", requests=wants(2, SHARED)),
            pod("x", queue="q", cards="NVIDIA-X/mps-81g*1/4", requests=wants(1, SHARED)),
        ],
        {"p": "m", "x": "n"},
        {"NVIDIA-H20/mps-96g*1/2": 2, "NVIDIA-X/mps-81g*1/4": 1},
        totals={"NVIDIA-H20/mps-96g*1/2": 16, "NVIDIA-X/mps-81g*1/4": 4},
    ),
    Case(
        "slices of cards",
        [_sliced("s", **{"1g_18gb": 3, "3g_71gb": 1})],
        queue("q", cards={H200: 3, MIG_1G: 2, MIG_3G: 1}),
        [
            *elastic("small", 3, cards=MIG_1G, requests=wants(1, "nvidia.com/mig-1g.18gb")),
            pod("large", queue="q", cards=MIG_3G, requests=wants(1, "nvidia.com/mig-3g.71gb")),
            pod("whole", queue="q", cards=H200, requests=wants(2)),
        ],
        4,
        {H200: 2, MIG_1G: 2, MIG_3G: 1},
        (short_of("Pod", "small-*", MIG_1G, 1, 3, 2),),
        totals={H200: 7, MIG_1G: 3, MIG_3G: 1},
    ),
    # 48 with a pod
    Case(
        "a quota of slices gives no whole card",
        [_sliced("s", **{"1g_18gb": 3})],
        queue("q", cards={MIG_1G: 3}),
        _alone(H200),
        {},
        {H200: 0},
        (short_of("Pod", "p", H200, 1, 1, 0),),
    ),
    Case(
        "cards of another vendor",
        [
            node(
                "w",
                devices={"huawei.com/Ascend910": 16},
                labels={"huawei.com/Ascend910.product": "Ascend-910B", "huawei.com/Ascend910.memory": "65536"},
            )
        ],
        queue("q", cards={"Ascend-910B": 2}),
        _alone("Ascend-910B", 2, "huawei.com/Ascend910"),
        {"p": "w"},
        {"Ascend-910B": 2},
        totals={"Ascend-910B": 16},
    ),
    Case(
        "a node names its cards by product and memory",
        [
            node("bare", devices={"nvidia.com/gpu": 8}, labels={"nvidia.com/gpu.product": H200}),
            node(
                "enough",
                devices={"nvidia.com/gpu": 8},
                labels={"nvidia.com/gpu.product": H200, "nvidia.com/gpu.memory": "143771"},
            ),
        ],
        _Q8,
        _alone(H200),
        {"p": "enough"},
        {H200: 1},
        totals={H200: 8},
    ),
    Case(
        "a card is counted by its own resource",
        [gpu_node("h", H200, 8, devices={"nvidia.com/hostdev": 4})],
        _Q8,
        _alone(H200),
        {"p": "h"},
        totals={H200: 8},
    ),
    Case(
        "cards of cordoned nodes are in the cluster",
        [gpu_node("h", H200, 8), gpu_node("i", H200, 8, unschedulable=True), gpu_node("j", H200, 0)],
        queue("q", cards={H200: 16}),
        gang("job", 2, queue="q", cards=H200, requests=wants(4)),
        {"job-0": "h", "job-1": "h"},
        {H200: 8},
        totals={H200: 16},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_pods_get_the_cards_they_accept_within_quota(case: Case) -> None:
    scene = CardScene()
    scene.make(case.nodes, case.queue, case.held)
    held = {item["metadata"]["name"]: SOMEWHERE for item in case.held if item["kind"] == "Pod"}
    scene.expect(bound=held)
    scene.make(case.work)
    bound = case.bound if isinstance(case.bound, int) else {**held, **case.bound}
    scene.expect(bound=bound, emitted=case.emitted, cards=case.cards)
    for card, total in case.totals.items():
        assert scene.metric("card_total", card=card) == total
    for name, text in case.shown.items():
        assert scene.shown(name) == text
    for name, card in case.assigned.items():
        assert scene.objects("Pod")[name]["metadata"]["annotations"][keys.CARD_ASSIGNED] == card
