"""Shared cards on a real API server: the daemon, a device plugin that follows the protocol, and pods of users."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.device_plugin import HANDSHAKE, LOCK, PHASE, DevicePlugin
from tests.controlplane.manifests import node, pod, pod_group, queue
from tests.e2e.daemons import Daemon

pytestmark = [pytest.mark.asyncio, pytest.mark.campaign]

IDS = "volcano.sh/vgpu-ids-new"
NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
CARDS = [f"GPU-{index},10,4914,NVIDIA-NVIDIA L40S,true,hami-core:" for index in range(8)]


def _conf(**more: Any) -> str:
    arguments = {"VGPUEnable": True, "SchedulePolicy": "binpack", "ScheduleWeight": 10, **more}
    listed = ", ".join(f"deviceshare.{key}: {str(value).lower()}" for key, value in arguments.items())
    return f"""
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}, {{name: conformance}}]
- plugins:
  - {{name: drf}}
  - {{name: deviceshare, arguments: {{{listed}}}}}
  - {{name: predicates}}
  - {{name: proportion}}
  - {{name: nodeorder}}
"""


def _node() -> Manifest:
    return node("node5-3", cpu=160, memory="2Ti", devices={NUMBER: 80, MEMORY: 39312, CORES: 800})


def _share(name: str, memory: int = 1024, *, group: str = "", cores: int = 0) -> Manifest:
    made: dict[str, Any] = pod(name, group=group)
    limits = {NUMBER: "1", MEMORY: str(memory), **({CORES: str(cores)} if cores else {})}
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    return made


async def _notes(cluster: Cluster, name: str) -> dict[str, str]:
    return (await cluster.get("pods", name))["metadata"].get("annotations") or {}


async def _phase(cluster: Cluster, name: str, phase: str) -> bool:
    return (await _notes(cluster, name)).get(PHASE) == phase


async def _served(cluster: Cluster, *names: str, within: float = 20.0) -> None:
    """Wait until pods have their devices."""
    for name in names:
        await cluster.wait_until(partial(_phase, cluster, name, "success"), f"{name} to be served", within=within)


async def _message(cluster: Cluster, name: str) -> str:
    conditions = (await cluster.get("pods", name))["status"].get("conditions", [])
    return next((row.get("message", "") for row in conditions if row["type"] == "PodScheduled"), "")


async def test_a_gang_is_served_in_the_order_of_its_bindings_and_survives_a_restart(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([queue("default"), _node(), pod_group("gang", members=8)])
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    names = [f"worker-{index}" for index in range(8)]
    async with DevicePlugin(control_plane, "node5-3", paused=True) as plugin:
        await plugin.register("".join(CARDS[:1]), handshake=False)
        async with Daemon(kubeconfig, tmp_path, conf=_conf(), name="first") as daemon:
            await daemon.logged("caches synced")
            await cluster.create_all([_share(name, 500, group="gang") for name in names])
            for name in names:
                check = partial(_phase, cluster, name, "allocating")
                await cluster.wait_until(check, f"{name} to be bound", within=20)
        times = {name: int((await _notes(cluster, name))["volcano.sh/vgpu-time"]) for name in names}
        assert len(set(times.values())) == 8
        async with Daemon(kubeconfig, tmp_path, conf=_conf(), name="second") as daemon:
            await daemon.logged("caches synced")
            await cluster.create_all([_share("fits", 900), _share("waits", 900)])
            message = "hami-vgpuDeviceSharing error"

            async def one_waits() -> bool:
                texts = [await _message(cluster, name) for name in ("fits", "waits")]
                return sum(message in text for text in texts) == 1

            await cluster.wait_until(one_waits, "one of two pods to be refused", within=20)
            assert await daemon.metric("volcano_vgpu_device_shared_number", devID="GPU-0") == 9
            plugin.paused = False
            await _served(cluster, *names)
        served = [each.pod for each in plugin.served if each.pod in times]
        assert served == sorted(names, key=times.__getitem__)


async def test_a_plugin_that_is_gone_and_a_card_that_is_pulled(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([queue("default"), _node()])
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    async with (
        DevicePlugin(control_plane, "node5-3") as plugin,
        Daemon(kubeconfig, tmp_path, conf=_conf()) as daemon,
    ):
        await plugin.register("".join(CARDS[:2]))
        await daemon.logged("caches synced")
        await cluster.create(_share("first", 4000))
        await _served(cluster, "first")
        await plugin.register(CARDS[0])  # its card, the second one, is pulled
        await cluster.create(_share("second", 4000))
        await _served(cluster, "second")
        assert (await _notes(cluster, "second"))[IDS] == "GPU-0,NVIDIA,4000,0:"
        await plugin.register("".join(CARDS[:2]))
        await cluster.create(_share("third", 4000))

        async def refused(words: str) -> bool:
            return words in await _message(cluster, "third")

        await cluster.wait_until(lambda: refused("(memory)"), "the third pod to be refused", within=20)

        plugin.paused = True
        old = datetime.now(UTC) - timedelta(seconds=70)
        patch = {"metadata": {"annotations": {HANDSHAKE: f"Requesting_{old:%Y.%m.%d %H:%M:%S}"}}}
        await cluster.patch("nodes", "node5-3", patch, namespace="")
        await cluster.wait_until(lambda: refused("not initialized"), "the node to have no cards", within=20)

        async def given_up() -> bool:
            found = await cluster.get("nodes", "node5-3", namespace="")
            return str(found["metadata"]["annotations"][HANDSHAKE]).startswith("Deleted_")

        await cluster.wait_until(given_up, "the handshake to be given up", within=20)


async def test_with_the_lock_one_pod_after_the_other_is_bound(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([queue("default"), _node(), pod_group("gang", members=3)])
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    names = [f"worker-{index}" for index in range(3)]
    async with (
        DevicePlugin(control_plane, "node5-3", paused=True) as plugin,
        Daemon(kubeconfig, tmp_path, conf=_conf(NodeLockEnable=True)) as daemon,
    ):
        await plugin.register("".join(CARDS), handshake=False)
        await daemon.logged("caches synced")
        await cluster.create_all([_share(name, group="gang") for name in names])

        async def bound() -> bool:
            return len(await cluster.bound()) == 1

        async def locked() -> Any:
            found = await cluster.get("nodes", "node5-3", namespace="")
            return found["metadata"]["annotations"].get(LOCK)

        await cluster.wait_until(bound, "one pod to be bound", within=20)
        assert await locked()
        plugin.paused = False
        await _served(cluster, *names, within=40)
        assert not await locked()
