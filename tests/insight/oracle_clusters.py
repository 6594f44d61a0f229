"""Small random clusters that a seed determines, as statements of the scenario notation, under the confs in use.

A cluster has one to four nodes, a tree of queues and up to eight jobs. Half of the jobs hold what the others need. A
few seconds later nodes, queues and pods change. A statement can be left out without a change of the others, so that
`minimized` finds the statements that a finding needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tests.scenarios.notation import manifests, operation

H200, A100, MPS, MIG = "NVIDIA-H200", "NVIDIA-A100-80GB", "NVIDIA-H800/mps-80g*1/2", "NVIDIA-H200/mig-1g.18gb-mixed"
GANG: Final = "{name: gang, enablePreemptable: false}"
_FIRST: Final = f"{{name: priority}}, {GANG}, {{name: conformance}}"


def _conf(*others: str, actions: str = "enqueue, allocate, backfill") -> str:
    return f'actions: "{actions}"\ntiers: [{{plugins: [{_FIRST}]}}, {{plugins: [{", ".join(others)}]}}]\n'


_CARDS: Final = "{name: capacity-card, arguments: {unnamedCards: infer}}"
_REST: Final = ("{name: predicates}", "{name: nodeorder}", "{name: binpack}")
_DRF: Final = "{name: drf, enablePreemptable: false}"
#: Scheduler-confs by name; "" for the built-in one.
CONFS: Final = {
    "built-in": "",
    "volcano": _conf("{name: overcommit}", _DRF, "{name: predicates}", "{name: proportion}", *_REST[1:]),
    "proportion": _conf("{name: proportion}", *_REST),
    "capacity": _conf("{name: capacity, enableHierarchy: false}", *_REST),
    "capacity of a tree": _conf("{name: capacity, enableHierarchy: true}", *_REST),
    "cards, overcommit": _conf("{name: overcommit}", _CARDS, *_REST),
    "cards, proportion": _conf(_CARDS, "{name: proportion}", *_REST),
    "cards, capacity": _conf(_CARDS, "{name: capacity, enableHierarchy: false}", *_REST),
    "cards, capacity of a tree": _conf(_CARDS, "{name: capacity, enableHierarchy: true}", *_REST),
    "cards, resourcequota": _conf("{name: resourcequota}", _CARDS, *_REST),
    "cards, vgpu": _conf(_CARDS, "{name: deviceshare, arguments: {deviceshare.VGPUEnable: true}}", *_REST),
    "cards, evictions": _conf(_CARDS, *_REST, actions="enqueue, allocate, preempt, reclaim, backfill"),
}

#: Seconds at which the timeline is over.
END: Final = 7


class Cluster(NamedTuple):
    """The statements of a cluster and of its timeline."""

    conf: str
    statements: tuple[str, ...]
    operations: tuple[str, ...] = ()
    #: Objects without a notation.
    raw: tuple[dict[str, Any], ...] = ()

    def objects(self) -> list[dict[str, Any]]:
        """All manifests."""
        return [*manifests("\n".join(self.statements)), *self.raw]

    def timeline(self) -> list[dict[str, Any]]:
        """The operations of a Scenario."""
        return [operation(text) for text in self.operations]

    def __str__(self) -> str:
        lines = [f"conf: {self.conf}", *self.statements, *map(str, self.raw), *self.operations]
        return "\n".join(lines)


class _Maker:
    """Draws one cluster."""

    def __init__(self, seed: int) -> None:
        self._seed, self._random = seed, random.Random(seed)
        self._conf = sorted(CONFS)[seed % len(CONFS)]
        self._has_cards = "cards" in self._conf or self._conf == "built-in"
        self._lines: list[str] = []
        self._later: list[str] = []
        self._raw: list[dict[str, Any]] = []
        self._nodes: list[str] = []
        self._kinds: set[str] = set()

    def cluster(self) -> Cluster:
        one = self._random.randint
        for index in range(one(1, 4)):
            self._node(f"n{index}")
        self._queues()
        for name, value in (("low", 10), ("high", 1000)):
            if not one(0, 1):
                self._lines.append(f"priority_class {name} {value}")
        has = {name for name in ("low", "high") if any(f" {name} " in line for line in self._lines)}
        self._classes = ["", "", "", *sorted(has)]
        for index in range(one(3, 7)):
            self._job(f"j{index}")
        if self._conf == "cards, resourcequota" or not one(0, 9):
            self._resource_quota()
        for _ in range(self._any(0, 1, 1, 2)):
            self._change()
        return Cluster(self._conf, tuple(self._lines), tuple(self._later), tuple(self._raw))

    def _any(self, *values: Any) -> Any:
        return self._random.choice(values)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> None:
        one = self._random.randint
        self._nodes.append(name)
        kinds = ["h200", "h200", "h200", "a100", "cpu", "mps", "mig"]
        if "vgpu" in self._conf:
            kinds += ["vgpu"] * 3
        kind = self._any(*kinds)
        self._kinds.add(kind)
        cpu, memory = self._any(8, 16, 32, 64), self._any("32Gi", "128Gi", "512Gi")
        labels = f"kubernetes.io/hostname:{name},zone:{self._any('x', 'y')}"
        words = {
            "h200": f"{self._any(2, 4, 8)}*{H200}",
            "a100": f"{self._any(2, 4, 8)}*{A100}",
            "cpu": "",
            "mps": "nvidia.com/gpu.shared=4",
            "mig": f"{one(1, 7)}*{H200} nvidia.com/mig-1g.18gb={one(1, 4)}",
            "vgpu": "volcano.sh/vgpu-number=20",
        }[kind]
        if kind == "mps":
            labels += ",nvidia.com/gpu.product:NVIDIA-H800,nvidia.com/gpu.memory:81559,nvidia.com/gpu.count:2"
            labels += ",nvidia.com/gpu.replicas:2"
        if kind == "mig":
            labels += ",nvidia.com/mig.strategy:mixed,nvidia.com/mig-1g.18gb.count:3"
        if kind == "vgpu":
            cards = ":".join(f"{name}-{card},10,8192,NVIDIA-T4,true,hami-core" for card in range(2))
            words += f' annotations={{volcano.sh/node-vgpu-register: "{cards}:"}}'
        pods = f" pods={one(2, 4)}" if not one(0, 11) else ""
        spec = self._state()
        self._lines.append(
            f"node {name} {words} cpu={cpu} memory={memory} labels={labels}{pods}{spec}".replace("  ", " ")
        )

    def _state(self) -> str:
        match self._random.randint(0, 17):
            case 0:
                return " spec={unschedulable: true}"
            case 1:
                return " spec={taints: [{key: dedicated, value: llm, effect: NoSchedule}]}"
            case 2:
                return " spec={taints: [{key: node.kubernetes.io/unreachable, effect: NoSchedule}]}"
            case _:
                return ""

    # --- queues -----------------------------------------------------------------------------------------------------

    def _queues(self) -> None:
        one = self._random.randint
        self._lines.append("queue p " + self._limits(2))
        for name, parent in (("a", "p"), ("b", "p"), ("c", "root")):
            fifo = " dequeueStrategy=fifo" if not one(0, 9) else ""
            more = f" {self._limits(1)} weight={one(1, 3)}{fifo}"
            self._lines.append(f"queue {name} parent={parent}{more}")

    def _limits(self, times: int) -> str:
        one, words = self._random.randint, []
        if self._has_cards and one(0, 11):
            cards = {card: times * one(2, 9) for card in (H200, A100, MPS, MIG, "NVIDIA-T4") if one(0, 5)}
            words.append(f"cards={','.join(f'{card}:{amount}' for card, amount in cards.items())}" if cards else "")
        if not one(0, 2) or "capacity" in self._conf:
            gpu = f",nvidia.com/gpu:{times * one(3, 9)}" if one(0, 1) and not self._has_cards else ""
            words.append(f"cap=cpu:{times * one(6, 32)},memory:{times * one(40, 300)}Gi{gpu}")
        if "capacity" in self._conf and not one(0, 1):
            words.append(f"deserved={{cpu: {times * one(1, 6)}, memory: {times * one(2, 16)}Gi}}")
        if not one(0, 5) and "capacity" in self._conf:
            words.append(f"guarantee={{resource: {{cpu: {times * one(1, 4)}}}}}")
        return " ".join(filter(None, words))

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _job(self, name: str) -> None:
        one = self._random.randint
        queue = self._any("a", "a", "b", "c", "c", *(["zz"] if not one(0, 12) else []))
        pods = self._any(1, 1, 2, 2, 3, 4)
        cpu = self._any(1, 1, 2, 2, 4, 4, 8, 12)
        template = f"cpu={cpu} memory={self._any(1, 1, 4, 4, 16, 30)}Gi {self._device()}{self._placement(name)}"
        cls = self._any(*self._classes)
        cls = f" class={cls}" if cls else ""
        scheduler = " scheduler=default-scheduler" if not one(0, 24) else ""
        match one(0, 9):
            case 0 | 1 | 2 | 3:
                minimum = self._any(pods, pods, pods, one(1, pods), *([pods + 1] if not one(0, 12) else []))
                extra = f" + ps*1 cpu={self._any(1, 4)}" if not one(0, 5) else ""
                minimum += bool(extra)
                self._lines.append(
                    f"job {name} queue={queue} min={minimum}{scheduler}{cls.replace('class', 'priorityClassName')}"
                    f" + w*{pods} {template}{extra}"
                )
            case 4 | 5 | 6:
                self._lines.append(f"deployment {name}*{pods} queue={queue} {template}{cls}{scheduler}")
            case 7 | 8:
                minimum = self._any(pods, pods, one(1, pods), *([pods + 1] if not one(0, 6) else []))
                request = ""
                self._lines.append(f"group {name} queue={queue} min={minimum}{request}")
                for index in range(pods):
                    self._lines.append(f"pod {name}-{index} group={name} queue={queue} {template}{cls}{scheduler}")
            case _:
                self._lines.append(f"pod {name} queue={queue} {template}{cls}{scheduler}")

    def _device(self) -> str:
        one, cards = self._random.randint, self._any(1, 1, 1, 2, 2, 2, 4, 8)
        kinds = [kind for kind in ("h200", "h200", "a100", "mps", "mig") if kind in self._kinds or not one(0, 9)]
        if "vgpu" in self._kinds:
            kinds += ["vgpu", "vgpu"]
        if one(0, 4) == 0:
            kinds = ["cpu"]
        if not self._has_cards:
            has = self._kinds & {"h200", "a100", "mig"} or not one(0, 9)
            return self._any("", f"gpu={cards}") if has and kinds != ["cpu"] else ""
        match self._any(*(kinds or ["cpu"])):
            case "h200":
                name = self._any(H200, H200, H200, f"{H200}|{A100}", *(["NVIDIA-H-200"] if not one(0, 9) else []))
                return f"gpu={cards} card={name}" if one(0, 11) else f"gpu={cards}"
            case "a100":
                return f"gpu={cards} card={self._any(A100, A100, f'{A100}|{H200}')}"
            case "mps":
                return f"limits=nvidia.com/gpu.shared:1 card={MPS}"
            case "mig":
                return f"limits=nvidia.com/mig-1g.18gb:1 card={MIG}"
            case "vgpu":
                return (
                    f"limits=volcano.sh/vgpu-number:{self._any(1, 1, 2, 3)},volcano.sh/vgpu-memory:{one(1, 9) * 1000}"
                )
            case _:
                return ""

    def _placement(self, name: str) -> str:
        one = self._random.randint
        term = f"labelSelector: {{matchLabels: {{app: {name}}}}}, topologyKey: kubernetes.io/hostname"
        labels = f" labels=app:{name}"
        match one(0, 39):
            case 0 | 1:
                return f" nodeSelector={{zone: {self._any('x', 'y', 'z')}}}"
            case 2 | 3:
                required = f"requiredDuringSchedulingIgnoredDuringExecution: [{{{term}}}]"
                return f"{labels} affinity={{podAntiAffinity: {{{required}}}}}"
            case 4:
                spread = f"{{maxSkew: 1, whenUnsatisfiable: DoNotSchedule, {term}}}"
                return f"{labels} topologySpreadConstraints=[{spread}]"
            case 5 | 6:
                return f" port={self._any(29500, 29501)}"
            case 7:
                return " schedulingGates=[{name: example.com/later}]"
            case 8:
                return " tolerations=[{key: dedicated, operator: Exists}]"
            case 9:
                self._claim(name)
                return f" volumes=[{{name: data, persistentVolumeClaim: {{claimName: {name}}}}}]"
            case 10:
                return " requests=rdma/hca:1 limits=rdma/hca:1" if not one(0, 1) else " hostNetwork=true"
            case _:
                return f"{labels}{self._affinity(name)}"

    def _affinity(self, name: str) -> str:
        """Sometimes an affinity to the pods of a job, which may not exist. Of its own numbers: other parts stay."""
        chosen = random.Random(f"{self._seed} {name}")
        if chosen.randrange(12):
            return ""
        key, app = chosen.choice(("kubernetes.io/hostname", "zone", "zone")), f"j{chosen.randrange(6)}"
        term = f"{{labelSelector: {{matchLabels: {{app: {app}}}}}, topologyKey: {key}}}"
        return f" affinity={{podAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{term}]}}}}"

    def _claim(self, name: str) -> None:
        """A claim bound to a volume of one node; sometimes none."""
        if not self._random.randint(0, 3):
            return
        node = self._any(*self._nodes)
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
        volume = {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}, "local": {"path": "/d"},
        }  # fmt: skip
        claim = {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "",
            "volumeName": f"pv-{name}",
        }  # fmt: skip
        self._raw += [
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv-{name}"}, "spec": volume,
             "status": {"phase": "Bound"}},
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
             "spec": claim, "status": {"phase": "Bound"}},
        ]  # fmt: skip

    def _resource_quota(self) -> None:
        one = self._random.randint
        hard = {"requests.nvidia.com/gpu": str(one(1, 6))} if one(0, 1) else {"requests.cpu": str(one(2, 20))}
        self._raw.append(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": "default"},
             "spec": {"hard": hard}}
        )  # fmt: skip

    # --- changes ----------------------------------------------------------------------------------------------------

    def _change(self) -> None:
        one = self._random.randint
        node, queue = self._any(*self._nodes), self._any("a", "b", "c")
        match one(0, 6):
            case 0:
                self._later.append(f"4s patch Node {node} {{spec: {{unschedulable: true}}}}")
            case 1:
                taint = "{key: dedicated, value: llm, effect: NoSchedule}"
                self._later.append(f"4s patch Node {node} {{spec: {{taints: [{taint}]}}}}")
            case 2 if self._has_cards:
                quota = f'{{"{H200}": {one(0, 3)}}}'
                self._later.append(
                    f"4s patch Queue {queue} {{metadata: {{annotations: {{volcano.sh/card.quota: '{quota}'}}}}}}"
                )
            case 3:
                self._later.append(f"4s patch Queue {queue} {{status: {{state: {self._any('Closed', 'Closing')}}}}}")
            case 4:
                late = "late" if not any(" pod late " in line for line in self._later) else "later"
                self._later.append(f"4s pod {late} queue={queue} cpu=2 {self._device()}")
            case _:
                victims = [line.split()[1] for line in self._lines if line.startswith("pod ")]
                if victims:
                    name = self._any(*victims)
                    if f"4s delete Pod {name}" in self._later:
                        return
                    if one(0, 1):
                        self._later.append(f"4s delete Pod {name}")
                        index = next(i for i, line in enumerate(self._lines) if line.startswith(f"pod {name} "))
                        self._lines[index] += " grace=10h"
                    else:
                        self._later.append(
                            f"4s patch Pod {name} {{status: {{phase: Failed, reason: Evicted, message: low}}}}"
                        )


def random_cluster(seed: int) -> Cluster:
    """The cluster of a seed."""
    return _Maker(seed).cluster()


def minimized(cluster: Cluster, fails: Callable[[Cluster], bool]) -> Cluster:
    """The cluster without the statements that `fails` does not need."""

    def without(parts: Sequence[Any], index: int) -> tuple[Any, ...]:
        return (*parts[:index], *parts[index + 1 :])

    shrinks = True
    while shrinks:
        shrinks = False
        for field in ("operations", "statements", "raw"):
            index = len(getattr(cluster, field)) - 1
            while index >= 0:
                changed: Any = {field: without(getattr(cluster, field), index)}
                smaller = cluster._replace(**changed)
                if fails(smaller):
                    cluster, shrinks = smaller, True
                index -= 1
    return cluster
