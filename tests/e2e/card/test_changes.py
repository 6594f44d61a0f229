"""Quotas of cards on a running daemon: pods that terminate, statuses of queues, mistakes that are fixed, usage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.manifests import gang, gpu_node, pod, queue
from tests.e2e.card.expectations import (
    ObjectEvent,
    elastic,
    h200_gang,
    request,
    short_of,
    unreadable,
    wants,
)
from tests.e2e.card.stage import Scene, eventually
from tests.e2e.checker import amounts

H200, H100, A100, MIG = "NVIDIA-H200", "NVIDIA-H100", "NVIDIA-A100-80GB", "NVIDIA-H200/mig-1g.18gb-mixed"
_SLICE = "nvidia.com/mig-1g.18gb"


async def _status_is(scene: Scene, name: str, allocated: Mapping[str, str]) -> None:
    """Wait until a queue's status shows these amounts and zeros."""

    async def emitted() -> Mapping[str, int]:
        status = (await scene.cluster.get("queues", name)).get("status", {})
        return +amounts(status.get("allocated", {}))

    await eventually(emitted, f"queue {name} to show {allocated}", lambda found: found == amounts(allocated))


@pytest.mark.asyncio
async def test_a_terminating_pod_holds_its_quota_until_it_is_gone(scene: Scene) -> None:
    first = elastic("first", 2, cards=H200, requests=wants(), grace=60)
    await scene.make(gpu_node("h", H200, 2), gpu_node("free", H200, 2), queue("q", cards={H200: 2}), first)
    await scene.expect(bound=2, phases={"first": "Running"})
    scene.kubelet.stop_delay = 60.0
    await scene.cluster.delete("pods", "first-1", grace=None)
    await scene.make(h200_gang("second", 1))
    emitted = [short_of(kind, name, H200, 1, 3, 2) for kind, name in (("PodGroup", "second"), ("Pod", "second-0"))]
    await scene.expect(bound=2, emitted=emitted, cards={H200: 2}, phases={"second": "Pending"})
    await scene.cluster.delete("pods", "first-1")
    await scene.expect(bound=2, cards={H200: 2}, phases={"second": "Running"})


@pytest.mark.asyncio
async def test_quotas_of_parents_and_children_are_apart_and_use_adds_up(scene: Scene) -> None:
    queues = [
        queue("root"),
        queue("lab", cards={H200: 5}, parent="root"),
        queue("team", cards={H200: 3}, parent="lab"),
    ]
    work = elastic("job", 4, queue="team", cards=H200, requests=wants(cpu="500m"))
    await scene.make(gpu_node("h", H200, 8), queues, work)
    emitted = short_of("Pod", "job-*", H200, 1, 4, 3, queue="team")
    await scene.expect(bound=3, emitted=[emitted], cards={H200: 3}, queue="team")
    for name in ("team", "lab", "root"):
        await _status_is(scene, name, {"nvidia.com/gpu": "3", "cpu": "1500m", "pods": "3"})


@pytest.mark.asyncio
async def test_the_queue_status_shows_allocated_amounts_in_resource_names(scene: Scene) -> None:
    node = gpu_node("h", H200, 4, devices={_SLICE: 2})
    await scene.make(node, queue("q", cards={H200: 4, MIG: 2}), h200_gang("job", 2))
    await scene.make(pod("small", queue="q", cards=MIG, requests={"memory": "1Gi", _SLICE: 1}))
    await scene.expect(bound=3)
    await _status_is(scene, "q", {"nvidia.com/gpu": "2", _SLICE: "1", "cpu": "200m", "memory": "1Gi", "pods": "3"})
    for member in range(2):
        await scene.cluster.delete("pods", f"job-{member}")
    await _status_is(scene, "q", {_SLICE: "1", "memory": "1Gi", "pods": "1"})


@pytest.mark.asyncio
async def test_mistakes_get_events_hold_back_only_their_objects_and_end_when_they_are_fixed(scene: Scene) -> None:
    shared, card = "nvidia.com/gpu.shared", f"{A100}/mps-80g*1/8"
    node = gpu_node("m", A100, 2, memory_mib=81_920, labels={"nvidia.com/gpu.replicas": "two"}, devices={shared: 8})
    queues = [
        queue("q", cards={H200: 3, A100: 2, card: 8}),
        queue("bad", annotations={keys.CARD_QUOTA: "H200=8"}, capability={"cpu": "4"}),
    ]
    pods = [
        pod("share", queue="q", cards=card, requests=wants(1, shared)),
        pod("kept", queue="bad", cards=H200, requests=wants()),
    ]
    await scene.make(node, gpu_node("h", H200, 8), queues, pods, h200_gang("fine", 1), request("job", "8"))
    quota = (
        "Invalid annotation volcano.sh/card.quota: not JSON: Expecting value at line 1 column 1; "
        'expected an object such as {"NVIDIA-H200":8}; all card quotas of Queue <bad> are 0'
    )
    asked = 'Invalid annotation volcano.sh/card.request: 8 is not a JSON object such as {"NVIDIA-H200":8}'
    emitted = [
        ObjectEvent("Node", "m", "InvalidCardLabel", "Label nvidia.com/gpu.replicas=two is not a positive integer"),
        ObjectEvent("Queue", "bad", "InvalidCardQuota", quota),
        ObjectEvent("PodGroup", "job", "InvalidCardRequest", asked),
        unreadable("share", f"no resource name found for card <{card}>"),
        short_of("Pod", "kept", H200, 1, 1, 0, queue="bad"),
    ]
    await scene.expect(bound={"fine-0": "h"}, emitted=emitted, phases={"job": "Pending"})
    assert await scene.stage.daemon.metric("volcano_capacity_card_invalid_objects", kind="Queue") == 1
    await scene.cluster.patch("nodes", "m", {"metadata": {"labels": {"nvidia.com/gpu.replicas": "8"}}})
    for plural, name, key in (("queues", "bad", keys.CARD_QUOTA), ("podgroups", "job", keys.CARD_REQUEST)):
        await scene.cluster.patch(plural, name, {"metadata": {"annotations": {key: '{"NVIDIA-H200":1}'}}})
    await scene.expect(bound={"fine-0": "h", "kept": "h", "share": "m"}, phases={"job": "Inqueue"})
    assert await scene.stage.daemon.metric("volcano_capacity_card_invalid_objects", kind="Queue") == 0


@pytest.mark.asyncio
async def test_usage_is_published_on_queues_when_enabled(scene: Scene) -> None:
    await scene.stage.use({"publishCardUsage": True})
    work = [
        *gang("job", 2, queue="q", cards=A100, requests=wants()),
        pod("either", queue="q", cards=f"{H100}|{A100}", requests=wants(3)),
    ]
    await scene.make(gpu_node("a", A100, 8), gpu_node("h", H100, 8), queue("q", cards={A100: 4, H100: 4}), work)
    await scene.expect(bound=3)
    await eventually(lambda: _usage(scene), "the use to be written", lambda use: use == {A100: 2, H100: 3})
    for member in range(2):
        await scene.cluster.delete("pods", f"job-{member}")
    await eventually(lambda: _usage(scene), "the use to be written", lambda use: use == {H100: 3})
    await scene.cluster.delete("pods", "either")
    await eventually(lambda: _usage(scene), "nothing to be held", lambda use: use is None)


async def _usage(scene: Scene) -> Any:
    notes = (await scene.cluster.get("queues", "q"))["metadata"]["annotations"]
    text = notes.get(keys.CARD_ALLOCATED)
    return json.loads(text) if text is not None else None
