"""Random clusters that a seed determines: queues, nodes, workloads, and changes of them between two sessions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model.deltas import BindFailed, EvictFailed, ObjectChanged, ObjectGone, ObjectUnreadable, Takeover
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.objects import ConfigMapObject
from capcard_sched.testing import Harness
from capcard_sched.testing.storage import on_nodes

_CARDS: Final = ("A", "B", "C")
_GANG: Final = "{name: gang, enablePreemptable: false, enableReclaimable: false}"
_FIRST: Final = f"{{name: priority}}, {_GANG}, {{name: conformance}}"
_ACTIONS: Final = "enqueue, allocate, preempt, reclaim, backfill"
_CARD_PLUGIN: Final = "{name: capacity-card, arguments: {unnamedCards: infer%s}}"


def _conf(first: str, *others: str, actions: str = _ACTIONS) -> str:
    return f'actions: "{actions}"\ntiers: [{{plugins: [{first}]}}, {{plugins: [{", ".join(others)}]}}]'


#: Scheduler-confs by name.
CONFS: Final = {
    "cards": _conf(
        _FIRST, "{name: drf, enablePreemptable: false}", "{name: predicates}", _CARD_PLUGIN % "",
        "{name: nodeorder}", "{name: binpack}", "{name: network-topology-aware}",
    ),
    "tidal cards": _conf(
        _FIRST, "{name: predicates}", _CARD_PLUGIN % ", overCommitFactor: 1.5, publishCardUsage: true",
        "{name: binpack}", "{name: pdb}", "{name: sla, arguments: {sla-waiting-time: 4s}}", "{name: resourcequota}",
        actions="enqueue, allocate, reclaim, preempt, backfill",
    ),
    "cards of whole jobs": _conf(
        _FIRST, "{name: predicates}", "{name: nodeorder}",
        _CARD_PLUGIN % ", cardMinimum: allPods, multiCardJobMode: single, gangEviction: policy, reclaimElastic: false",
        "{name: task-topology}", "{name: overcommit, arguments: {overcommit-factor: 1.2}}",
    ),
    "shares": _conf(
        _FIRST, "{name: drf}", "{name: predicates}", "{name: proportion}", "{name: nodeorder}",
        "{name: network-topology-aware}",
    ),
    "capacity": _conf(
        _FIRST, "{name: predicates}", "{name: capacity}", "{name: nodeorder}", "{name: binpack}",
        "{name: network-topology-aware}",
    ),
}  # fmt: skip


class RandomCluster:
    """A harness with objects by a seed; `change` is what happens before the next session."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._name = sorted(CONFS)[seed % len(CONFS)]
        # Every third one ends sessions by a clock of its own.
        clock = count(step=0.002).__next__ if seed % 3 == 0 else None
        self.h = Harness(CONFS[self._name], run=True, timer=clock, session_deadline=0.4 if clock is not None else 0.0)
        #: Names of nodes, waiting and running pods included.
        self._nodes: list[str] = []
        self._groups = 0
        self._queues = ("a", "b", "c", "d")
        for name, value in (("low", 10), ("high", 1000)):
            self.h.priority_class(name, value)
        self.h.queue("root")
        self._queue("p", parent="root")
        for name, parent in zip(self._queues, ("p", "p", "root", "root"), strict=True):
            self._queue(name, parent=parent)
        for _ in range(self._random.randint(2, 5)):
            self._node()
        self._hyper_nodes()
        self._storage()
        for _ in range(self._random.randint(3, 7)):
            self._group()

    def _any(self, *values: Any) -> Any:
        return self._random.choice(values)

    # --- objects ----------------------------------------------------------------------------------------------------

    def _queue(self, name: str, parent: str) -> None:
        one = self._random.randint
        plenty = {"cpu": "90", "memory": "1Ti"}
        few = {"cpu": str(one(2, 20)), "memory": f"{one(8, 40)}Gi", "nvidia.com/gpu": one(1, 9)}
        cards: Any = {card: one(4, 18) for card in _CARDS if one(0, 9)}
        if not one(0, 5):
            cards["A|B"] = one(1, 9)
        self.h.queue(
            name, parent=parent, cards=cards, weight=one(1, 4), priority=self._any(None, 5, 50),
            reclaimable=self._any(*[None] * 5, False), dequeue=self._any(*[None] * 7, "fifo"),
            capability=self._any({"cpu": str(one(15, 90)), "memory": "300Gi"}, *[plenty] * 3, None),
            deserved=self._any(None, few),
            guarantee=self._any(None, None, None, {"cpu": str(one(1, 3))}),
        )  # fmt: skip

    def _node(self, name: str = "") -> None:
        """A new node, or other facts of an old one."""
        one, name = self._random.randint, name or f"n{len(self._nodes)}"
        if name not in self._nodes:
            self._nodes.append(name)
        labels = {"zone": self._any("x", "y"), "rack": self._any("r", "s", "t")}
        only = {"key": "only", "value": "few", "effect": self._any("NoSchedule", "PreferNoSchedule")}
        taints = self._any((), (), (), (), (), (only,))
        common: dict[str, Any] = {"cpu": str(one(6, 20)), "memory": f"{one(16, 64)}Gi", "labels": labels}
        if one(0, 4):
            self.h.gpu_node(
                name, card=self._any("A", "A", "A", "B", "B", "C"), count=one(2, 6), taints=taints,
                unschedulable=not one(0, 14), pods=one(6, 20), **common,
            )  # fmt: skip
        else:
            self.h.node(name, taints=taints, **common)

    def _hyper_nodes(self) -> None:
        self._random.shuffle(racks := list(self._nodes))
        middle = len(racks) // 2
        self.h.hyper_node("r0", 1, nodes=racks[:middle])
        self.h.hyper_node("r1", 1, nodes=racks[middle:])
        self.h.hyper_node("s", 2, hyper_nodes=["r0", "r1"])

    def _storage(self) -> None:
        one = self._random.randint
        self.h.storage_class("local", provisioner="kubernetes.io/no-provisioner")
        self.h.storage_class("made", topologies=[("zone", ["x"])] if not one(0, 3) else ())
        self.h.csi_driver("csi.test", storage_capacity=True)
        for zone in "xy":
            self.h.storage_capacity(zone, storage_class="made", capacity=f"{one(1, 20)}Gi", labels={"zone": zone})
        for name in self._nodes:
            self.h.csi_node(name, csi_test=one(1, 4))
            self.h.volume(f"on-{name}", storage_class="local", size=f"{one(1, 6)}Gi", affinity=on_nodes(name))

    def _group(self) -> None:
        one, name = self._random.randint, f"j{self._groups}"
        self._groups += 1
        pods = one(1, 5) if one(0, 9) else one(6, 12)
        minimum = self._any(pods, one(1, pods), 1, 1)
        card = self._any("", "A", "A", "A", "B", "C", "A|B", "B|A", "none", *(["A||B", "D"] if not one(0, 5) else []))
        count = one(1, 2) if card else 0
        queue = self._any(*self._queues)
        service, priority = ("training", "low") if queue in "ab" else ("inference", "high")
        if not one(0, 3):
            service, priority = self._any(("training", "high"), ("inference", "low"), ("", ""))
        notes: dict[str, str] = {keys.SERVICE_TYPE: service} if service else {}
        if card not in ("", "none") and not one(0, 2):
            notes[keys.CARD_REQUEST] = f'{{"{card}": {count * minimum}}}'
        if not one(0, 4):
            notes[keys.EVICT_SCOPE] = "job"
        leaf = {"mode": self._any("hard", "soft"), "highestTierAllowed": one(1, 2)}
        topology = self._any(None, None, None, None, None, leaf)
        self.h.group(
            name, queue=queue, min_member=minimum, phase="Pending",
            annotations=notes, priority_class=priority, topology=topology,
            min_resources=self._any(None, {"cpu": str(minimum)}),
            min_task_member=self._any(*[None] * 9, {"w": minimum}),
        )  # fmt: skip
        spec = self._pod_spec(name)
        for index in range(pods):
            if not one(0, 7):
                spec = self._pod_spec(name)
            self._pod(name, index, card, count, spec)

    def _pod_spec(self, name: str) -> dict[str, Any]:
        one = self._random.randint
        spec: dict[str, Any] = {"requests": {"cpu": str(one(1, 3)), "memory": f"{one(1, 6)}Gi"} if one(0, 11) else {}}
        key = self._any("zone", "kubernetes.io/hostname")
        term = {"labelSelector": {"matchLabels": {"job": name}}, "topologyKey": key}
        match one(0, 24):
            case 0:
                spec["nodeSelector"] = {"zone": "x"}
            case 1:
                spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            case 2:
                spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            case 3:
                preferred = [{"weight": 10, "podAffinityTerm": term}]
                spec["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
            case 4:
                spread = {"maxSkew": 1, "whenUnsatisfiable": self._any("DoNotSchedule", "ScheduleAnyway"), **term}
                spec["topologySpreadConstraints"] = [spread]
            case 5:
                spec["tolerations"] = [{"key": "only", "operator": "Exists"}]
            case 6:
                spec["schedulingGates"] = [{"name": "later"}]
            case 7 | 8:
                self.h.claim(f"{name}-c", storage_class=self._any("local", "made"), size=f"{one(1, 4)}Gi")
                spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": f"{name}-c"}}]
            case 9:
                spec["preemptionPolicy"] = "Never"
            case 10 | 11:
                match = [{"key": "zone", "operator": "In", "values": [self._any("x", "y")]}]
                preferred = [{"weight": one(1, 90), "preference": {"matchExpressions": match}}]
                spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
            case 12:
                spec["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}]
                spec["overhead"] = {"cpu": "250m"}
        return spec

    def _pod(self, group: str, index: int, card: str, count: int, spec: dict[str, Any]) -> None:
        self.h.pod(
            f"{group}-w-{index}", group=group, role=self._any("w", "w", "w", "v"), labels={"job": group},
            annotations={keys.PREEMPTABLE: self._any("true", "true", "true", "true", "false")},
            priority=self._any(*[None] * 9, 7), phase=self._any(*[None] * 19, "Succeeded"),
            card=None if card in ("", "none") else card, cards=count, **spec,
        )  # fmt: skip

    # --- changes ----------------------------------------------------------------------------------------------------

    def change(self, evicted: Sequence[str]) -> None:
        """Evicted pods terminate or go; then up to three random changes."""
        one, gone = self._random.randint, set(evicted)
        for name in evicted:
            if one(0, 3):
                self._any(self.h.terminate, self.h.delete_pod)(name)
            else:
                self.h.apply(EvictFailed("default", name, f"default-{name}-uid", "refused"))
        for _ in range(one(0, 3)):
            alive = sorted({task.name for task in self.h.state.tasks.values()} - gone)
            running = sorted(name for name in alive if name in self.h.binds)
            match one(0, 26):
                case 0 | 1 | 2 | 10 | 11:
                    self._group()
                case 3 if running:
                    self.h.set_phase(self._any(*running), self._any("Succeeded", "Failed"))
                case 4 if running:
                    self.h.terminate(self._any(*running))
                case 5 if alive:
                    gone.add(name := self._any(*alive))
                    self.h.delete_pod(name)
                case 6:
                    self._queue(self._any(*self._queues), parent="root")
                case 7:
                    self._node()
                case 8:
                    self.h.delete_node(self._any(*self._nodes))
                case 9:
                    self.h.pod(
                        f"other-{one(0, 9)}", group=None, scheduler="other", node=self._any(*self._nodes),
                        requests={"cpu": "2"},
                    )  # fmt: skip
                case 12 if alive:
                    self.h.nominate(self._any(*alive), self._any(*self._nodes))
                case 13 if running:
                    name = self._any(*running)
                    self.h.apply(BindFailed("default", name, f"default-{name}-uid", "refused", 2.0))
                case 14:
                    selector = {"matchLabels": {"job": f"j{one(0, self._groups)}"}}
                    budget = {"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": selector}}
                    self.h.apply(ObjectChanged(msgspec.convert(budget, PodDisruptionBudgetObject)))
                case 15:
                    self._any(self.h.delete_group, self._group_again)(f"j{one(0, self._groups - 1)}")
                case 16:
                    members = [{"type": "Node", "selector": {"regexMatch": {"pattern": f"^n[{one(0, 3)}-9]$"}}}]
                    self.h.hyper_node("r1", 1, members=members)
                case 17:
                    self._node(self._any(*self._nodes))
                case 18:
                    self.h.apply(self._gone())
                case 19 if alive:
                    name = self._any(*alive)
                    group, _, index = name.partition("-w-")
                    if index:
                        self._pod(group, int(index), self._any("", "A", "B"), 1, {})
                case 20:
                    self._name = self._any(*CONFS)
                    self.h.reconfigure(CONFS[self._name])
                case 21:
                    self.h.apply(Takeover())
                case 22:
                    hard = {"requests.cpu": str(one(5, 20)), "requests.nvidia.com/gpu": str(one(1, 8)), "pods": "20"}
                    quota = {
                        "metadata": {"name": "r", "namespace": "default"}, "spec": {"hard": hard},
                        "status": {"hard": hard, "used": {"requests.cpu": str(one(1, 6))}},
                    }  # fmt: skip
                    self.h.apply(ObjectChanged(msgspec.convert(quota, ResourceQuotaObject)))
                case 23:
                    kind, name = self._any(("Pod", f"j{one(0, self._groups)}-w-0"), ("PodGroup", f"j{one(0, 9)}"))
                    self.h.apply(ObjectUnreadable(ObjectRef(kind, "default", name, f"default-{name}-uid"), "no"))
                case 24:
                    self._malformed()
                case 25:
                    data = {"volcano-usage": self._any("cpu: 1", "{")}
                    config = {"metadata": {"name": "m", "namespace": "default"}, "data": data}
                    self.h.apply(ObjectChanged(msgspec.convert(config, ConfigMapObject)))
                case 26 if running:
                    self.h.terminate(name := self._any(*running))
                    self.h.apply(EvictFailed("default", name, f"default-{name}-uid", "late"))
                case _:
                    pass

    def _malformed(self) -> None:
        """An object with a value that cannot be read."""
        one, group = self._random.randint, f"j{self._random.randint(0, self._groups - 1)}"
        match one(0, 5):
            case 0:
                self.h.storage_capacity("x", storage_class="made", capacity="many", labels={"zone": "x"})
            case 1:
                self.h.group(group, queue="a", min_member=one(1, 3), phase="Pending", min_resources={"cpu": "many"})
            case 2:
                self.h.hyper_node("r1", 1, members=[{"type": "Node", "selector": {"regexMatch": {"pattern": "["}}}])
            case 3:
                self.h.claim(f"{group}-c", storage_class="made", size="much")
            case 4:
                self.h.queue("a", cards=self._any("8", '{"A": "x"}', '{"A": -1}'), capability={"cpu": "many"})
            case _:
                self.h.node(self._any(*self._nodes), cpu="many")

    def _gone(self) -> ObjectGone:
        """The deletion of an object other than pods and nodes."""
        node, group = self._any(*self._nodes), f"j{self._random.randint(0, self._groups - 1)}"
        kind, namespace, name = self._any(
            ("StorageClass", "", "made"), ("StorageClass", "", "local"), ("CSINode", "", node),
            ("CSIDriver", "", "csi.test"), ("CSIStorageCapacity", "kube-system", self._any("x", "y")),
            ("PersistentVolume", "", f"on-{node}"), ("PersistentVolumeClaim", "default", f"{group}-c"),
            ("PriorityClass", "", "high"), ("HyperNode", "", self._any("r0", "r1", "s")),
            ("Queue", "", self._any(*self._queues)), ("PodDisruptionBudget", "default", "b"),
            ("ResourceQuota", "default", "r"), ("ConfigMap", "default", "m"), ("PodGroup", "default", group),
        )  # fmt: skip
        return ObjectGone(kind, namespace, name)

    def _group_again(self, name: str) -> None:
        self.h.group(name, queue=self._any(*self._queues), min_member=self._random.randint(1, 3), phase="Pending")
