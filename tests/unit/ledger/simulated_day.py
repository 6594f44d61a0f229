"""A random simulated day: the deltas of its steps, a recording, and the integral of what its pods held.

The integral reads the objects of the simulated API server when they are written, at the virtual time of the write, and
shares no code with the ledger.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capcard_sched import config
from capcard_sched.daemon.diagnosis.recording import Recording
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.model.deltas import Delta
from capcard_sched.model.intents import Intent
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.manifests import ManifestDocument
from capcard_sched.simulation.run import SimulationOptions, SimulationRun
from capcard_sched.simulation.scenario_reader import load_scenario
from capcard_sched.simulation.store import Change
from capcard_sched.testing import registry

CARDS = ("NVIDIA-H200", "NVIDIA-L40S")
UNTIL = 600


def objects(seed: int) -> list[dict[str, Any]]:
    """Nodes, queues and a timeline of jobs."""
    chance = random.Random(seed)
    found: list[dict[str, Any]] = []
    for index in range(chance.randint(1, 3)):
        card, number = chance.choice(CARDS), chance.choice((2, 4, 8))
        labels = {"nvidia.com/gpu.product": card, "nvidia.com/gpu.memory": "100", "nvidia.com/gpu.count": str(number)}
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(number)}
        found.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}", "labels": labels},
                      "status": {"allocatable": amounts}})  # fmt: skip
    for name in ("a", "b"):
        quota = json.dumps({card: chance.randint(2, 12) for card in CARDS})
        found.append({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
                      "metadata": {"name": name, "annotations": {"volcano.sh/card.quota": quota}},
                      "spec": {"reclaimable": name == "b", "priority": 2 if name == "a" else 1}})  # fmt: skip
    operations = sorted(
        (_operation(chance, number) for number in range(chance.randint(4, 24))), key=lambda one: one["at"]
    )
    spec = {"operations": [{**one, "at": f"{one['at']}s"} for one in operations]}
    found.append({"apiVersion": "simulation.capcard-sched.io/v1alpha1", "kind": "Scenario",
                  "metadata": {"name": "day"}, "spec": spec})  # fmt: skip
    return found


def _operation(chance: random.Random, number: int) -> dict[str, Any]:
    at = chance.randint(0, 240)
    what = chance.choice(("job", "job", "job", "pod", "quota", "cordon"))
    if what == "quota":
        quota = json.dumps({card: chance.randint(2, 12) for card in CARDS})
        meta = {"name": chance.choice("ab"), "annotations": {"volcano.sh/card.quota": quota}}
        return {"at": at, "patch": {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": meta}}
    if what == "cordon":
        cordoned = {"unschedulable": chance.random() < 0.7}
        return {"at": at, "patch": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "spec": cordoned}}
    service = chance.choice(("inference", "training", ""))
    notes = {"volcano.sh/card.name": chance.choice((*CARDS, "|".join(CARDS)))}
    if chance.random() < 0.8:
        notes["simulation.capcard-sched.io/duration"] = f"{chance.randint(1, 240)}s"
    if chance.random() < 0.2:
        notes["simulation.capcard-sched.io/exit-code"] = "1"
    container = {"name": "c", "image": "i", "resources": {
        "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": chance.randint(1, 4)}}}  # fmt: skip
    labels = {"capcard-sched.io/user": chance.choice(("ann", "bob"))}
    spec = {"schedulerName": "volcano", "restartPolicy": "Never", "containers": [container]}
    if what == "pod":
        notes["scheduling.volcano.sh/queue-name"] = chance.choice("ab")
        return {"at": at, "create": {"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata":
                {"name": f"p{number}", "namespace": "default", "annotations": notes, "labels": labels}}}  # fmt: skip
    replicas = chance.randint(1, 3)
    queue = "a" if service == "inference" else "b"
    job = {"schedulerName": "volcano", "queue": queue, "minAvailable": chance.randint(1, replicas),
           "policies": [{"event": "PodEvicted", "action": "RestartJob"}],
           "tasks": [{"name": "w", "replicas": replicas, "template":
                      {"metadata": {"annotations": notes, "labels": labels}, "spec": spec}}]}  # fmt: skip
    annotations = {"volcano.sh/service.type": service} if service else {}
    return {"at": at, "create": {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": job, "metadata":
            {"name": f"j{number}", "namespace": "default", "annotations": annotations}}}  # fmt: skip


class PodIntegral:
    """Thousandths of a card times milliseconds, by queue and card, from the objects as they are written."""

    def __init__(self, run: SimulationRun) -> None:
        self._store = run.cluster.store
        self.sums: dict[tuple[str, str], int] = {}
        self._running: dict[str, tuple[int, str, str, int]] = {}
        self._store.observe(self._see)

    def _see(self, change: Change) -> None:
        if change.kind != "Pod":
            return
        pod = change.object
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        over = change.verb == "removed" or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        now = self._store.clock.now // 1000
        if over:
            self._end(uid, now)
        elif node and uid not in self._running:
            labels = self._store.get("Node", "", node)["metadata"]["labels"]  # type: ignore[index]
            amount = int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
            group = pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
            queue = self._store.get("PodGroup", "default", group)["spec"]["queue"]  # type: ignore[index]
            self._running[uid] = now, queue, labels["nvidia.com/gpu.product"], 1000 * amount

    def _end(self, uid: str, now: int) -> None:
        if uid in self._running:
            since, queue, card, amount = self._running.pop(uid)
            self.sums[queue, card] = self.sums.get((queue, card), 0) + amount * (now - since)

    def finish(self, end: int) -> dict[tuple[str, str], int]:
        """The sums up to the end, in milliseconds of virtual time."""
        for uid in list(self._running):
            self._end(uid, end)
        return {key: amount for key, amount in self.sums.items() if amount}


class SimulatedDay:
    """Runs a day and keeps its steps; records it in a file if one is given."""

    def __init__(self, seed: int, file: Path | None = None) -> None:
        text = (Path(config.__file__).parent / "examples" / "tidal" / "conf" / "scheduler.yaml").read_bytes()
        conf = parse_conf(text, registry=registry()).conf
        assert conf is not None
        options = SimulationOptions(("volcano",), "default", SECOND, UNTIL * SECOND, EPOCH)
        self._core = Core(conf, registry(), scheduler_names=("volcano",), default_queue="default")
        self._recording = None
        if file is not None:
            names = {"scheduler_names": ("volcano",), "default_queue": "default"}
            self._recording = Recording(file, conf, **names, clock=lambda: EPOCH)  # type: ignore[arg-type]
        #: Moment, deltas, intents.
        self.steps: list[tuple[float, list[Delta], list[Intent]]] = []
        value = {"apiVersion": "v1", "kind": "List", "items": objects(seed)}
        scenario = load_scenario([], existing_queues=("root", "default"), documents=[ManifestDocument("day", 1, value)])
        run = SimulationRun(scenario, self, options)
        integral = PodIntegral(run)
        run.load()
        outcome = run.finish()
        self.end = EPOCH + outcome.end / SECOND
        last = list(outcome.deltas)
        self.steps.append((self.end, last, []))
        if self._recording is not None:
            self._recording.stepped(self._core.step(last, self.end), last, self.end)
            self._recording.close(30)
        self.integral = integral.finish(outcome.end // 1000)
        self.evictions = outcome.evictions

    def step(self, deltas: Sequence[Delta], now: float) -> StepResult:
        """One step of the core."""
        result = self._core.step(deltas, now)
        if deltas or result.intents or not result.idle:
            self.steps.append((now, list(deltas), list(result.intents)))
        if self._recording is not None:
            self._recording.stepped(result, deltas, now)
        return result
