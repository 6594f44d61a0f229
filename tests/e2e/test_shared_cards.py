"""Shared cards on a real API server: the daemon, a device plugin that follows the protocol, and pods of users."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.device_plugin import HANDSHAKE, LOCK, PHASE, DevicePlugin
from tests.controlplane.manifests import node, pod, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import Controllers, Daemon

pytestmark = pytest.mark.asyncio

IDS = "volcano.sh/vgpu-ids-new"
NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
CARDS = [f"GPU-{index},10,4914,NVIDIA-NVIDIA L40S,true,hami-core:" for index in range(8)]
LAST = "GPU-7"
TEST1 = """
apiVersion: v1
kind: Pod
metadata:
  name: test1
spec:
  restartPolicy: OnFailure
  schedulerName: volcano
  containers:
  - image: ubuntu:24.04
    name: pod1-ctr
    command: ["sleep"]
    args: ["100000"]
    resources:
      limits:
        volcano.sh/vgpu-memory: 1024
        volcano.sh/vgpu-number: 1
"""
JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: simple-vgpu-training
spec:
  schedulerName: volcano
  minAvailable: 3
  tasks:
  - name: worker
    replicas: 3
    template:
      spec:
        restartPolicy: OnFailure
        containers:
        - name: python-trainer
          image: python:3.9-slim
          env:
          - name: VC_TASK_INDEX
            valueFrom:
              fieldRef:
                fieldPath: metadata.annotations['volcano.sh/task-index']
          resources:
            limits:
              volcano.sh/vgpu-memory: 1024
              volcano.sh/vgpu-number: 1
              cpu: "1"
              memory: "1Gi"
"""
#: Figures of the last card by series, with test1 and three workers on it.
SERIES = {"shared_number": 4, "allocated_memory": 4096, "allocated_cores": 0, "memory_limit": 4914}


def _conf(**arguments: Any) -> str:
    """A scheduler-conf, with deviceshare if there are arguments."""
    listed = ", ".join(f"deviceshare.{key}: {str(value).lower()}" for key, value in arguments.items())
    deviceshare = f"  - {{name: deviceshare, arguments: {{{listed}}}}}\n" if arguments else ""
    return f"""
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}, {{name: conformance}}]
- plugins:
  - {{name: drf}}
{deviceshare}  - {{name: predicates}}
  - {{name: proportion}}
  - {{name: nodeorder}}
"""


BINPACK = {"VGPUEnable": True, "SchedulePolicy": "binpack", "ScheduleWeight": 10}


def _node() -> Manifest:
    return node("node5-3", cpu=160, memory="2Ti", devices={NUMBER: 80, MEMORY: 39312, CORES: 800})


def _share(name: str, memory: int = 1024, *, group: str = "", cores: int = 0) -> Manifest:
    made: dict[str, Any] = pod(name, group=group)
    limits = {NUMBER: "1", MEMORY: str(memory), **({CORES: str(cores)} if cores else {})}
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    return made


async def _notes(cluster: Cluster, name: str) -> dict[str, str]:
    found = await cluster.find("pods", name)
    return {} if found is None else found["metadata"].get("annotations") or {}


async def _phase(cluster: Cluster, name: str, phase: str) -> bool:
    return (await _notes(cluster, name)).get(PHASE) == phase


async def _served(cluster: Cluster, *names: str, within: float = 60.0) -> None:
    """Wait until pods have their devices."""
    for name in names:
        await cluster.wait_until(partial(_phase, cluster, name, "success"), f"{name} to be served", within=within)


async def _message(cluster: Cluster, name: str) -> str:
    conditions = (await cluster.get("pods", name))["status"].get("conditions", [])
    return next((row.get("message", "") for row in conditions if row["type"] == "PodScheduled"), "")


