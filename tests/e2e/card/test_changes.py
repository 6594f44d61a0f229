"""Cards given back, nodes that shrink or turn into others, quotas that change: on a running daemon."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Manifest
from tests.controlplane.manifests import gang, gpu_node, pod, queue
from tests.e2e.card.stage import (
    SOMEWHERE,
    ObjectEvent,
    Scene,
    elastic,
    eventually,
    request,
    short_of,
    unreadable,
    wants,
)
from tests.e2e.checker import amounts

H200, A100, MIG = "NVIDIA-H200", "NVIDIA-A100-80GB", "NVIDIA-H200/mig-1g.18gb-mixed"
_SLICE = "nvidia.com/mig-1g.18gb"
_NO_ROOM = "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."


def _job(name: str, size: int, **rest: Any) -> list[Manifest]:
    return gang(name, size, queue="q", cards=H200, requests=wants(), **rest)


def _names(*jobs: tuple[str, int]) -> dict[str, str]:
    return {f"{name}-{index}": SOMEWHERE for name, size in jobs for index in range(size)}


def _refused(name: str, size: int, requested: int, total: int, limit: int) -> list[ObjectEvent]:
    """Events on a gang and its pods."""
    pods = [short_of("Pod", f"{name}-{index}", H200, requested, total, limit) for index in range(size)]
    return [short_of("PodGroup", name, H200, requested, total, limit), *pods]


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


async def _quota(scene: Scene, text: str | None) -> None:
    await scene.cluster.patch("queues", "q", {"metadata": {"annotations": {keys.CARD_QUOTA: text}}})
    wanted = 0 if text is None else sum(json.loads(text).values())
    quota = functools.partial(scene.stage.daemon.metric, "volcano_queue_card_capacity", queue_name="q")
    await eventually(quota, f"the quota to be {wanted}", lambda found: found == wanted)


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
    await scene.expect(bound=_names(("first", 1)), cards={H200: 4}, phases={"first": "Running"})
    await scene.make(_job("second", 2))
    await scene.expect(bound=_names(("first", 1)), emitted=_refused("second", 2, 2, 6, 4), phases={"second": "Pending"})
    await scene.kubelet.finish("first-0", namespace=scene.cluster.namespace)
    await scene.expect(
        bound=_names(("first", 1), ("second", 2)), cards={H200: 2}, phases={"first": "Completed", "second": "Running"}
    )


@pytest.mark.asyncio
async def test_a_deployment_scaled_in_lets_another_scale_out(scene: Scene) -> None:
    await scene.make(
        gpu_node("h", H200, 16), queue("q", cards={H200: 8}), elastic("d1", 8, cards=H200, requests=wants())
    )
    await scene.expect(bound=8, phases={"d1": "Running"})
    await scene.make(elastic("d2", 2, cards=H200, requests=wants()))
    # d1 could do with one pod: d2 is admitted, and each of its pods is refused.
    pods = [short_of("Pod", f"d2-{index}", H200, 1, 9, 8) for index in range(2)]
    await scene.expect(bound=8, emitted=pods, phases={"d2": "Inqueue"})
    for index in (6, 7):
        await scene.cluster.delete("pods", f"d1-{index}")
    await scene.expect(bound=_names(("d1", 6), ("d2", 2)), cards={H200: 8}, phases={"d2": "Running"})


@pytest.mark.asyncio
async def test_a_terminating_pod_holds_its_quota_until_it_is_gone(scene: Scene) -> None:
    first = elastic("first", 2, cards=H200, requests=wants(), grace=60)
    await scene.make(gpu_node("h", H200, 2), gpu_node("free", H200, 2), queue("q", cards={H200: 2}), first)
    await scene.expect(bound=2, phases={"first": "Running"})
    scene.kubelet.stop_delay = 60.0
    await scene.cluster.delete("pods", "first-1", grace=None)
    await scene.make(_job("second", 1))
    emitted = [short_of(kind, name, H200, 1, 3, 2) for kind, name in (("PodGroup", "second"), ("Pod", "second-0"))]
    await scene.expect(bound=2, emitted=emitted, cards={H200: 2}, phases={"second": "Pending"})
    await scene.cluster.delete("pods", "first-1")
    await scene.expect(bound=2, cards={H200: 2}, phases={"second": "Running"})


@pytest.mark.asyncio
async def test_a_lowered_quota_leaves_running_pods_alone(scene: Scene) -> None:
    await scene.make(
        gpu_node("h", H200, 16), queue("q", cards={H200: 8}), elastic("job", 8, cards=H200, requests=wants())
    )
    await scene.expect(bound=8)
    await _quota(scene, '{"NVIDIA-H200":4}')
    await scene.make([pod("job-8", group="job", cards=H200, requests=wants())])
    await scene.expect(bound=8, emitted=[short_of("Pod", "job-8", H200, 1, 9, 4)], cards={H200: 8})
    await _quota(scene, '{"NVIDIA-H200":9}')
    await scene.expect(bound=9, cards={H200: 9})


@pytest.mark.asyncio
async def test_a_quota_that_is_taken_away_admits_nothing_more(scene: Scene) -> None:
    await scene.make(gpu_node("h", H200, 8), queue("q", cards={H200: 8}, capability={"cpu": "8"}), _job("first", 2))
    await scene.expect(bound=2)
    await _quota(scene, None)
    await scene.make(_job("second", 1))
    await scene.expect(bound=2, emitted=_refused("second", 1, 1, 3, 0))


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
async def test_pods_of_a_card_that_left_the_cluster_keep_their_charge(scene: Scene) -> None:
    await scene.make(
        gpu_node("h", H200, 8), gpu_node("a", A100, 8), queue("q", cards={H200: 4, A100: 4}), _job("job", 2)
    )
    await scene.expect(bound=2, phases={"job": "Running"})
    await scene.cluster.delete("nodes", "h")
    late = [pod("late", queue="q", cards=H200, requests=wants()), pod("other", queue="q", cards=A100, requests=wants())]
    await scene.make(late)
    await scene.expect(bound={**_names(("job", 2)), "other": "a"}, cards={H200: 2, A100: 1})
    await scene.expect_shown("late", f"0/1 nodes are unavailable: 1 node(s) didn't have card <{H200}>.")
    for member in range(2):
        await scene.cluster.delete("pods", f"job-{member}")
    await scene.expect(
        bound={"other": "a"}, emitted=[unreadable("late", f"no resource name found for card <{H200}>")], cards={H200: 0}
    )


@pytest.mark.asyncio
async def test_a_node_that_loses_cards_keeps_its_pods(scene: Scene) -> None:
    await scene.make(gpu_node("h", H200, 4), queue("q", cards={H200: 8}), _job("first", 3))
    await scene.expect(bound=3)
    await _offer(scene, "h", {"nvidia.com/gpu": 2})
    await scene.make(_job("second", 1))
    await scene.expect(bound=3, cards={H200: 3})
    assert await _total(scene, H200) == 2
    await scene.expect_shown("second-0", _NO_ROOM)
    await scene.cluster.delete("pods", "first-0")
    await scene.expect(bound=2)
    await _offer(scene, "h", {"nvidia.com/gpu": 3})
    await scene.expect(bound={"first-1": "h", "first-2": "h", "second-0": "h"}, cards={H200: 3})


@pytest.mark.asyncio
async def test_a_node_that_is_sliced_anew_offers_other_cards(scene: Scene) -> None:
    nodes = [gpu_node("sliced", H200, 0, devices={_SLICE: 2}), gpu_node("whole", H200, 2)]
    job = elastic("small", 2, cards=MIG, requests=wants(1, _SLICE))
    await scene.make(nodes, queue("q", cards={H200: 2, MIG: 4}), job)
    await scene.expect(bound=2, cards={MIG: 2})
    await _offer(scene, "sliced", {_SLICE: 0})
    await scene.make([pod("small-2", group="small", cards=MIG, requests=wants(1, _SLICE))], _job("job", 2))
    await scene.expect(bound=_names(("small", 2), ("job", 2)), cards={MIG: 2, H200: 2})
    assert await _total(scene, MIG) == 0
    quota = await scene.stage.daemon.metric("volcano_queue_card_capacity", queue_name="q", card=MIG)
    assert quota == 4, "a quota is no inventory"
    await scene.expect_shown("small-2", f"0/2 nodes are unavailable: 2 Insufficient {_SLICE}.")
    await _offer(scene, "sliced", {_SLICE: 3})
    await scene.expect(bound=5, cards={MIG: 3})


@pytest.mark.asyncio
async def test_a_node_that_turns_into_another_model_takes_pods_of_that(scene: Scene) -> None:
    await scene.make(gpu_node("n", H200, 4), queue("q", cards={H200: 4, A100: 1}), _job("first", 2))
    await scene.expect(bound=2, cards={H200: 2})
    await scene.cluster.patch("nodes", "n", {"metadata": {"labels": {"nvidia.com/gpu.product": A100}}})
    await scene.stage.sees("Node", "n", lambda node: A100 in node.get("cards", ()))
    await scene.cluster.delete("pods", "first-0")
    await scene.cluster.delete("pods", "first-1")
    await scene.make(pod("p", queue="q", cards=f"{H200}|{A100}", requests=wants()), *_job("second", 1))
    why = f"no resource name found for card <{H200}>"
    emitted = [unreadable("second-0", why), unreadable("second", why, kind="PodGroup")]
    await scene.expect(bound={"p": "n"}, cards={H200: 0, A100: 1}, emitted=emitted)
    assert (await scene.cluster.get("pods", "p"))["metadata"]["annotations"][keys.CARD_ASSIGNED] == A100


@pytest.mark.asyncio
async def test_a_closed_queue_admits_nothing_and_runs_on(scene: Scene) -> None:
    await scene.make(gpu_node("h", H200, 8), queue("q", cards={H200: 8}), _job("first", 1))
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
    await scene.make(node, queue("q", cards={H200: 4, MIG: 2}), _job("job", 2))
    await scene.make(pod("small", queue="q", cards=MIG, requests={"memory": "1Gi", _SLICE: 1}))
    await scene.expect(bound=3)
    await _status_is(scene, "q", {"nvidia.com/gpu": "2", _SLICE: "1", "cpu": "200m", "memory": "1Gi", "pods": "3"})
    for member in range(2):
        await scene.cluster.delete("pods", f"job-{member}")
    await _status_is(scene, "q", {_SLICE: "1", "memory": "1Gi", "pods": "1"})
