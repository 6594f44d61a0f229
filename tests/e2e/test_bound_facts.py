"""Accounts of bound pods on a real API server: edits of a tenant do not free quota, and unusual usage counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from capcard_sched.model.annotations import CARD_NAME, GROUP_NAME
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gang, gpu_node, node, pod, pod_group, queue
from tests.e2e.daemons import CARD_CONF, Daemon

pytestmark = [pytest.mark.asyncio, pytest.mark.campaign]

H200 = "NVIDIA-H200"
GPU = "nvidia.com/gpu"
#: Seconds in which a session over the edit, and several after it, have ended.
SETTLED = 3.0


@pytest_asyncio.fixture
async def daemon(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as running:
        await running.logged("caches synced")
        yield running


async def _edit_queue(cluster: Cluster) -> None:
    await cluster.patch("podgroups", "first", {"spec": {"queue": "other"}})


async def _edit_card(cluster: Cluster) -> None:
    for index in range(4):
        await cluster.patch("pods", f"first-{index}", {"metadata": {"annotations": {CARD_NAME: None}}})


async def _edit_group(cluster: Cluster) -> None:
    await cluster.create(pod_group("elsewhere", queue="other"))
    for index in range(4):
        await cluster.patch("pods", f"first-{index}", {"metadata": {"annotations": {GROUP_NAME: "elsewhere"}}})


async def _delete_group(cluster: Cluster) -> None:
    await cluster.delete("podgroups", "first")


@pytest.mark.parametrize("edit", [_edit_queue, _edit_card, _edit_group, _delete_group], ids=lambda edit: edit.__name__)
async def test_a_tenant_frees_no_quota_by_edits_of_bound_pods_and_their_podgroup(
    cluster: Cluster, daemon: Daemon, edit: Callable[[Cluster], Awaitable[None]]
) -> None:
    cards: dict[str, Any] = {"cards": H200, "requests": {"cpu": "1", GPU: 1}}
    await cluster.create_all([gpu_node("n", H200, 8), queue("team", cards={H200: 4}), queue("other", cards={H200: 4})])
    await cluster.create_all(gang("first", 4, queue="team", **cards))

    async def first_bound() -> bool:
        return len(await cluster.bound()) == 4

    await cluster.wait_until(first_bound, "the first gang", within=30)
    for index in range(4):
        await cluster.patch("pods", f"first-{index}", {"status": {"phase": "Running"}}, subresource="status")
    await edit(cluster)
    await cluster.create_all(gang("second", 1, queue="team", **cards))
    await asyncio.sleep(SETTLED)
    assert sorted(await cluster.bound()) == [f"first-{index}" for index in range(4)]
    if edit is not _delete_group:

        async def reported() -> bool:
            return any(event["reason"] == "QuotaEvasionIgnored" for event in await cluster.list("events"))

        await cluster.wait_until(reported, "an event", within=20)


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param({"cpu": "1", GPU: "8".zfill(600)}, id="600 characters"),
        pytest.param({"cpu": "1e600"}, id="an exponent of 600"),
        pytest.param({"cpu": "7E"}, id="a large number"),
    ],
)
async def test_a_bound_pod_with_an_unusual_quantity_counts(
    cluster: Cluster, daemon: Daemon, requests: dict[str, str]
) -> None:
    """The API server stores these texts as they are."""
    await cluster.create_all([gpu_node("n", H200, 8), queue("team", cards={H200: 8})])
    made = await cluster.create(pod("foreign", scheduler="other", requests=requests))
    assert made["spec"]["containers"][0]["resources"]["requests"] == requests
    await cluster.bind("foreign", "n")
    await asyncio.sleep(1.0)
    await cluster.create(pod("late", queue="team", cards=H200, requests={"cpu": "1", GPU: 1}))
    await asyncio.sleep(SETTLED)
    assert sorted(await cluster.bound()) == ["foreign"]
    await cluster.delete("pods", "foreign")

    async def late_bound() -> bool:
        return "late" in await cluster.bound()

    await cluster.wait_until(late_bound, "the late pod", within=20)


async def test_a_deferred_resize_counts_the_specified_request(cluster: Cluster, daemon: Daemon) -> None:
    await cluster.create(node("n", cpu=4))
    await cluster.create(pod("grows", requests={"cpu": "1"}))

    async def bound() -> bool:
        return "grows" in await cluster.bound()

    await cluster.wait_until(bound, "the first pod", within=30)
    actual = {"name": "main", "image": "i", "imageID": "i", "ready": True, "restartCount": 0}
    actual |= {"allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "3"}}}
    status = {"phase": "Running", "containerStatuses": [actual]}
    await cluster.patch("pods", "grows", {"status": status}, subresource="status")
    await asyncio.sleep(1.0)
    await cluster.create(pod("next", requests={"cpu": "2"}))
    await asyncio.sleep(SETTLED)
    assert sorted(await cluster.bound()) == ["grows"]
    actual |= {"allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}}
    await cluster.patch("pods", "grows", {"status": status}, subresource="status")

    async def next_bound() -> bool:
        return "next" in await cluster.bound()

    await cluster.wait_until(next_bound, "the pod that fits after the resize", within=20)
