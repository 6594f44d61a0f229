"""A small cluster, and a simulation of it that is recorded as the daemon records."""

from __future__ import annotations

import json
from collections.abc import Sequence

from capcard_sched.cli.sources.cores import build_core
from capcard_sched.daemon.diagnosis.recording import Recording
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.model.deltas import Delta
from capcard_sched.simulation.run import SimulationOptions, simulate
from capcard_sched.simulation.scenario_reader import load_scenario
from tests.scenarios.notation import manifests


def written(text: str) -> str:
    """A file of the objects of some statements."""
    return "\n---\n".join(json.dumps(one) for one in manifests(text))


#: `runs` holds the 4 cards of the quota; `waits` needs 2 more.
WAITING = written("""
node n1 8*NVIDIA-H200 cpu=64 memory=512Gi
queue team cards=NVIDIA-H200:4
deployment runs*4 queue=team card=NVIDIA-H200 gpu=1
job waits queue=team min=2 + worker*2 card=NVIDIA-H200 gpu=1
""")

#: A node with whole cards, on which a device plugin shares two more. One of these is unhealthy, the other has a pod.
MIXED_CARDS = written("""
node mixed 8*NVIDIA-H200 cpu=64 memory=none volcano.sh/vgpu-number=10 spec={unschedulable: true}
  annotations={volcano.sh/node-vgpu-register:
  "GPU-0,10,8192,NVIDIA-T4,true,hami-core:GPU-1,10,8192,NVIDIA-T4,false,hami-core:"}
pod default/shares scheduler=none nodeName=mixed status={phase: Running}
  annotations={volcano.sh/vgpu-node: mixed, volcano.sh/vgpu-ids-new: "GPU-0,NVIDIA,1024,25:;"}
""")


def core_of(options: SimulationOptions | None = None) -> Core:
    """A core with the built-in scheduler-conf."""
    return build_core(None, None, options or SimulationOptions(scheduler_names=("volcano",)))


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