@pytest.mark.campaign
async def test_a_gang_is_served_in_the_order_of_its_bindings_and_survives_a_restart(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([queue("default"), _node(), pod_group("gang", members=8)])
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    names = [f"worker-{index}" for index in range(8)]
    async with DevicePlugin(control_plane, "node5-3", paused=True) as plugin:
        await plugin.register("".join(CARDS[:1]), handshake=False)
        async with Daemon(kubeconfig, tmp_path, conf=_conf(**BINPACK), name="first") as daemon:
            await daemon.logged("caches synced")
            await cluster.create_all([_share(name, 500, group="gang") for name in names])
            for name in names:
                check = partial(_phase, cluster, name, "allocating")
                await cluster.wait_until(check, f"{name} to be bound", within=20)
        times = {name: int((await _notes(cluster, name))["volcano.sh/vgpu-time"]) for name in names}
        assert len(set(times.values())) == 8
        async with Daemon(kubeconfig, tmp_path, conf=_conf(**BINPACK), name="second") as daemon:
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


@pytest.mark.campaign
async def test_a_plugin_that_is_gone_and_a_card_that_is_pulled(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([queue("default"), _node()])
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    async with (
        DevicePlugin(control_plane, "node5-3") as plugin,
        Daemon(kubeconfig, tmp_path, conf=_conf(**BINPACK)) as daemon,
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


@pytest.mark.campaign
async def test_with_the_lock_one_pod_after_the_other_is_bound(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([queue("default"), _node(), pod_group("gang", members=3)])
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    names = [f"worker-{index}" for index in range(3)]
    async with (
        DevicePlugin(control_plane, "node5-3", paused=True) as plugin,
        Daemon(kubeconfig, tmp_path, conf=_conf(**BINPACK, NodeLockEnable=True)) as daemon,
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
        await _served(cluster, *names)
        assert not await locked()


async def test_the_walk_through_of_shared_gpus(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> None:
    """Units of 10 MiB; the plugin is added to the scheduler-conf of a running daemon."""
    await cluster.create(_node())
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    async with (
        DevicePlugin(control_plane, "node5-3", factor=10) as plugin,
        Controllers(control_plane.kubeconfig_for("admin"), tmp_path),
        Daemon(kubeconfig, tmp_path, "--scheduler-name=volcano", conf=_conf()) as daemon,
    ):
        await plugin.register("".join(CARDS))
        await daemon.logged("caches synced", within=60)
        daemon.conf_path.write_text(_conf(VGPUEnable=True, SchedulePolicy="binpack"))

        async def reloaded() -> bool:
            return await daemon.metric("volcano_vgpu_device_memory_limit", NodeName="node5-3") == 8 * 4914

        await cluster.wait_until(reloaded, "the cards in the metrics without a restart", within=60)

        # a pod
        await cluster.create(yaml.safe_load(TEST1))
        await _served(cluster, "test1")
        assert (await _notes(cluster, "test1"))[IDS] == f"{LAST},NVIDIA,1024,0:"
        assert plugin.served[0].environment == {
            "NVIDIA_VISIBLE_DEVICES": LAST,
            "CUDA_DEVICE_MEMORY_LIMIT_0": "10240m",
            "CUDA_DEVICE_SM_LIMIT": "0",
        }

        # a gang
        await cluster.create(yaml.safe_load(JOB))
        workers = [f"simple-vgpu-training-worker-{index}" for index in range(3)]
        await _served(cluster, *workers)
        for index, name in enumerate(workers):
            notes = await _notes(cluster, name)
            assert notes[IDS] == f"{LAST},NVIDIA,1024,0:"
            assert notes["volcano.sh/task-index"] == str(index)
        assert sorted(each.pod for each in plugin.served) == [*workers, "test1"]

        # the metrics
        card: dict[str, Any] = {"devID": LAST, "NodeName": "node5-3"}
        found = {name: await daemon.metric(f"volcano_vgpu_device_{name}", **card) for name in SERIES}
        assert found == SERIES
        for name in ("test1", *workers):
            series = "volcano_vgpu_device_memory_allocation_for_a_certain_pod"
            assert await daemon.metric(series, podName=name, **card) == 1024

        # too many units for the kubelet: the node offers no vgpu-memory, and pods are placed all the same
        status = {name: {MEMORY: "0"} for name in ("capacity", "allocatable")}
        await cluster.patch("nodes", "node5-3", {"status": status}, namespace="", subresource="status")

        async def is_named() -> bool:
            events = await cluster.list("events", namespace="default")
            return any("--gpu-memory-factor" in event.get("message", "") for event in events)

        await cluster.wait_until(is_named, "the event on the node", within=60)
        await cluster.create(yaml.safe_load(TEST1.replace("name: test1", "name: test2")))
        await _served(cluster, "test2")


@pytest.mark.campaign
async def test_a_binding_that_fails_after_the_choice_leaves_no_annotation_and_the_card_free(
    cluster: Cluster, control_plane: ControlPlane, proxy: Proxy, tmp_path: Path
) -> None:
    await cluster.create_all([queue("default"), _node()])
    kubeconfig = proxy.kubeconfig_for("scheduler-a")
    async with (
        DevicePlugin(control_plane, "node5-3") as plugin,
        Daemon(kubeconfig, tmp_path, conf=_conf(**BINPACK)) as daemon,
    ):
        await plugin.register(CARDS[0], handshake=False)
        fault = proxy.answer("POST", "/pods/rejected/binding$", 403, times=None)
        await cluster.create(_share("rejected", 4000))
        await fault.struck(within=60)
        assert not {IDS, "volcano.sh/vgpu-time", PHASE} & (await _notes(cluster, "rejected")).keys()
        await cluster.delete("pods", "rejected")
        lost = proxy.lose_answer("POST", "/pods/instead/binding$")
        await cluster.create(_share("instead", 4000))  # fits only on a free card
        await lost.struck(within=60)
        await _served(cluster, "instead")
        assert await daemon.metric("volcano_vgpu_device_allocated_memory", devID="GPU-0") == 4000
