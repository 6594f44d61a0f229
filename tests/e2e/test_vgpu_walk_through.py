"""The walk-through of shared GPUs on a real API server: scheduler-conf, registration, a pod, a gang, metrics, units.

One node of eight L40S in units of 10 MiB, as its device plugin registers it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.device_plugin import PHASE, DevicePlugin
from tests.controlplane.manifests import node
from tests.e2e.daemons import Controllers, Daemon

pytestmark = pytest.mark.asyncio

NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
IDS = "volcano.sh/vgpu-ids-new"
#: The scheduler-conf before and after the plugin is added.
CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""
DEVICESHARE = """  - name: deviceshare
    arguments:
      deviceshare.VGPUEnable: true # enable vgpu
      deviceshare.SchedulePolicy: binpack  # scheduling policy. binpack / spread
"""
UUIDS = [f"GPU-{word}" for word in ("a11fe6d9", "b82090de", "8f563a66", "1e5a0632", "384027fd", "dbb95093", "f3eb6e71")]
LAST = "GPU-542efc47-39a1-9669-3d17-3b7dec8251ad"
CARDS = "".join(f"{uuid},10,4914,NVIDIA-NVIDIA L40S,true,hami-core:" for uuid in (*UUIDS, LAST))
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
#: Figures of the card by series, with test1 and three workers on it.
SERIES = {"shared_number": 4, "allocated_memory": 4096, "allocated_cores": 0, "memory_limit": 4914}
HELP = (
    "# HELP volcano_vgpu_device_allocated_cores The percentage of gpu compute cores allocated in this card",
    "# HELP volcano_vgpu_device_allocated_memory The number of vgpu memory allocated in this card",
    "# HELP volcano_vgpu_device_core_allocation_for_a_certain_pod The vgpu device core allocated for a certain pod",
    "# HELP volcano_vgpu_device_memory_allocation_for_a_certain_pod The vgpu device memory allocated for a certain pod",
    "# HELP volcano_vgpu_device_memory_limit The number of total device memory in this card",
    "# HELP volcano_vgpu_device_shared_number The number of vgpu tasks sharing this card",
)


async def _notes(cluster: Cluster, name: str) -> dict[str, str]:
    found = await cluster.find("pods", name)
    return {} if found is None else found["metadata"].get("annotations") or {}


async def _served(cluster: Cluster, *names: str) -> None:
    async def is_served(name: str) -> bool:
        return (await _notes(cluster, name)).get(PHASE) == "success"

    for name in names:
        await cluster.wait_until(partial(is_served, name), f"{name} to be served", within=60)


async def _message(cluster: Cluster, name: str) -> str:
    conditions = (await cluster.get("pods", name))["status"].get("conditions", [])
    return next((row.get("message", "") for row in conditions if row["type"] == "PodScheduled"), "")


async def test_the_walk_through_of_shared_gpus(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> None:
    devices = {NUMBER: 80, MEMORY: 39312, CORES: 800, "nvidia.com/gpu": 0}
    await cluster.create(node("node5-3", cpu=160, memory="2113442544Ki", devices=devices))
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    async with (
        DevicePlugin(control_plane, "node5-3", factor=10) as plugin,
        Controllers(control_plane.kubeconfig_for("admin"), tmp_path),
        Daemon(kubeconfig, tmp_path, "--scheduler-name=volcano", conf=CONF) as daemon,
    ):
        await plugin.register(CARDS)
        await daemon.logged("caches synced", within=60)
        before, _, after = CONF.partition("  - name: predicates\n")
        daemon.conf_path.write_text(f"{before}{DEVICESHARE}  - name: predicates\n{after}")

        async def reloaded() -> bool:
            return await daemon.metric("volcano_vgpu_device_memory_limit", NodeName="node5-3") == 8 * 4914

        await cluster.wait_until(reloaded, "the cards in the metrics without a restart", within=60)

        # the ConfigMap of the device plugin, watched since the reload
        async def has_invalid_config(value: int) -> bool:
            return await daemon.metric("volcano_vgpu_device_config_invalid") == value

        text = "nvidia: {gpuMemoryFactor: ten}"
        metadata = {"name": "volcano-vgpu-device-config", "namespace": "kube-system"}
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"device-config.yaml": text},
        }
        await cluster.create(config_map)
        await cluster.wait_until(partial(has_invalid_config, 1), "the invalid ConfigMap to be reported", within=60)
        await cluster.delete("configmaps", metadata["name"], namespace="kube-system")
        await cluster.wait_until(partial(has_invalid_config, 0), "the defaults to be in force", within=60)

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
        _, text = await daemon.get("/metrics")
        assert [line for line in HELP if line not in text.splitlines()] == []
        card: dict[str, Any] = {"devID": LAST, "NodeName": "node5-3"}
        found = {name: await daemon.metric(f"volcano_vgpu_device_{name}", **card) for name in SERIES}
        assert found == SERIES
        for name in ("test1", *workers):
            series = "volcano_vgpu_device_memory_allocation_for_a_certain_pod"
            assert await daemon.metric(series, podName=name, **card) == 1024

        # a pod without a place
        large = yaml.safe_load(TEST1.replace("name: test1", "name: large").replace("1024", "9000"))
        await cluster.create(large)
        message = await cluster.wait_until(partial(_message, cluster, "large"), "a reason", within=60)
        assert "0/1 nodes are unavailable: 1 hami-vgpuDeviceSharing error (memory)." in message

        # too many units for the kubelet: the node offers no vgpu-memory, and pods are placed all the same
        status = {name: {MEMORY: "0"} for name in ("capacity", "allocatable")}
        await cluster.patch("nodes", "node5-3", {"status": status}, namespace="", subresource="status")

        async def is_named() -> bool:
            events = await cluster.list("events", namespace="default")
            return any("--gpu-memory-factor" in event.get("message", "") for event in events)

        await cluster.wait_until(is_named, "the event on the node", within=60)
        await cluster.create(yaml.safe_load(TEST1.replace("name: test1", "name: test2")))
        await _served(cluster, "test2")
