"""Accounts of bound pods on a real API server: unusual quantities count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gpu_node, pod, queue
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
