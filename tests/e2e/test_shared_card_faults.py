"""Faults around shared cards on a real API server: foreign locks, failed bindings, changes of the sharing mode.

One daemon, with the lock of nodes on, serves all tests; each has a node of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.device_plugin import LOCK, PHASE, DevicePlugin
from tests.controlplane.manifests import Manifest, node, pod, queue
from tests.controlplane.preparation import prepare
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import message, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.campaign]

IDS, TIME = "volcano.sh/vgpu-ids-new", "volcano.sh/vgpu-time"
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins:
  - name: deviceshare
    arguments: {deviceshare.VGPUEnable: true, deviceshare.NodeLockEnable: true}
  - {name: predicates}
  - {name: proportion}
"""


class World(NamedTuple):
    cluster: Cluster
    proxy: Proxy
    control_plane: ControlPlane
    daemon: Daemon

    def plugin(self, node: str) -> DevicePlugin:
        return DevicePlugin(self.control_plane, node)

    async def notes(self, name: str) -> dict[str, str]:
        return (await self.cluster.get("pods", name))["metadata"].get("annotations") or {}

    async def served(self, *names: str) -> None:
        for name in names:
            await until(self.cluster, "pods", name, metadata={"annotations": {PHASE: "success"}})

    async def refused(self, name: str, words: str) -> None:
        await until(self.cluster, "pods", name, status=message(words))

    async def lock(self, node: str, value: str | None) -> None:
        await self.cluster.patch("nodes", node, {"metadata": {"annotations": {LOCK: value}}}, namespace="")

    async def uses(self, uuid: str, memory: int) -> None:
        await self.daemon.until_metric("volcano_vgpu_device_allocated_memory", memory, devID=uuid)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with Cluster(control_plane) as cluster, Proxy(control_plane) as proxy:
        await prepare(cluster)
        cluster.namespace = await cluster.make_namespace()
        await cluster.create(queue("default"))
        kubeconfig = proxy.kubeconfig_for("scheduler-a")
        async with Daemon(kubeconfig, tmp_path_factory.mktemp("faults"), conf=CONF) as daemon:
            await daemon.logged("caches synced", within=60)
            yield World(cluster, proxy, control_plane, daemon)
        await cluster.wipe()


def _node(name: str) -> Manifest:
    return node(name, devices={NUMBER: 10})


def _cards(node: str, *, mode: str = "hami-core", type: str = "NVIDIA-NVIDIA L40S", memory: int = 4914) -> str:
    return f"GPU-{node},10,{memory},{type},true,{mode}:"


def _share(name: str, node: str, memory: int, **annotations: str) -> Manifest:
    made = pod(name, annotations=annotations, nodeSelector={"kubernetes.io/hostname": node})
    made["spec"]["containers"][0]["resources"] = {"limits": {NUMBER: "1", MEMORY: str(memory)}}
    return made


def _age(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_a_foreign_lock_delays_a_binding_until_it_is_released(world: World) -> None:
    await world.cluster.create(_node("foreign"))
    async with world.plugin("foreign") as plugin:
        await plugin.register(_cards("foreign"), handshake=False)
        await world.lock("foreign", _age(-60))
        before = len(world.proxy.exchanges)
        await world.cluster.create(_share("waits", "foreign", 1000))

        async def looked_at() -> bool:
            gets = [each for each in world.proxy.exchanges[before:] if each.path.endswith("/nodes/foreign")]
            return len(gets) >= 2  # at the binding and again after a pause

        await world.cluster.wait_until(looked_at, "the lock to be read twice", within=60)
        assert not (await world.cluster.get("pods", "waits"))["spec"].get("nodeName")
        assert IDS not in await world.notes("waits")
        await world.lock("foreign", None)
        await world.served("waits")
        await until(world.cluster, "nodes", "foreign", metadata={"annotations": {LOCK: None}})


@pytest.mark.parametrize(
    "node, value", [("expired", _age(301)), ("no-time", "yesterday")], ids=["expired", "unreadable"]
)
async def test_an_expired_or_unreadable_lock_delays_nothing(world: World, node: str, value: str) -> None:
    await world.cluster.create(_node(node))
    async with world.plugin(node) as plugin:
        await plugin.register(_cards(node), handshake=False)
        await world.lock(node, value)
        await world.cluster.create(_share(f"on-{node}", node, 1000))
        await world.served(f"on-{node}")


async def test_cards_follow_a_change_of_the_sharing_mode_and_keep_their_pods(world: World) -> None:
    type = "NVIDIA-NVIDIA A100-SXM4-40GB"
    registered = partial(_cards, "modes", type=type, memory=40536)
    await world.cluster.create_all([_node("modes"), _node("spare")])
    async with world.plugin("modes") as plugin, world.plugin("spare") as spare:
        await spare.register(_cards("spare"), handshake=False)  # the queue's limit is above the cards of one node
        await plugin.register(registered(), handshake=False)
        await world.cluster.create(_share("shared", "modes", 8000))
        await world.served("shared")
        await world.cluster.create(_share("sliced", "modes", 8000, **{"volcano.sh/vgpu-mode": "mig"}))
        await world.refused("sliced", "hami-vgpuDeviceSharing error (sharing mode)")

        await plugin.register(registered(mode="mig"), handshake=False)
        await world.served("sliced")
        assert (await world.notes("sliced"))[IDS] == "GPU-modes[group2-0],NVIDIA,8000,0:"
        await world.uses("GPU-modes", 8000 + 10240)  # the pod from before keeps its amount

        await plugin.register(registered(), handshake=False)
        await world.uses("GPU-modes", 8000 + 8000)
        await world.cluster.create(_share("too-large", "modes", 25000, **{"volcano.sh/vgpu-mode": "hami-core"}))
        await world.refused("too-large", "hami-vgpuDeviceSharing error (memory)")
        await world.cluster.delete("pods", "shared")
        await world.served("too-large")
        await world.uses("GPU-modes", 8000 + 25000)
