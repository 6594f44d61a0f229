"""Cards given back, nodes that shrink or turn into others, quotas that change: on a running daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.manifests import gang, gpu_node, pod, queue
from tests.e2e.card.stage import Scene, eventually
from tests.e2e.checker import amounts
from tests.scenarios.cards.card_scene import (
    ObjectEvent,
    bound_pods,
    elastic,
    h200_gang,
    h200_refusals,
    request,
    short_of,
    unreadable,
    wants,
)

H200, H100, A100, MIG = "NVIDIA-H200", "NVIDIA-H100", "NVIDIA-A100-80GB", "NVIDIA-H200/mig-1g.18gb-mixed"
_SLICE = "nvidia.com/mig-1g.18gb"
_NO_ROOM = "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."


async def _offer(scene: Scene, name: str, devices: Mapping[str, int]) -> None:
    """Change what a node has to offer, as its kubelet does; the daemon has seen it."""
    amounts = {device: str(count) for device, count in devices.items()}
    status = {"status": {"allocatable": amounts, "capacity": amounts}}
    await scene.cluster.patch("nodes", name, status, subresource="status")
    wanted = {device: 1000 * count for device, count in devices.items()}
    await scene.stage.sees(
        "Node",
        name,
        lambda node: {device: node.get("allocatable", {}).get(device, 0) for device in devices} == wanted,
    )


async def _total(scene: Scene, card: str) -> float:
    return await scene.stage.daemon.metric("volcano_card_total", card=card)


async def _status_is(scene: Scene, name: str, allocated: Mapping[str, str]) -> None:
    """Wait until a queue's status shows these amounts and zeros."""

    async def emitted() -> Mapping[str, int]:
        status = (await scene.cluster.get("queues", name)).get("status", {})
        return +amounts(status.get("allocated", {}))

    await eventually(emitted, f"queue {name} to show {allocated}", lambda found: found == amounts(allocated))


@pytest.mark.asyncio
async def test_a_job_that_ends_gives_its_cards_to_the_next(scene: Scene) -> None:
    first = gang("first", 1, queue="q", cards=H200, requests=wants(4))
    await scene.make(gpu_node("h", H200, 8), queue("q", cards={H200: 4}), first)
    await scene.expect(bound=bound_pods(("first", 1)), cards={H200: 4}, phases={"first": "Running"})
    await scene.make(h200_gang("second", 2))
    await scene.expect(
        bound=bound_pods(("first", 1)), emitted=h200_refusals("second", 2, 2, 6, 4), phases={"second": "Pending"}
    )
    await scene.kubelet.finish("first-0", namespace=scene.cluster.namespace)
    await scene.expect(
        bound=bound_pods(("first", 1), ("second", 2)),
        cards={H200: 2},
        phases={"first": "Completed", "second": "Running"},
    )


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
async def test_a_node_that_goes_takes_its_cards_along(scene: Scene) -> None:
    nodes = [gpu_node("h", H200, 4), gpu_node("i", H200, 4)]
    await scene.make(nodes, queue("q", cards={H200: 8}), elastic("job", 8, cards=H200, requests=wants()))
    await scene.expect(bound=8, cards={H200: 8})
    assert await _total(scene, H200) == 8
    await scene.cluster.delete("nodes", "i")
    await scene.make([pod("job-8", group="job", cards=H200, requests=wants())])
    # Until the pods of the node that is gone are deleted, they count.
    await scene.expect(bound=8, emitted=[short_of("Pod", "job-8", H200, 1, 9, 8)], cards={H200: 8})
    assert await _total(scene, H200) == 4
    lost = [name for name, node in (await scene.cluster.bound()).items() if node == "i"]
    for name in lost:
        await scene.cluster.delete("pods", name)
    await scene.expect(bound=4, cards={H200: 4})
    await scene.expect_shown("job-8", _NO_ROOM)
    await scene.make(gpu_node("j", H200, 1))
    await scene.expect(bound=5, cards={H200: 5})


@pytest.mark.asyncio
async def test_a_node_that_is_sliced_anew_offers_other_cards(scene: Scene) -> None:
    nodes = [gpu_node("sliced", H200, 0, devices={_SLICE: 2}), gpu_node("whole", H200, 2)]
    job = elastic("small", 2, cards=MIG, requests=wants(1, _SLICE))
    await scene.make(nodes, queue("q", cards={H200: 2, MIG: 4}), job)
    await scene.expect(bound=2, cards={MIG: 2})
    await _offer(scene, "sliced", {_SLICE: 0})
    await scene.make([pod("small-2", group="small", cards=MIG, requests=wants(1, _SLICE))], h200_gang("job", 2))
    await scene.expect(bound=bound_pods(("small", 2), ("job", 2)), cards={MIG: 2, H200: 2})
    assert await _total(scene, MIG) == 0
    quota = await scene.stage.daemon.metric("volcano_queue_card_capacity", queue_name="q", card=MIG)
    assert quota == 4, "a quota is no inventory"
    await scene.expect_shown("small-2", f"0/2 nodes are unavailable: 2 Insufficient {_SLICE}.")
    await _offer(scene, "sliced", {_SLICE: 3})
    await scene.expect(bound=5, cards={MIG: 3})


@pytest.mark.asyncio
async def test_a_closed_queue_admits_nothing_and_runs_on(scene: Scene) -> None:
    await scene.make(gpu_node("h", H200, 8), queue("q", cards={H200: 8}), h200_gang("first", 1))
    await scene.expect(bound=1)
    await scene.cluster.patch("queues", "q", {"status": {"state": "Closed"}}, subresource="status")
    await scene.stage.sees("Queue", "q", lambda row: row["state"] == "Closed")
    await scene.make(request("second", {H200: 1}))
    emitted = ObjectEvent("PodGroup", "second", "QueueNotOpen", "Queue <q> is <Closed>, cannot enqueue")
    await scene.expect(bound=1, emitted=[emitted], phases={"second": "Pending"})
    await scene.cluster.patch("queues", "q", {"status": {"state": "Open"}}, subresource="status")
    await scene.expect(bound=1, phases={"second": "Inqueue"})


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
