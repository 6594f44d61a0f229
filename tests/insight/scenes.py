"""A small cluster, and a simulation of it that is recorded as the daemon records."""

from __future__ import annotations

from collections.abc import Sequence

from capcard_sched.cli.simulate import core_with_conf
from capcard_sched.daemon.diagnosis.recording import Recording
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.model.deltas import Delta
from capcard_sched.simulation.run import SimulationOptions, simulate
from capcard_sched.simulation.scenario_reader import load_scenario

#: `runs` holds the 4 cards of the quota; `waits` needs 2 more.
WAITING = """
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {nvidia.com/gpu.product: NVIDIA-H200, nvidia.com/gpu.memory: '143771', nvidia.com/gpu.count: '8'}
status: {allocatable: {cpu: '64', memory: 512Gi, pods: '110', nvidia.com/gpu: '8'}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: team, annotations: {volcano.sh/card.quota: '{"NVIDIA-H200": 4}'}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: runs}
spec:
  replicas: 4
  selector: {matchLabels: {app: runs}}
  template:
    metadata:
      labels: {app: runs}
      annotations: {scheduling.volcano.sh/queue-name: team, volcano.sh/card.name: NVIDIA-H200}
    spec:
      schedulerName: volcano
      containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: waits}
spec:
  schedulerName: volcano
  queue: team
  minAvailable: 2
  tasks:
  - name: worker
    replicas: 2
    template:
      metadata: {annotations: {volcano.sh/card.name: NVIDIA-H200}}
      spec: {containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""

#: A node with whole cards, on which a device plugin shares two more. One of these is unhealthy, the other has a pod.
MIXED_CARDS = """
apiVersion: v1
kind: Node
metadata:
  name: mixed
  labels: {nvidia.com/gpu.product: NVIDIA-H200, nvidia.com/gpu.memory: '143771'}
  annotations:
    volcano.sh/node-vgpu-register: "GPU-0,10,8192,NVIDIA-T4,true,hami-core:GPU-1,10,8192,NVIDIA-T4,false,hami-core:"
spec: {unschedulable: true}
status: {allocatable: {cpu: '64', pods: '110', nvidia.com/gpu: '8', volcano.sh/vgpu-number: '10'}}
---
apiVersion: v1
kind: Pod
metadata:
  name: shares
  namespace: default
  annotations:
    volcano.sh/vgpu-node: mixed
    volcano.sh/vgpu-ids-new: "GPU-0,NVIDIA,1024,25:;"
spec: {nodeName: mixed, containers: [{name: main, image: x}]}
status: {phase: Running}
"""


def core_of(options: SimulationOptions | None = None) -> Core:
    """A core with the built-in scheduler-conf."""
    return core_with_conf(None, "", None, options or SimulationOptions(scheduler_names=("volcano",)))


class _Recorded:
    """A core whose steps are recorded."""

    def __init__(self, core: Core, recording: Recording) -> None:
        self._core, self._recording = core, recording

    def step(self, deltas: Sequence[Delta], now: float) -> StepResult:
        result = self._core.step(deltas, now)
        self._recording.stepped(result, deltas, now)
        return result


def recorded_run(path: str, core: Core, recording: Recording, *, until: int) -> int:
    """Simulate manifests to `until` (microseconds); returns the time of the end."""
    options = SimulationOptions(scheduler_names=("volcano",), until=until)
    scenario = load_scenario([path], existing_queues=("root", "default"))
    return simulate(scenario, _Recorded(core, recording), options).end
