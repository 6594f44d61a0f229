"""Shared cards on a real API server: the daemon, a device plugin that follows the protocol, and pods of users."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.model.annotations import BINDING_LOCK
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.device_plugin import HANDSHAKE, LOCK, PHASE, DevicePlugin
from tests.controlplane.manifests import Manifest, node, pod, pod_group, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import Controllers, Daemon
from tests.e2e.expectations import message, until, until_bound

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


async def _served(cluster: Cluster, *names: str, phase: str = "success") -> None:
    """Wait until pods have their devices, or are in another phase of the protocol."""
    for name in names:
        await until(cluster, "pods", name, metadata={"annotations": {PHASE: phase}})


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
            await _served(cluster, *names, phase="allocating")
        times = {name: int((await _notes(cluster, name))["volcano.sh/vgpu-time"]) for name in names}
        assert len(set(times.values())) == 8
        async with Daemon(kubeconfig, tmp_path, conf=_conf(**BINPACK), name="second") as daemon:
            await daemon.logged("caches synced")
            await cluster.create_all([_share("fits", 900), _share("waits", 900)])
            await until(cluster, "pods", count=1, status=message("hami-vgpuDeviceSharing error"))
            await daemon.until_metric("volcano_vgpu_device_shared_number", 9, devID="GPU-0")
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
        await until(cluster, "pods", "third", status=message("(memory)"))
        plugin.paused = True
        old = datetime.now(UTC) - timedelta(seconds=70)
        patch = {"metadata": {"annotations": {HANDSHAKE: f"Requesting_{old:%Y.%m.%d %H:%M:%S}"}}}
        await cluster.patch("nodes", "node5-3", patch, namespace="")
        await until(cluster, "pods", "third", status=message("not initialized"))
        await until(cluster, "nodes", "node5-3", metadata={"annotations": {HANDSHAKE: "Deleted_*"}})


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
        assert len(await until_bound(cluster, 1)) == 1
        assert (await cluster.get("nodes", "node5-3"))["metadata"]["annotations"][LOCK]
        plugin.paused = False
        await _served(cluster, *names)
        await until(cluster, "nodes", "node5-3", metadata={"annotations": {LOCK: None}})


async def test_two_schedulers_beside_each_other_do_not_overcommit_a_card(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Both fill the cards of one node at once. Each pod takes more than half of a card."""
    names = ("capcard-sched", "night-shift")
    await cluster.create_all([queue("default"), _node()])
    async with AsyncExitStack() as stack:
        plugin = await stack.enter_async_context(DevicePlugin(control_plane, "node5-3"))
        await plugin.register("".join(CARDS))
        for user, name in zip(("scheduler-a", "scheduler-b"), names, strict=True):
            kubeconfig = control_plane.kubeconfig_for(user)
            flags = (f"--scheduler-name={name}",)
            daemon = await stack.enter_async_context(
                Daemon(kubeconfig, tmp_path, *flags, conf=_conf(**BINPACK), name=name)
            )
            await daemon.logged("caches synced", within=60)
        pods = [_share(f"{name}-{index}", 3000) for index in range(10) for name in names]
        for each in pods:
            each["spec"]["schedulerName"] = each["metadata"]["name"].rpartition("-")[0]
        await cluster.create_all(pods, at_a_time=20)
        bound = await until_bound(cluster, len(CARDS))
        await until(cluster, "pods", count=len(pods) - len(CARDS), status=message("(memory)"))
        assert len(await cluster.bound()) == len(bound)
        taken = Counter([(await _notes(cluster, name))[IDS].partition(",")[0] for name in bound])
        assert taken == {f"GPU-{index}": 1 for index in range(len(CARDS))}
        await until(cluster, "nodes", "node5-3", metadata={"annotations": {LOCK: None, BINDING_LOCK: None}})


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
        await daemon.until_metric("volcano_vgpu_device_memory_limit", 8 * 4914, NodeName="node5-3")

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
        for series, value in SERIES.items():
            await daemon.until_metric(f"volcano_vgpu_device_{series}", value, **card)
        for name in ("test1", *workers):
            series = "volcano_vgpu_device_memory_allocation_for_a_certain_pod"
            await daemon.until_metric(series, 1024, podName=name, **card)

        # too many units for the kubelet: the node offers no vgpu-memory, and pods are placed all the same
        status = {name: {MEMORY: "0"} for name in ("capacity", "allocatable")}
        await cluster.patch("nodes", "node5-3", {"status": status}, namespace="", subresource="status")
        await until(cluster, "events", namespace="default", message="*--gpu-memory-factor*")
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
        await daemon.until_metric("volcano_vgpu_device_allocated_memory", 4000, devID="GPU-0")
