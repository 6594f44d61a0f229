"""Admission of jobs: quotas of cards, cpu and memory against the request of a whole job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.controlplane.manifests import gang, gpu_node, node, pod_group, queue
from tests.scenarios.cards.card_scene import CardScene, ObjectEvent, elastic, request, short_of, short_of_cpu, wants
from tests.scenarios.stepped import Manifest

H200, H100, A100 = "NVIDIA-H200", "NVIDIA-H100", "NVIDIA-A100-80GB"
EITHER = f"{A100}|{H100}"
_NODES = [gpu_node("a", A100, 8), gpu_node("h", H100, 8)]
_TWO = queue("q", cards={A100: 5, H100: 3})
_HELD = [
    *gang("held-a", 2, queue="q", cards=A100, requests=wants()),
    *gang("held-h", 1, queue="q", cards=H100, requests=wants()),
]


class Case(NamedTuple):
    """`held` is bound when `job`, the PodGroup `job`, comes; `emitted` holds its events when it is refused."""

    name: str
    queue: Manifest
    job: Manifest
    emitted: tuple[ObjectEvent, ...] = ()
    held: Sequence[Manifest] = ()
    nodes: Sequence[Manifest] = (gpu_node("n", H200, 8),)


def _memory(requested: int, total: int, limit: int) -> ObjectEvent:
    figures = f"requested <{requested} Mi>, total would be <{total} Mi>, but capability is <{limit} Mi>"
    return ObjectEvent(
        "PodGroup", "job", "InsufficientMemoryQuota", f"Queue <q> has insufficient memory quota: {figures}"
    )


def _plain(**minimum: str) -> Manifest:
    """A job without a card request."""
    return pod_group("job", queue="q", minResources=minimum)


def _short(card: str, requested: int, total: int, limit: int) -> tuple[ObjectEvent, ...]:
    return (short_of("PodGroup", "job", card, requested, total, limit),)


def _cpu_short(requested: int, total: int, limit: int) -> tuple[ObjectEvent, ...]:
    return (short_of_cpu("PodGroup", "job", requested, total, limit),)


_EMPTY = ObjectEvent(
    "PodGroup",
    "job",
    "EmptyQueueCapability",
    "Queue <q> capability <cpu 0.00, memory 0.00> is empty, deny it to enqueue",
)
_CPU = [node("n", cpu=8)]

CASES = [
    Case("more than the quota", queue("q", cards={H200: 3}), request("job", {H200: 5}), _short(H200, 5, 5, 3)),
    Case(
        "up to the quota with what is held",
        queue("q", cards={A100: 5}),
        request("job", {A100: 3}),
        held=_HELD[:3],
        nodes=_NODES,
    ),
    Case(
        "beyond the quota with what is held",
        queue("q", cards={A100: 5}),
        request("job", {A100: 4}),
        _short(A100, 4, 6, 5),
        _HELD[:3],
        _NODES,
    ),
    Case(
        "beyond the quota with what is promised",
        queue("q", cards={A100: 5}),
        request("job", {A100: 2}),
        _short(A100, 2, 6, 5),
        [*_HELD[:3], request("earlier", {A100: 2})],
        _NODES,
    ),
    # 22: an elastic job leaves room
    Case(
        "pods beyond a minimum may have to go",
        queue("q", cards={H200: 8}),
        request("job", {H200: 4}),
        held=elastic("wide", 8, members=2, cards=H200, requests=wants()),
    ),
    Case(
        "a card without quota",
        queue("q", cards={H200: 3}, capability={"cpu": "4"}),
        request("job", {H100: 1}),
        _short(H100, 1, 1, 0),
    ),
    Case(
        "a queue without anything",
        queue("q"),
        request("job", {H100: 1}),
        (*_short(H100, 1, 1, 0), _EMPTY),
    ),
    Case(
        "a quota of slices is none of cards",
        queue("q", cards={f"{H200}/mig-1g.18gb-mixed": 3}),
        request("job", {H200: 1}),
        _short(H200, 1, 1, 0),
    ),
    Case(
        "cpu beyond the capability",
        queue("q", capability={"cpu": "4"}),
        _plain(cpu="3"),
        _cpu_short(3000, 5000, 4000),
        gang("held", 2, queue="q"),
        _CPU,
    ),
    Case(
        "memory beyond the capability",
        queue("q", capability={"memory": "4Gi"}),
        _plain(memory="1Gi"),
        (_memory(1024, 4608, 4096),),
        gang("held", 1, queue="q", requests={"memory": "3584Mi"}),
        _CPU,
    ),
    Case("cpu that the cluster has left", queue("q"), _plain(cpu="6"), nodes=_CPU),
    Case(
        "cpu that the cluster has not",
        queue("q"),
        _plain(cpu="10"),
        (*_cpu_short(10000, 10000, 8000), _EMPTY),
        nodes=_CPU,
    ),
    Case("cpu of a capability of 0", queue("q", capability={"cpu": "0"}), _plain(cpu="1"), _cpu_short(1000, 1000, 0)),
    Case(
        "cpu comes before cards",
        queue("q", cards={H200: 8}, capability={"cpu": "4"}),
        request("job", {H200: 20}, minResources={"cpu": "16"}),
        _cpu_short(16000, 16000, 4000),
    ),
    Case("alternatives add up", _TWO, request("job", {EITHER: 4}), held=_HELD, nodes=_NODES),
    Case(
        "beyond what alternatives add up to",
        _TWO,
        request("job", {EITHER: 6}),
        _short(EITHER, 6, 9, 8),
        _HELD,
        _NODES,
    ),
    Case(
        "alternatives promised to another job",
        _TWO,
        request("job", {EITHER: 5}),
        _short(EITHER, 5, 10, 8),
        [request("earlier", {EITHER: 5})],
        _NODES,
    ),
    Case(
        "a card that a promise of alternatives may need",
        _TWO,
        request("job", {A100: 3}),
        _short(A100, 3, 10, 8),
        [*_HELD, request("earlier", {EITHER: 4})],
        _NODES,
    ),
    Case("nothing requested", queue("q"), request("job", {H200: 0})),
    Case(
        "a device in the capability is no quota",
        queue("q", cards={H200: 3}, capability={"nvidia.com/gpu": "1"}),
        request("job", {H200: 2}),
    ),
    # a child's quota is its own: card quotas are flat
    Case(
        "the quota of a parent is not the child's",
        queue("q", cards={H200: 4}, parent="root"),
        request("job", {H200: 4}),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_job_is_admitted_within_its_queues_quotas_and_an_event_names_the_shortfall(case: Case) -> None:
    scene = CardScene()
    scene.make(case.nodes, case.queue, case.held)
    held = sum(item["kind"] == "Pod" for item in case.held)
    scene.expect(bound=held)
    scene.make(case.job)
    scene.expect(bound=held, emitted=case.emitted, phases={"job": "Pending" if case.emitted else "Inqueue"})
